"""A Spark session for Tidemark's jobs, in this process, on a cluster, or on a Connect server (decision 0039).

If the tasks run on other machines, the session sends their code.

An incorrect address is reported quickly. PySpark's Connect client retries every call for at least ten minutes. A driver
retries its masters for one minute. These retries are useful if the server is briefly unreachable while a job runs. If
the address is incorrect, these retries would only delay the error.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import re
import socket
import sys
import sysconfig
import threading
import warnings
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from jobs.process import restore_signal_handlers
from jobs.spark import java
from jobs.spark.java import ROOT, require_java
from storage_core.base.errors import CONNECT as CONNECT_EXTRA
from storage_core.base.errors import PIPELINE, InvalidInput, NotFound, TidemarkError, Unavailable, needs
from storage_core.base.process import scratch_folder
from storage_core.base.text import quoted
from storage_core.data.steps import LOCAL_SPARK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# The address of Spark.


CONNECT = "sc://"
"""The prefix of the address of a Spark Connect server."""
_MASTER = re.compile(r"local(\[.+\])?|local-cluster\[.+\]|yarn|(spark|k8s|sc)://.+")


def require_form(master: str) -> None:
    """Raise `InvalidInput` if the text does not have the form of a Spark master or of a Connect server."""
    if not _MASTER.fullmatch(master):
        raise InvalidInput(
            f"the Spark master is {quoted(master)}. Write local[*], spark://host:port, k8s://host:port, yarn or "
            f"{CONNECT}host:port"
        )


def resolved(master: str) -> str:
    """Return the master.

    Return the master. If the master is the default and `SPARK_REMOTE` is set, return the server in `SPARK_REMOTE`.

    Raises:
        InvalidInput: Both a master and `SPARK_REMOTE` are set, or `SPARK_REMOTE` is not a Connect server. PySpark
            raises the same error in the first case.
    """
    remote = os.environ.get("SPARK_REMOTE")
    if not remote or master.startswith(CONNECT):
        return master
    if not remote.startswith(CONNECT):
        raise InvalidInput(
            f"SPARK_REMOTE={remote} is not a Spark Connect server. Write SPARK_REMOTE as {CONNECT}host:port"
        )
    if master != LOCAL_SPARK:
        raise InvalidInput(
            f"both the master {master} and SPARK_REMOTE={remote} are given. Leave out the master or SPARK_REMOTE"
        )
    return remote


# Connections.


WAIT_SECONDS = 10.0
STANDALONE = "spark://"
"""The prefix of a standalone cluster's address, which may contain several masters. Only one master is active."""

_ADVICE = (
    "Start the Spark server, or correct --master or SPARK_REMOTE (see `A job on a Spark cluster` in docs/operations.md)"
)
_TRIES_AT_FIRST = 4  # takes about 5 s. PySpark's default of 15 tries takes about ten minutes


def connect(server: str, settings: Mapping[str, str], wait_seconds: float = WAIT_SECONDS) -> SparkSession:
    """Return a session with these settings on a Spark Connect server (`sc://host:port`).

    If the server does not answer, the first calls fail after about 5 seconds. For later calls, PySpark uses its default
    number of retries.

    Raises:
        Unavailable: No server accepts the connection within `wait_seconds`, the first call gets no answer for about 5
            s, or a package of the client is missing.
        InvalidInput: The address is not valid.
    """
    with needs(CONNECT_EXTRA, "Spark Connect"):
        _require_server(server, wait_seconds)
    return _session(server, settings)


def require_master(master: str, wait_seconds: float = WAIT_SECONDS) -> None:
    """Raise `Unavailable` if no master of `spark://host:port,…` accepts a connection. The message contains all reasons.

    The function does not check an address that does not begin with `spark://`. Cost: one connection attempt per master,
    until one of the masters accepts a connection.
    """
    if not master.startswith(STANDALONE):
        return
    failed = []
    for address in master.removeprefix(STANDALONE).split(","):
        host, _, port = address.rpartition(":")
        if not port.isdecimal():
            return  # Spark itself reports this error
        try:
            socket.create_connection((host.strip("[]"), int(port)), wait_seconds).close()
        except OSError as error:
            failed.append(f"{address}: {error}")
        else:
            return
    raise Unavailable(f"no Spark master answers at {master} ({'; '.join(failed)}). {_ADVICE}", master=master)


def _require_server(server: str, wait_seconds: float) -> None:
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.client import DefaultChannelBuilder

    try:
        channel = DefaultChannelBuilder(server).toChannel()
    except PySparkException as error:
        raise InvalidInput(f"{server} is not an address of a Spark Connect server: {error}") from error
    try:
        if not _is_ready(channel, wait_seconds):
            raise _no_server(server, f"no answer within {wait_seconds:g} s")
    finally:
        channel.close()


def _is_ready(channel: Any, wait_seconds: float) -> bool:
    import grpc  # type: ignore[import-untyped]  # it has no types. PySpark requires it

    try:
        grpc.channel_ready_future(channel).result(timeout=wait_seconds)
    except grpc.FutureTimeoutError:
        return False
    return True


def _session(server: str, settings: Mapping[str, str]) -> SparkSession:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    session: Any = SparkSession.builder.remote(server).getOrCreate()  # makes no call to the server
    patient = session.client.get_retry_policies()
    limit_retries(session)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]")  # the error contains the reason
            for name, value in settings.items():
                session.conf.set(name, value)
    except PySparkException as error:
        session.release_session_on_close = False  # closing the session would call the silent server again
        session.stop()
        raise _no_server(server, _details(error)) from error
    session.client.set_retry_policies(patient)
    return cast("SparkSession", session)


def limit_retries(session: Any) -> None:
    """Limit the retries of a Connect session, so that a call fails after about 5 s without an answer."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    session.client.set_retry_policies([DefaultPolicy(max_retries=_TRIES_AT_FIRST)])


def _details(error: Exception) -> str:
    """Return the reason for the error from the text of a gRPC error."""
    lines = [line.strip() for line in str(error).strip().splitlines()] or [type(error).__name__]
    return next((line for line in lines if line.startswith("details = ")), lines[0]).removeprefix("details = ")


def _no_server(server: str, reason: str) -> Unavailable:
    return Unavailable(f"no Spark Connect server answers at {server} ({reason}). {_ADVICE}", server=server)


# Errors of Spark.


_MISSING = re.compile(
    r"(?:FileNotFoundException|FILE_NOT_EXIST|NoSuchFileException)\b[^\n]*?[\s\"']((?:[a-z0-9]+:)?/[^\s\"']+)"
)
"""Finds the first path in a message of Spark or Java about a missing file."""


def spark_errors() -> tuple[type[Exception], ...]:
    """Return the classes of Spark's exceptions. If Spark was never imported, return only `ConnectionError`."""
    if "pyspark" not in sys.modules:
        return (ConnectionError,)
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types; imported once something failed
    from pyspark.errors import PySparkException

    return PySparkException, Py4JError, ConnectionError  # `ConnectionError` means that the JVM has ended


def failure_of(error: Exception) -> TidemarkError:
    """Return the typed error for an exception of Spark.

    The error is `Unavailable` if a later attempt of Spark may succeed. For an exception in a task, the error is a plain
    `TidemarkError`. An exception in a task is a bug and would occur again in a retry.
    """
    from pyspark.errors import PythonException

    if isinstance(error, PythonException):
        return TidemarkError(f"a task failed: {cause(error)}")
    if missing := _MISSING.search(str(error)):
        return NotFound(
            f"Spark reads the file {missing[1].rstrip('.,;')}, which is missing. Restore the file, then run again"
        )
    return Unavailable(f"Spark did not complete the tasks: {cause(error)}")


def cause(error: Exception) -> str:
    """Return the line with the cause.

    The line with the cause is the last line of a worker's traceback, or the first line of Spark's message.
    """
    head = str(error).partition("\n\nJVM stacktrace:")[0]
    lines = [line for line in head.splitlines() if line.strip()]
    if "Traceback (most recent call last)" in head:
        frames = [number for number, line in enumerate(lines) if line.startswith("  ")]
        lines = lines[frames[-1] + 1 :] if frames else lines
    elif len(lines) > 1 and lines[1].startswith(": "):  # Py4J prints the call first, then the Java exception
        lines = [lines[1].removeprefix(": ")]
    return lines[0].strip() if lines else type(error).__name__


# Filter for the standard error of the Java process that runs Spark.
#
# The filter removes the JDK's own warnings, such as `WARNING: Using incubator modules`. Users cannot prevent these
# warnings. All other output is forwarded at once, including a progress bar without a line end.


WARNING = b"WARNING: "
_STDERR = 2
_MOST_BYTES = 65_536


@contextmanager
def without_warnings() -> Iterator[None]:
    """Remove the JDK's own warnings from the standard error of all processes that start in the block."""
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
        with suppress(OSError):  # if no process reads the output, Java must not wait
            os.write(to, b"".join(each for each in lines if not each.startswith(WARNING)))
    os.close(read)
    os.close(to)


# Sessions.


_NOTHING_MORE: Mapping[str, str] = MappingProxyType({})

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.localRelationThreshold": "1g",  # Spark uses another transfer above 1 GB
}
"""The settings of a session. A Connect server also accepts these settings."""

PRIVATE = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.authenticate": "true",  # the local Java process creates a random private secret
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.saslFallback": "false",
}
"""The settings of a driver that runs its tasks in its own Java process.

With these settings, other users of the machine cannot make this Java process deserialize data.
"""


def active() -> SparkSession | None:
    """Return the running session of this process, or None."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark.sql import SparkSession  # already imported

    return SparkSession.getActiveSession()


def start(master: str, more: Mapping[str, str] = _NOTHING_MORE) -> SparkSession:
    """Start a session for Tidemark's jobs, or join a session.

    The session uses UTC and has no web server. The workers of the session use this Python and get Tidemark's code.

    - A master in this process uses only the loopback interface.
    - On a cluster, Spark's own settings determine the address of the driver. The address is `SPARK_LOCAL_IP`, or
      `spark.driver.host` in `SPARK_CONF_DIR`, or otherwise the name of the machine. The workers get `jobs` and
      `storage_core` as a zip file.
    - A Connect server has its own driver and Python, so this machine needs no Java. The workers of the server also get
      the zip file.

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
        from pyspark.sql import SparkSession  # this import takes half a second, so jobs without work skip it

    require_master(master)
    logging.getLogger("py4j").setLevel(logging.WARNING)  # the level INFO prints a message for each closed connection
    _settle_environment(local=local)

    settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower()}
    settings |= {**PRIVATE, **_java_options(more), "spark.local.dir": str(_local_files(os.getpid()))} if local else {}
    builder = SparkSession.builder.master(master).appName("tidemark")
    with restore_signal_handlers(), without_warnings():
        os.environ.setdefault("SPARK_CONF_DIR", str(java.MESSAGES.parent))
        return builder.config(map={**SETTINGS, **settings, **more}).getOrCreate()


@functools.cache
def _local_files(process: int) -> Path:  # noqa: ARG001  # the cache has one folder per process
    """Return the folder in which the tasks of this process store files.

    If this process is killed, the next process removes the folder.
    """
    closing = ExitStack()
    atexit.register(closing.close)
    return closing.enter_context(scratch_folder("spark"))


def _java_options(more: Mapping[str, str]) -> dict[str, str]:
    """Return options that make Java use the archive. Return no options if no archive exists or Spark is configured.

    If `more` contains the settings of Delta Lake, Java does much of the work. Java then uses all its JIT compilers.
    """
    if {"SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS"} & os.environ.keys() or not java.mapping_options():
        return {}
    os.environ["SPARK_CONF_DIR"] = str(java.no_settings())
    return {"spark.driver.extraJavaOptions": java.options("" if more else java.QUICK)}


def is_elsewhere(session: SparkSession) -> bool:
    """Return whether the workers of a session may lack this code.

    Workers on a cluster or on a Connect server may lack the code. Other code may have started the session in this
    process. If other code started the session, its workers may lack this code, unless their path contains this code.
    """
    if type(session).__module__.startswith("pyspark.sql.connect"):
        return True
    context: Any = session.sparkContext
    paths = (context._jvm.System.getenv("PYTHONPATH") or "").split(os.pathsep)  # noqa: SLF001  # the workers have it
    return not context.master.startswith("local") or str(ROOT) not in [*paths, sysconfig.get_path("purelib")]


def ship_code(session: SparkSession) -> None:
    """Send the code of Tidemark to the workers of the session.

    Executors load the code when they start. The zip file therefore exists as long as the session.
    """
    closing = ExitStack()
    folder = closing.enter_context(scratch_folder("code"))
    weakref.finalize(session, closing.close)
    session.addArtifacts(str(java.write(folder)), pyfile=True)


def _settle_environment(*, local: bool) -> None:
    """Set the environment variables for Java, for the Python of workers, and for the loopback interface.

    Variables that are already set keep their values.
    """
    require_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.update(java.first_on_path(os.environ))
