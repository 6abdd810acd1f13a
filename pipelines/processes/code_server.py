"""The start and the supervision of the code server.

Dagster's code server is a process that forwards requests to a second process, which has loaded the code. When Dagster
loads the code again, the code server replaces the process that has loaded the code. If the second process dies, the
code server continues but cannot answer requests. This failure is visible only if the code server forwards a request to
the second process.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Mapping, Sequence
from subprocess import Popen, TimeoutExpired

from pipelines.processes.programs import Address
from pipelines.processes.supervision import END_SECONDS, start_program
from storage_core.base.errors import Unavailable

LOOK_SECONDS = 2.0
MOST_MISSES = 2
_SECONDS_TO_ANSWER = 60.0  # slow machines may need long. Without the code process, the request fails at once
_REQUESTS = ("Heartbeat", "Ping")
"""`Heartbeat` goes to the server itself. Without heartbeats, the server ends after some time.

The server forwards `Ping` to the process with the code.
"""

LOG = logging.getLogger(__name__)


def run_code_server(command: Sequence[str], address: Address, environment: Mapping[str, str]) -> None:
    """Run the server until this process is interrupted. Then end the server.

    The time until the server's first answer is not limited. If the code cannot be loaded, the server continues to run,
    and the UI shows the error.

    If this process is killed, the server is also killed. If the code server received a normal stop signal, the server
    would answer for some seconds and refuse new runs. These runs would fail. After a kill of the server, runs wait
    until they can reach a server again.

    Raises:
        Unavailable: The server ended by itself, or it answered earlier and does not answer any more. The supervisor
            then starts the server again.
    """
    server = start_program(command, environment, signal.SIGKILL)
    try:
        _watch(server, address)
    except KeyboardInterrupt:
        LOG.info("the code server ends")
    finally:
        _end(server)


def _watch(server: Popen[bytes], address: Address) -> None:
    misses = -1  # failures do not count before the first answer
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

    Each call uses a new connection, because gRPC retries a failed connection after longer and longer pauses.
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
