"""A Spark session for Tidemark's jobs: in this process, on a cluster, or on a Spark Connect server (decision 0039).

If the tasks run elsewhere, their code is sent with the session (decision 0039).
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import sys
import sysconfig
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from jobs.process import handlers_kept
from jobs.spark import java
from jobs.spark.java import ROOT, require_java
from jobs.spark.reach import CONNECT, connect, require_master
from storage_core.base.errors import PIPELINE, needs
from storage_core.base.process import scratch_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Filter for the standard error of Spark's Java.
#
# The filter removes the JDK's own warnings, such as `WARNING: Using incubator modules`, which a user cannot act on. All
# other output is passed on at once, including a progress bar without a line end.


WARNING = b"WARNING: "
_STDERR = 2
_MOST_BYTES = 65_536


@contextmanager
def without_warnings() -> Iterator[None]:
    """Remove the JDK's own warnings from the standard error of processes that are started in the block."""
    sys.stderr.flush()
    read, written = os.pipe()
    ours = os.dup(_STDERR)
    os.dup2(written, _STDERR)
    os.close(written)
    threading.Thread(target=_forward, args=(read, ours), name="jvm-messages", daemon=True).start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(ours, _STDERR)


def _forward(read: int, to: int) -> None:
    held = b""
    while data := os.read(read, _MOST_BYTES):
        *lines, held = (held + data).splitlines(keepends=True)
        if held.endswith(b"\n") or not (WARNING.startswith(held) or held.startswith(WARNING)):
            lines, held = [*lines, held], b""
        with suppress(OSError):  # if no process reads the output any more, Java must not wait
            os.write(to, b"".join(each for each in lines if not each.startswith(WARNING)))
    os.close(read)
    os.close(to)


# Sessions.


_NOTHING_MORE: Mapping[str, str] = MappingProxyType({})

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.localRelationThreshold": "1g",  # Spark divides larger data by other rules
}
"""Settings of a session. A Connect server accepts these too."""

PRIVATE = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.authenticate": "true",  # the Java of a local master creates a random secret that no other process has
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.saslFallback": "false",
}
"""Settings of a driver whose tasks run in the same Java.

Other users of the machine cannot make this Java deserialize data.
"""


def active() -> SparkSession | None:
    """Return the running session of this process, or None."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark.sql import SparkSession  # already imported

    return SparkSession.getActiveSession()


def start(master: str, more: Mapping[str, str] = _NOTHING_MORE) -> SparkSession:
    """Start or join a session for Tidemark's jobs.

    The session uses UTC and has no web server. Its workers use this Python, and get this code.

    - A master in this process uses only the loopback interface.
    - On a cluster, the address of the driver follows Spark's own settings: `SPARK_LOCAL_IP`, or `spark.driver.host` in
      `SPARK_CONF_DIR`, or else the name of the machine. The workers get `jobs` and `storage_core` as a zip.
    - A Connect server has its own driver and Python, so this machine needs no Java. The workers get the zip, too.

    Args:
        master: The URL of the master or Connect server.
        more: Settings of a driver that this call starts.

    Raises:
        Unavailable: Java or PySpark is missing, or an error of `reach.connect` or `reach.require_master`.
        InvalidInput: The address is not valid.
    """
    local = master.startswith("local")
    session = connect(master, SETTINGS) if master.startswith(CONNECT) else _start_driver(master, more, local=local)
    if not local:
        ship_code(session)
    return session


def _start_driver(master: str, more: Mapping[str, str], *, local: bool) -> SparkSession:
    with needs(PIPELINE, "Spark"):
        from pyspark.sql import SparkSession  # takes half a second, which a job without work does not need

    require_master(master)
    logging.getLogger("py4j").setLevel(logging.WARNING)  # the level INFO prints a message for each closed connection
    _settle_environment(local=local)

    settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower()}
    settings |= {**PRIVATE, **_java_options(more), "spark.local.dir": str(_local_files(os.getpid()))} if local else {}
    builder = SparkSession.builder.master(master).appName("tidemark")
    with handlers_kept(), without_warnings():
        os.environ.setdefault("SPARK_CONF_DIR", str(java.MESSAGES.parent))
        return builder.config(map={**SETTINGS, **settings, **more}).getOrCreate()


@functools.cache
def _local_files(process: int) -> Path:  # noqa: ARG001  # once per process: its Java keeps to the first folder
    """Return the folder for files of tasks of this process.

    If this process is killed, the next process removes the folder.
    """
    closing = ExitStack()
    atexit.register(closing.close)
    return closing.enter_context(scratch_folder("spark"))


def _java_options(more: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a Java that uses the archive, if the archive exists and no other options are set.

    With the settings of Delta Lake in `more`, Java does much of the work itself and therefore keeps all its compilers.
    """
    if {"SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS"} & os.environ.keys() or not java.mapping_options():
        return {}
    os.environ["SPARK_CONF_DIR"] = str(java.no_settings())
    return {"spark.driver.extraJavaOptions": java.options("" if more else java.QUICK)}


def is_elsewhere(session: SparkSession) -> bool:
    """Return whether the workers of a session may lack this code.

    Workers on a cluster or on a Connect server may lack the code. If other code started the session in this process,
    its workers may also lack the code, unless their path contains it.
    """
    if type(session).__module__.startswith("pyspark.sql.connect"):
        return True
    context: Any = session.sparkContext
    paths = (context._jvm.System.getenv("PYTHONPATH") or "").split(os.pathsep)  # noqa: SLF001  # the workers have it
    return not context.master.startswith("local") or str(ROOT) not in [*paths, sysconfig.get_path("purelib")]


def ship_code(session: SparkSession) -> None:
    """Send this code to the workers of the session.

    Executors load the code when they start, so the zip file exists as long as the session.
    """
    closing = ExitStack()
    folder = closing.enter_context(scratch_folder("code"))
    weakref.finalize(session, closing.close)
    session.addArtifacts(str(java.write(folder)), pyfile=True)


def _settle_environment(*, local: bool) -> None:
    """Set the variables for Java, the Python of workers and the loopback interface.

    Variables that are already set are kept.
    """
    require_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.update(java.first_on_path(os.environ))
