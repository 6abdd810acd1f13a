"""Spark as jobs use it: a session that starts only when there is work for one, and one task per work item.

Work that is smaller than what a session costs is executed in this process instead, item by item (decision 0166). A work
item travels as JSON and its answer comes back as JSON through `mapInArrow`; nothing is shuffled. DataFrame API and SQL
only: Spark in this process, on a cluster and behind Spark Connect are used alike
(docs/architecture/orchestration.md, "Spark"; decision 0076).
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import pyarrow as pa

from jobs.reports.failure import Failed
from jobs.reports.pipes import progress_to_dagster
from jobs.spark import delta, warm
from jobs.spark.errors import failure_of, spark_errors
from jobs.spark.master import LOCAL_SPARK, resolved
from jobs.spark.progress import Progress
from jobs.spark.session import SETTINGS, active, start
from jobs.spark.small_work import DriverShare, SmallWork
from jobs.spark.stopwatch import Stopwatch
from jobs.spark.warm import WarmSession
from storage_core.errors import TidemarkError
from storage_core.wording import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG = logging.getLogger(__name__)

_PARTS_OF_ROWS = "spark.sql.leafNodeDefaultParallelism"
_EVERY_ROW = 1_000_000  # of rows there are never more parts than rows
# A range has as many partitions as there are slots, wherever Spark is, as far as its rows go.
_PARTITIONS = "SELECT spark_partition_id() FROM range(4096)"

Item = Mapping[str, Any]
Answer = dict[str, Any]
Made = TypeVar("Made")


class Spark:
    """A Spark session that is started by the first work for it and stopped on exit. Several jobs may share one.

    `master` is the URL of a Spark master or of a Spark Connect server (`sc://host:15002`). Unless one is named,
    `SPARK_REMOTE` in the environment is that server; where that names none either, this process executes `small` work
    itself as long as no session runs. Without `small` the environment says how much that is (`SmallWork.of`).
    """

    def __init__(self, master: str = LOCAL_SPARK, small: SmallWork | None = None) -> None:
        self._master = master
        self._small = small or SmallWork.of(os.environ)
        self._share = DriverShare(self._small)
        self._progress = Progress(progress_to_dagster())
        self._session: SparkSession | None = None
        self._warm: WarmSession | None = None
        self._joined = False
        self._busy = Stopwatch()
        self._lock = threading.Lock()
        self._mapping = 0

    def __enter__(self) -> Self:
        """Return itself; nothing is started yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the session, if one was started."""
        self.stop()

    def begin_job(self) -> None:
        """Begin another job: what small work this process executes is counted anew."""
        self._share = DriverShare(self._small)

    @property
    def seconds(self) -> float:
        """How long tasks have run so far, by the clock on the wall."""
        return self._busy.seconds

    @property
    def place(self) -> str:
        """Where its tasks run, as reports say it."""
        where = resolved(self._master)
        if self._warm is not None:
            return self._warm.place
        return "spark (own session)" if where == LOCAL_SPARK and not self._joined else f"spark at {where}"

    def stop(self) -> None:
        """Stop the session and its JVM work, unless another one started it; the next work item starts or joins one."""
        if self._session is not None and not self._joined:
            with ThreadPoolExecutor(1) as another:  # an interrupted thread may wait on its connection for an answer
                another.submit(self._warm.leave if self._warm else self._session.stop).result()
        self._session = self._warm = None

    def session(self, *, with_delta: bool = False, on_s3: bool = False) -> SparkSession:
        """Return the session, starting it where needed; `with_delta` it reads Delta tables (`spark.delta`).

        One that is started here reads them also `on_s3` where that is asked for first.

        Raises `Unavailable` without Java, without the packages that a Connect server asks for, or where nobody answers
        at the address, and `InvalidInput` when both a master and `SPARK_REMOTE` are named.
        """
        if self._session is None:
            started = time.perf_counter()
            master = resolved(self._master)
            self._joined = active() is not None
            _tell(f"starting Spark on {master}")
            if master == LOCAL_SPARK and not with_delta and not self._joined:
                self._warm = warm.join(SETTINGS, os.environ)
            if self._warm is not None:
                self._session = self._warm.session
                self._session.conf.unset(_PARTS_OF_ROWS)  # a job that was killed may have left it
            else:
                self._session = self._started(master, with_delta=with_delta, on_s3=on_s3)
            LOG.info("started %s in %.1f s", self.place, time.perf_counter() - started)
        if with_delta:
            delta.require_delta(self._session, self._master)
        return self._session

    @staticmethod
    def _started(master: str, *, with_delta: bool, on_s3: bool) -> SparkSession:
        if not with_delta:
            return start(master)
        try:
            return start(master, delta.settings(on_s3=on_s3))
        except spark_errors() as error:
            raise delta.cannot_start(error) from error

    @property
    def slots(self) -> int:
        """How many tasks run at a time, up to 4,096; the session is started where needed.

        Raises what `session` raises, and `Unavailable` when Spark did not answer.
        """
        try:
            return len(set(self.session().sql(_PARTITIONS).collect()))
        except spark_errors() as error:
            raise failure_of(error) from error

    def is_needed_for(self, input_bytes: float, items: int) -> bool:
        """Return whether so many items that read so much would be Spark's."""
        return not (self._is_cold and self._share.fits(input_bytes, items))

    @property
    def _is_cold(self) -> bool:
        """Whether a session would have to be started, and nobody has said where."""
        return self._session is None and active() is None and resolved(self._master) == LOCAL_SPARK

    def map(
        self, execute: Callable[[Item], Answer], items: Sequence[Item], *, input_bytes: float = math.inf
    ) -> list[Answer]:
        """Return the answer for each item, in the order of the items; each item is one task.

        `execute` must be importable by the workers. A `TidemarkError` raised in a task is raised here with its class;
        of several, the first in item order. Raises `Unavailable` with the cause when Spark did not run every task to
        its end. No items: no Spark. Nor is there any for items that are small work by `input_bytes`, what all of them
        read (unless said, nobody knows): these are executed here, one after the other, with the same answers and
        errors.
        """
        if not items:
            return []
        self._progress.begin(len(items))
        if self._is_cold and self._share.take(input_bytes, len(items)):
            return _without_errors([self._executed_here(execute, item) for item in items])
        answers = self.checked(lambda: self._answers(execute, items))
        self._progress.end(len(items))
        return _without_errors(answers)

    def _executed_here(self, execute: Callable[[Item], Answer], item: Item) -> Answer:
        """The answer as it comes from a task. A defect is the error that it is in one."""
        try:
            answer: Answer = json.loads(_answered(execute, json.dumps(item)))
        except Exception as error:
            LOG.exception("%s in this process", execute.__name__)
            first_line = f"{type(error).__name__}: {error}".splitlines()[0]
            raise TidemarkError(f"a task failed: {first_line}") from error
        self._progress.end()
        return answer

    def checked(self, make: Callable[[], Made]) -> Made:
        """Return what `make` makes of the session, with Spark's errors as those of `map`."""
        try:
            return make()
        except spark_errors() as error:
            raise failure_of(error) from error

    def map_rows(
        self, execute: Callable[[Iterator[pa.RecordBatch], Item], Answer], frame: Any, item: Item
    ) -> list[Answer]:
        """Return the answer for each partition of a data frame of the session, which one task gives for all its rows.

        `execute` takes batches of rows and the item, and must be importable by the workers. Errors are those of `map`.
        """
        _tell(f"{execute.__name__}")
        task = _task_of_rows(execute, json.dumps(item))
        with self._busy:
            rows = self.checked(lambda: frame.mapInArrow(task, "answer string").collect())
        return _without_errors([json.loads(row["answer"]) for row in rows])

    def _answers(self, execute: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
        session = self.session()
        _tell(f"{execute.__name__}: {counted(len(items), 'task')}")
        numbered = pa.table({"item": range(len(items)), "payload": [json.dumps(item) for item in items]})
        with self._busy, self._progress.watching(session), self._an_item_a_task(session):
            frame = session.createDataFrame(numbered).mapInArrow(_task(execute), "item long, answer string")
            rows = frame.collect()
        return [json.loads(row["answer"]) for row in sorted(rows, key=lambda row: row["item"])]

    @contextmanager
    def _an_item_a_task(self, session: SparkSession) -> Iterator[None]:
        """While at least one thread is in the block, each row of the driver is a task, on whichever slot is free.

        After a shuffle they would prefer the host that held the items.
        """
        with self._lock:
            self._mapping += 1
            session.conf.set(_PARTS_OF_ROWS, _EVERY_ROW)
        try:
            yield
        finally:
            with self._lock:
                self._mapping -= 1
                if not self._mapping:
                    session.conf.unset(_PARTS_OF_ROWS)


def _tell(doing: str) -> None:
    """Say on a terminal what takes a while. Spark's own progress bar counts the tasks there."""
    if sys.stderr.isatty():
        sys.stderr.write(f"tidemark: {doing} …\n")


def _without_errors(answers: list[Answer]) -> list[Answer]:
    for answer in answers:
        if "error" in answer:
            raise Failed.from_object(answer["error"]).error()
    return answers


def _answered(execute: Callable[[Item], Answer], payload: str) -> str:
    try:
        answer = execute(json.loads(payload))
    except TidemarkError as error:
        answer = {"error": Failed.of(error).to_object()}
    return json.dumps(answer)


def _task_of_rows(
    execute: Callable[[Iterator[pa.RecordBatch], Item], Answer], item: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            answer = execute(batches, json.loads(item))
        except TidemarkError as error:
            answer = {"error": Failed.of(error).to_object()}
        yield pa.RecordBatch.from_pydict({"answer": [json.dumps(answer)]})

    return run


def _task(execute: Callable[[Item], Answer]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for item, payload in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                yield pa.RecordBatch.from_pydict({"item": [item], "answer": [_answered(execute, payload)]})

    return run
