"""After upserts, deletes, merges, sorts, compactions and catch-ups, lookups return the same rows as a dictionary.

Lookups and merges use the index for every split that it covers. The test sets the cost of requests to zero, so that
only bytes count.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator, Mapping
from contextlib import suppress

import pyarrow as pa
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from storage_core.base.errors import CommitConflict
from storage_core.data.settings.index import IndexDefinition
from storage_core.data.settings.table import TableConfig
from storage_core.index import catch_up
from storage_core.log.actions import Action
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.check import fsck
from storage_core.maintain.collect import collect
from storage_core.read import lookup
from storage_core.read.key_splits import IndexedKeys
from storage_core.read.verified_files import VerifiedFiles
from storage_core.split import metadata
from storage_core.store.memory import MemoryStore
from storage_core.store.pieces import KeptValues
from storage_core.write.region import generation_write, merge
from storage_core.write.region.records import WriterOptions
from tests.support.keyed_table import KeyedTable, Row
from tests.support.same_hash import keys_of_one_hash
from tests.support.scale import scaled

INDEX = IndexDefinition("keys", "primary_key", ("a", "b"))
SCHEMA = pa.schema(
    [
        pa.field("a", pa.int64(), nullable=False),
        pa.field("b", pa.int64(), nullable=False),
        ("at", pa.timestamp("us", "UTC")),
        ("tag", pa.string()),
        ("n", pa.int64()),
    ]
)
CONFIG = TableConfig(
    primary_key=("a", "b"),
    time_column="at",
    sort_schema="tag|timestamp/V2",
    indexes=(INDEX,),
    version_retention_ms=1_000,
    gc_horizon_ms=1_000,
)
Key = tuple[int, int]
KEYS: list[Key] = [
    *[(each["a"], each["b"]) for each in keys_of_one_hash(8).to_pylist()],
    *[(number, number) for number in range(100, 116)],
]
keys = st.sampled_from(KEYS)
puts = st.tuples(st.just("put"), st.dictionaries(keys, st.integers(0, 3), min_size=1, max_size=3))
patches = st.tuples(st.just("patch"), st.dictionaries(keys, st.integers(4, 6), min_size=1, max_size=2))
deletes = st.tuples(st.just("delete"), st.sets(keys, min_size=1, max_size=2))
upkeep = st.sampled_from(
    [("flush",), ("merge",), ("merge",), ("sort",), ("compact",), ("catch up",), ("late catch up",), ("collect",)]
)
UPKEEP = {"merge", "compact", "catch up", "late catch up", "collect"}
"""Steps that change the base or the index coverage."""

FILLED = [
    step
    for part in range(3)
    for step in (("put", dict.fromkeys(KEYS[part::3], part)), ("flush",), ("merge",), ("catch up",))
]
steps = st.lists(puts | patches | deletes | upkeep, min_size=4, max_size=12)

_names = itertools.count()


@pytest.fixture(autouse=True, scope="module")
def _asked() -> Iterator[None]:
    """Use small row groups, sorted generations with segments, and requests without cost."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generation_write, "SEGMENT_ROWS", 1)
        patch.setattr(metadata, "ROWS_PER_GROUP", 1)
        patch.setattr("storage_core.split.read.SMALL_SPLIT_BYTES", 0)
        patch.setattr("storage_core.split.fetch.REQUEST_COST_BYTES", 0)
        patch.setattr(merge, "REQUEST_COST_BYTES", 0)
        yield


def row(key: Key, n: int) -> Row:
    """Return a row whose position in the table does not depend on its key."""
    at = dt.datetime.fromtimestamp(KEYS.index(key) * 7_919 % 1_000, dt.UTC)
    return {"a": key[0], "b": key[1], "at": at, "tag": "xyz"[n % 3], "n": n}


class Judged:
    """A table, its expected rows, and a count.

    For each lookup, the number of splits that the lookup read through the index is added to the count.
    """

    def __init__(self) -> None:
        self.table = KeyedTable(MemoryStore(f"key-index-{next(_names)}")).create(SCHEMA, CONFIG)
        self.kept, self.verified = KeptValues(), VerifiedFiles()
        self.rows: dict[Key, Row] = {}
        self.flushed: dict[Key, Row] = {}
        self.merged: dict[Key, Row] = {}
        self.answered = 0
        self.late: list[tuple[Snapshot, list[Action]]] = []

    def judge(self) -> None:
        """Fail unless each lookup in the base finds the merged rows, in a new and in an old table object."""
        head = self.table.snapshot
        wanted = lookup.key_rows(head, KEYS)
        expected = [self.merged.get(key) for key in KEYS]
        for kept, verified in ((self.kept, self.verified), (KeptValues(), VerifiedFiles())):
            found = lookup.get_many(self.table.store, head, wanted, verified=verified, kept=kept)
            assert found == expected
        for number in range(0, len(KEYS), 9):
            kept, one = KeptValues(), wanted.slice(number, 1)
            found = lookup.get_many(self.table.store, head, one, verified=VerifiedFiles(), kept=kept)
            assert found == expected[number : number + 1]
        self.answered += self._answered(head, wanted)

    def _answered(self, head: Snapshot, wanted: pa.Table) -> int:
        index = IndexedKeys.of(
            self.table.store, head, wanted, splits=len(head.splits), verified=VerifiedFiles(), kept=KeptValues()
        )
        return 0 if index is None else sum(index.of_split(add).places is not None for add in head.splits.values())

    def index(self) -> None:
        """Execute a catch-up. A later call of `commit` commits the actions of the catch-up."""
        planned = self.table.snapshot
        plan = catch_up.plan(planned, INDEX.name)
        items = [catch_up.CatchUpWork.from_json(work.to_json()) for work in plan.work]
        built = [catch_up.execute(self.table.store, work, ids=self.table.ids) for work in items]
        self.late.append((planned, plan.actions(built)))

    def commit(self) -> None:
        """Commit the last executed catch-up, if there is one. Ignore a conflict."""
        planned, actions = self.late.pop() if self.late else (self.table.snapshot, [])
        with suppress(CommitConflict):
            if actions:
                self.table.log.commit(planned, actions, operation="CATCH UP")


def changes(rows: Mapping[Key, Row], patched: Mapping[Key, int]) -> dict[Key, Row]:
    """Return the rows after patches. A patch of a missing row makes a row without other values."""
    none = {"at": None, "tag": None}
    return {key: {**rows.get(key, {"a": key[0], "b": key[1], **none}), "n": n} for key, n in patched.items()}


@settings(max_examples=scaled(12), deadline=None)
@given(taken=steps)
def test_lookups_and_merges_with_the_index_equal_a_dictionary(taken: list[tuple[object, ...]]) -> None:
    judged = Judged()
    table = judged.table
    writer = table.writer(WriterOptions(segment_rows=1))
    for number, step in enumerate([*FILLED, *taken, ("flush",), ("merge",), ("compact",), ("catch up",)]):
        match step:
            case ("put", dict(values)):
                writer.put([row(key, n) for key, n in values.items()])
                judged.rows |= {key: row(key, n) for key, n in values.items()}
            case ("patch", dict(values)):
                writer.patch([{"a": key[0], "b": key[1], "n": n} for key, n in values.items()])
                judged.rows |= changes(judged.rows, values)
            case ("delete", set(gone)):
                writer.delete(sorted(gone))
                for key in gone:
                    judged.rows.pop(key, None)
            case ("flush",):
                writer.flush()
                judged.flushed = dict(judged.rows)
            case ("merge",):
                table.merge()
                judged.merged = judged.flushed
            case ("sort",):
                table.sort()
            case ("compact",):
                before = catch_up.watermark(table.snapshot, INDEX.name)
                table.compact()
                assert catch_up.watermark(table.snapshot, INDEX.name) >= before
            case ("catch up",):
                judged.index()
                judged.commit()
                assert catch_up.watermark(table.snapshot, INDEX.name) == table.snapshot.version
            case ("late catch up",):
                judged.commit() if judged.late else judged.index()
            case ("collect",):
                table.clock.now += 5_000
                collect(table.store, table.log, clock=table.clock)
                judged.late.clear()  # a planned job never waits longer than the GC horizon
        if step[0] in UPKEEP and number >= len(FILLED):
            judged.judge()
    event(f"told of {min(judged.answered, 9)} splits or more")
    assert judged.answered or not judged.merged, "caught up, the index answers for all splits"
    assert fsck(table.store, clock=table.clock, deep=True).clean
