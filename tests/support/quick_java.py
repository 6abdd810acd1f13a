"""Java that lives for seconds: no second compiler, no threads that collect garbage, and Spark's classes read already.

Together they save more than half of the processor time. What a Java has read of Spark's jars it can leave behind in an
archive, which others map: `python -m tests.support.quick_java` makes it, once for this Java and these jars, in half a
minute; without it Java starts slower.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_FOLDER = _ROOT / ".java"
_NO_ARCHIVE = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# That an archive does not fit its command line, Java would write to standard output.
_QUIET = "-Xlog:disable -Xlog:all=warning:stderr -Xlog:cds=off:stderr -Xlog:cds+dynamic=off:stderr"
# An archive fits only if no folder on the class path has a file in it: Spark's settings come in another way.
_CONF = _FOLDER / "no-settings"
_MESSAGES = _ROOT / "jobs" / "spark" / "conf" / "log4j2.properties"

NAMES = ("SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS")
"""What tells Spark of such a Java: without these it starts the one that a user has."""


def spark_home() -> Path:
    """Where the pip package is, found without importing it."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise AssertionError("the package pyspark is not installed; run `make setup`")
    return Path(spec.origin).parent


def _java_home() -> Path | None:
    if home := os.environ.get("JAVA_HOME"):
        return Path(home)
    java = shutil.which("java")
    return Path(java).resolve().parents[1] if java else None


def _archive() -> Path | None:
    """Where the archive for this Java and these jars is, or would be; None where this Java cannot make one."""
    home = _java_home()
    if home is None or not (home / "lib" / "server" / "classes.jsa").is_file():
        return None
    jars = [(str(jar), jar.stat().st_size, jar.stat().st_mtime_ns) for jar in sorted(spark_home().glob("jars/*.jar"))]
    release = (home / "release").read_text(encoding="utf-8")
    name = hashlib.sha256(repr((str(home), release, str(_CONF), jars)).encode()).hexdigest()[:16]
    return _FOLDER / f"spark-{name}.jsa"


def options(messages: Path = _MESSAGES) -> str:
    """The options of such a Java, which says what these settings of log4j tell: those of jobs, if not told others."""
    archive = _archive()
    mapped = f'"-XX:SharedArchiveFile={archive}" {_QUIET}' if archive and archive.exists() else ""
    return _joined(mapped, messages)


def environment() -> dict[str, str]:
    """What a process has in its environment whose Spark starts such a Java, and the one that builds its command."""
    return _environment(options())


def no_settings() -> Path:
    """A folder for `SPARK_CONF_DIR` with which the archive fits."""
    _CONF.mkdir(parents=True, exist_ok=True)
    return _CONF


def _joined(archive: str, messages: Path) -> str:
    return f'{_NO_ARCHIVE} {archive} "-Dlog4j2.configurationFile={messages}"'


def _environment(given: str) -> dict[str, str]:
    return {
        "SPARK_CONF_DIR": str(no_settings()),
        "SPARK_LAUNCHER_OPTS": _NO_ARCHIVE,
        "PYSPARK_SUBMIT_ARGS": f"--conf 'spark.driver.extraJavaOptions={given}' pyspark-shell",
    }


def work(item: object) -> dict[str, object]:
    """What a task does so that Java has read what tasks need."""
    return {"item": item}


def _make(archive: Path) -> None:
    half = archive.with_suffix(f".{os.getpid()}")
    program = (
        "from jobs.spark.spark import Spark\nfrom tests.support.quick_java import work\n"
        "with Spark('local[2]') as spark:\n    spark.map(work, [{}, {}])\n"
    )
    given = {**os.environ, **_environment(_joined(f'"-XX:ArchiveClassesAtExit={half}" -Xlog:disable', _MESSAGES))}
    # Until the last one has closed its output: Java writes the archive once the program has ended.
    subprocess.run([sys.executable, "-c", program], cwd=_ROOT, env=given, check=True, stdout=subprocess.PIPE)
    for old in _FOLDER.glob("spark-*.jsa"):
        old.unlink()
    half.rename(archive)


def main() -> None:
    """Make the archive where there is none."""
    archive = _archive()
    if archive is not None and not archive.exists():
        sys.stderr.write("leaving the classes of Spark in an archive, for the Java of tests\n")
        _make(archive)


if __name__ == "__main__":
    main()
