"""Programs that are kept running: real processes, which are killed one by one and all at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

# Each program writes its process id down and stays.
KEEPER = """
import os, sys
from jobs.process.stop_signals import heard_once
from pipelines.supervision import keep_running

program = "import os, sys, time; print(os.getpid(), file=open(sys.argv[1], 'a'), flush=True); time.sleep(600)"
with heard_once():
    keep_running({name: [sys.executable, "-c", program, name] for name in ("one", "other")}, os.environ)
"""


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen([sys.executable, "-c", KEEPER], cwd=tmp_path, env=environment) as process:
        try:
            yield process
        finally:
            process.terminate()


def started(file: Path) -> list[int]:
    """The processes of a program so far."""
    return [int(line) for line in file.read_text().splitlines()] if file.exists() else []


def wait_until(done: Callable[[], bool]) -> None:
    while not done():
        time.sleep(0.02)


def is_gone(process: int) -> bool:
    return subprocess.run(["ps", "-p", str(process)], capture_output=True, check=False).returncode != 0


def test_a_program_that_is_killed_is_started_again_and_the_other_stays(
    keeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    wait_until(lambda: len(started(one)) == len(started(other)) == 1)
    os.kill(started(one)[0], signal.SIGKILL)
    wait_until(lambda: len(started(one)) == 2)
    assert len(started(other)) == 1
    assert not is_gone(started(other)[0])

    keeper.terminate()
    assert keeper.wait() == 0
    assert all(map(is_gone, [*started(one), *started(other)]))


def test_the_programs_end_with_a_killed_keeper_on_linux_and_stay_elsewhere(
    keeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    wait_until(lambda: len(started(one)) == len(started(other)) == 1)
    keeper.kill()
    programs = [*started(one), *started(other)]
    if sys.platform == "linux":
        wait_until(lambda: all(map(is_gone, programs)))
    else:
        keeper.wait()
        for each in programs:
            os.kill(each, signal.SIGKILL)  # raises where there is none
