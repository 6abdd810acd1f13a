"""Runs the code server and watches it: when the process that has the code dies, the server stays and is of no use.

Dagster's code server is a process that hands on to a second one, which it replaces when the code is loaded again. Only
a request that is handed on says whether that is alive.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Mapping, Sequence
from subprocess import Popen, TimeoutExpired

from pipelines.processes.programs import Address
from pipelines.processes.supervision import END_SECONDS, started
from storage_core.errors import Unavailable

LOOK_SECONDS = 2.0
MOST_MISSES = 2
_SECONDS_TO_ANSWER = 60.0  # a machine may be busy; a server without a second process answers at once
_REQUESTS = ("Heartbeat", "Ping")
"""To the server itself, which ends when it gets none for long, and to the process that has the code."""

LOG = logging.getLogger(__name__)


def run_code_server(command: Sequence[str], address: Address, environment: Mapping[str, str]) -> None:
    """Run the server until this process is interrupted, and end it.

    Raises `Unavailable` when the server ends by itself, or has answered and does not answer any more, so that its
    supervisor starts it again. Before the first answer it has all the time that it wants: code that does not load
    stays as it is, and the UI shows its error. When this process is killed, so is the server: one that is told to end
    still answers for seconds, and refuses runs, which fails them; for one that cannot be reached they wait.
    """
    server = started(command, environment, signal.SIGKILL)
    try:
        _watch(server, address)
    except KeyboardInterrupt:
        LOG.info("the code server ends")
    finally:
        _end(server)


def _watch(server: Popen[bytes], address: Address) -> None:
    misses = -1  # none counts before the first answer
    while misses < MOST_MISSES:
        time.sleep(LOOK_SECONDS)
        if (code := server.poll()) is not None:
            raise Unavailable(f"the code server has ended with {code}; start it again")
        if _answers(address):
            misses = 0
        else:
            misses += misses >= 0
    raise Unavailable("the code server does not answer any more: the process that has the code is gone; start it again")


def _answers(address: Address) -> bool:
    """Whether the server answers, by a connection of its own: one that failed is tried again ever more seldom."""
    import grpc  # type: ignore[import-untyped]  # after the server is started: it brings threads

    with grpc.insecure_channel(address.target(), [("grpc.use_local_subchannel_pool", 1)]) as channel:
        try:
            for name in _REQUESTS:
                channel.unary_unary(f"/api.DagsterApi/{name}")(b"", timeout=_SECONDS_TO_ANSWER)
        except grpc.RpcError:
            return False
    return True


def _end(server: Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(END_SECONDS)
    except TimeoutExpired:
        server.kill()
        server.wait()
