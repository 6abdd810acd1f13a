"""The state of tables, as records for people and programs, and as OpenMetrics text.

The number of requests per table is bounded. If a table cannot be read, the other tables are still read.
The log of a table does not contain its whole state. `ExternalBacklogReader` adds the state of landed
files, of mirrors, and of the plan of garbage collection. `held_back` returns the reasons why pending maintenance does
not start. The metrics are a contract (docs/spec.md). The labels of the metrics contain no location.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Self, TypeVar

from pipelines.automation import UPKEEP_SENSOR, Automation
from pipelines.history import history_folder
from pipelines.last_failures import LastFailure
from pipelines.maintenance.budgets import ALL, BudgetState, quiet, read_upkeep_of_all
from pipelines.tables import DeclaredTables, duration, size
from storage_core.base.clock import Clock, SystemClock
from storage_core.base.errors import NotFound, TidemarkError, as_tidemark_error
from storage_core.base.text import counted, escaped
from storage_core.change.declaration import TableDeclaration
from storage_core.change.declaration_file import read_automation
from storage_core.change.declaration_parts import UpkeepDeclaration, UpkeepOfAllDeclaration
from storage_core.data.steps import TABLE_STEPS
from storage_core.maintain.rejections import drift_text, rejection_text
from storage_core.maintain.status import NOT_MEASURED, ExternalBacklog, PendingWork, RetainedPart, Status, status
from storage_core.store.contract import PAGE_KEYS
from storage_core.store.meter import add_requests, all_of
from storage_core.table import Table

if TYPE_CHECKING:
    from storage_core.data.formats.documents import Plan
    from storage_core.maintain.status import RetainedBytes
    from storage_core.write.ingest.landing import LandingSpec


# Texts about the status of a table.


def next_run(status: Status) -> str:
    """Return text about the next scheduled compaction, and about the bytes that the retention frees.

    The text is empty if no compaction is scheduled and the retention frees no bytes.
    """
    run = status.next_run
    reads = f"{size(run.read_bytes)} read, {size(run.written_bytes)} written"
    costs = f"{run.splits:,} → {run.outputs:,} splits, {reads}" if run.splits else ""
    freed = f"{size(status.freed_bytes)} leave" if status.freed_bytes else ""
    return ", ".join(each for each in (costs, freed) if each)


def index_lag(status: Status) -> str:
    """Return the indexes that do not cover all rows, with the number of missing rows of each index.

    The text is empty if all indexes are up to date.
    """
    return ", ".join(f"{each.name} {counted(each.rows, 'row')}" for each in status.indexes if each.rows)


def held_bytes(status: Status, now_ms: int) -> str:
    """Return the reasons for keeping files that are not live, and how long they are kept.

    The text is empty if only live files are kept.
    """
    held = status.held
    if held is None:
        return ""
    whys = (
        ("older versions", held.versions),
        ("the GC horizon", held.horizon),
        ("the GC horizon (never part of a version)", held.orphans),
    )
    kept = [f"{size(each.bytes)} kept by {why} {_until(each, now_ms)}" for why, each in whys if each.bytes]
    tags = [
        f"files of the tag {name} kept {'until it is removed' if at is None else f'for {_in(at, now_ms)}'}"
        for name, at in held.tags.items()
    ]
    if not kept and not tags:
        return ""
    more = ["older versions may keep more bytes"] if held.is_partial else []
    return ", ".join([f"{size(held.live_bytes)} live", *kept, *tags, *more])


def _until(kept: RetainedPart, now_ms: int) -> str:
    first, last = _in(kept.first_ms or now_ms, now_ms), _in(kept.last_ms or now_ms, now_ms)
    return f"for {last}" if first == last else f"for {first} to {last}"


def _in(moment_ms: int, now_ms: int) -> str:
    return duration(max(0, moment_ms - now_ms))


# The state of tables.


MOST_LANDED = 10_000
"""The largest number of entries that `ExternalBacklogReader` reads at a landing location."""

HELD = "held"
"""The key of the reason why the table's retained bytes are unknown. Unlike the other keys, this key is not a step."""

Found = TypeVar("Found")


@dataclass(slots=True)
class ExternalBacklogReader:
    """The part of a table's pending work that the table's log does not show.

    Attributes:
        table: The table, or None if it does not exist yet. Then only the landing location is read.
        landing: The landing location of the table, or None.
        now_ms: The current time in milliseconds since the epoch.
        with_held: Also find the reasons why bytes of the table are kept.
        lists: The number of requests to the landing location. The store of the table counts all other requests.
    """

    table: Table | None
    landing: LandingSpec | None
    now_ms: int
    with_held: bool = False
    lists: int = 0
    _unknown: dict[str, str] = field(default_factory=dict)
    _read: Plan | None = None

    def measure(self) -> ExternalBacklog:
        """Return the pending work.

        Errors at the locations are not raised. The field `unknown` of the result contains them.

        Cost: one LIST per 1,000 entries of the landing location, one GET, and the requests of `published_versions`.
        With `with_held`, also the requests of `measure_retained`.
        """
        ingest, table = self._known("ingest", self._landed), self.table
        if table is None:
            return ExternalBacklog(ingest=ingest, unknown=self._unknown)
        return ExternalBacklog(
            ingest=ingest,
            collect=self._known("collect", lambda: self._noted(table)),
            mirrors=self._known("publish", lambda: self._lacking(table)) or {},
            held=self._known(HELD, lambda: self._held(table)) if self.with_held else None,
            unknown=self._unknown,
        )

    def _known(self, step: str, look: Callable[[], Found | None]) -> Found | None:
        try:
            return look()
        except TidemarkError as error:
            self._unknown[step] = f"{error.kind}: {error.found}"
            return None

    def _landed(self) -> PendingWork | None:
        if self.landing is None:
            return None
        if self.landing.queue is not None:
            from storage_core.write.ingest.announcements import Queue

            waiting = Queue.of(self.landing).waiting()
            return PendingWork(count=waiting, unit="messages") if waiting else None
        self.lists += 1
        return self._versions(self.landing) if self.landing.is_delta else self._files(self.landing)

    def _versions(self, spec: LandingSpec) -> PendingWork | None:
        from storage_core.write.ingest.progress import waiting_versions

        waiting = len(waiting_versions(spec.uri, self.table.snapshot if self.table else None))
        return PendingWork(count=waiting, unit="versions") if waiting else None

    def _files(self, spec: LandingSpec) -> PendingWork | None:
        from storage_core.write.ingest.landing import survey
        from storage_core.write.ingest.progress import pending

        found = survey(spec, most=MOST_LANDED)
        self.lists += max(found.entries - 1, 0) // PAGE_KEYS
        if found.entries >= MOST_LANDED:
            self._unknown["ingest"] = f"the landing location contains {counted(MOST_LANDED, 'file')} or more"
            return None
        waiting = pending(self.table.snapshot, found.files) if self.table else found.files
        sizes = [each.size for each in waiting]
        return PendingWork(count=len(sizes), unit="files", bytes=sum(sizes)) if sizes else None

    def _lacking(self, table: Table) -> dict[str, int]:
        how = table.config.publish
        if not how.formats:
            return {}
        from storage_core.interop.steps import published_versions

        shown = published_versions(table.store, how)
        return {name: table.version - (-1 if version is None else version) for name, version in shown.items()}

    def _noted(self, table: Table) -> PendingWork | None:
        """Return the garbage that the plan contains. The next collection deletes garbage that no version uses again."""
        from storage_core.maintain.collect import Horizon, long_noted

        own = table.config.gc_horizon_ms
        horizon = Horizon(requested_ms=own, configured_ms=own)
        due = list(long_noted(self._plan(table), horizon, now_ms=self.now_ms))
        return PendingWork(count=len(due), unit="objects", bytes=sum(each.size for each in due)) if due else None

    def _plan(self, table: Table) -> Plan:
        from storage_core.maintain.collect import read_plan

        if self._read is None:
            self._read = read_plan(table.store)
        return self._read

    def _held(self, table: Table) -> RetainedBytes:
        from storage_core.maintain.status import measure_retained

        return measure_retained(table.store, table.snapshot, self._plan(table), now_ms=self.now_ms)


PARALLEL_TABLES = 8
"""The number of tables that are read concurrently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusTarget:
    """A table and those declared properties that are needed to compute the state of the table.

    Attributes:
        name: The name that output uses for the table.
        uri: The location of the table.
        is_declared: Whether the table is declared. Only a declared table may be missing.
        freshness_ms: The declared freshness in milliseconds, or None.
        landing: The declared landing location of the table, or None.
    """

    name: str
    uri: str
    is_declared: bool = True
    freshness_ms: int | None = None
    landing: LandingSpec | None = None

    @classmethod
    def of(cls, declaration: TableDeclaration) -> Self:
        """Return a `StatusTarget` for a declared table."""
        return cls(
            name=declaration.name,
            uri=declaration.uri,
            freshness_ms=declaration.freshness,
            landing=declaration.landing_spec(),
        )


class State(StrEnum):
    """The state of a table as one word.

    `rejecting`: the table rejected too many rows. `failing`: the last run of a step failed. `failed`: the table cannot
    be read. If several states apply, the state is the first of `failed`, `behind`, `rejecting` and `failing`.
    """

    OK = "ok"
    BEHIND = "behind"
    REJECTING = "rejecting"
    FAILING = "failing"
    FAILED = "failed"
    NOT_MADE = "not_made"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """The state of a table, or the error that prevented the read of its state.

    Attributes:
        place: The table.
        status: The status, or None if the table cannot be read or does not exist yet.
        error: The error of a table that cannot be read.
        before: The pending work of a table that does not exist yet.
        requests: The number of requests for this state, by kind.
    """

    place: StatusTarget
    status: Status | None = None
    error: TidemarkError | None = None
    before: ExternalBacklog = NOT_MEASURED
    requests: Mapping[str, int]

    @property
    def pending(self) -> Mapping[str, PendingWork]:
        """The pending work by step. If the table does not exist yet, only landed files are pending work."""
        if self.status is not None:
            return self.status.pending
        return {} if self.before.ingest is None else {"ingest": self.before.ingest}

    @property
    def unknown(self) -> Mapping[str, str]:
        """The steps with unknown pending work, each with the reason."""
        return self.before.unknown if self.status is None else self.status.unknown

    def state_after(self, failure: LastFailure | None) -> State:
        """Return the state, and take the last failure of the table into account.

        A failure changes only the states `ok` and `not_made`. A table that is behind or rejecting keeps its state.
        """
        is_told = self.state in (State.OK, State.NOT_MADE) and failure is not None and not failure.is_over
        return State.FAILING if is_told else self.state

    @property
    def state(self) -> State:
        """The state of the table without failures of runs."""
        if self.error is not None:
            return State.FAILED
        if self.status is None:
            return State.NOT_MADE
        if self.status.behind:
            return State.BEHIND
        return State.REJECTING if self.is_rejecting else State.OK

    @property
    def is_rejecting(self) -> bool:
        """Whether the table rejects too many rows. A late table (`behind`) can also reject too many rows."""
        return self.status is not None and self.status.is_rejecting

    @property
    def rejection_text(self) -> str:
        """The message about the rejected rows. The message is empty if the table does not reject too many rows."""
        found = self.status and self.status.rejections
        return rejection_text(found, self._named) if found and self.is_rejecting else ""

    @property
    def drifted(self) -> tuple[str, ...]:
        """The fields and columns that drifted in landed files (`Rejections.drifted`)."""
        found = self.status and self.status.rejections
        return found.drifted if found else ()

    @property
    def drift_text(self) -> str:
        """The message about fields and columns that drifted. The message is empty if nothing drifted."""
        return self.drift_text_about(self.drifted)

    def drift_text_about(self, names: Sequence[str]) -> str:
        """Return the message about only these fields and columns."""
        found = self.status and self.status.rejections
        return drift_text(replace(found, drifted=tuple(names)), self._named) if found else ""

    @property
    def _named(self) -> str:
        return self.place.name if self.place.is_declared else self.place.uri


def status_targets(declared: DeclaredTables) -> list[StatusTarget]:
    """Return a `StatusTarget` for each declared table."""
    return [StatusTarget.of(each.declaration) for each in declared.tables]


def collect_all_statuses(
    places: Sequence[StatusTarget], clock: Clock | None = None, *, with_held: bool = False
) -> Iterator[TableStatus]:
    """Yield the state of each table in the order of `places`.

    If the state of a table cannot be read, the function yields a state with the error and does not raise it.

    With `with_held`, the result also contains the reasons why each table keeps bytes. Finding the reasons needs up to
    33 more requests per table.
    """
    now = clock or SystemClock()
    for start in range(0, len(places), PARALLEL_TABLES):
        some = places[start : start + PARALLEL_TABLES]
        yield from all_of(lambda each: collect_status(each, now, with_held=with_held), some, PARALLEL_TABLES)


def collect_status(place: StatusTarget, clock: Clock, *, with_held: bool = False) -> TableStatus:
    """Return the state of one table.

    Cost: the requests that open the table, and the requests of `ExternalBacklogReader.measure` and `maintain.status`.
    """
    none: dict[str, int] = {}
    table = None
    try:
        table = Table.open(place.uri)
    except NotFound as error:
        if not place.is_declared:
            return TableStatus(place=place, error=error, requests=none)
    except Exception as error:  # noqa: BLE001  # any error concerns only this table
        return TableStatus(place=place, error=as_tidemark_error(error), requests=none)
    try:
        return (
            collect_missing_status(place, clock)
            if table is None
            else collect_open_status(table, place, clock, with_held=with_held)
        )
    except Exception as error:  # noqa: BLE001  # any error concerns only this table
        requests = none if table is None else table.store.requests
        return TableStatus(place=place, error=as_tidemark_error(error), requests=requests)


def collect_missing_status(place: StatusTarget, clock: Clock) -> TableStatus:
    """Return the state of a declared table that does not exist yet. Cost: LIST requests for the landing location."""
    others = ExternalBacklogReader(None, place.landing, clock.now_ms())
    external = others.measure()
    return TableStatus(place=place, before=external, requests={"list": others.lists} if others.lists else {})


def collect_open_status(table: Table, place: StatusTarget, clock: Clock, *, with_held: bool = False) -> TableStatus:
    """Return the state of a table that is already open. Raises the errors of `maintain.status`."""
    now_ms = clock.now_ms()
    others = ExternalBacklogReader(table, place.landing, now_ms, with_held)
    external = others.measure()
    found = status(table.store, table.snapshot, now_ms=now_ms, freshness_ms=place.freshness_ms, external=external)
    return TableStatus(place=place, status=found, requests=add_requests(table.store.requests, {"list": others.lists}))


# Reasons for which pending work does not start.


_NOT_HELD = frozenset({*(each.name for each in TABLE_STEPS if each.is_fresh), "collect", "wait", "resort"})
"""Steps that never wait for a budget.

The set contains the steps for fresh data, and the steps that schedules or people request.
"""
_NOT_STARTED_BY_IT = frozenset({"collect", "wait", "resort"})
"""Steps that the upkeep sensor does not start."""
_OFF = "automation is off, so no sensor starts the step. Declare `automation: on` and reload the definitions"


def held_back(
    found: Sequence[TableStatus], declared: Sequence[TableDeclaration], root: Path, *, now_ms: int
) -> dict[str, str]:
    """Return, for each table name, the reason why pending work does not start.

    The function reads from Dagster's history how many bytes are used and whether the sensor runs.
    """
    of_all, own = read_upkeep_of_all(root), {each.name: each.upkeep for each in declared}
    owing = [each for each in found if each.place.name in own and _owes(each, _NOT_HELD)]
    budgets = [of_all, *(own[each.place.name] for each in owing)]
    is_counted = owing and any(each.bytes_per_hour is not None for each in budgets)
    spent = _spent(root, now_ms) if is_counted else {}
    waits = {
        name: quiet(name, own[name], of_all, now_ms) or _limited(each, own[name], of_all, spent)
        for each in owing
        for name in [each.place.name]
    }
    return {name: why for name, why in waits.items() if why} | _not_started(found, declared, root)


def _owes(found: TableStatus, except_for: Collection[str]) -> bool:
    return any(step not in except_for for step in found.pending)


def _not_started(found: Sequence[TableStatus], declared: Sequence[TableDeclaration], root: Path) -> dict[str, str]:
    """Return, for each table name, the reason why no sensor or schedule starts the pending maintenance."""
    automation = Automation(declared, of_all=read_automation(root))
    owing = {each.place.name for each in found if _owes(each, _NOT_STARTED_BY_IT)}
    switches = {each.name: automation.of(each) for each in declared if each.name in owing}
    if all(each == "off" for each in switches.values()) or _sensor_is_on(root, automation):
        return {name: _OFF for name, switch in switches.items() if switch == "off"}
    declare = "" if automation.starts_by_itself else ", or declare `automation: on` and reload the definitions"
    why = f"the sensor that starts the step is stopped. Switch on {UPKEEP_SENSOR} in `tidemark ui`{declare}"
    return {name: _OFF if switch == "off" else why for name, switch in switches.items()}


def _sensor_is_on(root: Path, automation: Automation) -> bool:
    """Return whether the upkeep sensor runs.

    If no person has started or stopped the sensor, its default counts.
    """
    folder = history_folder(root)
    if folder is None:
        return automation.starts_by_itself
    from dagster._core.scheduler.instigation import InstigatorStatus, InstigatorType

    from pipelines.instance import open_instance

    with open_instance(folder) as instance:
        known = instance.all_instigator_state(instigator_type=InstigatorType.SENSOR)
    found = {each.status for each in known if each.instigator_name == UPKEEP_SENSOR}
    return InstigatorStatus.RUNNING in found or (automation.starts_by_itself and InstigatorStatus.STOPPED not in found)


def _limited(
    found: TableStatus, own: UpkeepDeclaration, of_all: UpkeepOfAllDeclaration, spent: Mapping[str, int]
) -> str | None:
    """Return the budget that has too few bytes left for the next compaction of the table.

    Otherwise, return None.
    """
    name, pending = found.place.name, found.status.next_run.read_bytes if found.status else 0
    counts = ((name, own.bytes_per_hour, spent.get(name, 0)), (ALL, of_all.bytes_per_hour, sum(spent.values())))
    limits = (BudgetState(of, most, used) for of, most, used in counts if most is not None)
    return next((str(each) for each in limits if each.defers(pending)), None)


def _spent(root: Path, now_ms: int) -> Mapping[str, int]:
    folder = history_folder(root)
    if folder is None:
        return {}
    from pipelines.instance import open_instance
    from pipelines.runs import spent_bytes

    with open_instance(folder) as instance:
        return spent_bytes(instance, now_ms=now_ms)


# OpenMetrics text.


Unit = Literal["", "bytes", "seconds"]
Sample = tuple[Mapping[str, str], float | None]


@dataclass(frozen=True, slots=True)
class _Family:
    """One metric: its name without the unit, the help text, the unit and the kind."""

    name: str
    help: str
    unit: Unit = ""
    kind: Literal["gauge", "stateset"] = "gauge"


_OF_A_TABLE: Final = (
    _Family("table_version", "Version of the transaction log."),
    _Family("table_splits", "Live splits."),
    _Family("table_rows", "Rows of the base."),
    _Family("table_size", "Size of the live splits.", "bytes"),
    _Family("table_committed_timestamp", "Time of the commit of the newest version.", "seconds"),
    _Family("table_newest_row_timestamp", "Time of the newest row, by the time column.", "seconds"),
    _Family("table_rows_came_timestamp", "Time of the commit of the newest rows, or an earlier time.", "seconds"),
    _Family("table_freshness", "Declared largest age of the newest rows.", "seconds"),
    _Family("table_oldest_unmerged", "Age of the oldest record that is not merged.", "seconds"),
    _Family("table_quarantine_entries", "Entries in quarantine, at most 1000."),
    _Family("table_rows_read", "Rows that ingest and distribution read in the last 24 hours."),
    _Family("table_rows_rejected", "Rows that ingest and distribution rejected in the last 24 hours."),
    _Family("table_max_rejected_ratio", "Largest share of rejected rows that the table allows."),
    _Family("table_next_run_splits", "Splits that the next scheduled compaction reads."),
    _Family("table_next_run_outputs", "Splits that the next scheduled compaction writes."),
    _Family("table_next_run_read", "Bytes that the next scheduled compaction reads.", "bytes"),
    _Family("table_next_run_written", "Bytes that the next scheduled compaction writes.", "bytes"),
    _Family("table_freed", "Bytes that the retention removes next.", "bytes"),
)


def metrics_text(found: Iterable[TableStatus], failures: Mapping[str, LastFailure]) -> str:
    """Return the states of tables as OpenMetrics text. Each table must have a unique name."""
    looked = list(found)
    lines = list(_states({each.place.name: each.state_after(failures.get(each.place.name)) for each in looked}))
    values = {each.place.name: _values(each.status) for each in looked if each.status is not None}
    for number, family in enumerate(_OF_A_TABLE):
        lines += _family(family, (({"table": table}, own[number]) for table, own in values.items()))
    lines += _steps(looked)
    lines += _indexes(looked)
    lines += _mirrors(looked)
    lines += _family(
        _Family(
            "last_failure_timestamp", "Time of the last failure of a step that has not succeeded since.", "seconds"
        ),
        (({"table": table, "step": each.step}, each.at / 1000) for table, each in failures.items() if not each.is_over),
    )
    lines += _family(
        _Family("look_requests", "Requests that were sent to read these metrics of the table."),
        (({"table": each.place.name, "kind": kind}, count) for each in looked for kind, count in each.requests.items()),
    )
    return "\n".join([*lines, "# EOF", ""])


def _states(states: Mapping[str, State]) -> Iterator[str]:
    name = "tidemark_table_state"
    samples = (
        ({"table": table, name: each.value}, float(state is each)) for table, state in states.items() for each in State
    )
    yield from _family(_Family("table_state", "State of the table.", kind="stateset"), samples)


def _values(status: Status) -> list[float | None]:
    """Return one value for each metric of `_OF_A_TABLE`, in the same order."""
    run, rejections = status.next_run, status.rejections
    rejected = (rejections.rows_in, rejections.rows_rejected, rejections.max_rejected) if rejections else _NO_REJECTIONS
    return [
        *(status.version, status.splits, status.rows, status.bytes),
        *map(_seconds, (status.committed_at, status.newest_row_at, status.rows_came_at, status.freshness_ms)),
        *(_seconds(status.oldest_unmerged_ms), status.quarantine_entries, *rejected),
        *(run.splits, run.outputs, run.read_bytes, run.written_bytes, status.freed_bytes),
    ]


_NO_REJECTIONS: Final = (None, 0, None)
"""The values for a table without entries in its quarantine. The commits of this table are not read."""


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _steps(looked: Iterable[TableStatus]) -> Iterator[str]:
    pending = [({"table": each.place.name, "step": step}, one) for each in looked for step, one in each.pending.items()]
    yield from _family(
        _Family("pending", "Pending work of a step, in its unit."),
        (({**labels, "unit": one.unit}, one.count) for labels, one in pending),
    )
    yield from _family(
        _Family("pending", "Estimated pending work of a step.", "bytes"),
        ((labels, one.bytes) for labels, one in pending),
    )


def _indexes(looked: Iterable[TableStatus]) -> Iterator[str]:
    lags = [
        ({"table": each.place.name, "index": lag.name}, lag)
        for each in looked
        if each.status is not None
        for lag in each.status.indexes
    ]
    rows = _Family("index_uncovered_rows", "Rows without a segment of the index.")
    yield from _family(rows, ((labels, lag.rows) for labels, lag in lags))
    versions = _Family("index_lag_versions", "Versions since the watermark of the index.")
    yield from _family(versions, ((labels, lag.versions) for labels, lag in lags))


def _mirrors(looked: Iterable[TableStatus]) -> Iterator[str]:
    yield from _family(
        _Family("mirror_lag_versions", "Versions that are not published yet in this format."),
        (
            ({"table": each.place.name, "format": name}, count)
            for each in looked
            if each.status is not None
            for name, count in each.status.mirrors.items()
        ),
    )


def _family(family: _Family, samples: Iterable[Sample]) -> Iterator[str]:
    """Yield the lines of one metric, or no lines if the metric has no sample."""
    known = [(labels, value) for labels, value in samples if value is not None]
    if not known:
        return
    name = "_".join(filter(None, ("tidemark", family.name, family.unit)))
    yield f"# TYPE {name} {family.kind}"
    if family.unit:
        yield f"# UNIT {name} {family.unit}"
    yield f"# HELP {name} {family.help}"
    for labels, value in known:
        shown = ",".join(f'{label}="{_quoted(text)}"' for label, text in labels.items())
        yield f"{name}{{{shown}}} {int(value) if value == int(value) else value}"


def _quoted(text: str) -> str:
    return escaped(text).replace("\\", "\\\\").replace('"', '\\"')
