"""Kill a compaction, catch-up or segment merge at each request, before or after the request takes effect.

After each kill, every search matches a scan. The next run completes the work, and the collector removes unreferenced
files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import pytest

from storage_core.data.settings.layout import CompactionSettings
from storage_core.index import catch_up, segment_merge
from storage_core.maintain.check import fsck
from storage_core.maintain.collect import collect
from storage_core.maintain.findings import Kind
from storage_core.store.contract import ObjectStore
from storage_core.store.memory import MemoryStore
from tests.support.clock import START_MS, ManualClock
from tests.support.crashes import at_both_ends, left_by_crashes
from tests.support.indexed_table import CONFIG, NEAR, TAG_VALUES, WITH_PLACES, IndexedTable, watermarks

TARGET = 600
Run = Callable[[IndexedTable], object]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a tier merge as soon as it has two segments."""
    monkeypatch.setattr(segment_merge, "FACTOR", 2)


def compact(table: IndexedTable) -> None:
    table.compact(target_bytes=TARGET)


def index(table: IndexedTable) -> None:
    table.catch_up()


RUNS: Mapping[str, Run] = {
    "compaction": compact,
    "compaction in parts": compact,
    "catch-up after it": index,
    "merge of segments": index,
}


@cache
def start(name: str) -> MemoryStore:
    """Return a table of three splits.

    One split is not indexed, and one has deleted rows. For a run that follows a compaction, the splits are already
    compacted.
    """
    store = MemoryStore("indexed")
    config = replace(CONFIG, indexes=(*CONFIG.indexes, NEAR), version_retention_ms=0, gc_horizon_ms=0)
    if name == "compaction in parts":
        config = replace(config, compaction=CompactionSettings(run_rows=15))
    table = IndexedTable(store, config, schema=WITH_PLACES)
    for split in range(2):
        table.append([(0, TAG_VALUES[row % 4], ("ebb", "tide", "flood tide")[row % 3]) for row in range(9 + split)])
    table.catch_up()
    table.append([(0, "x", "tide") for _ in range(5)])
    first = min(table.snapshot.splits)
    table.delete({first: [2]})
    if not name.startswith("compaction"):
        compact(table)
    if name == "merge of segments":
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(segment_merge, "FACTOR", 8)
            table.append([(0, TAG_VALUES[row % 4], "ebb") for row in range(8)])
            table.catch_up()
    return store


@pytest.mark.parametrize("name", RUNS)
def test_it_may_end_at_any_request(name: str) -> None:
    left = left_by_crashes(start(name), lambda store: RUNS[name](IndexedTable(store, seed=2)))
    for each in at_both_ends(left, lambda store: store):
        _judge(each)
    assert len(left) >= 4, "nothing, each object, and the version"


def _judge(left: ObjectStore) -> None:
    table = IndexedTable(left, seed=3)
    table.require_exact(table.snapshot)
    marks, version = watermarks(table.snapshot), table.snapshot.version
    if len(table.snapshot.splits) == 3:
        compact(table)
        assert all(now >= marks[each] for each, now in watermarks(table.snapshot).items())
        table.require_exact(table.snapshot)
    for _ in range(4):  # merged segments merge again later, and then need no translations
        table.catch_up()
    assert all(catch_up.plan(table.snapshot, each).empty for each in marks)
    table.require_exact(table.snapshot)
    table.log.checkpoint(table.snapshot)
    collect(left, table.log, clock=ManualClock(START_MS + 10**9, step_ms=1))
    head = table.snapshot
    assert head.version >= version
    assert {info.key for info in left.list("_indices/")} == {*head.segments, *head.translations}
    table.require_exact(head)
    findings = fsck(left, clock=ManualClock(START_MS + 10**10), deep=True).findings
    assert [each for each in findings if each.kind is not Kind.UNREFERENCED] == []
