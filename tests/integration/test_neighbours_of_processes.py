"""Other users of a machine see no public socket of Tidemark's processes, and no secret in a command line.

The tests do not check environments. Environments contain credentials (docs/operations.md, "S3"), and the kernel shows
them only to the owner of the process and to root. Command lines are visible to everybody on the machine.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.s3_server import S3Server

PROC = Path("/proc")
ROOT = Path(__file__).parents[2]
CANARY = "canary0secret"
LISTENING = "0A"


def family_of(pid: int) -> list[int]:
    """Return the process and all of its descendants."""
    parents = {}
    for each in PROC.iterdir():
        with suppress(OSError, ValueError):
            # The program's name in parentheses may contain any text. The parent's process ID is the second word after
            # the parentheses.
            parents[int(each.name)] = int((each / "stat").read_text().rpartition(")")[2].split()[1])
    family = [pid]
    for one in family:
        family += [child for child, parent in parents.items() if parent == one]
    return family


def command_lines(pid: int) -> list[str]:
    found = []
    for each in family_of(pid):
        with suppress(OSError):
            found.append((PROC / str(each) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return found


def listeners(pid: int) -> set[str]:
    """Return the addresses on which the process and its descendants listen, as hexadecimal words."""
    return {address for address, _ in endpoints(pid)}


def endpoints(pid: int) -> set[tuple[str, int]]:
    """Return the addresses and ports on which the process and its descendants listen."""
    sockets = set()
    for each in family_of(pid):
        with suppress(OSError):
            for descriptor in (PROC / str(each) / "fd").iterdir():
                with suppress(OSError):
                    sockets.add(str(descriptor.readlink()))
    found = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in (PROC / "net" / table).read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if f"socket:[{rest[5]}]" in sockets and (state == LISTENING or table.startswith("udp")):
                address, _, port = local.partition(":")
                found.add((address, int(port, 16)))
    return found


def _hexadecimal(family: int, address: str) -> str:
    """Return an address in the kernel's notation: words of four bytes in the machine's byte order."""
    data = socket.inet_pton(family, address)
    words = [data[start : start + 4] for start in range(0, len(data), 4)]
    return "".join(f"{int.from_bytes(each, sys.byteorder):08X}" for each in words)


LOOPBACK = {
    _hexadecimal(socket.AF_INET, "127.0.0.1"),
    _hexadecimal(socket.AF_INET6, "::1"),
    _hexadecimal(socket.AF_INET6, "::ffff:127.0.0.1"),
}


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])  # noqa: S104  # that the test would see it
def test_a_socket_is_seen_where_it_listens(host: str) -> None:
    before = listeners(os.getpid())
    with socket.create_server((host, 0)):
        assert listeners(os.getpid()) == before | {_hexadecimal(socket.AF_INET, host)}


@pytest.mark.usefixtures("s3_server")
def test_the_s3_server_of_the_test_kit_listens_on_the_loopback_only() -> None:
    found = listeners(os.getpid())
    assert found
    assert found <= LOOPBACK


@pytest.fixture
def secretive(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """Return the server. The credentials in the environment contain a marked secret."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    monkeypatch.setenv("AWS_SESSION_TOKEN", CANARY)
    return s3_server


@pytest.fixture
def ui(checkout: Path, secretive: S3Server, free_port: int) -> Iterator[int]:
    """Start the UI for a table on S3 as `make ui` does, and yield its process id when it answers."""
    for each in (checkout / "tables").glob("*.yaml"):
        each.unlink()
    text = f"name: a\nuri: {secretive.uri('neighbours')}\ncolumns: {{a: int}}\n"
    (checkout / "tables" / "a.yaml").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "pipelines.cli", "ui", "--port", str(free_port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _await(process, lambda: _answers(free_port))
            yield process.pid
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()


def _await(process: subprocess.Popen[bytes], ready: Callable[[], bool]) -> None:
    while not ready():
        assert process.poll() is None
        time.sleep(0.2)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.dagster
def test_the_ui_listens_on_the_loopback_only_and_no_command_line_of_it_holds_a_secret(ui: int) -> None:
    assert len(family_of(ui)) > 3  # the web server, the daemon, and the code location
    found = listeners(ui)
    assert found
    assert found <= LOOPBACK
    assert [each for each in command_lines(ui) if CANARY in each] == []


JOB = """
import sys
from storage_core.log.job_run import run
from storage_core.data.steps import Compact
from jobs.spark.spark import Spark
from tidemark import Table
import pyarrow as pa
uri = sys.argv[1]
table = Table.create(uri, pa.schema([("a", pa.int64())]))
for each in range(2):
    table.append([{"a": each}])
with Spark("local[2]") as spark:
    assert run(Compact(table_uri=uri), spark).status == "committed"
    print("at work", flush=True)
    sys.stdin.read()
"""


def answer_to_an_object(port: int) -> bytes:
    """Send a serialized object to a driver endpoint of Spark without a secret, and return the reply."""

    def text(of: bytes) -> bytes:
        return struct.pack(">H", len(of)) + of

    receiver = b"\0\1" + text(b"127.0.0.1") + struct.pack(">i", port) + text(b"HeartbeatReceiver")
    body = receiver + bytes.fromhex("aced000574") + text(b"an object")
    frame = struct.pack(">qBqi", 8 + 13 + len(body), 3, 1, len(body)) + body  # 3: a request that expects a reply
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(3)
        connection.sendall(frame)
        try:
            reply = connection.recv(1 << 16)
        except OSError:
            reply = b""
    return next((each for each in (b"Unknown challenge message", b"Unsupported", b"Exception") if each in reply), b"")


@pytest.mark.spark
def test_a_job_listens_on_the_loopback_only_and_no_command_line_of_it_holds_a_secret(
    secretive: S3Server, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", JOB, secretive.uri("neighbours-of-a-job")]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "at work\n"
        assert [*tmp_path.glob("tidemark-spark-*.locked/blockmgr-*")]  # files of tasks are removed with this folder
        found, lines = listeners(process.pid), command_lines(process.pid)
        answers = [answer_to_an_object(port) for _, port in endpoints(process.pid)]
        process.communicate()
    assert len(lines) > 2  # at least the Java process and its Python processes
    # A client without the secret cannot make the driver or the block manager read an object.
    assert [each for each in answers if each] == [b"Unknown challenge message"] * 2
    assert found
    assert found <= LOOPBACK
    assert [each for each in lines if CANARY in each] == []
    assert [*tmp_path.iterdir()] == []
