"""Commits of two writers, checkpoints, losses, crashes, restores and time travel happen in any order.

A dictionary is the model of the expected log.

The dictionary predicts which commits land and which conflict. `TIDEMARK_SCALE` increases the number of steps.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from storage_core.base.errors import CommitConflict, NotFound
from storage_core.data.formats.keys import LOG_PREFIX, last_checkpoint_key, parse
from storage_core.data.formats.kinds import KeyKind
from storage_core.data.rows.schema import to_schema_string
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Action, MergedGenerations, Metadata, Txn
from storage_core.log.conflicts import MergeProgress, Requirement
from storage_core.log.deletion_vector import inline
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.history import restore
from storage_core.store.contract import IfAbsent, Overwrite
from storage_core.store.memory import MemoryStore
from tests.support.clock import ManualClock
from tests.support.damage import Damage, damage
from tests.support.fault_store import Crash, CrashFault, FaultStore
from tests.support.ids import SeededIds
from tests.support.log_oracle import LogOracle
from tests.support.log_tables import SCHEMA, log_on, metadata, removal, split
from tests.support.scale import scaled

EXAMPLES = scaled(60)
REGION = "0b8cf3f4-6c0e-4f5e-9c37-1de3a3c65c4f"
ROWS = 3

WRITER = st.sampled_from([0, 1])
PICK = st.integers(0, 1000)


@dataclass(frozen=True)
class Model:
    """A table at one version: live splits with their deleted rows (None: no deletion vector), and other state."""

    live: dict[str, int | None]
    description: str | None = None
    columns: int = 0
    txn: int = 0
    merged: int = 0
    restores: int = 0

    def content(self) -> tuple[dict[str, int], str | None, int]:
        """Return the content that a restore restores.

        Progress stays. An empty deletion vector counts as no deletion vector.
        """
        return {name: deleted or 0 for name, deleted in self.live.items()}, self.description, self.columns

    def restored(self, target: Model) -> Model:
        """Return the model after a restore of the table to the content of `target`."""
        return replace(
            self,
            live={name: self.vector_after(name, deleted) for name, deleted in target.live.items()},
            description=target.description,
            columns=target.columns,
            restores=self.restores + 1,
        )

    def vector_after(self, name: str, deleted: int | None) -> int | None:
        """Return the deletion vector of a split after a restore.

        A changed live split needs one, even if it is empty.
        """
        if name not in self.live:
            return deleted
        changes = (self.live[name] or 0) != (deleted or 0)
        return deleted or 0 if changes else self.live[name]

    def has(self, splits: dict[str, int | None]) -> bool:
        """Return True if these splits are live with the same deleted rows, as a removal requires."""
        return all(name in self.live and (self.live[name] or 0) == (deleted or 0) for name, deleted in splits.items())


class LogAgainstADictionary(RuleBasedStateMachine):
    """A table, its versions in the dictionary, and the snapshot on which each of two writers plans."""

    def __init__(self) -> None:
        super().__init__()
        self.objects = MemoryStore("t", clock=ManualClock())
        self.clock = ManualClock()
        self.log = log_on(self.objects, clock=self.clock)
        self.versions: list[Model] = []
        self.times: list[int] = []
        self.plans: list[Snapshot] = []
        self.names = 0
        self.seeds = 0

    @initialize(interval=st.sampled_from([0, 2, 5]))
    def create(self, interval: int) -> None:
        created = self.log.create(metadata(TableConfig(checkpoint_interval=interval)))
        self.plans = [created, created]
        self.landed(Model({}), created)

    # Calls of the writers. Each writer plans on its own snapshot. The other writer may have made this snapshot
    # outdated.

    @rule(writer=WRITER, count=st.integers(1, 3))
    def append(self, writer: int, count: int) -> None:
        """Append splits. This commit depends only on the schema."""
        names = self.fresh(count)
        fits = self.planned_on(writer).columns == self.head.columns
        model = replace(self.head, live=self.head.live | dict.fromkeys(names))
        self.commit(writer, [split(name, ROWS) for name in names], model if fits else None)

    @rule(writer=WRITER, count=st.integers(1, 3), pick=PICK)
    def rewrite(self, writer: int, count: int, pick: int) -> None:
        """Compact splits in the snapshot of the writer.

        The commit conflicts if one of these splits has changed since.
        """
        seen = self.planned_on(writer)
        gone = pick_from(sorted(seen.live), pick, count)
        if not gone:
            return
        (name,) = self.fresh(1)
        fits = self.head.has({each: seen.live[each] for each in gone}) and seen.columns == self.head.columns
        left = {each: deleted for each, deleted in self.head.live.items() if each not in gone}
        model = replace(self.head, live=left | {name: None})
        self.commit(writer, [*map(removal, gone), split(name, ROWS)], model if fits else None)

    @rule(writer=WRITER, pick=PICK, deleted=st.integers(0, ROWS))
    def delete_rows(self, writer: int, pick: int, deleted: int) -> None:
        """Write a deletion vector for a live split. The commit conflicts if the split no longer has the planned state.

        Any deletion vector changes the split, even if it is empty. The add replaces the entry of the split and depends
        on all its fields.
        """
        seen = self.planned_on(writer)
        for name in pick_from(sorted(seen.live), pick, 1):
            fits = (name, seen.live[name]) in self.head.live.items() and seen.columns == self.head.columns
            model = replace(self.head, live=self.head.live | {name: deleted})
            action = replace(split(name, ROWS), deletionVector=inline(range(deleted)))
            self.commit(writer, [action], model if fits else None)

    @rule(writer=WRITER)
    def describe(self, writer: int) -> None:
        description = f"description {len(self.versions)}"
        changed = replace(self.plans[writer].metadata, description=description)
        self.change(writer, changed, replace(self.head, description=description))

    @rule(writer=WRITER)
    def add_a_column(self, writer: int) -> None:
        columns = self.planned_on(writer).columns + 1
        schema = pa.schema([*SCHEMA, *(pa.field(f"extra{number}", pa.int64()) for number in range(columns))])
        changed = replace(self.plans[writer].metadata, schemaString=to_schema_string(schema))
        self.change(writer, changed, replace(self.head, columns=columns))

    def change(self, writer: int, changed: Metadata, model: Model) -> None:
        """Commit metadata that was derived from the whole previous metadata."""
        seen = self.planned_on(writer)
        fits = (seen.description, seen.columns) == (self.head.description, self.head.columns)
        self.commit(writer, [changed], model if fits else None)

    @rule(writer=WRITER, ahead=st.integers(0, 2))
    def ingest_once(self, writer: int, ahead: int) -> None:
        """Commit a work unit. A unit that is already recorded is not committed again."""
        unit = self.planned_on(writer).txn + ahead
        if unit == 0:
            return
        if unit <= self.head.txn:
            result = self.log.commit(self.plans[writer], [Txn(appId="job", version=unit)], operation="INGEST")
            assert result.already_committed
            return
        self.commit(writer, [Txn(appId="job", version=unit)], replace(self.head, txn=unit))

    @rule(writer=WRITER)
    def merge(self, writer: int) -> None:
        """Commit the next generation.

        The commit conflicts if another merge or a restore has committed since the plan.
        """
        seen = self.planned_on(writer)
        after = seen.merged
        actions: list[Action] = [MergedGenerations(region=REGION, generation=after + 1)]
        fits = (after, seen.restores) == (self.head.merged, self.head.restores)
        model = replace(self.head, merged=after + 1) if fits else None
        self.commit(writer, actions, model, (MergeProgress(REGION, after),))

    @rule(writer=WRITER)
    def refresh(self, writer: int) -> None:
        self.plans[writer] = self.log.refresh(self.plans[writer])
        assert self.plans[writer].version == len(self.versions) - 1

    @rule(pick=PICK)
    def bring_back(self, pick: int) -> None:
        """Restore the content of an older version as the newest version. Progress is not reverted."""
        target = pick % len(self.versions)
        wanted = self.versions[target]
        restored = restore(self.log, self.log.snapshot(version=target))
        assert bool(restored.commit_id) == (wanted.content() != self.head.content())
        if restored.commit_id:
            self.landed(self.head.restored(wanted), restored.snapshot)

    # Failures of writers and damage to objects.

    @rule(writer=WRITER, at=st.integers(0, 12), side=st.sampled_from(CrashFault))
    def crash(self, writer: int, at: int, side: CrashFault) -> None:
        """Kill an appending process at a request. The next process finds the outcome of the append by its commit ID."""
        (name,) = self.fresh(1)
        commit_id = SeededIds(self.seed()).uuid()
        store = FaultStore(self.objects)
        store.at(at, side)
        log = log_on(store, clock=self.clock, seed=self.seed())
        planned = self.log.snapshot()
        with contextlib.suppress(Crash):
            log.commit(planned, [split(name, ROWS)], operation="APPEND", commit_id=commit_id)
        version = self.log.find_commit(commit_id)
        if version is not None:
            assert version == len(self.versions)
            self.landed(replace(self.head, live=self.head.live | {name: None}), self.log.snapshot(version=version))
        self.plans[writer] = self.log.snapshot()

    @rule(pick=PICK)
    def checkpoint(self, pick: int) -> None:
        self.log.checkpoint(self.log.snapshot(version=pick % len(self.versions)))

    @rule(at=st.integers(0, 12), side=st.sampled_from(CrashFault))
    def crash_in_a_checkpoint(self, at: int, side: CrashFault) -> None:
        store = FaultStore(self.objects)
        store.at(at, side)
        log = log_on(store, clock=self.clock, seed=self.seed())
        with contextlib.suppress(Crash):
            log.checkpoint(log.snapshot())

    @rule(step=st.sampled_from([-3_600_000, -1, 1, 1000]))
    def set_the_clock(self, step: int) -> None:
        self.clock.now += step

    @rule(kind=st.sampled_from(["missing", "empty", "torn", "stale", "ahead"]), pick=PICK)
    def damage_the_hint(self, kind: str, pick: int) -> None:
        if kind == "missing":
            self.objects.delete([last_checkpoint_key()])
            return
        version = {"stale": pick % len(self.versions), "ahead": len(self.versions) + pick}.get(kind, 0)
        body = b'{"version": %d, "format": "avro-state"}' % version
        data = {"empty": b"", "torn": body[: pick % len(body)]}.get(kind, body)
        self.objects.put(last_checkpoint_key(), data, Overwrite())

    @precondition(lambda self: self.stored(KeyKind.STATE))
    @rule(pick=PICK)
    def lose_a_state(self, pick: int) -> None:
        damage(self.objects, pick_from(self.stored(KeyKind.STATE), pick, 1)[0], Damage.MISSING)

    @precondition(lambda self: self.stored(KeyKind.MANIFEST))
    @rule(pick=PICK, kind=st.sampled_from([Damage.BIT_FLIP, Damage.TRUNCATION, Damage.EMPTY, Damage.MISSING]))
    def damage_a_manifest(self, pick: int, kind: Damage) -> None:
        key = pick_from(self.stored(KeyKind.MANIFEST), pick, 1)[0]
        if self.objects.get(key).data:
            damage(self.objects, key, kind, seed=pick)

    # Reads.

    @rule(pick=PICK, part=st.floats(0, 1))
    def travel(self, pick: int, part: float) -> None:
        """Open a version by its number.

        Also open it by a time between its own time and the time of the next version.
        """
        version = pick % len(self.versions)
        self.check(self.log.snapshot(version=version), version)
        start = self.times[version]
        end = self.times[version + 1] if version + 1 < len(self.times) else start + 1000
        instant = min(start + int(part * (end - start)), end - 1)
        self.check(self.log.snapshot(timestamp_ms=instant), version)

    @rule()
    def travel_too_far(self) -> None:
        with pytest.raises(NotFound):
            self.log.snapshot(timestamp_ms=self.times[0] - 1)
        with pytest.raises(NotFound):
            self.log.snapshot(version=len(self.versions))

    @invariant()
    def the_head_is_what_the_dictionary_says(self) -> None:
        if self.versions:
            self.check(self.log.snapshot(), len(self.versions) - 1)

    def teardown(self) -> None:
        if self.versions:
            oracle = LogOracle(self.objects)
            oracle.check_versions()
            oracle.check_opening(self.log)
            assert len(oracle.read()) == len(self.versions)

    # The dictionary.

    @property
    def head(self) -> Model:
        return self.versions[-1]

    def planned_on(self, writer: int) -> Model:
        return self.versions[self.plans[writer].version]

    def commit(
        self, writer: int, actions: list[Action], model: Model | None, requirements: tuple[Requirement, ...] = ()
    ) -> None:
        """Commit work. If the commit succeeds, the table must equal `model`.

        If `model` is None, check that the commit conflicts. A refused writer refreshes.
        """
        if model is None:
            with pytest.raises(CommitConflict):
                self.log.commit(self.plans[writer], actions, operation="TEST", requirements=requirements)
            self.plans[writer] = self.log.snapshot()
            return
        result = self.log.commit(self.plans[writer], actions, operation="TEST", requirements=requirements)
        assert result.version == len(self.versions)
        self.plans[writer] = result.snapshot
        self.landed(model, result.snapshot)

    def landed(self, model: Model, snapshot: Snapshot) -> None:
        self.versions.append(model)
        assert snapshot.timestamp > max(self.times, default=0)
        self.times.append(snapshot.timestamp)
        self.check(snapshot, len(self.versions) - 1)

    def check(self, snapshot: Snapshot, version: int) -> None:
        assert (snapshot.version, snapshot.timestamp) == (version, self.times[version])
        live = {
            add.path: None if add.deletionVector is None else add.deletionVector.cardinality
            for add in snapshot.splits.values()
        }
        expected = self.versions[version]
        found = Model(
            live,
            snapshot.metadata.description,
            len(snapshot.schema) - len(SCHEMA),
            snapshot.txns.get("job", 0),
            snapshot.merged_generations.get(REGION, 0),
            expected.restores,
        )
        assert found == replace(expected, live={split(name).path: gone for name, gone in expected.live.items()})
        assert len(snapshot.splits) == len(live)

    def fresh(self, count: int) -> list[str]:
        """Return the names of new splits whose objects exist."""
        names = [f"n{self.names + number}" for number in range(count)]
        self.names += count
        for name in names:
            self.objects.put(split(name).path, b"rows", IfAbsent())
        return names

    def seed(self) -> int:
        self.seeds += 1
        return self.seeds

    def stored(self, kind: KeyKind) -> list[str]:
        parsed = [parse(info.key) for info in self.objects.list(LOG_PREFIX)]
        return [each.key for each in parsed if each is not None and each.kind is kind]


def pick_from(names: list[str], pick: int, count: int) -> list[str]:
    """Return `count` different names, or all names if there are fewer than `count`."""
    start = pick % len(names) if names else 0
    return (names[start:] + names[:start])[:count]


LogAgainstADictionary.TestCase.settings = settings(max_examples=EXAMPLES, stateful_step_count=25)
test_the_log_is_what_the_dictionary_says = LogAgainstADictionary.TestCase


def test_a_stale_delete_conflicts_with_a_vector_of_no_rows_and_a_stale_rewrite_does_not() -> None:
    run = LogAgainstADictionary()
    run.create(interval=0)
    run.append(writer=1, count=2)
    run.refresh(writer=0)
    run.delete_rows(writer=0, pick=0, deleted=0)
    run.delete_rows(writer=1, pick=0, deleted=0)
    run.delete_rows(writer=0, pick=1, deleted=0)
    run.rewrite(writer=1, pick=0, count=2)
    assert len(run.versions) == 5
    run.teardown()
