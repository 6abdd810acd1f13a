"""Ingest from a Delta table: group after group of its versions, each in one commit with how far it reaches.

A run that ends anywhere left commits of whole groups, and files that nobody names; the next one goes on behind them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Final

import pyarrow as pa

from jobs.delta.rows import append_rows, put_rows
from jobs.reports.metrics import NO_METRICS, Metrics
from jobs.reports.report import JobReport, with_report
from jobs.running.run import JobRun
from jobs.spark import tasks
from jobs.spark.delta_frames import by_key, frame_of
from jobs.spark.spark import Spark
from jobs.spark.tasks import of_text
from storage_core.delta_source.columns import follow
from storage_core.delta_source.equal_rows import hide_equal_rows
from storage_core.delta_source.log import DeltaLog, DeltaTable
from storage_core.delta_source.plan import DeltaGroup, next_group
from storage_core.delta_source.regions import Filling, fillings, finish
from storage_core.distribution.work import Divided, FillResult
from storage_core.errors import CommitConflict, TidemarkError
from storage_core.ingest.delta_progress import DeltaGap, delta_progress, progress_app, progress_txns
from storage_core.ingest.landing import DeltaChanges, LandingSpec
from storage_core.log.actions import Action
from storage_core.log.conflicts.requirements import AtVersion, Requirement, TxnProgress
from storage_core.rows.late import LateMetrics
from storage_core.scratch import scratch_folder
from storage_core.split.context import context_of

LOG = logging.getLogger(__name__)

LEASE: Final = "ingest"
_MOST_PLANS: Final = 10


@dataclass(slots=True)
class _Done:
    """What a run did so far."""

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
        """Count a group that is in."""
        both = (self.metrics.as_mapping(), brought.metrics.as_mapping())
        self.metrics = Metrics(**{each.name: sum(one[each.name] for one in both) for each in fields(Metrics)})
        self.table_id, self.last, self.report = group.table.id, group.last, report
        self.first = group.first if self.first is None else self.first
        self.groups += 1
        self.rows_deleted += brought.deleted
        self.rows_not_found += brought.not_found
        self.skipped += group.skipped
        self.gaps += group.gaps

    def details(self, spec: LandingSpec) -> dict[str, object]:
        """Return what the report tells."""
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
    """What became of the rows of one group."""

    actions: Sequence[Action] = ()
    to_delete: pa.Table | None = None
    metrics: Metrics = NO_METRICS
    deleted: int = 0
    not_found: int = 0


@dataclass(slots=True)
class DeltaIngest:
    """One run of ingest from the Delta table that a table lands from."""

    job: JobRun
    spark: Spark
    spec: LandingSpec
    _done: _Done = field(default_factory=_Done)
    _known: DeltaTable | None = None

    @property
    def changes(self) -> DeltaChanges:
        """What versions do that remove rows: of a keyed table they are followed by key."""
        return "apply" if self.job.before.config.kind == "keyed" else self.spec.changes or "refuse"

    def plan(self) -> JobReport:
        """Return what a run would begin with; one GET per version of that."""
        log, group = self._look(frozenset())
        details: dict[str, object] = {"landing": self.spec.uri}
        if group is None:
            return self.job.report("nothing_to_do", details=details)
        details |= {"delta_table": group.table.id, "versions": [group.first, log.newest], "files": len(group.added)}
        return self.job.report("planned", details=details)

    def run(self) -> JobReport:
        """Bring in every version, also those that come meanwhile, and return the report of all of it.

        Raises what `next_group` and `follow` raise, with the report of what was brought in before, `CommitConflict`
        where another run brought the same in, and of a keyed table `Held` while another one does.
        """
        keyed = self.job.before.config.kind == "keyed"
        try:
            with self.job.holding(LEASE) if keyed else nullcontext():
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
        log = DeltaLog.look(self.spec.uri, 0 if reached is None else reached.next_version)
        return log, next_group(log, reached, self.changes, lost=lost, known=self._known)

    def _bring_next(self, *, keyed: bool) -> bool:
        """Bring in the next group; False where there is none. Versions of which a file is gone are gaps of it."""
        lost: frozenset[int] = frozenset()
        while True:
            log, group = self._look(lost)
            if group is None:
                return False
            self.job.before = follow(self.job.table.log, self.job.before, group, log.store.uri)
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
        session = self.spark.session(with_delta=True, on_s3=bool(log.options))
        item = {
            "context": context_of(self.job.before).to_json(),
            "arrived_ms": group.committed_ms,
            "source": f"{log.store.uri}, {group.name}",
        }
        with scratch_folder("delta") as folder:
            frame = self.spark.checked(partial(frame_of, session, log, group, folder))
            if keyed:
                frame = by_key(frame, self.job.before.config.primary_key)
            answers = self.job.map_rows(put_rows if keyed else append_rows, frame, item)
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
        """Make generations of the parts, region by region, unless one has the rows of these versions already."""
        log, before, app = self.job.table.log, self.job.before, progress_app(group.table.id)
        parts = [part for each in results for part in each.parts]
        planned: list[Filling] = list(fillings(log, before, parts, writer=app, last=group.last + 1))
        self._starts(group).check(log.refresh(before))  # since the claims nobody adds to these regions
        answers = self.job.map(tasks.distribute_fill, [{"work": each.work.to_json()} for each in planned])
        self.job.require_held()
        for filling, answer in zip(planned, answers, strict=True):
            finish(log, filling, FillResult.from_json(answer["result"]).path)

    def _starts(self, group: DeltaGroup) -> TxnProgress:
        return TxnProgress(progress_app(group.table.id), group.first)

    def _commit(self, group: DeltaGroup, brought: _Brought) -> None:
        """Commit the rows of a group with how far they reach; deletes are found anew on a head that others moved."""
        log, start = self.job.table.log, self._starts(group)
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
                self.job.look_again()
                if len(requirements) == 1 or plan + 1 == _MOST_PLANS:
                    raise
                start.check(self.job.before)
                continue
            self._done.add(group, brought, report)
            self._known = group.table if group.commits else None  # in a gap it may have changed
            self.job.look_again()
            return

    def _committed(
        self, actions: Sequence[Action], requirements: Sequence[Requirement], group: DeltaGroup, brought: _Brought
    ) -> JobReport:
        details: Mapping[str, object] = {"versions": [group.first, group.last]}
        return self.job.commit(
            actions, operation="INGEST", metrics=brought.metrics, requirements=requirements, details=details
        )
