"""In any order of events, no readable version loses an object, and in the end only needed objects are left."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from storage_core.base.clock import HOUR_MS
from storage_core.base.errors import NotFound, SnapshotExpired, Unavailable
from storage_core.data.formats import keys
from storage_core.data.settings.table import TableConfig
from storage_core.log.checkpoint import manifest_keys, read_state
from storage_core.log.log import TransactionLog, read_tags, remove_tag
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.collect import collect
from storage_core.maintain.history import restore, set_tag
from storage_core.read.view import snapshot_at
from storage_core.store.memory import MemoryStore
from tests.support.clock import ManualClock
from tests.support.fault_store import FaultStore, Interruption
from tests.support.log_tables import INDEX
from tests.support.sample_table import SampleTable
from tests.support.scale import scaled

RETENTION_MS = 5 * HOUR_MS
HORIZON_MS = HOUR_MS


class Collection(RuleBasedStateMachine):
    """The events are commits, restores, uploads, tags, checkpoints, collections and waits, in any order.

    Some collections are killed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        config = TableConfig(
            checkpoint_interval=0, version_retention_ms=RETENTION_MS, gc_horizon_ms=HORIZON_MS, indexes=(INDEX,)
        )
        self.table = SampleTable(MemoryStore("property", clock=self.clock), self.clock, config)
        # The model: for each version, its commit time and the objects that its readers need.
        self.needed: dict[int, tuple[int, set[str]]] = {}
        self.tags: dict[str, tuple[int, int | None]] = {}
        self.remember()

    def remember(self) -> None:
        snapshot = self.table.log.snapshot()
        self.needed[snapshot.version] = (snapshot.timestamp, {*snapshot.splits, *snapshot.segments})

    @rule(splits=st.integers(1, 3))
    def append(self, splits: int) -> None:
        self.table.append(splits)
        self.remember()

    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        live = sorted(self.table.log.snapshot().splits)
        if live:
            chosen = data.draw(st.lists(st.sampled_from(live), min_size=1, unique=True))
            self.table.replace(chosen)
            self.remember()

    @rule(data=st.data())
    def index(self, data: st.DataObject) -> None:
        snapshot = self.table.log.snapshot()
        covered = {split for segment in snapshot.segments.values() for split in segment.covers}
        missing = sorted(set(snapshot.splits) - covered)
        if missing:
            chosen = data.draw(st.sampled_from(missing))
            self.table.commit([self.table.segment(self.table.upload_segment(), [chosen])])
            self.remember()

    @rule(data=st.data())
    def drop_segment(self, data: st.DataObject) -> None:
        segments = sorted(self.table.log.snapshot().segments)
        if segments:
            self.table.commit([self.table.remove_segment(data.draw(st.sampled_from(segments)))])
            self.remember()

    @rule()
    def upload_and_crash(self) -> None:
        self.table.upload_split()

    @rule()
    def checkpoint(self) -> None:
        self.table.checkpoint()

    @rule(name=st.sampled_from(["a", "b"]), back=st.integers(0, 12), hours=st.none() | st.integers(1, 12))
    def tag(self, name: str, back: int, hours: int | None) -> None:
        target = self.older(back)
        if target is None:
            return
        expires = None if hours is None else self.clock.now + hours * HOUR_MS
        try:
            set_tag(self.table.log, name, target, expires_at_ms=expires)
        except SnapshotExpired:
            return
        self.tags[name] = (target.version, expires)

    @rule(name=st.sampled_from(["a", "b"]))
    def untag(self, name: str) -> None:
        if name in read_tags(self.table.store).by_name:
            remove_tag(self.table.log, name)
            del self.tags[name]

    @rule(back=st.integers(1, 12))
    def restore(self, back: int) -> None:
        target = self.older(back)
        if target is None:
            return
        self.clock.now += 1
        try:
            done = restore(self.table.log, target)
        except SnapshotExpired:
            return
        assert set(done.snapshot.splits) == set(target.splits)
        self.remember()

    def older(self, back: int) -> Snapshot | None:
        head = self.table.log.snapshot()
        try:
            return snapshot_at(self.table.log, max(0, head.version - back))
        except NotFound:
            return None

    @rule(hours=st.integers(0, 4))
    def wait(self, hours: int) -> None:
        self.clock.now += hours * HOUR_MS

    @rule(horizon_ms=st.sampled_from([0, None, HORIZON_MS, 3 * HORIZON_MS]))
    def collect(self, horizon_ms: int | None) -> None:
        collect(self.table.store, self.table.log, clock=self.clock, horizon_ms=horizon_ms)

    @rule(fail_at=st.integers(0, 60))
    def collect_and_crash(self, fail_at: int) -> None:
        store = FaultStore(self.table.store, watch=Interruption(fail_at))
        log = TransactionLog(store, clock=self.clock, ids=self.table.ids)
        try:
            collect(store, log, clock=self.clock, horizon_ms=0)
        except Unavailable:
            return

    @invariant()
    def every_retained_version_is_whole(self) -> None:
        existing = self.table.objects()
        versions = sorted(self.needed)
        for version, following in zip(versions, [*versions[1:], None], strict=True):
            superseded_ms = self.clock.now if following is None else self.needed[following][0]
            if superseded_ms < self.clock.now - RETENTION_MS:
                continue
            snapshot = self.table.log.snapshot(version=version)
            assert {*snapshot.splits, *snapshot.segments} == self.needed[version][1] <= existing

    @invariant()
    def every_tagged_version_is_whole(self) -> None:
        existing = self.table.objects()
        for name, (version, expires) in self.tags.items():
            if expires is not None and expires <= self.clock.now:
                continue
            assert read_tags(self.table.store).by_name[name].version == version
            snapshot = self.table.log.snapshot(version=version)
            assert {*snapshot.splits, *snapshot.segments} == self.needed[version][1] <= existing

    def teardown(self) -> None:
        for name in read_tags(self.table.store).by_name:
            remove_tag(self.table.log, name)
        self.table.checkpoint()
        for _ in range(4):
            self.clock.now += RETENTION_MS + 2 * HORIZON_MS
            collect(self.table.store, self.table.log, clock=self.clock)
        assert self.table.objects() - self.bookkeeping() == self.reachable()

    def reachable(self) -> set[str]:
        """Return the objects that must exist in the end, computed without the collector."""
        snapshot = self.table.log.snapshot()
        states = sorted(self.table.log_versions(keys.KeyKind.STATE))[-2:]
        versions = self.table.log_versions(keys.KeyKind.VERSION)
        return {
            *self.needed[snapshot.version][1],
            *(keys.version_key(version) for version in versions if version >= states[0]),
            *(keys.state_key(version) for version in states),
            *(key for version in states for key in manifest_keys(read_state(self.table.store, version))),
        }

    def bookkeeping(self) -> set[str]:
        return {keys.last_checkpoint_key(), keys.gc_candidates_key(), keys.gc_boundary_key(), keys.tags_key()}


Collection.TestCase.settings = settings(max_examples=scaled(30), stateful_step_count=25, deadline=None)
TestCollection = Collection.TestCase
