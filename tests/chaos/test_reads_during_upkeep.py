"""Reads are correct during writes, merges, compactions, checkpoints and collections."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest

from storage_core.base.clock import SystemClock
from storage_core.base.errors import SnapshotExpired
from storage_core.change.creation import create
from storage_core.data.settings.table import TableConfig
from storage_core.log.log import TransactionLog
from storage_core.split import metadata, read
from storage_core.store.resolve import open_store
from tests.support import upkeep
from tests.support.elsewhere import open_elsewhere
from tests.support.scale import scaled
from tidemark import Table

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("n", pa.int64()), ("s", pa.string())])
REGIONS = [{"transform": "bucket", "source": "k", "n": 3}]
AT_ONCE = 10
FLUSHED = 50
KEPT_MS = 1_500
PAUSE_S = 0.05
READS = scaled(40)


def row_of(key: int) -> dict[str, Any]:
    return {"k": key, "n": key % 5, "s": f"row {key}"}


class Growing:
    """A table that threads write and maintain. Each row is written once, and its key determines its values."""

    def __init__(self, folder: Path) -> None:
        config = TableConfig(primary_key=("k",), gc_horizon_ms=KEPT_MS, version_retention_ms=KEPT_MS)
        create(TransactionLog(open_store(folder.as_uri())), SCHEMA, config)
        self.table = Table.open(folder.as_uri()).set_regions(REGIONS)
        self.begun = self.acknowledged = 0
        self.merged = self.compacted = self.collected = 0
        self._needed_ms = SystemClock().now_ms()
        self.failures: list[BaseException] = []
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._watched, args=(each,)) for each in (self._write, self._keep_up)]

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for each in self._threads:
            each.join()

    def _watched(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  # the test judges
            self.failures.append(error)

    def _write(self) -> None:
        with self.table.writer() as writer:
            for first in itertools.count(0, AT_ONCE):
                if self._ended.is_set():
                    return
                self._needed_ms = SystemClock().now_ms()  # from this time on, written files are not garbage
                self.begun = first + AT_ONCE
                writer.put([row_of(key) for key in range(first, self.begun)])
                self.acknowledged = self.begun
                if first % FLUSHED == 0:
                    writer.flush()
                self._ended.wait(PAUSE_S)

    def _keep_up(self) -> None:
        mine = Table.open(self.table.uri)
        while not self._ended.is_set():
            self.merged += upkeep.merge(mine)
            self.compacted += upkeep.compact(mine)
            upkeep.checkpoint(mine)
            self.collected += len(upkeep.collect(mine, at_ms=self._needed_ms, horizon_ms=KEPT_MS).deleted)
            mine.refresh()


def test_a_read_has_what_was_acknowledged_before_it_and_nothing_that_was_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "ROWS_PER_GROUP", 20)
    monkeypatch.setattr(read, "SMALL_SPLIT_BYTES", 1)
    monkeypatch.setenv("TIDEMARK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TIDEMARK_CACHE_MIB", "1")
    versions, answered, upkeep_is_seen = set[int](), 0, False
    with Growing(tmp_path / "table") as growing:
        held = open_elsewhere(tmp_path / "table")
        while not growing.failures and (answered < READS or not upkeep_is_seen):
            try:
                opened = held.refresh() if answered % 3 else open_elsewhere(tmp_path / "table")
                before = growing.acknowledged
                rows = opened.scan(filter="n < 3", consistency="latest").to_arrow().to_pylist()
                [count] = opened.sql("select count(*) as n from t", consistency="latest").to_pylist()
                found = opened.get(max(0, before - 1), consistency="latest")
            except SnapshotExpired:
                continue
            answered += 1
            after = growing.begun
            versions.add(opened.version)
            upkeep_is_seen = len(versions) > 2 and min(growing.merged, growing.compacted, growing.collected) > 0
            keys = [row["k"] for row in rows]
            assert {key for key in range(before) if row_of(key)["n"] < 3} <= set(keys) <= set(range(after))
            assert sorted(map(str, rows)) == sorted(str(row_of(key)) for key in set(keys))
            assert before <= count["n"] <= after
            assert before == 0 or found == row_of(before - 1)
    assert growing.failures == []
