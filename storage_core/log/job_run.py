"""The common loop of all steps: open the table, plan, hold the lease, execute tasks, commit and report.

A step is one kind of job, for example a merge or a compaction. `JobRun` is one run of a step. An executor executes the
tasks of the run: `InProcessExecutor` in this process, `jobs.spark.spark.Spark` in Spark. A task is a function of a
`TaskEnvironment` and a work item. A task returns plain data: the actions to commit and the metrics for the report.
Tasks write files with new ids in their names. A file belongs to the table only if the driver commits its action
(docs/architecture/orchestration.md, "Spark").

The module also has the records about runs: `DueRun` (the run that a table needs), `Prediction`, `JobReport` and
`TaskFailure`. The text output, the JSON output and the metadata of assets are made from the report. So other programs
depend on the fields of the report.
"""

from __future__ import annotations

import base64
import importlib
import json
import logging
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Sized
from concurrent import futures
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial, wraps
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

import pyarrow as pa

from storage_core.base.clock import Clock, Ids, SystemClock, SystemIds
from storage_core.base.errors import CommitConflict, Held, InvalidInput, TidemarkError, error_of
from storage_core.base.process import holder_of, is_dead
from storage_core.data.rows.window_range import EVERY_WINDOW
from storage_core.data.settings.table import TableConfig
from storage_core.data.steps import RunOptions, step_of
from storage_core.log.actions import Action, Add, Remove
from storage_core.log.conflicts import Rebase, Requirement
from storage_core.log.lease import Heartbeat, Lease, acquire
from storage_core.log.log import PLANNED_AT_MOST, TransactionLog, log_at
from storage_core.log.sharing import open_table_store
from storage_core.log.snapshot import Snapshot
from storage_core.store.contract import ObjectStore
from storage_core.store.meter import MeteredStore, add_requests

Unit = Literal["files", "generations", "splits", "versions", "rows", "bytes"]
"""The unit in which the benefit of a maintenance step is measured.

- `files`: landed files that were ingested.
- `generations`: generations that were merged.
- `splits`: the decrease of the table's number of splits.
- `versions`: versions that a reader need not replay any more when it opens the table.
- `rows`: rows that an index now covers.
- `bytes`: bytes that were freed.
"""


DRIVER = "driver"
"""The name of the place where a job without Spark runs. The job runs in its own process."""

Status = Literal["committed", "nothing_to_do", "planned", "audited"]


class TaskResult(Protocol):
    """The result of a task that rewrites splits: the actions to commit, and the amounts read and written."""

    @property
    def actions(self) -> Sequence[Action]:
        """The actions of the commit: an add for each written split, and a remove for each replaced split."""
        ...

    @property
    def rows_in(self) -> int:
        """The number of rows read."""
        ...

    @property
    def rows_out(self) -> int:
        """The number of rows written."""
        ...

    @property
    def bytes_in(self) -> int:
        """The number of bytes read."""
        ...

    @property
    def bytes_out(self) -> int:
        """The number of bytes written."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The input and output of a run in rows, bytes and splits.

    Late rows are counted as accepted, quarantined or dropped.

    `rows_rejected` is the number of rejected rows that no earlier commit has counted. Four numbers concern new fields
    of landed files. `fields_ignored` counts values that were left out, and `fields_kept` counts values in the column
    for new fields. `columns_added` and `columns_widened` count columns. Two numbers count landed records without an
    effect on a keyed table: `rows_older` and `tombstones`. A record counts in `rows_older` if it is older than the row
    of its key.
    """

    rows_in: int = 0
    rows_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    splits_in: int = 0
    splits_out: int = 0
    rows_late_accepted: int = 0
    rows_late_quarantined: int = 0
    rows_late_dropped: int = 0
    rows_rejected: int = 0
    fields_ignored: int = 0
    fields_kept: int = 0
    columns_added: int = 0
    columns_widened: int = 0
    rows_older: int = 0
    tombstones: int = 0

    @staticmethod
    def of_adds(adds: Sequence[Add]) -> Metrics:
        """Return the metrics of a run that wrote rows from outside the table to these splits."""
        rows = sum(add.numRecords or 0 for add in adds)
        return Metrics(rows_in=rows, rows_out=rows, bytes_out=sum(add.size for add in adds), splits_out=len(adds))

    @staticmethod
    def of(results: Sequence[TaskResult]) -> Metrics:
        """Return the sum of the metrics of several tasks."""
        actions = [action for result in results for action in result.actions]
        return Metrics(
            rows_in=sum(result.rows_in for result in results),
            rows_out=sum(result.rows_out for result in results),
            bytes_in=sum(result.bytes_in for result in results),
            bytes_out=sum(result.bytes_out for result in results),
            splits_in=sum(isinstance(action, Remove) for action in actions),
            splits_out=sum(isinstance(action, Add) for action in actions),
        )

    def __add__(self, other: Metrics) -> Metrics:
        """Return the sum of both metrics."""
        return Metrics(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)})

    def as_mapping(self) -> dict[str, int]:
        """Return the metrics by name, as in commit metrics. The counts of `_ABSENT` are absent if they are 0."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: count for name, count in found.items() if count or name not in _ABSENT}


_ABSENT: Final = frozenset(
    {
        *("rows_rejected", "rows_older", "tombstones"),
        *("fields_ignored", "fields_kept", "columns_added", "columns_widened"),
    }
)
NO_METRICS = Metrics()


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The predicted benefit and cost of a run.

    Attributes:
        benefit: The predicted benefit in the unit `unit`.
        bytes_in: The prediction of `bytes_in` of the report. None if the stored metadata does not allow a prediction.
        bytes_out: The prediction of `bytes_out` of the report, also None if none is possible.
        gets: The minimum number of GETs.
        puts: The minimum number of PUTs.
    """

    benefit: int
    unit: Unit
    bytes_in: int | None = None
    bytes_out: int | None = None
    gets: int = 0
    puts: int = 0


def size_as_rows(snapshot: Snapshot, rows: int) -> int | None:
    """Return the estimated size in bytes of splits with this number of rows. Return None if the table is empty.

    The estimate uses the average size of the table's rows.
    """
    return round(snapshot.bytes / snapshot.rows * rows) if snapshot.rows else None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """The report on one run of one job.

    Attributes:
        version: The table's version after the run.
        requests: The number of storage requests by kind, of the driver and all tasks.
        seconds: The wall time of the run.
        spark_seconds: The wall time of the Spark part. 0 if Spark was not needed.
        ran: The place where the tasks were executed.
        commit_id: None if nothing was committed.
        details: Values that are specific to the job.
        predicted: The prediction of the plan, if the job makes one.
        benefit: The benefit of the run, in the unit of `predicted` (docs/architecture/orchestration.md).
    """

    job: str
    status: Status
    version: int
    metrics: Metrics = NO_METRICS
    requests: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    spark_seconds: float = 0.0
    ran: str = DRIVER
    commit_id: str | None = None
    details: Mapping[str, object] = field(default_factory=dict)
    predicted: Prediction | None = None
    benefit: int = 0

    def to_json(self) -> str:
        """Return the report as one line of JSON. The metrics are top-level fields."""
        body: dict[str, object] = {}
        for name, value in asdict(self).items():
            body |= value if name == "metrics" else {name: value}
        return json.dumps(body, default=str)

    def to_text(self) -> str:
        """Return the report for a terminal: one headline, then one line per metric that is not zero.

        The report of a job on several tables has no version. The report of a dry run has no output.
        """
        version = f"version {self.version:,}, " if self.version else ""
        did = self.metrics
        lines = [f"{self.job}: {self.status.replace('_', ' ')} ({version}{self.seconds:.1f} s)"]
        if did.rows_in or did.rows_out:
            lines.append(self._change("rows", did.rows_in, did.rows_out))
        late = (did.rows_late_accepted, did.rows_late_quarantined, did.rows_late_dropped)
        if any(late):
            lines.append("  late    {:>12,} accepted, {:,} quarantined, {:,} dropped".format(*late))
        if did.splits_in or did.splits_out:
            lines.append(self._change("splits", did.splits_in, did.splits_out))
        if did.bytes_in or did.bytes_out:
            lines.append(self._change("bytes", did.bytes_in, did.bytes_out))
        shown = {"requests": dict(sorted(self.requests.items())), **self.details}
        if self.status == "committed":
            lines.append(f"  ran: {self.ran}")
        words = {name: _words(value) for name, value in shown.items() if not isinstance(value, list)}
        lines += [f"  {name}: {text}" for name, text in words.items() if text]
        return "\n".join(lines)

    def _change(self, name: str, before: int, after: int) -> str:
        later = "" if self.status == "planned" else f" -> {after:,}"
        return f"  {name:<8}{before:>12,}{later}"


def _words(value: object) -> str:
    """Return a value as text for people. Zeros, False, None and empty values are omitted at any depth."""
    match value:
        case None | False | 0:
            return ""
        case int() if value is not True:
            return f"{value:,}"
        case Mapping():
            words = {name: text for name, each in value.items() if (text := _words(each))}
            # A name with a comma is a complete sentence, for example the reason why a row was rejected. Each sentence
            # gets its own line.
            if any("," in name for name in words):
                return "".join(f"\n    {text:>10}  {name}" for name, text in words.items())
            nested = {name for name, each in value.items() if isinstance(each, Mapping)}
            return ", ".join(f"{name} ({text})" if name in nested else f"{name} {text}" for name, text in words.items())
        case list() | tuple():
            return ", ".join(filter(None, map(_words, value)))
        case _:
            return str(value)


def with_report(error: TidemarkError, report: JobReport) -> TidemarkError:
    """Attach a report to the error of a run that did only part of its work, and return the error."""
    error.context["report"] = report
    return error


def report_of(error: TidemarkError) -> JobReport | None:
    """Return the report of the work before this error, or None if the run did nothing."""
    report = error.context.get("report")
    return report if isinstance(report, JobReport) else None


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """The kind and message of a typed error, for transport as JSON.

    Attributes:
        lasting: True if the same input would fail again.
    """

    kind: str
    message: str
    lasting: bool = False

    @staticmethod
    def of(error: TidemarkError, *, lasting: bool = False) -> TaskFailure:
        """Return the record of an error."""
        return TaskFailure(error.kind, str(error), lasting)

    def error(self) -> TidemarkError:
        """Return the error with its class, as it was raised in another process."""
        return error_of(self.kind, self.message)

    def to_object(self) -> dict[str, Any]:
        """Return the JSON object that `from_object` converts to an equal record."""
        return asdict(self)

    @staticmethod
    def from_object(body: Mapping[str, Any]) -> TaskFailure:
        """Return the record that `to_object` wrote."""
        return TaskFailure(**body)


@dataclass(frozen=True, slots=True, kw_only=True)
class DueRun:
    """The run that a step needs, and the reason.

    Attributes:
        items: The number of files, generations, splits or other items.
        bytes: The approximate bytes that the run reads. For a merge, the bytes of its records. 0 if unknown in advance.
        pieces: The bytes of each part into which the run can be divided, with the newest part first.
        indexes: The indexes to catch up.
        newest: The newest window to compact.
    """

    reason: str
    items: int = 1
    bytes: int = 0
    pieces: tuple[int, ...] = ()
    indexes: tuple[str, ...] = ()
    newest: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """The run that a table needs from one job, now or later.

    Attributes:
        due: The run that is due now, or None.
        in_ms: The time in ms after which a run may become due although the table has not changed. None if no run
            becomes due by time alone, or if the time is unknown.
    """

    due: DueRun | None
    in_ms: int | None = None


class Inputs(Protocol):
    """The inputs that determine the needed run: the table's newest version, its declared settings and the time."""

    @property
    def store(self) -> ObjectStore:
        """The store of the table."""
        ...

    @property
    def snapshot(self) -> Snapshot:
        """The newest version."""
        ...

    @property
    def declared(self) -> TableConfig:
        """The declared settings. The run applies these settings first."""
        ...

    @property
    def clock(self) -> Clock:
        """The clock that determines whether a run is needed."""
        ...


_WRITES: Final = ("put", "list")
_READS: Final = ("get", "head")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """The prices of a store, in dollars.

    The defaults are those of S3 Standard in us-east-1 at the time of writing.

    Attributes:
        put: The price of 1,000 requests that write or list.
        get: The price of 1,000 requests that read.
        storage: The price of one GiB for one month.
    """

    put: float = 0.005
    get: float = 0.0004
    storage: float = 0.023

    def of(self, requests: Mapping[str, int]) -> float:
        """Return the price of requests by kind. Deletes are free."""
        writes, reads = (sum(requests.get(kind, 0) for kind in kinds) for kinds in (_WRITES, _READS))
        return (writes * self.put + reads * self.get) / 1000


def read_prices(text: str) -> Prices:
    """Parse prices like `put=0.005,get=0.0004,storage=0.023`. An omitted price has its default value.

    Raises `InvalidInput`.
    """
    found: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, _, price = part.partition("=")
        try:
            found[name.strip()] = float(price)
        except ValueError:
            raise InvalidInput(f"{part!r} is not a price. Write the price as put=0.005") from None
    try:
        prices = Prices(**found)
    except TypeError:
        raise InvalidInput(f"the prices are {', '.join(found)}. Give the three prices put, get and storage") from None
    if not all(0 <= each < math.inf for each in found.values()):
        raise InvalidInput(f"{text!r} has a price that is below zero or not finite. Correct the price")
    return prices


LOG = logging.getLogger(__name__)

POLL_MS = 2_000
"""The interval at which a waiting run checks whether a lease is free."""

Options = TypeVar("Options", bound=RunOptions)
Plan = TypeVar("Plan", bound=Sized)
Brought = TypeVar("Brought")
Details = Mapping[str, object]
Item = Mapping[str, Any]
Answer = dict[str, Any]


@dataclass(slots=True)
class TaskEnvironment:
    """The environment of a task: the stores that it opens, the clock, and the source of fresh ids."""

    uri: str
    clock: Clock = field(default_factory=SystemClock)
    ids: Ids = field(default_factory=SystemIds)
    open_stores: dict[str, MeteredStore] = field(default_factory=dict)

    def open(self, uri: str) -> MeteredStore:
        """Return the store at the URI. Each store is opened once."""
        return self.open_stores.get(uri) or self.open_stores.setdefault(uri, MeteredStore(open_table_store(uri)))

    @property
    def store(self) -> MeteredStore:
        """The store of the table."""
        return self.open(self.uri)

    @property
    def requests(self) -> dict[str, int]:
        """The requests of all stores, by kind."""
        return add_requests(*(each.requests for each in self.open_stores.values()))


class Task(Protocol):
    """A task. `as_task` returns tasks.

    Executors call the task with an item. The executor `InProcessExecutor` does not call the task. `InProcessExecutor`
    instead calls the wrapped function, with the executor's place and the item as arguments.
    """

    @property
    def __wrapped__(self) -> Callable[[TaskEnvironment, Item], Answer]:
        """The wrapped function. The arguments of the wrapped function are a place and an item."""
        ...

    def __call__(self, item: Item) -> Answer:
        """Execute the item, and return the answer with the request counts."""
        ...


def as_task(execute: Callable[[TaskEnvironment, Item], Answer]) -> Task:
    """Return a task for this function. The task opens the item's table and counts its requests."""

    @wraps(execute)
    def executed(item: Item) -> Answer:
        place = TaskEnvironment(item.get("table_uri", ""))
        return {**execute(place, item), "requests": place.requests}

    return executed


def as_text(rows: pa.Table) -> str:
    """Return rows as text that a work item or an answer can contain. The text is an Arrow stream in base64."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return base64.b64encode(sink.getvalue()).decode()


def of_text(text: str) -> pa.Table:
    """Return the rows that `as_text` converted to this text."""
    return pa.ipc.open_stream(base64.b64decode(text)).read_all()


class Executor(Protocol):
    """An executor of the tasks of a run."""

    @property
    def seconds(self) -> float:
        """The wall time of tasks so far, in seconds. 0 if the tasks run in the process of the run."""
        ...

    @property
    def place(self) -> str:
        """The name of the place where tasks are executed."""
        ...

    @property
    def slots(self) -> int:
        """The number of tasks that run concurrently."""
        ...

    def is_needed_for(self, input_bytes: float, items: int) -> bool:
        """Return whether these items are executed outside this process. The items read `input_bytes` bytes."""
        ...

    def map(self, execute: Task, items: Sequence[Item], *, input_bytes: float = math.inf) -> list[Answer]:
        """Return the answer for each item, in the order of the items. Raises the first `TidemarkError` of a task."""
        ...


@dataclass(frozen=True, slots=True)
class InProcessExecutor:
    """An executor that executes tasks sequentially in this process, on the open store of the table.

    A table in the memory of this process also needs this executor.
    """

    log: TransactionLog
    seconds: float = 0.0
    place: str = DRIVER
    slots: int = 1

    def is_needed_for(self, input_bytes: float, items: int) -> bool:  # noqa: ARG002  # as the protocol has it
        """Return False: this process executes every task."""
        return False

    def map(self, execute: Task, items: Sequence[Item], *, input_bytes: float = math.inf) -> list[Answer]:
        """Return the answer for each item.

        Items and answers are converted to JSON and back, as with Spark. The store counts the requests.
        """
        del input_bytes
        store = self.log.store
        metered = store if isinstance(store, MeteredStore) else MeteredStore(store)
        place = TaskEnvironment(store.uri, self.log.clock, self.log.ids, {store.uri: metered})
        answers = [execute.__wrapped__(place, json.loads(json.dumps(item))) for item in items]
        return [{**json.loads(json.dumps(answer)), "requests": {}} for answer in answers]


class OpenTable(Protocol):
    """An open table: its log and one of its versions."""

    @property
    def log(self) -> TransactionLog:
        """The log of the table."""
        ...

    @property
    def snapshot(self) -> Snapshot:
        """The version on which the run is planned."""
        ...


def run(options: RunOptions, executor: Executor, table: OpenTable | None = None) -> JobReport:
    """Run the step that has these options, and return its report.

    Args:
        options: An instance of one of the classes of `storage_core.data.steps`.
        executor: Executes the tasks.
        table: The table, if it is already open.

    Raises:
        TidemarkError: Any error of the step's function.
    """
    return _run(JobRun(options, executor, table))


def run_here(options: RunOptions, table: OpenTable) -> JobReport:
    """Run the step in this process on an open table, without a lease. Raises the errors of `run`.

    A lease only prevents two runs from doing the same work. Even without a lease, the log refuses the second commit of
    the same work.
    """
    return _run(JobRun(options, InProcessExecutor(table.log), table, takes_leases=False))


def _run(job: JobRun[RunOptions]) -> JobReport:
    report: JobReport = getattr(importlib.import_module(job.step.home), f"run_{job.step.name}")(job)
    return report


class JobRun(Generic[Options]):
    """One run of one step. The step is planned on the snapshot `before`."""

    def __init__(
        self, options: Options, executor: Executor, table: OpenTable | None = None, *, takes_leases: bool = True
    ) -> None:
        """Start to measure the cost of the run. The table is opened when it is first used.

        Raises `InvalidInput` if the executor uses other processes and they cannot read the table.
        """
        self.step = step_of(options)
        self.options = options
        self.executor = executor
        self.stores: list[MeteredStore] = []
        self._uri = str(getattr(options, "table_uri", ""))
        if not isinstance(executor, InProcessExecutor):
            require_shared(self._uri)
        self._takes_leases = takes_leases
        self._wait_ms: int = getattr(options, "wait_ms", 0)
        self._is_dry: bool = getattr(options, "dry_run", False)
        self._started, self._spark_seconds_before = time.perf_counter(), executor.seconds
        self._task_requests: list[Mapping[str, int]] = []
        self._leases: list[Lease] = []
        self._tokens_spent = False
        self._opened: tuple[TransactionLog, Snapshot] | None = None
        self._head: Snapshot | None = None
        self._has_committed = False
        self._by_window: list[Details] | None = [] if _reports_windows(options) else None
        self._predicted: Prediction | None = None
        self._predicted_by_window: list[Details] = []
        if table is not None:
            self.use(table.log, table.snapshot)

    def use(self, log: TransactionLog, snapshot: Snapshot) -> None:
        """Use this table for the run. `snapshot` is the version on which the run was planned. The report counts the
        requests of its store.
        """
        self._opened = log, snapshot
        if isinstance(log.store, MeteredStore):
            self.stores.append(log.store)

    def _open(self) -> tuple[TransactionLog, Snapshot]:
        if self._opened is None:
            _, log = log_at(self._uri)
            self.use(log, log.snapshot())
            return self._open()
        return self._opened

    @property
    def log(self) -> TransactionLog:
        """The log of the table. The first use opens the table at its newest version. Raises `NotFound`."""
        return self._open()[0]

    @property
    def store(self) -> ObjectStore:
        """The store of the table."""
        return self.log.store

    @property
    def uri(self) -> str:
        """The location of the table."""
        return self.store.uri

    @property
    def before(self) -> Snapshot:
        """The snapshot on which the run is planned."""
        return self._open()[1]

    @before.setter
    def before(self, snapshot: Snapshot) -> None:
        self._opened = self.log, snapshot

    @property
    def _lease(self) -> Sequence[str]:
        return [self.step.lease] if self.step.lease else []

    def carry_out(
        self,
        plan: Callable[[Snapshot], Plan],
        work: Callable[[Plan], JobReport],
        *,
        predict: Callable[[Plan], Prediction] | None = None,
        leases: Sequence[str] | None = None,
        planned: Callable[[Plan], Details] = lambda _: {},
        nothing: Callable[[Plan], JobReport] | None = None,
    ) -> JobReport:
        """Plan, do the planned work under the leases, and return the report.

        If another commit invalidates the work, the run plans again on the newest snapshot, under the same leases. A
        run makes at most `PLANNED_AT_MOST` plans. If another process did the same work, the next plan is empty.

        Args:
            plan: A function that returns the work for a snapshot. A plan of length 0 means that the run has nothing to
                do.
            work: A function that does the work and returns the report. If it raises a `CommitConflict` after a commit
                of its own, the next plan and `nothing` must take that commit into account.
            predict: A function that returns the predicted cost and benefit, if the plan allows a prediction.
            leases: The resources to hold. By default the resource of the step. If empty, the run holds no lease.
            planned: A function that returns the arguments of `report` for a dry run.
            nothing: A function that returns the report if a plan is empty. By default, the run had nothing to do.

        Raises:
            CommitConflict: Another commit invalidated the last plan, or the table has no commit since the plan.
            Held: Another run holds one of the leases.
            Fenced: Another run took over one of the leases.
        """
        with self.leased(plan, self._lease if leases is None else leases) as first:
            found, plans = first, 1
            while True:
                if predict is not None and not self._has_committed:
                    self.predict(predict(found))
                if not found:
                    return nothing(found) if nothing else self.report("nothing_to_do")
                if self._is_dry:
                    return self.report("planned", **planned(found))  # type: ignore[arg-type]  # arguments of `report`
                try:
                    return work(found)
                except CommitConflict as conflict:
                    if plans == PLANNED_AT_MOST:
                        why = f"Other processes committed first during each of {plans} plans. Run the command again"
                        raise conflict.reworded(f"{conflict.found}. {why}") from None
                    if not self._has_newer_version():
                        raise
                    LOG.info("%s of %s is planned again: %s", self.step.name, self.uri, conflict)
                found, plans = plan(self.before), plans + 1

    def _has_newer_version(self) -> bool:
        """Set `before` to the newest snapshot.

        Return whether a new plan may differ. The cost is the cost of `log.refresh`.
        """
        planned = self.before.version
        self.refresh_head()
        return self.before.version > planned

    @contextmanager
    def leased(self, plan: Callable[[Snapshot], Plan], resources: Sequence[str]) -> Iterator[Plan]:
        """Make a plan from the snapshot `before`, and hold the resources while the block runs.

        A dry run, or a run that has nothing to do, takes no lease. If the run had to wait for a lease, `before` becomes
        the newest snapshot, and the plan is made again. Raises the errors of `holding`.
        """
        planned = plan(self.before)
        if not planned or self._is_dry or not resources:
            yield planned
            return
        with self.holding(*resources) as waited:
            if waited:
                self.before = self.log.refresh(self.before)
                planned = plan(self.before)
            yield planned

    @contextmanager
    def holding(self, *resources: str) -> Iterator[bool]:
        """Hold the resources during the block, with a heartbeat. Yield True if the run had to wait for a lease.

        A commit in the block contains the fences of the leases.

        Raises:
            Held: After the waiting time of the options, another run still holds a resource. This run then holds no
                resource.

        Cost:
            Per resource: one GET and one PUT, one GET before the commit, one PUT at the end, and one PUT per heartbeat.
        """
        if not self._takes_leases:
            yield False
            return
        self.log.require_capable()
        with ExitStack() as held:
            held.callback(self._leases.clear)
            left_ms = self._wait_ms
            for resource in sorted(resources):
                lease, left_ms = self._acquire(resource, left_ms)
                held.callback(lease.release)
                self._leases.append(lease)
            held.enter_context(Heartbeat(self._leases))
            yield left_ms < self._wait_ms

    def require_held(self) -> None:
        """Raise `Fenced` if another run took over a resource of this run. One GET per lease."""
        for lease in self._leases:
            lease.require_held()

    def _require_tokens(self) -> None:
        """Raise `Fenced` unless this run still holds its resources.

        If a commit of this run has used the tokens, take new tokens.
        """
        if self._tokens_spent:
            for lease in self._leases:
                lease.advance()
        else:
            self.require_held()
        self._tokens_spent = True

    def _acquire(self, resource: str, wait_ms: int) -> tuple[Lease, int]:
        """Return the lease and the remaining waiting time in ms."""
        log, holder = self.log, holder_of(self.options.run_id)
        while True:
            try:
                return acquire(log, self.before, resource, holder, is_dead=is_dead), wait_ms
            except Held as error:
                if wait_ms <= 0:
                    raise
                LOG.info("waiting: %s", error)
            pause_ms = min(wait_ms, POLL_MS)
            log.clock.sleep_ms(pause_ms)
            wait_ms -= pause_ms

    def count(self, answers: Sequence[Answer]) -> None:
        """Add the requests of these tasks to the requests of this run."""
        self._task_requests += [answer["requests"] for answer in answers]

    def map(
        self,
        execute: Task,
        items: Sequence[Item],
        *,
        writes: bool = True,
        input_bytes: float = math.inf,
    ) -> list[Answer]:
        """Execute one task per item and return the answers in item order. The run counts the requests of the tasks.

        Args:
            writes: True if the tasks write. The capabilities of the store are then checked first.
            input_bytes: The number of bytes that all tasks together read. With a small value, Spark is not used. Keep
                the default if the value is unknown, or if a task may need much more memory than this number of bytes.
        """
        if items and writes:
            self.log.require_capable()
        uri = self.uri
        answers = self.executor.map(execute, [{"table_uri": uri, **item} for item in items], input_bytes=input_bytes)
        self.count(answers)
        return answers

    def predict(self, predicted: Prediction) -> None:
        """Set the prediction that the report will contain."""
        self._predicted = predicted

    def predict_windows(self, by_window: Mapping[int | None, Prediction]) -> None:
        """Set the prediction for each window, for a report that contains metrics per window."""
        if self._by_window is not None:
            self._predicted_by_window = [
                {"window": window, "benefit": each.benefit, "bytes_in": each.bytes_in, "bytes_out": each.bytes_out}
                for window, each in by_window.items()
            ]

    @property
    def head(self) -> Snapshot:
        """The newest snapshot of the run: the snapshot of its last commit, else `before`."""
        return self._head or self.before

    def refresh_head(self) -> None:
        """Set `before` to the newest snapshot, for the next commit. The cost is the cost of `log.refresh`."""
        self.before, self._head = self.log.refresh(self.head), None

    def map_groups(
        self, execute: Task, groups: Sequence[Sequence[Item]], *, input_bytes: int
    ) -> Generator[tuple[int, list[Answer] | TidemarkError]]:
        """Execute one task per item. Yield the number and the answers of a group as soon as all tasks of the group end.

        Groups start in item order. The number of active groups is the number of task slots plus one, so that a long
        task does not delay other groups. If Spark could not run a group, the error is the answer of that group, and the
        other groups continue.

        Args:
            input_bytes: The number of bytes that all tasks together read. For a single group with a small value, Spark
                is not used.
        """
        self.log.require_capable()
        uri = self.uri
        small = input_bytes if len(groups) == 1 else math.inf  # Several groups always count as large work.
        calls = [
            partial(self.executor.map, execute, [{"table_uri": uri, **item} for item in items], input_bytes=small)
            for items in groups
        ]
        at_once = self.executor.slots + 1 if len(calls) > 1 else 1
        for number, answers in as_completed(calls, at_once):
            if not isinstance(answers, TidemarkError):
                self.count(answers)
            yield number, answers

    def commit(
        self,
        actions: Sequence[Action],
        *,
        operation: str,
        metrics: Metrics,
        requirements: Sequence[Requirement] = (),
        details: Mapping[str, object] | None = None,
        by_window: Mapping[int | None, Metrics] | None = None,
        benefit: int = 0,
        rebase: Rebase | None = None,
        drifted: Sequence[str] = (),
    ) -> JobReport:
        """Commit the actions once and return the report. The actions were planned on `before`.

        Raises the errors of the log. With leases, the commit contains their fences. Each further commit of the run
        takes the next token of each lease, which costs one PUT per lease.

        Args:
            by_window: The metrics of each window, for a report that contains metrics per window.
            benefit: The benefit in the unit of the prediction.
            drifted: The fields and columns of landed files that the metrics of the commit list (`name_drift`).

        Raises:
            Fenced: Another run took over a lease.
        """
        self.log.require_capable()
        self._require_tokens()
        try:
            result = self.log.commit(
                self.before,
                [*actions, *(lease.fence for lease in self._leases)],
                operation=operation,
                requirements=[*requirements, *(lease.requirement for lease in self._leases)],
                metrics=metrics.as_mapping() | ({"drifted": [*drifted]} if drifted else {}),
                job_run_id=self.options.run_id,
                head=self._head,
                rebase=rebase,
            )
        except CommitConflict:
            # Nothing was written, so the tokens stay valid. After any other failure, the outcome is unknown.
            self._tokens_spent = False
            raise
        self._head, self._has_committed = result.snapshot, True
        LOG.info("%s committed version %d of %s", self.step.name, result.version, self.uri)
        status: Status = "nothing_to_do" if result.already_committed else "committed"
        if self._by_window is not None and status == "committed":
            commit = {"version": result.version, "commit_id": result.commit_id}
            self._by_window += [
                {"window": window, **commit, **done.as_mapping()} for window, done in (by_window or {}).items()
            ]
        return self.report(
            status, result.version, metrics=metrics, commit_id=result.commit_id, details=details, benefit=benefit
        )

    def report(
        self,
        status: Status,
        version: int | None = None,
        *,
        metrics: Metrics = NO_METRICS,
        commit_id: str | None = None,
        details: Mapping[str, object] | None = None,
        benefit: int = 0,
    ) -> JobReport:
        """Return the current report of this run. `benefit` is in the unit of the prediction."""
        windows = {"by_window": self._by_window, "predicted_by_window": self._predicted_by_window}
        report = JobReport(
            job=self.step.name,
            status=status,
            version=self.before.version if version is None else version,
            metrics=metrics,
            commit_id=commit_id,
            details={**(details or {}), **{name: each for name, each in windows.items() if each}},
            predicted=self._predicted,
            benefit=benefit,
        )
        spark_seconds = self.executor.seconds - self._spark_seconds_before
        return replace(
            report,
            requests=add_requests(*(each.requests for each in self.stores), *self._task_requests),
            seconds=round(time.perf_counter() - self._started, 3),
            spark_seconds=round(spark_seconds, 3),
            ran=self.executor.place if spark_seconds else DRIVER,
        )


def require_shared(uri: str) -> str:
    """Return the URI of a location that Spark tasks can read. Raises `InvalidInput` for a table in process memory."""
    if uri.startswith("memory:"):
        raise InvalidInput(
            f"{uri}: Spark tasks cannot see a store in the memory of this process. Use a folder or a bucket",
            uri=uri,
        )
    return uri


def _reports_windows(options: RunOptions) -> bool:
    """Return True if the report has metrics per window.

    The report has these metrics if the options request them or limit the run to some windows.
    """
    by_window: bool | None = getattr(options, "by_window", None)
    return by_window is not None and (by_window or getattr(options, "windows", EVERY_WINDOW) != EVERY_WINDOW)


def as_completed(
    calls: Sequence[Callable[[], Brought]], at_once: int
) -> Generator[tuple[int, Brought | TidemarkError]]:
    """Yield the number and the outcome of each call as soon as the call ends. Calls start in the given order.

    At most `at_once` calls run concurrently. If several calls end before the caller takes the next outcome, their order
    is undefined. A `TidemarkError` is the outcome of its call and stops no other call. Any other error is raised. If
    the caller stops early, calls that have not started are skipped. The function does not wait for active calls. A
    single call runs in the caller's thread.
    """
    if len(calls) == 1:
        yield 0, _outcome(calls[0])
        return
    pool = futures.ThreadPoolExecutor(max_workers=max(1, min(at_once, len(calls))), thread_name_prefix="tidemark-group")
    try:
        numbers = {pool.submit(_outcome, call): number for number, call in enumerate(calls)}
        for ended in futures.as_completed(numbers):
            yield numbers[ended], ended.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _outcome(call: Callable[[], Brought]) -> Brought | TidemarkError:
    try:
        return call()
    except TidemarkError as error:
        return error
