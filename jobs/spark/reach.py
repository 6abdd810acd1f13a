"""Spark elsewhere: a session on a Connect server, or word within seconds that nobody answers at an address.

PySpark's Connect client tries every call again for ten minutes and more, and a driver asks its masters for one. That is
right while a job runs and its server is away for a moment; of an address that is wrong it says nothing.
"""

from __future__ import annotations

import socket
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from storage_core.errors import InvalidInput, Unavailable
from storage_core.extras import CONNECT, needs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAIT_SECONDS = 10.0
STANDALONE = "spark://"
"""How the address of masters of Spark's own clusters starts; of several, parted by commas, one is in charge."""

_ADVICE = "start it, or correct --master or SPARK_REMOTE (see `A job on a Spark cluster` in docs/operations.md)"
_TRIES_AT_FIRST = 4  # some 5 s of waiting; PySpark's own 15 are ten minutes


def connect(server: str, settings: Mapping[str, str], wait_seconds: float = WAIT_SECONDS) -> SparkSession:
    """Return a session with these settings on a Spark Connect server (`sc://host:port`).

    Raises `Unavailable` where no server answers in that time, or refuses its first call for some 5 s more, and without
    the packages that a client needs; `InvalidInput` for what is no such address. Later calls are as patient as PySpark.
    """
    with needs(CONNECT, "Spark Connect"):
        _require_server(server, wait_seconds)
    return _session(server, settings)


def require_master(master: str, wait_seconds: float = WAIT_SECONDS) -> None:
    """Return when a master of `spark://host:port,…` takes connections, and for what is no such address.

    Raises `Unavailable`, with the reason of each, when none does. One connection each, up to the first that is taken.
    """
    if not master.startswith(STANDALONE):
        return
    failed = []
    for address in master.removeprefix(STANDALONE).split(","):
        host, _, port = address.rpartition(":")
        if not port.isdecimal():
            return  # Spark says what is wrong with it
        try:
            socket.create_connection((host.strip("[]"), int(port)), wait_seconds).close()
        except OSError as error:
            failed.append(f"{address}: {error}")
        else:
            return
    raise Unavailable(f"no Spark master answers at {master} ({'; '.join(failed)}); {_ADVICE}", master=master)


def _require_server(server: str, wait_seconds: float) -> None:
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.client import DefaultChannelBuilder

    try:
        channel = DefaultChannelBuilder(server).toChannel()
    except PySparkException as error:
        raise InvalidInput(f"{server} is no address of a Spark Connect server: {error}") from error
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

    session: Any = SparkSession.builder.remote(server).getOrCreate()  # makes no call; has more than other sessions
    patient = session.client.get_retry_policies()
    few_tries(session)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]")  # the error says it
            for name, value in settings.items():
                session.conf.set(name, value)
    except PySparkException as error:
        session.release_session_on_close = False  # that would be one more call to nobody
        session.stop()
        raise _no_server(server, _details(error)) from error
    session.client.set_retry_policies(patient)
    return cast("SparkSession", session)


def few_tries(session: Any) -> None:
    """Let calls of a Connect session fail after some 5 s without an answer."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    session.client.set_retry_policies([DefaultPolicy(max_retries=_TRIES_AT_FIRST)])


def _details(error: Exception) -> str:
    """What was refused, out of the lines in which gRPC says everything that it knows."""
    lines = [line.strip() for line in str(error).strip().splitlines()] or [type(error).__name__]
    return next((line for line in lines if line.startswith("details = ")), lines[0]).removeprefix("details = ")


def _no_server(server: str, reason: str) -> Unavailable:
    return Unavailable(f"no Spark Connect server answers at {server} ({reason}); {_ADVICE}", server=server)
