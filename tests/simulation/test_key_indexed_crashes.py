"""Kill a merge, compaction or catch-up of a table with a primary-key index before or after each request.

After each kill, every lookup matches the base. The next run completes the work, and the collector removes unreferenced
files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import pytest

from storage_core.data.settings.index import IndexDefinition
from storage_core.data.settings.table import TableConfig
from storage_core.index import catch_up
from storage_core.maintain.check import fsck
from storage_core.maintain.collect import collect
from storage_core.maintain.findings import Kind
from storage_core.read import lookup
from storage_core.read.verified_files import VerifiedFiles
from storage_core.split import metadata
from storage_core.store.contract import ObjectStore
from storage_core.store.memory import MemoryStore
from storage_core.store.pieces import KeptValues
from storage_core.write.region import merge as indexed_base
from storage_core.write.region.records import WriterOptions
from tests.support.clock import START_MS, ManualClock
from tests.support.crashes import left_by_crashes
from tests.support.ids import SeededIds
from tests.support.keyed_table import PLANES, KeyedTable

INDEX = IndexDefinition("keys", "primary_key", ("tailnum",))
CONFIG = TableConfig(primary_key=("tailnum",), indexes=(INDEX,), version_retention_ms=0, gc_horizon_ms=0)
NAMES = [f"N{number * 7_919 % 101:03}" for number in range(60)]


@pytest.fixture(autouse=True)
def _asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the index for every lookup that it can answer, as if requests had no cost."""
    monkeypatch.setattr(metadata, "ROWS_PER_GROUP", 2)
    monkeypatch.setattr("storage_core.split.read.SMALL_SPLIT_BYTES", 0)
    monkeypatch.setattr("storage_core.split.fetch.REQUEST_COST_BYTES", 0)
    monkeypatch.setattr(indexed_base, "REQUEST_COST_BYTES", 0)


def merge(table: KeyedTable) -> None:
    table.merge()


def compact(table: KeyedTable) -> None:
    table.compact()


def index(table: KeyedTable) -> None:
    snapshot = table.snapshot
    plan = catch_up.plan(snapshot, INDEX.name)
    built = [catch_up.execute(table.store, work, ids=table.ids) for work in plan.work]
    if actions := plan.actions(built):
        table.log.commit(snapshot, actions, operation="CATCH UP")


RUNS: Mapping[str, Callable[[KeyedTable], None]] = {"merge": merge, "compaction": compact, "catch-up": index}


@cache
def start(name: str) -> MemoryStore:
    """Return a table with a generation that changes rows of its splits. The index covers all splits except one."""
    store = MemoryStore("keyed")
    table = KeyedTable(store, ids=SeededIds(1)).create(PLANES, CONFIG)
    with table.writer(WriterOptions(segment_rows=1)) as writer:
        for part in range(2):
            writer.put([{"tailnum": name, "seats": part} for name in NAMES[part:40:2]])
            writer.flush()
            table.merge()
        index(table)
    with table.writer() as writer:  # without a segment
        writer.put([{"tailnum": name, "seats": 2} for name in NAMES[40:50]])
        writer.flush()
        table.merge()
        writer.patch([{"tailnum": NAMES[0], "seats": 7}])
        writer.delete([NAMES[1]])
        writer.put([{"tailnum": name, "seats": 3} for name in NAMES[50:55]])
        writer.flush()
    if name != "merge":
        merge(table)
    if name == "catch-up":
        compact(table)
    return store


@pytest.mark.parametrize("name", RUNS)
def test_it_may_end_at_any_request(name: str) -> None:
    left = left_by_crashes(start(name), lambda store: RUNS[name](KeyedTable(store, ids=SeededIds(2))))
    for each in left:
        _judge(each)
    assert len(left) >= 3, "nothing, each object, and the version"


def _judge(left: ObjectStore) -> None:
    table = KeyedTable(left, ids=SeededIds(3))
    _require_exact(table)
    for run in (merge, compact, index):
        before = catch_up.watermark(table.snapshot, INDEX.name)
        run(table)
        assert catch_up.watermark(table.snapshot, INDEX.name) >= before
        _require_exact(table)
    assert catch_up.plan(table.snapshot, INDEX.name).empty
    table.log.checkpoint(table.snapshot)
    collect(left, table.log, clock=ManualClock(START_MS + 10**9, step_ms=1))
    head = table.snapshot
    assert {info.key for info in left.list("_indices/")} == {*head.segments, *head.translations}
    _require_exact(table)
    findings = fsck(left, clock=ManualClock(START_MS + 10**10), deep=True).findings
    assert [each for each in findings if each.kind is not Kind.UNREFERENCED] == []


def _require_exact(table: KeyedTable) -> None:
    """Assert that lookups match the splits, one by one and all together."""
    head = table.snapshot
    rows = {row["tailnum"]: row for row in table.base_rows(head)}
    assert len(rows) == head.rows, "one live row per key"
    for names in (NAMES, *([each] for each in NAMES[::11])):
        wanted = lookup.key_rows(head, names)
        found = lookup.get_many(table.store, head, wanted, verified=VerifiedFiles(), kept=KeptValues())
        assert found == [rows.get(name) for name in names]
