"""Ingest from a Delta table. Each commit ingests one group of versions.

Each commit also stores the last ingested version. Tasks write splits of an append table, or parts for the regions of a
keyed table. If Spark retries a task, the files of the first attempt become orphans. If a run ends early, the table
contains only complete groups. A run that ends early may leave files that no commit references. The next run continues
after the last committed group.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from jobs.spark.delta import COUNT, by_key, frame_of
from jobs.spark.spark import Spark
from storage_core.base.clock import SystemClock, SystemIds
from storage_core.base.errors import CommitConflict, InvalidInput, TidemarkError
from storage_core.base.process import scratch_folder
from storage_core.base.text import quoted
from storage_core.change.statements import held_in
from storage_core.data.rows.incoming import PIECE_BYTES
from storage_core.data.rows.keys import key_order
from storage_core.data.rows.times import within_calendar
from storage_core.data.rows.vectors import require_valid_embeddings
from storage_core.data.rows.windows import LateMetrics, LateRule
from storage_core.data.settings.layout import Region
from storage_core.data.settings.table import TableConfig
from storage_core.data.steps import Ingest
from storage_core.interop.column_union import fitted
from storage_core.interop.delta_columns import Filling, fillings, finish, follow, hide_equal_rows
from storage_core.interop.delta_source import DeltaGroup, DeltaLog, DeltaTable, next_group
from storage_core.log.actions import Action, Add
from storage_core.log.conflicts import AtVersion, Requirement, TxnProgress
from storage_core.log.job_run import NO_METRICS, JobReport, JobRun, Metrics, as_text, of_text, with_report
from storage_core.log.sharing import open_table_store
from storage_core.raw_log_steps import fill
from storage_core.split.context import SplitContext, context_of
from storage_core.split.writer import sort_and_write
from storage_core.store.meter import MeteredStore
from storage_core.write.distribution.work import Divided, FillPart, FillResult, write_part
from storage_core.write.ingest.landing import DeltaChanges, LandingSpec
from storage_core.write.ingest.progress import DeltaGap, delta_progress, progress_app, progress_txns
from storage_core.write.late_rows import LateRowFilter, RowOrigin
from storage_core.write.region.records import RecordBuilder
from storage_core.write.region.router import groups_of
from storage_core.write.region.spec import route

if TYPE_CHECKING:
    from storage_core.log.job_run import Answer, Item


LOG = logging.getLogger(__name__)

_MOST_PLANS: Final = 10


@dataclass(slots=True)
class _Done:
    """The work that a run has finished so far."""

    metrics: Metrics = NO_METRICS
    table_id: str | None = None
    first: int | None = None
    last: int | None = None
    groups: int = 0
    rows_deleted: int = 0
    rows_not_found: int = 0
    skipped: list[int] = field(default_factory=list)
    gaps: list[DeltaGap] = field(default_factory=list)
    report: JobReport | None = None

    def add(self, group: DeltaGroup, brought: _Brought, report: JobReport) -> None:
        """Add a group that was committed."""
        self.metrics += brought.metrics
        self.table_id, self.last, self.report = group.table.id, group.last, report
        self.first = group.first if self.first is None else self.first
        self.groups += 1
        self.rows_deleted += brought.deleted
        self.rows_not_found += brought.not_found
        self.skipped += group.skipped
        self.gaps += group.gaps

    def details(self, spec: LandingSpec) -> dict[str, object]:
        """Return the details of the report."""
        about: dict[str, object] = {"landing": spec.uri, "delta_table": self.table_id, "groups": self.groups}
        if self.groups:
            about["versions"] = [self.first, self.last]
        return about | {
            "rows_deleted": self.rows_deleted,
            "rows_not_found": self.rows_not_found,
            "skipped_versions": self.skipped,
            "gaps": [[each.first, each.last] for each in self.gaps],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Brought:
    """The result of one group of versions: actions, rows to delete, and metrics."""

    actions: Sequence[Action] = ()
    to_delete: pa.Table | None = None
    metrics: Metrics = NO_METRICS
    deleted: int = 0
    not_found: int = 0


@dataclass(slots=True)
class DeltaIngest:
    """One run that ingests the Delta table at the landing location of a table."""

    job: JobRun[Ingest]
    spec: LandingSpec
    _done: _Done = field(default_factory=_Done)
    _known: DeltaTable | None = None

    @property
    def changes(self) -> DeltaChanges:
        """The way in which the run handles versions that remove rows.

        In a keyed table, the run always applies them by key.
        """
        return "apply" if self.job.before.config.kind == "keyed" else self.spec.changes or "refuse"

    @property
    def _spark(self) -> Spark:
        if not isinstance(self.job.executor, Spark):
            raise InvalidInput(
                f"{self.spec.uri}: landing from a Delta table needs Spark. Run the job with a Spark master"
            )
        return self.job.executor

    def plan(self) -> JobReport:
        """Return the work that the next run would do. Cost: one GET per version of the table in the first group."""
        log, group = self._look(frozenset())
        details: dict[str, object] = {"landing": self.spec.uri}
        if group is None:
            return self.job.report("nothing_to_do", details=details)
        details |= {"delta_table": group.table.id, "versions": [group.first, log.newest], "files": len(group.added)}
        return self.job.report("planned", details=details)

    def run(self) -> JobReport:
        """Ingest every version, including versions committed during the run, and return one report.

        Raises:
            CommitConflict: Another run ingested the same versions.
            Held: Another run ingests into the same keyed table.
            TidemarkError: The errors of `next_group` and `follow`. The error contains the report of the groups that
                were committed.
        """
        keyed = self.job.before.config.kind == "keyed"
        try:
            with self.job.holding(self.job.step.lease) if keyed else nullcontext():
                while self._bring_next(keyed=keyed):
                    continue
        except TidemarkError as error:
            if self._done.report is not None:
                with_report(error, self._report())
            raise
        return self._report()

    def _report(self) -> JobReport:
        done, details = self._done, self._done.details(self.spec)
        if done.report is None:
            return self.job.report("nothing_to_do", details=details)
        last = done.report
        return self.job.report(
            "committed", last.version, metrics=done.metrics, commit_id=last.commit_id, details=details
        )

    def _look(self, lost: frozenset[int]) -> tuple[DeltaLog, DeltaGroup | None]:
        reached = delta_progress(self.job.before.txns)
        log = DeltaLog.list_versions(self.spec.uri, 0 if reached is None else reached.next_version)
        return log, next_group(log, reached, self.changes, lost=lost, known=self._known)

    def _bring_next(self, *, keyed: bool) -> bool:
        """Ingest the next group. Return False if there is no next group.

        If the files of a version are missing, the run records this version as a gap.
        """
        lost: frozenset[int] = frozenset()
        while True:
            log, group = self._look(lost)
            if group is None:
                return False
            self.job.before = follow(self.job.log, self.job.before, group, log.store.uri)
            try:
                brought = self._read(log, group, keyed=keyed) if group.has_rows else _Brought()
            except TidemarkError:
                more = group.lost(log)
                if more <= lost:
                    raise
                LOG.warning("%s: files of versions %s are gone before they were read", log.store.uri, sorted(more))
                lost |= more
            else:
                self._commit(group, brought)
                return True

    def _read(self, log: DeltaLog, group: DeltaGroup, *, keyed: bool) -> _Brought:
        session = self._spark.session(with_delta=True, on_s3=bool(log.options))
        item = {
            "context": context_of(self.job.before).to_json(),
            "arrived_ms": group.committed_ms,
            "source": f"{log.store.uri}, {group.name}",
        }
        with scratch_folder("delta") as folder:
            frame = self._spark.checked(partial(frame_of, session, log, group, folder))
            if keyed:
                frame = by_key(frame, self.job.before.config.primary_key)
            self.job.log.require_capable()
            execute = put_rows if keyed else append_rows
            answers = self._spark.map_rows(execute, frame, {"table_uri": self.job.uri, **item})
            self.job.count(answers)
        results = [Divided.from_json(each["result"]) for each in answers]
        late = sum((each.late for each in results), LateMetrics())
        adds = [add for each in results for add in each.adds]
        metrics = Metrics(
            rows_in=sum(each.rows for each in results),
            rows_out=sum(add.numRecords or 0 for add in adds),
            bytes_out=sum(add.size for add in adds),
            splits_out=len(adds),
            **late.as_mapping(),
        )
        if keyed:
            self._fill(group, results)
            return _Brought(metrics=metrics, deleted=sum(each["deletes"] for each in answers))
        to_delete = pa.concat_tables([of_text(each["deleted"]) for each in answers]) if answers else None
        return _Brought(actions=adds, to_delete=to_delete, metrics=metrics)

    def _fill(self, group: DeltaGroup, results: Sequence[Divided]) -> None:
        """Write the parts into their regions, with one generation per region.

        Skip regions that already contain the rows of these versions.
        """
        log, before, app = self.job.log, self.job.before, progress_app(group.table.id)
        parts = [part for each in results for part in each.parts]
        planned: list[Filling] = list(fillings(log, before, parts, writer=app, last=group.last + 1))
        self._starts(group).check(log.refresh(before))  # after the claims, no other writer adds to these regions
        answers = self.job.map(fill, [{"work": each.work.to_json()} for each in planned])
        self.job.require_held()
        for filling, answer in zip(planned, answers, strict=True):
            finish(log, filling, FillResult.from_json(answer["result"]).path)

    def _starts(self, group: DeltaGroup) -> TxnProgress:
        return TxnProgress(progress_app(group.table.id), group.first)

    def _commit(self, group: DeltaGroup, brought: _Brought) -> None:
        """Commit the rows of a group, together with the number of the last ingested version.

        After a conflict, search again for the rows to delete.
        """
        log, start = self.job.log, self._starts(group)
        txns = progress_txns(group.reached, log.clock.now_ms())
        to_delete = brought.to_delete
        for plan in range(_MOST_PLANS):
            requirements: list[Requirement] = [start]
            actions: list[Action] = [*brought.actions, *txns]
            if to_delete is not None and to_delete.num_rows:
                hidden = hide_equal_rows(log, self.job.before, to_delete)
                actions = [*hidden.actions, *actions]
                requirements.append(AtVersion(self.job.before.version))
                brought = _Brought(
                    actions=brought.actions,
                    metrics=brought.metrics,
                    deleted=hidden.rows,
                    not_found=to_delete.num_rows - hidden.rows,
                )
            try:
                report = self._committed(actions, requirements, group, brought)
            except CommitConflict:
                self.job.refresh_head()
                if len(requirements) == 1 or plan + 1 == _MOST_PLANS:
                    raise
                start.check(self.job.before)
                continue
            self._done.add(group, brought, report)
            self._known = group.table if group.commits else None  # if versions are missing, the schema may have changed
            self.job.refresh_head()
            return

    def _committed(
        self, actions: Sequence[Action], requirements: Sequence[Requirement], group: DeltaGroup, brought: _Brought
    ) -> JobReport:
        details: Mapping[str, object] = {"versions": [group.first, group.last]}
        return self.job.commit(
            actions, operation="INGEST", metrics=brought.metrics, requirements=requirements, details=details
        )


def append_rows(batches: Iterator[pa.RecordBatch], item: Item) -> Answer:
    """Write the inserted rows as sorted splits. Return the removed rows under the key `deleted` of the answer.

    Cost: memory of about 64 MiB for inserted rows, plus memory for the removed rows. Requests: one PUT per split, and
        one PUT to the quarantine per piece with late rows.
    """
    target = _Target(item)
    adds: list[Add] = []
    deleted: list[pa.Table] = [target.context.schema.empty_table()]
    count = 0
    for piece in _pieces(batches):
        rows, counts = target.validate(piece)
        came = rows if counts is None else _repeated(rows, counts)
        count += came.num_rows
        adds += sort_and_write(
            target.store,
            target.late_filter.admit(came, item["arrived_ms"]),
            context=target.context,
            ids=SystemIds(),
            now_ms=SystemClock().now_ms(),
        )
        if counts is not None:
            deleted.append(_repeated(rows, -counts))
    found = Divided(rows=count, adds=tuple(adds), late=target.late_filter.metrics)
    return {"result": found.to_json(), "deleted": as_text(pa.concat_tables(deleted)), "requests": target.store.requests}


def put_rows(batches: Iterator[pa.RecordBatch], item: Item) -> Answer:
    """Write one part per region. Inserted rows become puts. Keys with only removed rows become deletes.

    If the batches contain a row of a key, they must contain all rows of this key.

    Cost: memory for all rows. One PUT per region. One PUT to the quarantine if there are late rows.

    Raises:
        InvalidInput: Two inserted rows have the same key.
    """
    target = _Target(item)
    pieces = list(_pieces(batches))
    if not pieces:
        return {"result": Divided().to_json(), "deletes": 0, "requests": target.store.requests}
    rows, counts = target.validate(pa.concat_tables(pieces))
    came, went = rows, rows.slice(0, 0)
    if counts is not None:
        came, went = _repeated(rows, counts), rows.filter(pa.array(counts < 0))
    key = target.config.primary_key
    _require_distinct(came, key, str(item["source"]))
    builder = RecordBuilder(target.context.schema, key, nonzero=target.config.nonzero_vectors)
    deletes = builder.deletes(went.filter(pa.array(~held_in([came], went, key))).select(key))
    records = pa.concat_tables([deletes, builder.puts(came)])
    admitted = target.late_filter.admit_records(records, item["arrived_ms"])
    found = Divided(rows=came.num_rows, parts=tuple(target.parts(admitted)), late=target.late_filter.metrics)
    return {"result": found.to_json(), "deletes": deletes.num_rows, "requests": target.store.requests}


@dataclass(slots=True)
class _Target:
    """The table to which a task writes."""

    item: Item
    store: MeteredStore = field(init=False)
    context: SplitContext = field(init=False)
    config: TableConfig = field(init=False)
    late_filter: LateRowFilter = field(init=False)

    def __post_init__(self) -> None:
        self.store = MeteredStore(open_table_store(self.item["table_uri"]))
        self.context = SplitContext.from_json(self.item["context"])
        self.config = TableConfig.from_configuration(self.context.configuration)
        origin = RowOrigin(source=self.item["source"], by="ingest")
        seconds = self.context.window_seconds
        self.late_filter = LateRowFilter(self.store, LateRule.of(self.config), origin, window_seconds=seconds)

    def validate(self, piece: pa.Table) -> tuple[pa.Table, np.ndarray[tuple[int], np.dtype[np.int64]] | None]:
        """Return the rows with the table's schema, and the number of copies of each row.

        Raises `InvalidInput` for a row that does not fit.
        """
        counts = None
        if COUNT in piece.column_names:
            counts = piece.column(COUNT).to_numpy()
            piece = piece.drop_columns([COUNT])
        try:
            rows = require_valid_embeddings(
                within_calendar(fitted(piece, self.context.schema)), self.config.nonzero_vectors
            )
        except InvalidInput as error:
            raise error.reworded(f"{self.item['source']}: {error.found}") from error
        return rows, counts

    def parts(self, records: pa.Table) -> Iterator[tuple[Region, FillPart]]:
        """Write the records of each region as a part. Yield each region with its part."""
        if records.num_rows:
            routed = route(self.context.table_id, self.config.region_spec, records)
            for region, places in groups_of(routed):
                own = records if len(places) == records.num_rows else records.take(places)
                yield region, write_part(self.store, own, region=region.id, clock=SystemClock(), ids=SystemIds())


def _pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Yield the rows as tables of about 64 MiB, without empty tables."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            size += batch.nbytes
        if size >= PIECE_BYTES:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _repeated(rows: pa.Table, counts: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Table:
    """Return each row several times.

    The function returns each row as many times as the row's number in `counts`. The function drops a row if the row's
    number is 0 or less.
    """
    return rows.take(pa.array(np.repeat(np.arange(rows.num_rows), np.maximum(counts, 0))))


def _require_distinct(rows: pa.Table, key: tuple[str, ...], source: str) -> None:
    order, begins = key_order(rows, key)
    again = order[~begins]
    if len(again):
        value = rows.select(key).slice(int(again[0]), 1).to_pylist()[0]
        raise InvalidInput(
            f"{source}: several rows of the Delta table have the key {quoted(value)}. Keep only "
            "one of these rows in the Delta table, or declare a primary_key that is unique."
        )
