"""The address of Spark (decision 0039), a session on a Connect server, and quick errors for wrong addresses.

PySpark's Connect client retries every call for at least ten minutes, and a driver retries its masters for one minute.
These retries are useful if the server is briefly unreachable while a job runs. If the address is wrong, they would only
delay the error.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from storage_core.base.errors import CONNECT as CONNECT_EXTRA
from storage_core.base.errors import InvalidInput, NotFound, TidemarkError, Unavailable, needs
from storage_core.data.steps import LOCAL_SPARK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# The address of Spark.


CONNECT = "sc://"
"""Prefix of the address of a Spark Connect server."""


def resolved(master: str) -> str:
    """Return the master. For the default master, return the Connect server in `SPARK_REMOTE` if this variable is set.

    Raises:
        InvalidInput: Both a master and `SPARK_REMOTE` are set, or `SPARK_REMOTE` is not a Connect server. PySpark
            raises the same error in the first case.
    """
    remote = os.environ.get("SPARK_REMOTE")
    if not remote or master.startswith(CONNECT):
        return master
    if not remote.startswith(CONNECT):
        raise InvalidInput(f"SPARK_REMOTE={remote} is not a Spark Connect server. Write it as {CONNECT}host:port.")
    if master != LOCAL_SPARK:
        raise InvalidInput(f"both the master {master} and SPARK_REMOTE={remote} are given. Leave one of them out.")
    return remote


# Connections.


WAIT_SECONDS = 10.0
STANDALONE = "spark://"
"""Prefix of the address of a standalone cluster. The address may list several masters, of which only one is active."""

_ADVICE = "Start it, or correct --master or SPARK_REMOTE (see `A job on a Spark cluster` in docs/operations.md)"
_TRIES_AT_FIRST = 4  # takes about 5 s. PySpark's default of 15 tries takes about ten minutes


def connect(server: str, settings: Mapping[str, str], wait_seconds: float = WAIT_SECONDS) -> SparkSession:
    """Return a session with these settings on a Spark Connect server (`sc://host:port`).

    Only the first calls fail quickly. PySpark retries later calls with its own default.

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

    Other kinds of addresses are not checked. Cost: one connection per master, until a master accepts the connection.
    """
    if not master.startswith(STANDALONE):
        return
    failed = []
    for address in master.removeprefix(STANDALONE).split(","):
        host, _, port = address.rpartition(":")
        if not port.isdecimal():
            return  # Spark reports the fault
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
            raise _no_server(server, f"none in {wait_seconds:g} s")
    finally:
        channel.close()


def _is_ready(channel: Any, wait_seconds: float) -> bool:
    import grpc  # type: ignore[import-untyped]  # it has no types; it is there once PySpark's client is

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
    few_tries(session)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]")  # the error contains the reason
            for name, value in settings.items():
                session.conf.set(name, value)
    except PySparkException as error:
        session.release_session_on_close = False  # the release would be one more call that gets no answer
        session.stop()
        raise _no_server(server, _details(error)) from error
    session.client.set_retry_policies(patient)
    return cast("SparkSession", session)


def few_tries(session: Any) -> None:
    """Let calls of a Connect session fail after about 5 s without an answer."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    session.client.set_retry_policies([DefaultPolicy(max_retries=_TRIES_AT_FIRST)])


def _details(error: Exception) -> str:
    """Return the reason from the lines of a gRPC error."""
    lines = [line.strip() for line in str(error).strip().splitlines()] or [type(error).__name__]
    return next((line for line in lines if line.startswith("details = ")), lines[0]).removeprefix("details = ")


def _no_server(server: str, reason: str) -> Unavailable:
    return Unavailable(f"no Spark Connect server answers at {server} ({reason}). {_ADVICE}", server=server)


# Errors of Spark.


_MISSING = re.compile(
    r"(?:FileNotFoundException|FILE_NOT_EXIST|NoSuchFileException)\b[^\n]*?[\s\"']((?:[a-z0-9]+:)?/[^\s\"']+)"
)
"""The first path in a message of Spark or Java about a file that does not exist."""


def spark_errors() -> tuple[type[Exception], ...]:
    """Return the exception classes of Spark. If Spark was never imported, return only `ConnectionError`."""
    if "pyspark" not in sys.modules:
        return (ConnectionError,)
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types; imported once something failed
    from pyspark.errors import PySparkException

    return PySparkException, Py4JError, ConnectionError  # `ConnectionError` means that the JVM has ended


def failure_of(error: Exception) -> TidemarkError:
    """Return the typed error of an exception of Spark.

    The error is `Unavailable` if Spark may succeed later. For an exception in a task, the error is a plain
    `TidemarkError`, because the exception is a bug and would occur again in a retry.
    """
    from pyspark.errors import PythonException

    if isinstance(error, PythonException):
        return TidemarkError(f"a task failed: {cause(error)}")
    if missing := _MISSING.search(str(error)):
        return NotFound(
            f"Spark reads the file {missing[1].rstrip('.,;')}, which is missing. Restore it, then run again"
        )
    return Unavailable(f"Spark did not run the tasks to their end: {cause(error)}")


def cause(error: Exception) -> str:
    """Return the line with the cause: the last line of a worker's traceback, or the first line of Spark's message."""
    head = str(error).partition("\n\nJVM stacktrace:")[0]
    lines = [line for line in head.splitlines() if line.strip()]
    if "Traceback (most recent call last)" in head:
        frames = [number for number, line in enumerate(lines) if line.startswith("  ")]
        lines = lines[frames[-1] + 1 :] if frames else lines
    elif len(lines) > 1 and lines[1].startswith(": "):  # Py4J prints the call first, then the Java exception
        lines = [lines[1].removeprefix(": ")]
    return lines[0].strip() if lines else type(error).__name__
