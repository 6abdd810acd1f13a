"""After any sequence of changes to rows and indexes, a search finds what a scan finds, at every version."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from storage_core.base.errors import CommitConflict, NotFound, SnapshotExpired
from storage_core.index import segment_merge
from storage_core.index.segments import compute_coverage
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.check import fsck
from storage_core.maintain.collect import collect
from storage_core.maintain.history import restore
from storage_core.read.view import snapshot_at
from tests.support.indexed_table import (
    CONFIG,
    NEAR,
    TAG_VALUES,
    TAGS,
    TEXT,
    WITH_PLACES,
    WORDS,
    IndexedTable,
    Indexing,
    Moving,
    watermarks,
)
from tests.support.scale import scaled


@pytest.fixture(autouse=True, scope="module")
def few() -> Iterator[None]:
    """Set the number of segments that start a merge to two."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(segment_merge, "FACTOR", 2)
        yield


texts = st.lists(st.sampled_from(WORDS), max_size=3).map(" ".join) | st.none()
rows = st.lists(st.tuples(st.integers(0, 1), st.sampled_from(TAG_VALUES), texts), min_size=1, max_size=8)
INDEXES = (TEXT, TAGS, NEAR)
indexes = st.sampled_from([each.name for each in INDEXES])


class MovingRows(RuleBasedStateMachine):
    """Appends, deletes, restores and collections, and merges and catch-ups that commit late."""

    def __init__(self) -> None:
        super().__init__()
        self.table = IndexedTable(config=replace(CONFIG, indexes=INDEXES), schema=WITH_PLACES)
        self.moving: list[Moving] = []
        self.indexing: list[Indexing] = []
        self.changed = True

    @rule(added=rows)
    def append(self, added: list[tuple[int, str | None, str | None]]) -> None:
        self.table.append(added)
        self.changed = True

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        splits = sorted(self.table.snapshot.splits.items())
        if splits:
            path, add = data.draw(st.sampled_from(splits))
            places = data.draw(st.sets(st.integers(0, (add.numRecords or 1) - 1), min_size=1))
            self.table.delete({path: places})
            self.changed = True

    @rule(data=st.data(), small=st.booleans(), at_once=st.booleans())
    def merge(self, data: st.DataObject, *, small: bool, at_once: bool) -> None:
        windows: dict[int | None, list[str]] = {}
        for path, add in sorted(self.table.snapshot.splits.items()):
            if add.visible_rows:
                windows.setdefault(add.windowStart, []).append(path)
        if windows:
            live = windows[data.draw(st.sampled_from(sorted(windows, key=str)))]
            chosen = data.draw(st.lists(st.sampled_from(live), min_size=1, max_size=4, unique=True))
            self.moving.append(self.table.merge([chosen], target_bytes=150 if small else None))
            if at_once:
                self.commit_merge()

    @rule()
    def commit_merge(self) -> None:
        if self.moving:
            before = self.table.snapshot
            try:
                after = self.table.commit_merge(self.moving.pop())
            except CommitConflict:
                return
            self.changed = True
            for index, watermark in watermarks(before).items():
                assert watermarks(after)[index] >= watermark
                if watermark == before.version:
                    assert watermarks(after)[index] == after.version

    @rule(name=indexes, at_once=st.booleans())
    def catch_up(self, name: str, *, at_once: bool) -> None:
        self.indexing.append(self.table.index(name))
        if at_once:
            self.commit_catch_up()

    @rule()
    def commit_catch_up(self) -> None:
        if self.indexing:
            late = self.indexing.pop()
            try:
                after = self.table.commit_index(late)
            except CommitConflict:
                return
            self.changed = True
            if not late.plan.empty and after.version <= late.planned.version + 1:
                assert watermarks(after)[late.plan.index] == after.version

    @rule(back=st.integers(1, 8))
    def restore(self, back: int) -> None:
        target = self.older(back)
        if target is not None:
            try:
                restore(self.table.log, target)
            except SnapshotExpired:
                return
            self.changed = True

    @rule(wait_ms=st.sampled_from([10, 2_000]))
    def collect(self, wait_ms: int) -> None:
        self.table.clock.now += wait_ms
        collect(self.table.store, self.table.log, clock=self.table.clock)
        # The collector may delete files of earlier executions, because a job must commit within the GC horizon.
        self.moving, self.indexing, self.changed = [], [], True

    @rule(back=st.integers(1, 8))
    def look_back(self, back: int) -> None:
        target = self.older(back)
        if target is not None:
            self.table.require_exact(target)

    def older(self, back: int) -> Snapshot | None:
        try:
            return snapshot_at(self.table.log, max(0, self.table.snapshot.version - back))
        except NotFound:
            return None

    @invariant()
    def a_search_finds_what_a_scan_finds(self) -> None:
        if self.changed:
            self.changed = False
            self.table.require_exact(self.table.snapshot)

    def teardown(self) -> None:
        """Assert that nothing is unneeded or damaged, and that a second catch-up has nothing to do."""
        self.table.catch_up()
        head = self.table.catch_up()
        for each in INDEXES:
            assert not compute_coverage(head, each).missing
        found = fsck(self.table.store, clock=self.table.clock, deep=True)
        assert found.clean, found.findings


MovingRows.TestCase.settings = settings(max_examples=scaled(7), stateful_step_count=16, deadline=None)
test_a_search_finds_what_a_scan_finds_wherever_rows_went = MovingRows.TestCase
