"""Rounds of distribution. A round makes a plan, runs tasks, and makes one commit per table (decision 0031).

One commit contains both a table's rows and its offsets. For an append table, the commit is in the table's log. For a
keyed table, the commit is a new manifest of a region. So a distributor may end at any point without loss or duplicates.
If several distributors run concurrently, one distributor per table wins. The other distributors detect that the offsets
moved. The collector deletes the files of these distributors. Tables do not wait for each other. Failures are reported
at the end.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Protocol

from storage_core.base.clock import Clock, Ids
from storage_core.base.errors import CommitConflict, Fenced, TidemarkError, error_of
from storage_core.data.rows.windows import LateMetrics
from storage_core.data.settings.layout import Region
from storage_core.log.actions import Add
from storage_core.log.conflicts import TokenUnused
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.split.context import context_of
from storage_core.write.distribution.work import (
    LEAST_WORK_BYTES,
    WITH_IDS,
    DistributionPlan,
    DivideResult,
    DivideWork,
    FillPart,
    FillResult,
    FillWork,
    Offsets,
    RoundIds,
    Source,
    Target,
    Terms,
    left,
    read_offsets,
    starts,
    txns,
)
from storage_core.write.ingest.convert import tally
from storage_core.write.raw_log.history import Damage, History, MissingChunks, RawChunkRef, RawSegment
from storage_core.write.region import router
from storage_core.write.region.router import ChunkRange

# The plan of one round contains the chunks to read, in the order of the history. For each table, the plan also contains
# the chunks that the table needs.
#
# The plan reads only listings and offsets. The bytes of a round are limited, because one task writes all rows of a
# region as one generation. Rounds continue until no chunk is left.


@dataclass(frozen=True, slots=True)
class TargetTable:
    """A table that receives rows, with its snapshot and its offsets."""

    name: str
    log: TransactionLog
    snapshot: Snapshot
    offsets: Offsets

    @classmethod
    def load(cls, name: str, log: TransactionLog) -> TargetTable:
        """Return the current state of the table.

        Makes the requests for opening the table, and the requests of `read_offsets`.
        """
        snapshot = log.snapshot()
        return cls(name, log, snapshot, read_offsets(log.store, snapshot))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldChunks:
    """Missing chunks `first` to `last`. For these `tables`, later chunks of the writer must wait."""

    writer: str
    first: int
    last: int
    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundPlan:
    """The plan of one round: the work items, and the tables whose offsets move.

    Later chunks wait for the missing chunks in `held`. The round does not wait for the missing chunks in `given_up`.
    """

    source: Source
    works: tuple[DivideWork, ...]
    targets: Mapping[str, Target]
    held: tuple[HeldChunks, ...]
    given_up: tuple[HeldChunks, ...]


def plan_round(
    source: Source, history: History, tables: Sequence[TargetTable], terms: Terms, *, now_ms: int
) -> RoundPlan:
    """Return the next round. A round without targets means that no work remains. No request.

    Raises `Unavailable` if chunks would be given up while a store does not answer. This store may have the chunks.
    """
    plans = {each.name: left(history, each.offsets.log, terms, now_ms=now_ms) for each in tables}
    chosen = _first_of(history, plans.values(), terms.round_bytes)
    numbers = {(each.writer, each.number) for each in chosen}
    targets = {
        each.name: target for each in tables if (target := _target(each, plans[each.name], numbers)).chunk_ranges
    }
    return RoundPlan(
        source=source,
        works=tuple(
            DivideWork(source=source, chunks=part, targets=tuple(targets.values()))
            for part in cut_into_works(chosen, history.segments(), terms)
        ),
        targets=targets,
        held=by_gap({name: plan.held for name, plan in plans.items()}),
        given_up=by_gap({name: plan.given_up for name, plan in plans.items()}),
    )


def _target(table: TargetTable, plan: DistributionPlan, chosen: Collection[tuple[str, int]]) -> Target:
    after = table.offsets.log
    own: dict[str, list[int]] = {}
    for ref in plan.chunks:
        own.setdefault(ref.writer, []).append(ref.number)
    stretches = []
    for writer, offset in sorted(plan.offsets.items()):
        numbers = own.get(writer, [])
        taken = [number for number in numbers if (writer, number) in chosen]
        # Missing chunks that the plan gives up may follow the last planned chunk. The writer's offset moves past these
        # chunks only if the round includes the last planned chunk.
        last = offset if len(taken) == len(numbers) else max(taken, default=0)
        if last > after.get(writer, 0):
            stretches.append(ChunkRange(writer=writer, after=after.get(writer, 0), last=last))
    return Target(
        name=table.name,
        uri=table.log.store.uri,
        context=context_of(table.snapshot),
        chunk_ranges=tuple(stretches),
        further=table.offsets.further,
    )


def _first_of(history: History, plans: Iterable[DistributionPlan], most_bytes: int) -> list[RawChunkRef]:
    """Return the oldest chunks that any table needs, up to about `most_bytes`. Return at least one chunk."""
    wanted = {(each.segment_ms, each.writer, each.number): each for plan in plans for each in plan.chunks}
    ordered = [wanted[place] for place in sorted(wanted)]
    return next(_cut(ordered, chunk_bytes(ordered, history.segments()), most_bytes), [])


def cut_into_works(
    chunks: Sequence[RawChunkRef], segments: Iterable[RawSegment], terms: Terms
) -> Iterator[tuple[RawChunkRef, ...]]:
    """Yield the chunks of one round in order, divided into work items within the size limits of `terms`."""
    sizes = chunk_bytes(chunks, segments)
    return map(tuple, _cut(chunks, sizes, _most_bytes(sizes, terms)))


def _most_bytes(sizes: Sequence[float], terms: Terms) -> float:
    """Return the maximum number of bytes in one work item.

    The function divides the total size by the number of work items. The function then adds the size of the largest
    chunk to the average size of a work item. The extra chunk avoids an additional small work item.
    """
    total = sum(sizes)
    waves = math.ceil(total / (terms.work_bytes * terms.slots))
    share = total / max(1, waves * terms.slots) + max(sizes, default=0)
    return min(terms.work_bytes, max(share, LEAST_WORK_BYTES))


def chunk_bytes(chunks: Iterable[RawChunkRef], segments: Iterable[RawSegment]) -> list[float]:
    """Return an estimate of the stored bytes of each chunk. The estimate is the mean of all chunks in the segment."""
    means = {(each.writer, each.segment_ms): each.bytes / each.chunks for each in segments}
    return [means[each.writer, each.segment_ms] for each in chunks]


def _cut(chunks: Sequence[RawChunkRef], sizes: Sequence[float], most_bytes: float) -> Iterator[list[RawChunkRef]]:
    """Yield the chunks in order, divided into parts. Each part has about `most_bytes` and at least one chunk."""
    part: list[RawChunkRef] = []
    taken = 0.0
    for each, size in zip(chunks, sizes, strict=True):
        if part and taken + size > most_bytes:
            yield part
            part, taken = [], 0.0
        part.append(each)
        taken += size
    if part:
        yield part


def by_gap(missing: Mapping[str, Sequence[MissingChunks]]) -> tuple[HeldChunks, ...]:
    """Return one entry per gap of missing chunks, with the tables that lack these chunks."""
    tables: dict[MissingChunks, list[str]] = {}
    for name, gaps in missing.items():
        for gap in gaps:
            tables.setdefault(gap, []).append(name)
    return tuple(
        HeldChunks(writer=gap.writer, first=gap.first, last=gap.last, tables=tuple(names))
        for gap, names in sorted(tables.items(), key=lambda each: (each[0].writer, each[0].first))
    )


# Results of distribution for one table in one round, for one table in all rounds, and for a whole run.


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The results of all tasks for one table in one round."""

    rows: int = 0
    adds: tuple[Add, ...] = ()
    generations: int = 0
    parts: Mapping[Region, tuple[FillPart, ...]] = field(default_factory=dict)
    rejected: Mapping[str, int] = field(default_factory=dict)
    late: LateMetrics = field(default_factory=LateMetrics)


@dataclass(slots=True, kw_only=True)
class Tally:
    """The totals of one table: rows, bytes of splits, splits, generations, rejections by reason, and late rows.

    `version` is the last version of the table that the run read.
    """

    version: int = 0
    rows: int = 0
    bytes: int = 0
    splits: int = 0
    generations: int = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    late: LateMetrics = field(default_factory=LateMetrics)

    def add(self, share: Share) -> None:
        """Add the results of a table in one round to the totals of the table, after the commit of the round."""
        self.rows += share.rows
        self.bytes += sum(each.size for each in share.adds)
        self.splits += len(share.adds)
        self.generations += share.generations
        self.rejected = tally(self.rejected, share.rejected)
        self.late += share.late


@dataclass(slots=True, kw_only=True)
class DistributionOutcome:
    """The outcome of one run that distributes a raw log.

    - `records`: the number of records that were read.
    - `unknown`: the number of records of unknown tables, by table name.
    - `duplicates`: by table, the number of records with an id that the table already had.
    - `held`: the chunks that are missing at the end.
    - `given_up`: the missing chunks that were given up.
    - `failures`: the tables that did not get their rows, with the errors.
    """

    records: int = 0
    chunks: int = 0
    tables: dict[str, Tally] = field(default_factory=dict)
    unknown: Counter[str] = field(default_factory=Counter)
    duplicates: Counter[str] = field(default_factory=Counter)
    damaged: dict[tuple[str, int], Damage] = field(default_factory=dict)
    held: tuple[HeldChunks, ...] = ()
    given_up: list[HeldChunks] = field(default_factory=list)
    failures: dict[str, TidemarkError] = field(default_factory=dict)


def share_of(name: str, results: Iterable[DivideResult]) -> Share:
    """Return the results of all tasks for one table. Raise the error of a failed task for this table."""
    found = [result.tables[name] for result in results if name in result.tables]
    for each in found:
        if each.failure is not None:
            raise error_of(*each.failure)
    parts: dict[Region, tuple[FillPart, ...]] = {}
    for each in found:
        for region, part in each.parts:
            parts[region] = (*parts.get(region, ()), part)
    return Share(
        rows=sum(each.rows for each in found),
        adds=tuple(add for each in found for add in each.adds),
        parts=parts,
        rejected=tally(*(each.rejected for each in found)),
        late=sum((each.late for each in found), LateMetrics()),
    )


_logger = logging.getLogger(__name__)

MOST_LOST = 5
"""Maximum number of commits for a table that fail because another distributor committed first. After this number of
failed commits, the run leaves the table to the other distributor.
"""

_PAUSE_MS = 100


class Tasks(Protocol):
    """An executor of work items, which may run them in other processes (see `distribution.execute`).

    Results are in the order of the items.
    """

    def divide(self, works: Sequence[DivideWork]) -> list[DivideResult]:
        """Run `execute.divide` for each work item."""
        ...

    def fill(self, works: Sequence[FillWork]) -> list[FillResult]:
        """Run `execute.fill` for each work."""
        ...


@dataclass(slots=True, kw_only=True)
class Distributor:
    """Distributes one raw log into the tables of the given logs. The commits record `run_id`.

    `guards` maps a table name to one more requirement of the commits to this table. With this requirement, a commit
    fails if another process has taken over the lease.
    """

    source: Source
    history: History
    logs: Mapping[str, TransactionLog]
    tasks: Tasks
    clock: Clock
    ids: Ids
    run_id: str | None = None
    guards: Mapping[str, TokenUnused] = field(default_factory=dict)
    _lost: Counter[str] = field(default_factory=Counter)

    def distribute(self, terms: Terms) -> DistributionOutcome:
        """Distribute round by round until no more chunks can be distributed. Return the outcome.

        Raises only errors of the raw log itself, such as `Unavailable`. Errors of a table are in `failures`.
        """
        done = DistributionOutcome()
        while True:
            tables = self.load_tables(done)
            plan = plan_round(self.source, self.history, list(tables.values()), terms, now_ms=self.clock.now_ms())
            done.held = plan.held
            if not plan.targets:
                return done
            damaged = self._round(plan, tables, done)
            terms = replace(terms, damaged=terms.damaged | damaged.keys())
            done.damaged |= damaged

    def load_tables(self, done: DistributionOutcome) -> dict[str, TargetTable]:
        """Return the current state of the tables that have not failed."""
        found: dict[str, TargetTable] = {}
        for name, log in self.logs.items():
            if name not in done.failures:
                with self._settling(name, done):
                    found[name] = TargetTable.load(name, log)
                    done.tables.setdefault(name, Tally()).version = found[name].snapshot.version
        return found

    def _round(
        self, plan: RoundPlan, tables: Mapping[str, TargetTable], done: DistributionOutcome
    ) -> dict[tuple[str, int], Damage]:
        divided = self.tasks.divide(plan.works)
        results = self._without_duplicates(plan, tables, divided)
        damaged = {(each.chunk.writer, each.chunk.number): each for result in results for each in result.damaged}
        if _was_passed(plan.works, damaged) or (damaged and any(each.duplicates for each in results)):
            # Some written rows may be from chunks after a damaged chunk. A task may also have omitted a record. A
            # record in one of these chunks may have the same id as the omitted record. So nothing is committed, and the
            # next plan omits the damaged chunk.
            return damaged
        done.records += sum(result.records for result in results)
        done.chunks += sum(len(work.chunks) for work in plan.works)
        done.duplicates.update(sum((Counter(result.duplicates) for result in results), Counter()))
        done.unknown.update(sum((Counter(result.unknown) for result in results), Counter()))
        done.given_up += plan.given_up
        fillings: dict[str, _Fillings] = {}
        targets = _before(plan.targets, damaged)
        if any(each.noted for each in divided):
            targets = {
                name: replace(each, chunk_ranges=_with_ids(each, tables[name])) for name, each in targets.items()
            }
        for name, target in targets.items():
            with self._settling(name, done):
                share = share_of(name, results)
                if share.parts:
                    fillings[name] = _Fillings(target, share, self._turns(tables[name], target, share))
                elif self._commit(tables[name], target, share):
                    done.tables[name].add(share)
        self._fill(fillings, tables, done)
        return damaged

    def _without_duplicates(
        self, plan: RoundPlan, tables: Mapping[str, TargetTable], results: list[DivideResult]
    ) -> list[DivideResult]:
        """Divide work items again if their records have producer ids. The ids of all work items are then recorded."""
        keys = tuple(each.noted for each in results if each.noted is not None)
        if not keys:
            return results
        # The offsets of all writers are needed, because some distributed chunks may no longer be in any listing.
        ids = RoundIds(keys=keys, offsets={name: tables[name].offsets.log for name in plan.targets})
        again = [replace(work, ids=ids) for work, each in zip(plan.works, results, strict=True) if each.noted]
        second = iter(self.tasks.divide(again))
        return [next(second) if each.noted else each for each in results]

    def _commit(self, table: TargetTable, target: Target, share: Share) -> bool:
        """Commit the splits and offsets of an append table, or only the log offsets of a keyed table.

        Return False if another distributor has already committed the same chunks.
        """
        late, rejected = share.late, sum(share.rejected.values())
        result = table.log.commit(
            table.snapshot,
            [*share.adds, *txns(target.chunk_ranges, self.clock.now_ms())],
            operation="DISTRIBUTE",
            requirements=[*starts(target.chunk_ranges, table.snapshot), *self._guards(table.name)],
            metrics={
                "rows_in": share.rows + rejected + late.quarantined + late.dropped,
                "rows_out": share.rows,
                "splits_out": len(share.adds),
                **late.as_mapping(),
                **({"rows_rejected": rejected} if rejected else {}),
            },
            job_run_id=self.run_id,
        )
        if not result.already_committed:
            _logger.info("distributed %d rows into table %s, version %d", share.rows, table.name, result.version)
        return not result.already_committed

    def _guards(self, table: str) -> list[TokenUnused]:
        return [self.guards[table]] if table in self.guards else []

    def _turns(self, table: TargetTable, target: Target, share: Share) -> list[_Filling]:
        found = []
        for region, parts in share.parts.items():
            recorded = table.offsets.regions.get(region.id, {})
            turn = router.claim_region(table.log.store, table.snapshot, region, clock=self.clock, ids=self.ids)
            key = target.config.primary_key
            work = FillWork(uri=target.uri, key=key, parts=parts, claim=turn, context=target.context)
            found.append(_Filling(work, tuple(_above(target.chunk_ranges, recorded))))
        # A region removes the offset of a writer when the offset in the table's log is at least as high. After the
        # claims, nobody can add offsets to the log or to the regions. So the log now shows whether another distributor
        # was active between plan and claims.
        head = table.log.refresh(table.snapshot)
        for each in starts(target.chunk_ranges, table.snapshot):
            each.check(head)
        return found

    def _fill(
        self, fillings: Mapping[str, _Fillings], tables: Mapping[str, TargetTable], done: DistributionOutcome
    ) -> None:
        every = [each for several in fillings.values() for each in several.regions]
        written = iter(self.tasks.fill([each.work for each in every]))
        for name, several in fillings.items():
            results = list(islice(written, len(several.regions)))
            with self._settling(name, done):
                rows = self._finish_all(tables[name], several.regions, results, done.tables[name])
                # The offset in the log is written last, because it shows that every region has its rows of these
                # chunks.
                share = replace(several.share, rows=rows)
                if self._commit(tables[name], several.target, share):
                    done.tables[name].add(several.share)

    def _finish_all(
        self, table: TargetTable, fillings: Sequence[_Filling], results: Sequence[FillResult], tally: Tally
    ) -> int:
        """Finish every region, and return the total number of rows.

        If another process took a region, the other regions are still finished.
        """
        lost: list[CommitConflict | Fenced] = []
        for each, result in zip(fillings, results, strict=True):
            try:
                self._finish(table, each, result)
            except (CommitConflict, Fenced) as error:
                lost.append(error)
            else:
                tally.add(Share(rows=result.rows, generations=1))
        if lost:
            raise lost[0]
        return sum(each.rows for each in results)

    def _finish(self, table: TargetTable, filling: _Filling, result: FillResult) -> None:
        router.finish(
            table.log.store,
            filling.work.claim,
            result.path,
            filling.chunk_ranges,
            clock=self.clock,
            writer_id=self.ids.uuid(),
        )

    @contextmanager
    def _settling(self, table: str, done: DistributionOutcome) -> Iterator[None]:
        """Handle the errors of a block that works on one table. After a lost race, the next round tries again.

        Other errors end the run only for this table.
        """
        try:
            yield
        except TidemarkError as error:
            self._lost[table] += 1
            _logger.warning("table %s: %s", table, error)
            if not isinstance(error, CommitConflict | Fenced) or self._lost[table] == MOST_LOST:
                done.failures[table] = error
            else:
                # Without a random pause, two distributors could take the same region from each other without end.
                self.clock.sleep_ms(self.ids.fraction() * _PAUSE_MS * 2 ** self._lost[table])


@dataclass(frozen=True, slots=True)
class _Filling:
    """A region to fill, and the ranges of chunks after the region's offset."""

    work: FillWork
    chunk_ranges: tuple[ChunkRange, ...]


@dataclass(frozen=True, slots=True)
class _Fillings:
    """The remaining work for one keyed table in one round: the results of the divide tasks, and the regions to fill."""

    target: Target
    share: Share
    regions: Sequence[_Filling]


def _with_ids(target: Target, table: TargetTable) -> tuple[ChunkRange, ...]:
    """Return the chunk ranges of the target, and one more range for the reserved writer name `WITH_IDS`.

    Every distribution of records with ids increases the offset of `WITH_IDS`.

    Because of the additional range, two concurrent distributions of records with ids cannot both commit. A distribution
    knows only the ids of chunks that were distributed before its plan. A concurrent distribution may add ids of another
    writer.
    """
    offsets = (table.offsets.log, *table.offsets.regions.values())
    last = max(each.get(WITH_IDS, 0) for each in offsets)
    return (*target.chunk_ranges, ChunkRange(writer=WITH_IDS, after=table.offsets.log.get(WITH_IDS, 0), last=last + 1))


def _was_passed(works: Sequence[DivideWork], damaged: Iterable[tuple[str, int]]) -> bool:
    """Return whether a work item read chunks of a writer that follow a damaged chunk of another work item."""
    return any(
        each.writer == writer and each.number > number
        for writer, number in damaged
        for work in works
        if all((each.writer, each.number) != (writer, number) for each in work.chunks)
        for each in work.chunks
    )


def _before(targets: Mapping[str, Target], damaged: Iterable[tuple[str, int]]) -> dict[str, Target]:
    """Return the targets with ranges that end before the damaged chunks. Omit targets without a remaining range."""
    ends = {writer: number for writer, number in damaged}  # noqa: C416  # of a mapping, `dict` would take the values
    cut = {
        name: replace(
            target,
            chunk_ranges=tuple(
                replace(each, last=min(each.last, ends.get(each.writer, each.last + 1) - 1))
                for each in target.chunk_ranges
                if ends.get(each.writer, each.last + 1) - 1 > each.after
            ),
        )
        for name, target in targets.items()
    }
    return {name: target for name, target in cut.items() if target.chunk_ranges}


def _above(stretches: Iterable[ChunkRange], recorded: Mapping[str, int]) -> Iterator[ChunkRange]:
    """Yield the parts of the chunk ranges that a region does not have yet. Each part starts at the region's offset."""
    for each in stretches:
        if each.last > recorded.get(each.writer, 0):
            yield replace(each, after=recorded.get(each.writer, 0))
