"""Spark for jobs. A session starts only when work needs it, and each work item is one task.

If the work costs less than the start of a session, this process executes the items one after another (decision 0039).
Work items and answers are sent as JSON through `mapInArrow`. Spark shuffles no data. The code uses only the DataFrame
API and SQL. A local Spark, a cluster and a Spark Connect server therefore work in the same way
(docs/architecture/orchestration.md, "Spark", and decision 0039).
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
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import pyarrow as pa

from jobs.process import progress_to_dagster
from jobs.spark import warm
from jobs.spark.session import SETTINGS, active, failure_of, require_form, resolved, spark_errors, start
from jobs.spark.warm import WarmSession
from storage_core.base.errors import InvalidInput, TidemarkError
from storage_core.base.text import alternatives, counted, quoted
from storage_core.data.steps import LOCAL_SPARK
from storage_core.log.job_run import TaskFailure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The limits up to which the work of a job counts as small.
#
# A job executes small work in its own process, because this is faster than a start of Spark (decision 0039).

SPARK = "TIDEMARK_SPARK"
DRIVER_MIB = "TIDEMARK_DRIVER_MIB"
DRIVER_ITEMS = "TIDEMARK_DRIVER_ITEMS"

_MOST_DIGITS = 9


class SparkUse(StrEnum):
    """The condition for executing work items as Spark tasks.

    With `auto`, Spark executes the items only if they exceed the limits of small work. With `always`, Spark executes
    all items.
    """

    AUTO = "auto"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallWork:
    """The largest total work that the process of a job executes itself, in bytes of input and in items.

    If one of the limits is 0, the process of the job executes no work itself.
    """

    use: SparkUse = SparkUse.AUTO
    most_bytes: int = 64 * 2**20
    most_items: int = 32

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> SmallWork:
        """Return the limits in `TIDEMARK_SPARK`, `TIDEMARK_DRIVER_MIB` and `TIDEMARK_DRIVER_ITEMS`, or the defaults.

        Raises `InvalidInput` for an invalid value.
        """
        use, known = environment.get(SPARK) or SparkUse.AUTO.value, [each.value for each in SparkUse]
        if use not in known:
            raise InvalidInput(f"{SPARK} is {quoted(use)}. Set {SPARK} to {alternatives(known)}")
        usual = cls()
        return cls(
            use=SparkUse(use),
            most_bytes=_whole(environment, DRIVER_MIB, usual.most_bytes // 2**20) * 2**20,
            most_items=_whole(environment, DRIVER_ITEMS, usual.most_items),
        )


class DriverShare:
    """The remaining amount of small work that a job may execute in its own process instead of Spark. Thread-safe."""

    def __init__(self, most: SmallWork) -> None:
        self._lock = threading.Lock()
        self._bytes: float = most.most_bytes
        self._items = most.most_items
        self._is_open = most.use is SparkUse.AUTO

    def fits(self, input_bytes: float, items: int) -> bool:
        """Return whether this amount of work fits into the remaining limits."""
        return self._is_open and input_bytes <= self._bytes and items <= self._items

    def take(self, input_bytes: float, items: int) -> bool:
        """Subtract the work from the remaining limits. If the work does not fit, only return False."""
        with self._lock:
            if not self.fits(input_bytes, items):
                return False
            self._bytes, self._items = self._bytes - input_bytes, self._items - items
            return True


def _whole(environment: Mapping[str, str], name: str, usual: int) -> int:
    text = environment.get(name) or str(usual)
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
        raise InvalidInput(f"{name} is {quoted(text)}. Set {name} to a whole number, or to 0 for none")
    return int(text)


# The progress of a job. A job reports the numbers of finished items and of all items every few seconds.


LEAST_PAUSE_SECONDS = 5.0
SHARE_OF_TIME = 0.02
"""Pauses between messages grow with the elapsed time.

Even a very long job therefore sends only some hundred messages.
"""

LOOK_SECONDS = 2.0

Say = Callable[[int, int], None]


class Progress:
    """Counts items, and calls `say(done, total)` at intervals.

    The first call is after at least `LEAST_PAUSE_SECONDS`.
    """

    def __init__(self, say: Say | None, now: Callable[[], float] = time.monotonic) -> None:
        """Count items and report the counts to `say`. If `say` is None, nothing is reported."""
        self._say, self._now = say, now
        self._lock = threading.Lock()
        self._total = self._done = self._most_said = 0
        self._under_way: Mapping[object, int] = {}
        self._began = self._said = now()

    def begin(self, items: int) -> None:
        """Add items that will be executed."""
        with self._lock:
            if self._done == self._total:
                self._began = self._said = self._now()
            self._total += items

    def end(self, items: int = 1) -> None:
        """Add finished items."""
        with self._lock:
            self._done, self._under_way = self._done + items, {}
        self._tell()

    def update_finished(self, under_way: Mapping[object, int]) -> None:
        """Set the number of finished items for each unfinished part of the work."""
        with self._lock:
            self._under_way = under_way
        self._tell()

    @contextmanager
    def watching(self, session: Any) -> Iterator[None]:
        """If `say` is set, observe the tasks of a Spark session inside the block."""
        if self._say is None:
            yield
        elif type(session).__module__.startswith(
            "pyspark.sql.connect"
        ):  # a Connect server reports progress itself in each answer
            operations: dict[object, int] = {}

            def handle(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:  # noqa: FBT001  # PySpark's signature
                del inflight_tasks
                operations[operation_id] = 0 if done else sum(each.num_completed_tasks for each in stages or ())
                self.update_finished(dict(operations))

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
            self.update_finished({number: stage.numCompletedTasks for number, stage in stages.items() if stage})

    def _tell(self) -> None:
        with self._lock:
            now = self._now()
            pause = max(LEAST_PAUSE_SECONDS, SHARE_OF_TIME * (now - self._began))
            if self._say is None or now - self._said < pause:
                return
            self._said = now
            done = min(self._total, self._done + sum(self._under_way.values()))
            done = self._most_said = max(done, self._most_said)  # the list no longer contains a stage that has ended
            total = self._total
        self._say(done, total)


# The wall-clock time of work in several threads.


class Stopwatch:
    """Measures the wall-clock time while at least one thread is in the block of this object."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._since = 0.0
        self._seconds = 0.0

    @property
    def seconds(self) -> float:
        """The measured time until now, without the time of blocks that have not ended."""
        return self._seconds

    def __enter__(self) -> None:
        """Start the clock if it is not running."""
        with self._lock:
            if not self._inside:
                self._since = time.perf_counter()
            self._inside += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the clock when the last thread leaves its block."""
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._seconds += time.perf_counter() - self._since


# The executor.


LOG = logging.getLogger(__name__)

_PARTS_OF_ROWS = "spark.sql.leafNodeDefaultParallelism"
_EVERY_ROW = 1_000_000  # Spark never creates more partitions than rows
# On every kind of Spark, a range has one partition per slot, but at most one partition per row.
_PARTITIONS = "SELECT spark_partition_id() FROM range(4096)"

Item = Mapping[str, Any]
Answer = dict[str, Any]
Made = TypeVar("Made")


class Spark:
    """A Spark session that starts when work first needs it, and stops on exit. Several jobs may share the session.

    Args:
        master: The URL of a Spark master or of a Spark Connect server (`sc://host:15002`). The default is the server in
            the environment variable `SPARK_REMOTE`. If neither is given, this process executes small work itself until
            a session runs.
        small: The limits of small work. The default comes from the environment (`SmallWork.of`).

    Raises `InvalidInput` if `master` does not have the form of an address.
    """

    def __init__(self, master: str = LOCAL_SPARK, small: SmallWork | None = None) -> None:
        require_form(master)
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
        """Return this object. No session starts here."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the session if it is running."""
        self.stop()

    def begin_job(self) -> None:
        """Begin another job. The new job gets the full limits of `SmallWork`."""
        self._share = DriverShare(self._small)

    @property
    def seconds(self) -> float:
        """The wall-clock time during which at least one task ran, up to now."""
        return self._busy.seconds

    @property
    def place(self) -> str:
        """The place where tasks run. Reports show it."""
        where = resolved(self._master)
        if self._warm is not None:
            return self._warm.place
        return "spark (own session)" if where == LOCAL_SPARK and not self._joined else f"spark at {where}"

    def stop(self) -> None:
        """Stop the session and its work. If other code started the session, do nothing.

        Later work starts or joins a session again.
        """
        if self._session is not None and not self._joined:
            # An interruption may have hit this thread while its connection waits for an answer. Another thread
            # therefore stops Spark.
            with ThreadPoolExecutor(1) as another:
                another.submit(self._warm.leave if self._warm else self._session.stop).result()
        self._session = self._warm = None

    def session(self, *, with_delta: bool = False, on_s3: bool = False) -> SparkSession:
        """Return the session. Start the session if it is not running.

        Args:
            with_delta: The session must be able to read Delta tables (`jobs.spark.delta`).
            on_s3: If this call starts the session, it can also read Delta tables on S3.

        Raises:
            Unavailable: Java or a package of the Connect client is missing, or no Spark answers at the address.
            InvalidInput: Both a master and `SPARK_REMOTE` are set.
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
                self._session.conf.unset(_PARTS_OF_ROWS)  # a killed job may not have removed the setting
            else:
                self._session = self._started(master, with_delta=with_delta, on_s3=on_s3)
            LOG.info("started %s in %.1f s", self.place, time.perf_counter() - started)
        if with_delta:
            from jobs.spark.delta import (
                require_delta,
            )  # the module imports Delta's log, which other steps do not need

            require_delta(self._session, self._master)
        return self._session

    @staticmethod
    def _started(master: str, *, with_delta: bool, on_s3: bool) -> SparkSession:
        if not with_delta:
            return start(master)
        from jobs.spark.delta import cannot_start, settings

        try:
            return start(master, settings(on_s3=on_s3))
        except spark_errors() as error:
            raise cannot_start(error) from error

    @property
    def slots(self) -> int:
        """The number of tasks that can run concurrently, up to 4,096. The session starts if necessary.

        Raises the errors of `session`, and `Unavailable` if Spark does not answer.
        """
        try:
            return len(set(self.session().sql(_PARTITIONS).collect()))
        except spark_errors() as error:
            raise failure_of(error) from error

    def is_needed_for(self, input_bytes: float, items: int) -> bool:
        """Return whether Spark would execute this many items with this much input."""
        return not (self._is_cold and self._share.fits(input_bytes, items))

    @property
    def _is_cold(self) -> bool:
        """Return True if no Spark session runs yet and the user has set no address of a Spark server."""
        return self._session is None and active() is None and resolved(self._master) == LOCAL_SPARK

    def map(
        self, execute: Callable[[Item], Answer], items: Sequence[Item], *, input_bytes: float = math.inf
    ) -> list[Answer]:
        """Return the answer for each item, in the order of the items. Each item is one task.

        Small work is executed in this process, one item after another, with the same answers and errors. Without items,
        Spark does not start.

        Args:
            execute: The function of a task. Workers must be able to import it.
            items: The items.
            input_bytes: The total number of bytes that the items read. If it is not given, the work does not count as
                small.

        Raises:
            TidemarkError: A task raised this error. It has the same class as in the task. If several tasks fail, the
                error of the first failed item is raised.
            Unavailable: Spark did not run every task to its end. The message contains the cause.
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
        """Execute the item in this process, and return its answer in the form of a Spark task's answer.

        A bug raises the same error as in a task.
        """
        try:
            answer: Answer = json.loads(_answered(execute, json.dumps(item)))
        except Exception as error:
            LOG.exception("%s in this process", execute.__name__)
            first_line = f"{type(error).__name__}: {error}".splitlines()[0]
            raise TidemarkError(f"a task failed: {first_line}") from error
        self._progress.end()
        return answer

    def checked(self, make: Callable[[], Made]) -> Made:
        """Return the result of `make`. Errors of Spark become the errors of `map`."""
        try:
            return make()
        except spark_errors() as error:
            raise failure_of(error) from error

    def map_rows(
        self, execute: Callable[[Iterator[pa.RecordBatch], Item], Answer], frame: Any, item: Item
    ) -> list[Answer]:
        """Return one answer per partition of a data frame. One task reads all rows of a partition.

        `execute` takes batches of rows and the item. Workers must be able to import it. Errors are those of `map`.
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
        """Inside the block, each row from the driver becomes one task. The task runs on any free slot. Thread-safe.

        A shuffle is not used, because its tasks would prefer the host that has the items.
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
    """Print the name of a slow activity to a terminal.

    The function does not show tasks, because Spark's progress bar shows tasks.
    """
    if sys.stderr.isatty():
        sys.stderr.write(f"tidemark: {doing} …\n")


def _without_errors(answers: list[Answer]) -> list[Answer]:
    for answer in answers:
        if "error" in answer:
            raise TaskFailure.from_object(answer["error"]).error()
    return answers


def _answered(execute: Callable[[Item], Answer], payload: str) -> str:
    try:
        answer = execute(json.loads(payload))
    except TidemarkError as error:
        answer = {"error": TaskFailure.of(error).to_object()}
    return json.dumps(answer)


def _task_of_rows(
    execute: Callable[[Iterator[pa.RecordBatch], Item], Answer], item: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            answer = execute(batches, json.loads(item))
        except TidemarkError as error:
            answer = {"error": TaskFailure.of(error).to_object()}
        yield pa.RecordBatch.from_pydict({"answer": [json.dumps(answer)]})

    return run


def _task(execute: Callable[[Item], Answer]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for item, payload in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                yield pa.RecordBatch.from_pydict({"item": [item], "answer": [_answered(execute, payload)]})

    return run
