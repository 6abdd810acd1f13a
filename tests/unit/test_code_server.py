"""The watcher of a code server must reach the server even after a long loading time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from pipelines.processes import code_server
from pipelines.processes.code_server import run_code_server
from pipelines.processes.programs import Address
from storage_core.base.errors import Unavailable

# Refuses the first ten clients and ends.
REFUSING = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listening:
    for _ in range(10):
        listening.accept()[0].close()
sys.exit(7)
"""

# A program that records its start and the request to end.
TOLD = """
import os, signal, time
from pathlib import Path
signal.signal(signal.SIGTERM, lambda *_: Path("told").touch())
Path("new").write_text(str(os.getpid()))
Path("new").rename("pid")
while not Path("told").exists():
    time.sleep(0.02)
"""
WATCH = """
import os, sys
from pipelines.processes.code_server import run_code_server
from pipelines.processes.programs import Address
run_code_server([sys.executable, "-c", sys.argv[1]], Address(socket="./code"), os.environ)
"""


@pytest.mark.timeout(60)
def test_the_server_of_a_killed_watch_is_killed_on_linux_and_stays_elsewhere(tmp_path: Path) -> None:
    """A server that is asked to end would refuse runs for a while, and these runs would fail."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    watch = subprocess.Popen([sys.executable, "-c", WATCH, TOLD], cwd=tmp_path, env=environment)
    try:
        while not (tmp_path / "pid").exists():
            time.sleep(0.02)
    finally:
        watch.kill()
        watch.wait()
    server = int((tmp_path / "pid").read_text())
    if sys.platform != "linux":
        os.kill(server, signal.SIGKILL)  # raises if the process is gone
    with suppress(psutil.NoSuchProcess):
        while psutil.Process(server).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.02)
    assert not (tmp_path / "told").exists()


@pytest.mark.timeout(60)
def test_each_look_tries_to_reach_a_server_that_was_not_reached_before(
    free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the pauses grew, a server that starts late would get no heartbeat and would end itself."""
    monkeypatch.setattr(code_server, "LOOK_SECONDS", 0.05)
    command = [sys.executable, "-c", REFUSING, str(free_port)]
    with pytest.raises(Unavailable, match="has ended with 7"):
        run_code_server(command, Address(host="127.0.0.1", port=free_port), os.environ)
