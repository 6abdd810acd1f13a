"""Supervised programs: real processes that are killed one by one and all at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipelines.processes.supervision import SupervisedProgram

REPOSITORY = Path(__file__).parents[2]

# Each program records its process id and keeps running.
KEEPER = """
import os, sys
from jobs.process import interrupt_on_first_signal
from pipelines.processes.supervision import keep_running

program = "import os, sys, time; print(os.getpid(), file=open(sys.argv[1], 'a'), flush=True); time.sleep(600)"
with interrupt_on_first_signal():
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
    """Return the processes of a program so far."""
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


# This program records each received signal, and ends by SIGTERM.
INTERRUPTED = """
import logging, os, pathlib, signal, sys
from jobs.process import interrupt_on_first_signal
from pipelines.processes.supervision import keep_running

logging.basicConfig(filename="log", level=logging.INFO)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # who runs the tests may ignore it, as nohup does
program = '''
import signal
ends = {signal.SIGINT, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # they come one by one: the second cannot end the first's handler
open("heard", "a").close()
number = None
while number != signal.SIGTERM:
    number = signal.sigwait(ends)
    print(signal.Signals(number).name, file=open("heard", "a"), flush=True)
'''
hears = pathlib.Path("heard").exists
with interrupt_on_first_signal():
    keep_running({"one": [sys.executable, "-c", program]}, os.environ, is_up=lambda: sys.argv[1] == "up" and hears())
"""


@pytest.mark.parametrize(
    ("state", "sent", "heard"),
    [
        ("starting", signal.SIGINT, ["SIGTERM"]),
        ("up", signal.SIGINT, ["SIGINT", "SIGTERM"]),
        ("up", signal.SIGHUP, ["SIGINT", "SIGTERM"]),
        ("up", signal.SIGTERM, ["SIGTERM"]),
    ],
)
def test_an_interrupt_of_a_terminal_reaches_the_programs_once_they_are_up(
    tmp_path: Path, state: str, sent: signal.Signals, heard: list[str]
) -> None:
    command = [sys.executable, "-c", INTERRUPTED, state]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True) as process:
        wait_until((tmp_path / "heard").exists)
        wait_until(lambda: state != "up" or "up: one" in (tmp_path / "log").read_text())
        os.killpg(process.pid, sent)
        assert process.wait() == 0
    assert (tmp_path / "heard").read_text().split() == heard


def test_an_interrupt_reaches_also_what_a_program_left_behind_that_was_started_again(tmp_path: Path) -> None:
    left = "import pathlib, signal, time\nsignal.signal(signal.SIGINT, lambda *_: pathlib.Path('heard').touch())\n"
    left += "pathlib.Path('ready').touch()\nwhile not pathlib.Path('heard').exists(): time.sleep(0.05)"
    program = f"""
import os, pathlib, subprocess, sys
os.chdir({str(tmp_path)!r})
if pathlib.Path("ready").exists():
    pathlib.Path("again").touch()
else:
    subprocess.Popen([sys.executable, "-c", {left!r}])
"""
    kept = SupervisedProgram("one", [sys.executable, "-c", program], os.environ)
    wait_until((tmp_path / "ready").exists)

    def is_started_again() -> bool:
        kept.restart_if_ended()
        return (tmp_path / "again").exists()

    wait_until(is_started_again)
    kept.interrupt()
    wait_until((tmp_path / "heard").exists)
    kept.end(0)


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
            os.kill(each, signal.SIGKILL)  # raises if the process is gone
