"""Rounds of distribution: plan, let tasks read and write, commit per table (decision 0053).

A table's rows and its offsets are one commit: of its log for an append table, of a region's manifest for a keyed one.
So a distributor may end anywhere, and of several at once one wins per table; the others find the offsets moved, and
what they wrote is the collector's. No table waits for another: what fails is told at the end.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Protocol

from storage_core.clock import Clock
from storage_core.distribution.offsets import WITH_IDS, starts, txns
from storage_core.distribution.outcome import DistributionOutcome, Share, Tally, share_of
from storage_core.distribution.plan import RoundPlan, TargetTable, plan_round
from storage_core.distribution.remaining import Terms
from storage_core.distribution.work import DivideResult, DivideWork, FillResult, FillWork, RoundIds, Source, Target
from storage_core.errors import CommitConflict, Fenced, TidemarkError
from storage_core.ids import Ids
from storage_core.log.conflicts.requirements import TokenUnused
from storage_core.log.log import TransactionLog
from storage_core.raw_log.chunks import Damage
from storage_core.raw_log.history import History
from storage_core.region import distributor
from storage_core.region.distributor import Stretch

_logger = logging.getLogger(__name__)

MOST_LOST = 5
"""So many races for a table, and it is left to the one that won them."""

_PAUSE_MS = 100


class Tasks(Protocol):
    """Runs work items, wherever; `distribution.execute` says what each does. Results are in the order of the items."""

    def divide(self, works: Sequence[DivideWork]) -> list[DivideResult]:
        """Run `execute.divide` for each."""
        ...

    def fill(self, works: Sequence[FillWork]) -> list[FillResult]:
        """Run `execute.fill` for each."""
        ...


@dataclass(slots=True, kw_only=True)
class Distributor:
    """Distributes one raw log into the tables whose logs are given by name. `run_id` is recorded in the commits.

    `guards` are what the commits to a table demand beside its offsets, by name: they say that nobody broke a lease.
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
        """Distribute round by round until nothing is left that can be distributed, and return what was done.

        Raises only what concerns the raw log itself, such as `Unavailable`; what concerns a table is in `failures`.
        """
        done = DistributionOutcome()
        while True:
            tables = self.look(done)
            plan = plan_round(self.source, self.history, list(tables.values()), terms, now_ms=self.clock.now_ms())
            done.held = plan.held
            if not plan.targets:
                return done
            damaged = self._round(plan, tables, done)
            terms = replace(terms, damaged=terms.damaged | damaged.keys())
            done.damaged |= damaged

    def look(self, done: DistributionOutcome) -> dict[str, TargetTable]:
        """Return the tables as they are now, without those that failed."""
        found: dict[str, TargetTable] = {}
        for name, log in self.logs.items():
            if name not in done.failures:
                with self._settling(name, done):
                    found[name] = TargetTable.look(name, log)
                    done.tables.setdefault(name, Tally()).version = found[name].snapshot.version
        return found

    def _round(
        self, plan: RoundPlan, tables: Mapping[str, TargetTable], done: DistributionOutcome
    ) -> dict[tuple[str, int], Damage]:
        divided = self.tasks.divide(plan.works)
        results = self._without_duplicates(plan, tables, divided)
        damaged = {(each.chunk.writer, each.chunk.number): each for result in results for each in result.damaged}
        if _was_passed(plan.works, damaged) or (damaged and any(each.duplicates for each in results)):
            # Rows from behind a damaged chunk are among what was written, or what was left out had its first record
            # there: the next plan leaves the chunk out.
            return damaged
        done.records += sum(result.records for result in results)
        done.chunks += sum(len(work.chunks) for work in plan.works)
        done.duplicates.update(sum((Counter(result.duplicates) for result in results), Counter()))
        done.unknown.update(sum((Counter(result.unknown) for result in results), Counter()))
        done.given_up += plan.given_up
        fillings: dict[str, _Fillings] = {}
        targets = _before(plan.targets, damaged)
        if any(each.noted for each in divided):
            targets = {name: replace(each, stretches=_with_ids(each, tables[name])) for name, each in targets.items()}
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
        """Divide the works with ids of producers once more, now that the ids of all of them are noted."""
        keys = tuple(each.noted for each in results if each.noted is not None)
        if not keys:
            return results
        # Of all writers: chunks of one that no store lists now may have been distributed a while ago.
        ids = RoundIds(keys=keys, offsets={name: tables[name].offsets.log for name in plan.targets})
        again = [replace(work, ids=ids) for work, each in zip(plan.works, results, strict=True) if each.noted]
        second = iter(self.tasks.divide(again))
        return [next(second) if each.noted else each for each in results]

    def _commit(self, table: TargetTable, target: Target, share: Share) -> bool:
        """Commit the splits of an append table with its offsets; of a keyed one only the offsets of its log.

        Return False when another distributor has committed just that.
        """
        result = table.log.commit(
            table.snapshot,
            [*share.adds, *txns(target.stretches, self.clock.now_ms())],
            operation="DISTRIBUTE",
            requirements=[*starts(target.stretches, table.snapshot), *self._guards(table.name)],
            metrics={
                "rows_out": share.rows,
                "splits_out": len(share.adds),
                "rejected": sum(share.rejected.values()),
                **share.late.as_mapping(),
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
            turn = distributor.take_turn(table.log.store, table.snapshot, region, clock=self.clock, ids=self.ids)
            key = target.config.primary_key
            work = FillWork(uri=target.uri, key=key, parts=parts, turn=turn, context=target.context)
            found.append(_Filling(work, tuple(_above(target.stretches, recorded))))
        # A region loses the offsets that the log has passed. Since the claims nobody adds to either: what the log has
        # now tells whether another distributor was there between the plan and the claims.
        head = table.log.refresh(table.snapshot)
        for each in starts(target.stretches, table.snapshot):
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
                # The log's offset comes last: it says that every region has its rows of these chunks.
                share = replace(several.share, rows=rows)
                if self._commit(tables[name], several.target, share):
                    done.tables[name].add(several.share)

    def _finish_all(
        self, table: TargetTable, fillings: Sequence[_Filling], results: Sequence[FillResult], tally: Tally
    ) -> int:
        """Finish every region, and return the rows of all; a region that was lost to others stops none behind it."""
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
        distributor.finish(
            table.log.store,
            filling.work.turn,
            result.path,
            filling.stretches,
            clock=self.clock,
            writer_id=self.ids.uuid(),
        )

    @contextmanager
    def _settling(self, table: str, done: DistributionOutcome) -> Iterator[None]:
        """A block about one table: a lost race is left to the next round, other errors end this table and no other."""
        try:
            yield
        except TidemarkError as error:
            self._lost[table] += 1
            _logger.warning("table %s: %s", table, error)
            if not isinstance(error, CommitConflict | Fenced) or self._lost[table] == MOST_LOST:
                done.failures[table] = error
            else:
                # Distributors that claim a region from one another at one pace would never end.
                self.clock.sleep_ms(self.ids.fraction() * _PAUSE_MS * 2 ** self._lost[table])


@dataclass(frozen=True, slots=True)
class _Filling:
    """A region to fill, and what of the stretches its offset does not have yet."""

    work: FillWork
    stretches: tuple[Stretch, ...]


@dataclass(frozen=True, slots=True)
class _Fillings:
    """What is left of one keyed table in one round: its share of the first tasks, and the regions to fill."""

    target: Target
    share: Share
    regions: Sequence[_Filling]


def _with_ids(target: Target, table: TargetTable) -> tuple[Stretch, ...]:
    """The stretches, and one that all distributions of records with ids move: no two of them pass each other.

    Each knows the ids of the chunks that its plan found distributed; those of another writer may come meanwhile.
    """
    offsets = (table.offsets.log, *table.offsets.regions.values())
    last = max(each.get(WITH_IDS, 0) for each in offsets)
    return (*target.stretches, Stretch(writer=WITH_IDS, after=table.offsets.log.get(WITH_IDS, 0), last=last + 1))


def _was_passed(works: Sequence[DivideWork], damaged: Iterable[tuple[str, int]]) -> bool:
    """Whether a work that did not see the damage read what its writer wrote behind it."""
    return any(
        each.writer == writer and each.number > number
        for writer, number in damaged
        for work in works
        if all((each.writer, each.number) != (writer, number) for each in work.chunks)
        for each in work.chunks
    )


def _before(targets: Mapping[str, Target], damaged: Iterable[tuple[str, int]]) -> dict[str, Target]:
    """The targets whose offsets move, up to the chunks before the damaged ones."""
    ends = {writer: number for writer, number in damaged}  # noqa: C416  # of a mapping, `dict` would take the values
    cut = {
        name: replace(
            target,
            stretches=tuple(
                replace(each, last=min(each.last, ends.get(each.writer, each.last + 1) - 1))
                for each in target.stretches
                if ends.get(each.writer, each.last + 1) - 1 > each.after
            ),
        )
        for name, target in targets.items()
    }
    return {name: target for name, target in cut.items() if target.stretches}


def _above(stretches: Iterable[Stretch], recorded: Mapping[str, int]) -> Iterator[Stretch]:
    """What of the stretches a region does not have yet, each from its offset on."""
    for each in stretches:
        if each.last > recorded.get(each.writer, 0):
            yield replace(each, after=recorded.get(each.writer, 0))
