"""Start and supervision of the code server.

Dagster's code server is a process that forwards requests to a second process. The second process has loaded the code.
When the code is loaded again, the code server replaces the second process. If the second process dies, the code server
still runs but cannot serve requests. Only a forwarded request shows this failure.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Mapping, Sequence
from subprocess import Popen, TimeoutExpired

from pipelines.processes.programs import Address
from pipelines.processes.supervision import END_SECONDS, started
from storage_core.base.errors import Unavailable

LOOK_SECONDS = 2.0
MOST_MISSES = 2
_SECONDS_TO_ANSWER = 60.0  # a busy machine may need long, but a server without its second process fails at once
_REQUESTS = ("Heartbeat", "Ping")
"""`Heartbeat` goes to the server itself, which ends if it gets no heartbeat for some time.

`Ping` is forwarded to the process with the code.
"""

LOG = logging.getLogger(__name__)


def run_code_server(command: Sequence[str], address: Address, environment: Mapping[str, str]) -> None:
    """Run the server until this process is interrupted, and then end the server.

    Before its first answer, the server may take any time. If the code cannot be loaded, the server stays up, and the UI
    shows the error.

    If this process is killed, the server is killed too. After a normal signal, the server would still answer for some
    seconds and refuse runs, and these runs would fail. If the server is killed, runs wait until a server can be reached
    again.

    Raises:
        Unavailable: The server ended by itself, or it answered earlier and does not answer any more. The supervisor
            then starts the server again.
    """
    server = started(command, environment, signal.SIGKILL)
    try:
        _watch(server, address)
    except KeyboardInterrupt:
        LOG.info("the code server ends")
    finally:
        _end(server)


def _watch(server: Popen[bytes], address: Address) -> None:
    misses = -1  # failures before the first answer do not count
    while misses < MOST_MISSES:
        time.sleep(LOOK_SECONDS)
        if (code := server.poll()) is not None:
            raise Unavailable(f"the code server has ended with {code}. Start it again.")
        if _answers(address):
            misses = 0
        else:
            misses += misses >= 0
    raise Unavailable("the code server does not answer any more, because its process has ended. Start it again.")


def _answers(address: Address) -> bool:
    """Return whether the server answers.

    Each call uses a new connection, because gRPC waits longer and longer before it retries a failed connection.
    """
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
