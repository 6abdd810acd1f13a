"""Kill a compactor at each request of a compaction, before or after the request takes effect. No row ever changes.

The put of the version file commits the compaction. Before this put, no version refers to the files of the compaction.
No reader uses these files, the next compaction writes its own files, and the collector deletes them. Another process
may delete rows of the inputs during the compaction.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache

import pyarrow as pa
import pytest

from storage_core.base.errors import CommitConflict, CommitUnknown
from storage_core.data.formats.keys import parse
from storage_core.data.formats.kinds import KeyKind
from storage_core.data.settings.layout import CompactionSettings
from storage_core.data.settings.table import TableConfig
from storage_core.log.snapshot import Snapshot
from storage_core.log.versions import HistoryEntry
from storage_core.maintain.check import fsck
from storage_core.maintain.collect import collect
from storage_core.maintain.findings import Kind
from storage_core.store.contract import ObjectStore
from storage_core.store.memory import MemoryStore
from tests.support import merge_plan
from tests.support.clock import START_MS, ManualClock
from tests.support.copies import copy_of
from tests.support.crashes import at_both_ends
from tests.support.deleted_rows import delete_where
from tests.support.fault_store import Crash, CrashFault, FaultStore, PutFault
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable, Row

SCHEMA = pa.schema([("at", pa.timestamp("us", "UTC")), ("host", pa.string()), ("n", pa.int64()), ("text", pa.string())])
START = dt.datetime(2024, 2, 29, 10, tzinfo=dt.UTC)
CONFIG = TableConfig(
    time_column="at",
    window_seconds=900,
    sort_schema="host|timestamp/V2",
    checkpoint_interval=0,
    version_retention_ms=0,
    gc_horizon_ms=0,
)
SMALL, LARGE = 60, 2_200
Numbers = frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A compaction of two windows with `rows` rows each.

    `deleted` selects the rows that are deleted before the compaction. `later` selects the rows that are deleted during
    the compaction.

    The compaction reads `inputs` splits, writes `outputs` splits, and writes `vectors` deletion vectors as objects.
    """

    rows: int
    outputs: int
    inputs: int = 6
    vectors: int = 0
    config: TableConfig = CONFIG
    deleted: Callable[[int], bool] | None = None
    later: Callable[[int], bool] | None = None

    def meanwhile(self, objects: ObjectStore) -> None:
        """In another process, delete the rows that `later` selects during the compaction."""
        if self.later is not None:
            _delete(_process(objects, 20), self.later)


def _few(n: int) -> bool:
    return n % 7 == 3


def _many(n: int) -> bool:
    """Return True for scattered rows.

    A delete of these rows needs a deletion vector object. In every output split, the share of deleted rows is too small
    for another compaction.
    """
    return n * n % 1_009 < 300


def _most(n: int) -> bool:
    return n * n % 1_009 < 850


CASES: Mapping[str, Case] = {
    "plain windows": Case(rows=SMALL, outputs=2),
    "windows with deletion vectors": Case(rows=LARGE, outputs=2, deleted=_most),
    "rows deleted meanwhile": Case(rows=SMALL, outputs=2, later=_few),
    "vectors, and many rows deleted meanwhile": Case(rows=LARGE, outputs=2, vectors=2, deleted=_few, later=_many),
    "in parts, and rows deleted meanwhile": Case(
        rows=150, outputs=6, config=replace(CONFIG, compaction=CompactionSettings(run_rows=60)), later=_few
    ),
    "several outputs, and rows deleted meanwhile": Case(
        rows=LARGE, outputs=4, inputs=12, config=replace(CONFIG, target_split_bytes=4_800), later=_few
    ),
}


def _row(n: int, window: int) -> Row:
    at = START + dt.timedelta(seconds=900 * window + n * 7 % 600)
    return {"at": at, "host": f"h{n % 5}", "n": n, "text": f"{n * n % 1_000_003:x}"}


def _process(store: ObjectStore, seed: int) -> KeyedTable:
    return KeyedTable(store, ids=SeededIds(seed))


def _delete(table: KeyedTable, deleted: Callable[[int], bool]) -> None:
    delete_where(table.log, lambda row: deleted(row["n"]))


@cache
def start(name: str) -> MemoryStore:
    """Return a store with two windows of three splits each."""
    case, store = CASES[name], MemoryStore("windows")
    table = KeyedTable(store).create(SCHEMA, case.config)
    for first in range(3):
        table.append([_row(n, n % 2) for n in range(first, 2 * case.rows, 3)])
    if case.deleted is not None:
        _delete(table, case.deleted)
    return store


def numbers(store: ObjectStore) -> Numbers:
    """Return the numbers of all rows. Assert that each row occurs once and has its original values."""
    rows = _process(store, 1_000).base_rows()
    assert all(row == _row(int(str(row["n"])), int(str(row["n"])) % 2) for row in rows)
    found = frozenset(int(str(row["n"])) for row in rows)
    assert len(found) == len(rows), "no row twice"
    return found


def _expected(name: str, *, later: bool) -> Numbers:
    case = CASES[name]
    deleted = [each for each in (case.deleted, case.later if later else None) if each is not None]
    return frozenset(n for n in range(2 * case.rows) if not any(each(n) for each in deleted))


def compact(name: str, store: FaultStore, objects: MemoryStore) -> bool:
    """Run one compaction with the concurrent deletes of the case. Return True if the compaction committed anything."""
    return _process(store, 2).compact(lambda: CASES[name].meanwhile(objects)) is not None


@cache
def trace(name: str) -> tuple[str, ...]:
    """Return one text for each request of a compaction without faults.

    The text is the key of a put, or empty for any other request.
    """
    objects = copy_of(start(name))
    store = FaultStore(objects)
    assert compact(name, store, objects)
    return tuple(each.request.key if each.request.kind == "put" else "" for each in store.trace)


def _kinds(keys: Sequence[str]) -> list[KeyKind]:
    return [parsed.kind for key in keys if (parsed := parse(key)) is not None]


@pytest.mark.parametrize("name", CASES)
def test_the_compaction_of_the_matrix_does_what_its_name_says(name: str) -> None:
    case = CASES[name]
    kinds = _kinds(trace(name))
    assert kinds.count(KeyKind.SPLIT) == case.outputs
    assert kinds.count(KeyKind.VECTOR) == case.vectors
    assert kinds.count(KeyKind.VERSION) == 1 + (case.later is not None), "the put that the delete has won, and ours"
    before = _process(start(name), 3).snapshot
    assert len(before.splits) == case.inputs
    assert any(add.deleted_rows for add in before.splits.values()) == (case.deleted is not None)


def _compactions(store: ObjectStore) -> int:
    return sum(entry.operation == "COMPACT" for entry in _process(store, 1_000).log.history())


def _named(snapshot: Snapshot) -> set[str]:
    """Return the keys of the base objects to which the newest version refers."""
    vectors = {add.deleted_rows.path for add in snapshot.splits.values() if add.deleted_rows is not None}
    return {*snapshot.splits, *(path for path in vectors if path is not None)}


def _files(store: ObjectStore) -> set[str]:
    return {info.key for info in store.list("splits/")}


@pytest.mark.parametrize("name", CASES)
def test_a_compactor_may_end_at_any_request(name: str) -> None:
    decisive = max(number for number, key in enumerate(trace(name)) if _kinds([key]) == [KeyKind.VERSION])
    left: list[tuple[MemoryStore, bool]] = []
    # Only a put changes the state. So one run is killed before the first put. For each put, one more run is killed
    # after that put.
    first, *_ = puts = [number for number, key in enumerate(trace(name)) if key]
    for number, side in [(first, CrashFault.BEFORE), *((each, CrashFault.AFTER) for each in puts)]:
        objects = copy_of(start(name))
        store = FaultStore(objects)
        store.at(number, side)
        with pytest.raises(Crash):
            compact(name, store, objects)
        committed = number == decisive and side is CrashFault.AFTER
        assert _compactions(objects) == committed
        left.append((objects, committed))
    case = CASES[name]
    # If rows are deleted during the compaction, there is one more state: the last split exists, but the delete has not
    # happened. In the last of these states, the log contains the version that the compaction committed.
    different = 1 + case.outputs + case.vectors + 1 + (case.later is not None)
    assert len(left) == different, "nothing, each split, each vector, and the version"
    for objects, committed in at_both_ends(left, lambda each: each[0]):
        _judge(name, objects, committed=committed)
    print(f"{name}: {len(trace(name))} requests, {different} tables")  # noqa: T201 -- for `pytest -rA`


def _judge(name: str, left: MemoryStore, *, committed: bool) -> None:
    """Check that the rows are unchanged, the next run does the rest, and the collector removes the unneeded files."""
    table = _process(left, 4)
    expected = _expected(name, later=_was_deleted(name, left))
    assert numbers(left) == expected
    orphans = _files(left) - _named(table.snapshot) - _files(start(name))
    _require_sound(left, orphans)
    assert (table.compact() is None) == committed, "a run that committed left nothing to do"
    assert merge_plan.plan(table.snapshot) == []
    assert _compactions(left) == 1
    assert numbers(left) == expected
    assert orphans.isdisjoint(_named(table.snapshot)), "nobody takes up what another run left behind"
    assert orphans <= _files(left), "and nobody but the collector removes it"
    table.log.checkpoint(table.snapshot)
    collect(left, table.log, clock=ManualClock(START_MS + 10**9, step_ms=1))
    assert _files(left) == _named(table.snapshot), "orphans and inputs, and nothing else"
    assert numbers(left) == expected
    _require_sound(left, set())


def _was_deleted(name: str, left: MemoryStore) -> bool:
    return any(entry.operation == "DELETE" for entry in _new(name, left))


def _new(name: str, left: MemoryStore) -> list[HistoryEntry]:
    first = _process(start(name), 3).snapshot.version
    return [entry for entry in _process(left, 3).log.history() if entry.version > first]


def _require_sound(store: MemoryStore, orphans: set[str]) -> None:
    """Assert that `fsck` reports exactly these objects as unreferenced, and finds no damage."""
    findings = fsck(store, clock=ManualClock(START_MS + 10**9), deep=True).findings
    assert [each for each in findings if each.kind is not Kind.UNREFERENCED] == []
    assert orphans <= {each.key for each in findings}


@pytest.mark.parametrize("fault", list(PutFault))
def test_a_lost_reply_to_any_put_leaves_one_compaction_or_none(fault: PutFault) -> None:
    name = "vectors, and many rows deleted meanwhile"
    for number in [number for number, key in enumerate(trace(name)) if key]:
        objects = copy_of(start(name))
        store = FaultStore(objects)
        store.at(number, fault)
        ended = False
        with suppress(CommitConflict, CommitUnknown):
            ended = compact(name, store, objects)
        store.deliver()
        expected = _expected(name, later=_was_deleted(name, objects))
        assert numbers(objects) == expected
        assert _compactions(objects) >= ended
        _process(objects, 4).compact()
        assert _compactions(objects) == 1
        assert numbers(objects) == expected
