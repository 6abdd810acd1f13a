"""A read opens only the manifests whose bounds can contain a matching row."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import pyarrow as pa
import pytest

from storage_core.data.rows.schema import to_schema_string
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Add, Metadata
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.read.predicate import Predicate, col
from storage_core.read.pruning import prune, pruned
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from tests.support.clock import ManualClock
from tests.support.ids import SeededIds

SCHEMA = pa.schema({"time": pa.timestamp("us", "UTC"), "n": pa.int64()})
START = dt.datetime(2015, 5, 17, 10, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)


@pytest.fixture
def store() -> MeteredStore:
    """Make a table with a checkpoint after each of three hours, so that each hour's split has its own manifest."""
    store = MeteredStore(MemoryStore("manifest-pruning"))
    config = TableConfig(time_column="time", window_seconds=3600).to_configuration()
    log = open_log(store)
    snapshot = log.create(Metadata(id="t", schemaString=to_schema_string(SCHEMA), configuration=config))
    for number in range(3):
        committed = log.commit(snapshot, [hourly(number)], operation="APPEND").snapshot
        snapshot = log.checkpoint(committed).snapshot
    return store


def open_log(store: MeteredStore) -> TransactionLog:
    return TransactionLog(store, clock=ManualClock(), ids=SeededIds(1))


def hourly(number: int) -> Add:
    return Add(
        path=f"splits/{number}.parquet",
        size=10,
        modificationTime=0,
        numRecords=1,
        minValues={"n": str(number)},
        maxValues={"n": str(number)},
        windowStart=int((START + number * HOUR).timestamp()),
        windowSeconds=3600,
    )


def read(store: MeteredStore, predicate: Predicate | None) -> tuple[list[str], int]:
    """Return the splits that a fresh reader finds, and its GET requests after the table is open."""
    snapshot = open_log(store).snapshot()
    before = store.requests.get("get", 0)
    found = paths(prune(snapshot, predicate))
    return found, store.requests.get("get", 0) - before


def paths(splits: Sequence[Add]) -> list[str]:
    return sorted(add.path for add in splits)


@pytest.mark.parametrize(
    ("wanted", "hours"),
    [
        ((col("time") >= START + HOUR).predicate, [1, 2]),
        (((col("time") >= START + HOUR) & (col("time") < START + 2 * HOUR)).predicate, [1]),
        (((col("time") < START) | (col("time") >= START + 2 * HOUR)).predicate, [2]),
        ((col("time") < START).predicate, []),
    ],
    ids=["from the second hour", "the second hour", "not the middle", "before all"],
)
def test_manifests_outside_the_time_asked_for_are_not_read(
    store: MeteredStore, wanted: Predicate, hours: list[int]
) -> None:
    assert read(store, wanted) == ([hourly(each).path for each in hours], len(hours))


def test_a_filter_on_no_bounded_column_reads_every_manifest_and_still_prunes(store: MeteredStore) -> None:
    assert read(store, (col("n") == 1).predicate) == ([hourly(1).path], 3)
    assert read(store, None) == ([hourly(each).path for each in range(3)], 3)


def test_explaining_counts_the_splits_of_every_manifest(store: MeteredStore) -> None:
    snapshot: Snapshot = open_log(store).snapshot()
    explained = pruned(snapshot, (col("time") >= START + HOUR).predicate, is_counted=True)
    assert paths(explained.splits) == [hourly(1).path, hourly(2).path]
    steps = [(step.name, step.splits, step.bytes) for step in explained.steps]
    assert steps == [("window", 1, 10), ("min/max", 0, 0), ("regex", 0, 0)]


def test_splits_newer_than_the_checkpoint_are_pruned_like_the_others(store: MeteredStore) -> None:
    log = open_log(store)
    snapshot = log.commit(log.snapshot(), [hourly(3), hourly(4)], operation="APPEND").snapshot
    assert paths(prune(snapshot, (col("time") >= START + 4 * HOUR).predicate)) == [hourly(4).path]
