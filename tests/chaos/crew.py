"""Start the processes of a run, pause and kill them at random times, and start replacements."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from typing import Self

from tests.chaos.board import Board
from tests.chaos.processes import Task, run

LONGEST_PAUSE_S = 0.05
"""The maximum delay in seconds between the end of a call and a kill or pause.

The kill or pause therefore happens during one of the next calls.
"""

LONGEST_WAIT_S = 10.0
"""The maximum time in seconds that a pause waits for the progress of one other process."""

_PRELOADED = [
    *(
        "tests.chaos.processes",
        "storage_core.read.search.ranking",
        "storage_core.read.sql",
        "storage_core.read.history",
    ),
    *("boto3", "botocore.session", "datafusion", "duckdb", "fastavro", "pandas", "pyarrow.parquet", "tantivy"),
    *("storage_core.data.formats.region_manifest_pb2", "storage_core.write.region.router"),
]
"""Modules that are loaded once for all processes, because loading them takes two seconds."""


@dataclass(slots=True)
class _Member:
    task: Task
    process: BaseProcess


@dataclass(slots=True)
class Crew:
    """The processes of a run, one per task. The exit of the context manager ends all processes."""

    tasks: Sequence[Task]
    board: Board
    places: int
    random: Random
    kills: int = 0
    stops: int = 0
    _members: list[_Member] = field(default_factory=list)
    _context: ForkServerContext = field(default_factory=lambda: multiprocessing.get_context("forkserver"))

    def __enter__(self) -> Self:
        """Start all processes from one process that has loaded all modules, so that each process starts quickly."""
        self._context.set_forkserver_preload(_PRELOADED)
        self._members = [self._start(task) for task in self.tasks]
        return self

    def __exit__(self, *_: object) -> None:
        """Kill all remaining processes."""
        for member in self._members:
            member.process.kill()
            member.process.join()

    def strike(self, rounds: int) -> None:
        """Kill or pause a random process `rounds` times.

        A paused process resumes after other processes have made progress.
        """
        for _ in range(rounds):
            member = self.random.choice(self._members)
            self._wait(member, 1)
            time.sleep(self.random.uniform(0.0, LONGEST_PAUSE_S))
            if self.random.random() < 0.5:
                self._kill(member)
            else:
                self._pause(member)

    def finish(self) -> None:
        """Let all processes end by themselves. Raise an error if a process failed."""
        self.board.stop()
        for member in self._members:
            member.process.join()
            self._require_sound(member)
            assert member.process.exitcode == 0, f"{member.task.name} ended with {member.process.exitcode}"

    def _start(self, task: Task) -> _Member:
        process = self._context.Process(target=run, args=(task, self.places), name=task.name)
        process.start()
        return _Member(task, process)

    def _kill(self, member: _Member) -> None:
        member.process.kill()
        member.process.join()
        self._require_sound(member)
        self.kills += 1
        following = self._start(replace(member.task, number=member.task.number + 10))
        member.task, member.process = following.task, following.process

    def _pause(self, member: _Member) -> None:
        pid = member.process.pid
        assert pid is not None
        self._require_sound(member)
        os.kill(pid, signal.SIGSTOP)
        self.stops += 1
        try:
            others = [each for each in self._members if each is not member]
            for each in self.random.sample(others, 2):
                self._wait(each, self.random.randint(1, 2), most_s=LONGEST_WAIT_S)
        finally:
            os.kill(pid, signal.SIGCONT)

    def _wait(self, member: _Member, events: int, most_s: float = math.inf) -> None:
        """Wait until a process has counted `events` more events, or until `most_s` seconds have passed.

        A process waits for the locks of a paused one: for 30 seconds each, and in a claim for several. Without `most_s`
        the whole test hangs if a process hangs.
        """
        enough, until = self.board.events(member.task.place) + events, time.monotonic() + most_s
        while self.board.events(member.task.place) < enough and time.monotonic() < until:
            for each in self._members:
                self._require_sound(each)
            time.sleep(0.002)

    @staticmethod
    def _require_sound(member: _Member) -> None:
        told: Path = member.task.folder / f"{member.task.name}.failed"
        if told.exists():
            raise AssertionError(f"{member.task.name} failed:\n{told.read_text()}")
        code = member.process.exitcode
        assert code in (None, 0, -signal.SIGKILL), f"{member.task.name} ended with {code}"
