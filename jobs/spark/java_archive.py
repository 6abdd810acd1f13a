"""A class-data sharing archive of Spark's jars, which halves the start of a Java.

    python -m jobs.spark.java_archive

makes it, once for this Java and these jars, in half a minute. Without one, or where it does not fit, Java reads the
jars itself. An archive fits only if no folder on the class path has a file in it, so Spark's settings come as options.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from jobs.spark.code_archive import ROOT, first_on_path
from jobs.spark.java import java_home
from storage_core.errors import Unavailable
from storage_core.private_folder import private_folder, require_private
from storage_core.settings.cache import CacheSettings

MESSAGES = Path(__file__).parent / "conf" / "log4j2.properties"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a Java that lives for seconds, or that only hands out tasks: one compiler, and no threads that collect."""

LOG = logging.getLogger(__name__)

# That an archive does not fit its command line, Java would write to standard output.
_QUIET = "-Xlog:disable -Xlog:all=warning:stderr -Xlog:cds=off:stderr -Xlog:cds+dynamic=off:stderr"
_PROGRAM = """
from jobs.spark.java_archive import work
from jobs.spark.spark import Spark
with Spark('local[2]') as spark:
    spark.map(work, [{}, {}])
"""


def folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return where archives are: beside a checkout in `.java`, else beside the cache of the user."""
    cached = CacheSettings.of(environment).folder
    return (
        ROOT / ".java"
        if (ROOT / "pyproject.toml").is_file() or cached is None
        else cached.with_name(f"{cached.name}-java")
    )


def no_settings() -> Path:
    """Return a folder for `SPARK_CONF_DIR` with which an archive fits. Raises `Unavailable` where others may write."""
    return private_folder(private_folder(folder()) / "no-settings")


def spark_home() -> Path:
    """Return where Spark is, found without importing it. Raises `Unavailable`."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise Unavailable("the package pyspark is not installed; install tidemark with [pipeline]")
    return Path(spec.origin).parent


def archive() -> Path | None:
    """Return where the archive for this Java and these jars is, or would be; None where this Java makes none."""
    home = java_home()
    if home is None or not (home / "lib" / "server" / "classes.jsa").is_file():
        return None
    jars = [(str(jar), jar.stat().st_size, jar.stat().st_mtime_ns) for jar in sorted(spark_home().glob("jars/*.jar"))]
    release = (home / "release").read_text(encoding="utf-8")
    known = repr((str(home), release, str(folder() / "no-settings"), jars))
    return folder() / f"spark-{hashlib.sha256(known.encode()).hexdigest()[:16]}.jsa"


def mapping_options() -> str:
    """Return the options of a Java that maps the archive; none where there is none that is this user's alone."""
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
    """Return the options of a Java that says what these settings of log4j tell, maps the archive, and has `more`."""
    return f'{more} {mapping_options()} "-Dlog4j2.configurationFile={messages}"'.strip()


def submitting(java_options: str) -> dict[str, str]:
    """Return the environment of a process whose Spark starts a Java with these options."""
    return {
        "SPARK_CONF_DIR": str(no_settings()),
        "SPARK_LAUNCHER_OPTS": QUICK,
        "PYSPARK_SUBMIT_ARGS": f"--conf 'spark.driver.extraJavaOptions={java_options}' pyspark-shell",
    }


def work(item: object) -> dict[str, object]:
    """What a task does so that Java has read what tasks need."""
    return {"item": item}


def make() -> Path | None:
    """Return the archive, made where there is none; None where this Java makes none. Raises `Unavailable`.

    That it is made is a line on standard error, before: it takes long.
    """
    found = archive()
    if found is not None:
        private_folder(found.parent)
    if found is None or found.exists():
        return found
    sys.stderr.write(
        "Spark's classes are left in an archive, for each Java that is started later; this takes half a minute, once\n"
    )
    half = found.with_suffix(f".{os.getpid()}")
    given = f'{QUICK} "-XX:ArchiveClassesAtExit={half}" -Xlog:disable "-Dlog4j2.configurationFile={MESSAGES}"'
    environment = {**os.environ, **first_on_path(os.environ), **submitting(given)}
    # Until the last one has closed its output: Java writes the archive once the program has ended.
    ended = subprocess.run([sys.executable, "-c", _PROGRAM], env=environment, check=False, stdout=subprocess.PIPE)
    if ended.returncode or not half.exists():
        raise Unavailable(f"no archive of Spark's classes was made: the program for it ended with {ended.returncode}")
    for old in found.parent.glob("spark-*.jsa"):
        old.unlink()
    half.rename(found)
    return found


if __name__ == "__main__":
    make()
