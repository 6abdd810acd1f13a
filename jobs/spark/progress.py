"""How far a job is: items done, of how many so far, reported every few seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

LEAST_PAUSE_SECONDS = 5.0
SHARE_OF_TIME = 0.02
"""Pauses grow with the time so far, so that the messages of the longest job stay some hundreds."""

LOOK_SECONDS = 2.0

Say = Callable[[int, int], None]


class Progress:
    """Counts items, and says `done` and `total` through `say`, at first after `LEAST_PAUSE_SECONDS`."""

    def __init__(self, say: Say | None, now: Callable[[], float] = time.monotonic) -> None:
        """Count for `say`; None for nobody."""
        self._say, self._now = say, now
        self._lock = threading.Lock()
        self._total = self._done = self._most_said = 0
        self._under_way: Mapping[object, int] = {}
        self._began = self._said = now()

    def begin(self, items: int) -> None:
        """Count items that are to be done."""
        with self._lock:
            if self._done == self._total:
                self._began = self._said = self._now()
            self._total += items

    def end(self, items: int = 1) -> None:
        """Count items that are done."""
        with self._lock:
            self._done, self._under_way = self._done + items, {}
        self._tell()

    def look(self, under_way: Mapping[object, int]) -> None:
        """Take how many items are done of parts that have not ended, by part."""
        with self._lock:
            self._under_way = under_way
        self._tell()

    @contextmanager
    def watching(self, session: Any) -> Iterator[None]:
        """While the block runs, look at the tasks of a Spark session, where somebody listens."""
        if self._say is None:
            yield
        elif type(session).__module__.startswith(
            "pyspark.sql.connect"
        ):  # says so itself, with each answer to its client
            operations: dict[object, int] = {}

            def handle(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:  # noqa: FBT001  # PySpark's
                del inflight_tasks
                operations[operation_id] = 0 if done else sum(each.num_completed_tasks for each in stages or ())
                self.look(dict(operations))

            session.registerProgressHandler(handle)
            try:
                yield
            finally:
                session.removeProgressHandler(handle)
        else:
            ended = threading.Event()
            tracker = session.sparkContext.statusTracker()
            threading.Thread(target=self._watch, args=(tracker, ended), name="progress", daemon=True).start()
            try:
                yield
            finally:
                ended.set()

    def _watch(self, tracker: Any, ended: threading.Event) -> None:
        while not ended.wait(LOOK_SECONDS):
            stages = {number: tracker.getStageInfo(number) for number in tracker.getActiveStageIds()}
            self.look({number: stage.numCompletedTasks for number, stage in stages.items() if stage})

    def _tell(self) -> None:
        with self._lock:
            now = self._now()
            pause = max(LEAST_PAUSE_SECONDS, SHARE_OF_TIME * (now - self._began))
            if self._say is None or now - self._said < pause:
                return
            self._said = now
            done = min(self._total, self._done + sum(self._under_way.values()))
            done = self._most_said = max(done, self._most_said)  # a stage that has ended is under way no more
            total = self._total
        self._say(done, total)
