"""Random histories: the changes between two versions lead from one to the other, and a restore brings rows back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.data.rows.schema import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, to_schema_string
from storage_core.log.actions import Action, Add, Metadata, Remove
from storage_core.log.log import TransactionLog
from storage_core.maintain.history import restore
from storage_core.read.changes import INSERT, changes
from storage_core.read.scan import Scan
from storage_core.split.context import context_of
from storage_core.split.read import read_split
from storage_core.split.writer import sort_and_write
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from tests.support.clock import ManualClock
from tests.support.events import CONFIG, SCHEMA, TABLE_ID, events
from tests.support.ids import SeededIds
from tests.support.scale import scaled

COLUMNS = pa.schema(
    [*SCHEMA, pa.field("tags", pa.list_(pa.string())), pa.field("note", pa.struct([("n", pa.int64())]))]
)

# Few values, so that equal rows are common. There are three windows and the bucket of null times.
rows = st.fixed_dictionaries(
    {
        "at": st.sampled_from([None, 0.0, 10.0, 3600.0, 7200.0]),
        "service": st.sampled_from([None, "a", "b"]),
        "value": st.sampled_from([None, 0.0, 1.5, float("nan")]),
        "tags": st.sampled_from([None, [], ["x"], ["x", None]]),
        "note": st.sampled_from([None, {"n": 1}]),
    }
)
steps = st.one_of(
    st.tuples(st.just("append"), st.lists(rows, min_size=1, max_size=6)),
    st.tuples(st.just("rewrite"), st.integers(0, 5), st.lists(rows, max_size=2), st.integers(0, 3)),
    st.tuples(st.just("delete"), st.integers(0, 5)),
    st.tuples(st.just("compact"), st.integers(1, 4)),
    st.tuples(st.just("restore"), st.integers(0, 8)),
)


class History:
    """A table that changes step by step, with the rows of each version as a reader sees them."""

    def __init__(self) -> None:
        self.clock = ManualClock(step_ms=1)
        self.store = MeteredStore(MemoryStore("history", clock=self.clock))
        self.ids = SeededIds(1)
        self.log = TransactionLog(self.store, clock=self.clock, ids=self.ids)
        self.log.create(
            Metadata(id=TABLE_ID, schemaString=to_schema_string(COLUMNS), configuration=CONFIG.to_configuration())
        )
        self.versions = [self.rows_at(0)]

    def take(self, step: tuple[object, ...]) -> None:
        match step:
            case ("append", list(added)):
                self.commit([], events(added, COLUMNS))
            case ("rewrite", int(which), list(added), int(dropped)):
                self.rewrite(which, events(added, COLUMNS), dropped)
            case ("delete", int(which)):
                live = self.live()
                if live:
                    self.commit([live[which % len(live)]], COLUMNS.empty_table())
            case ("compact", int(splits)):
                chosen = self.live()[:splits]
                self.commit(chosen, self.read(chosen), data_change=False)
            case ("restore", int(back)):
                target = self.log.snapshot(version=max(0, len(self.versions) - 1 - back))
                restored = restore(self.log, target).snapshot
                scanned = Scan(self.store, self.log.snapshot()).to_arrow()
                assert multiset(scanned) == self.versions[target.version]
                assert restored.splits.keys() == target.splits.keys()
        self.versions += [
            self.rows_at(version) for version in range(len(self.versions), self.log.snapshot().version + 1)
        ]

    def rewrite(self, which: int, added: pa.Table, dropped: int) -> None:
        """Replace a split as a merge does. The new split lacks some rows of the old split, and has the rows `added`."""
        live = self.live()
        if live:
            split = live[which % len(live)]
            self.commit([split], pa.concat_tables([self.read([split]).slice(dropped), added]))

    def commit(self, removed: Sequence[Add], rows: pa.Table, *, data_change: bool = True) -> None:
        snapshot = self.log.snapshot()
        context = context_of(snapshot)
        adds = sort_and_write(self.store, rows, context=context, ids=self.ids, now_ms=self.clock.now_ms())
        actions: list[Action] = [
            *(Remove(path=add.path, dataChange=data_change) for add in removed),
            *(replace(add, dataChange=data_change) for add in adds),
        ]
        if actions:
            self.log.commit(snapshot, actions, operation="TEST")

    def live(self) -> list[Add]:
        return sorted(self.log.snapshot().splits.values(), key=lambda add: add.path)

    def read(self, adds: Sequence[Add]) -> pa.Table:
        return pa.concat_tables(
            [COLUMNS.empty_table(), *(read_split(self.store, add).select(COLUMNS.names) for add in adds)]
        )

    def rows_at(self, version: int) -> Counter[str]:
        return multiset(self.read(list(self.log.snapshot(version=version).splits.values())))

    def changes(self, start: int, end: int, slice_bytes: int) -> pa.Table:
        snapshots = [self.log.snapshot(version=version) for version in (start, end)]
        return changes(self.store, *snapshots, slice_bytes=slice_bytes).read_all()


def multiset(table: pa.Table) -> Counter[str]:
    # Rows are compared as text, because a NaN is not equal to itself.
    return Counter(repr(row) for row in table.select(COLUMNS.names).to_pylist())


def applied(before: Counter[str], changed: pa.Table) -> Counter[str]:
    """Apply every change in the given order. A delete of a missing row fails."""
    found = Counter(before)
    labels = changed.column(CHANGE_TYPE).to_pylist()
    for kind, row in zip(labels, changed.select(COLUMNS.names).to_pylist(), strict=True):
        found[repr(row)] += 1 if kind == INSERT else -1
        assert found[repr(row)] >= 0, row
    return +found


@settings(max_examples=scaled(25))
@given(history=st.lists(steps, min_size=1, max_size=8), slice_bytes=st.sampled_from([300, 2**20]), data=st.data())
def test_changes_lead_from_one_version_to_another(
    history: list[tuple[object, ...]], slice_bytes: int, data: st.DataObject
) -> None:
    table = History()
    for step in history:
        table.take(step)
    newest = len(table.versions) - 1
    start = data.draw(st.integers(0, newest), label="from")
    end = data.draw(st.integers(start, newest), label="to")
    changed = table.changes(start, end, slice_bytes)
    assert applied(table.versions[start], changed) == table.versions[end]
    versions = changed.column(COMMIT_VERSION).to_pylist()
    assert versions == sorted(versions)
    assert set(versions) <= set(range(start + 1, end + 1))
    _are_minimal(changed)
    _have_the_times_of_their_commits(table, changed)


def _are_minimal(changed: pa.Table) -> None:
    """Assert that no commit deletes a row and inserts an equal row.

    Also assert that the deletes of a commit come first.
    """
    for version in set(changed.column(COMMIT_VERSION).to_pylist()):
        mine = changed.filter(pc.equal(changed.column(COMMIT_VERSION), version))
        kinds = mine.column(CHANGE_TYPE).to_pylist()
        assert kinds == sorted(kinds)
        inserted = mine.filter(pc.equal(mine.column(CHANGE_TYPE), INSERT))
        deleted = mine.filter(pc.not_equal(mine.column(CHANGE_TYPE), INSERT))
        assert multiset(inserted).keys().isdisjoint(multiset(deleted))


def _have_the_times_of_their_commits(table: History, changed: pa.Table) -> None:
    milliseconds = changed.column(COMMIT_TIMESTAMP).cast(pa.int64()).to_pylist()
    times = {entry.version: entry.timestamp for entry in table.log.history()}
    assert milliseconds == [times[version] for version in changed.column(COMMIT_VERSION).to_pylist()]
