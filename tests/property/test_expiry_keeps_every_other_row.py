"""For any table, and at any time, an expiry removes exactly the rows of expired windows.

Times are at window edges, before 1970, or null. The test computes the expected rows in plain Python from the definition
in docs/architecture/compaction.md.
"""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.spark.spark import Spark
from storage_core.compact.steps import run_expire as expire
from storage_core.data.settings.table import TableConfig
from storage_core.data.steps import Expire
from storage_core.log.job_run import JobRun
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from storage_core.table import Table
from tests.support.clock import ManualClock
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable
from tests.support.scale import scaled

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("at", pa.timestamp("us", tz="UTC"))])
SECOND = 1_000_000
DURATIONS = st.sampled_from([60, 900, 3600, 7200, 86_400])
EDGES = st.builds(lambda window, off: window * 3600 * SECOND + off, st.integers(-30, 60), st.sampled_from([-1, 0, 1]))
TIMES = st.one_of(st.none(), EDGES, st.integers(-100_000 * SECOND, 200_000 * SECOND))
BATCHES = st.lists(st.lists(TIMES, min_size=1, max_size=8), min_size=1, max_size=4)


def _opened(store: MemoryStore, now_ms: int, seed: int) -> Table:
    metered = MeteredStore(store)
    log = KeyedTable(metered, ids=SeededIds(seed), clock=ManualClock(now_ms)).log
    return Table(metered, log, log.snapshot())


def _rows(table: pa.Table) -> Counter[tuple[int, int | None]]:
    return Counter(zip(table["id"].to_pylist(), table["at"].cast(pa.int64()).to_pylist(), strict=True))


def _leaves(at: int | None, window: int, retention_ms: int, now_ms: int) -> bool:
    if at is None:
        return False
    end_seconds = at // SECOND // window * window + window
    return end_seconds * 1000 + retention_ms <= now_ms


@settings(max_examples=scaled(25), deadline=None)
@given(BATCHES, DURATIONS, st.integers(1, 200_000_000), st.integers(0, 300_000_000))
def test_rows_of_windows_that_have_left_are_gone_and_no_other_row_is(
    batches: list[list[int | None]], window: int, retention_ms: int, now_ms: int
) -> None:
    store = MemoryStore("property")
    config = TableConfig(
        time_column="at", window_seconds=window, coarse_window=window > 3600, retention_ms=retention_ms
    )
    KeyedTable(store, ids=SeededIds(1), clock=ManualClock(1)).create(SCHEMA, config)
    table = _opened(store, 1, 2)
    number = 0
    for batch in batches:
        at = pa.array(batch, pa.int64()).cast(SCHEMA.field("at").type)
        table.append(
            pa.Table.from_arrays([pa.array(range(number, number + len(batch)), pa.int64()), at], schema=SCHEMA)
        )
        number += len(batch)
    before = _rows(table.scan().to_arrow())
    leaving = Counter({row: n for row, n in before.items() if _leaves(row[1], window, retention_ms, now_ms)})
    kept_splits = {add.path for add in table.snapshot.splits.values()}

    done = expire(JobRun(Expire(table_uri="test:"), Spark(), _opened(store, now_ms, 3)))

    after = _opened(store, now_ms, 4)
    assert _rows(after.scan().to_arrow()) == before - leaving
    assert done.metrics.rows_in == leaving.total()
    assert set(after.snapshot.splits) <= kept_splits, "what stays was not written again"
    assert (done.status == "committed") == bool(leaving)
    changed = after.changes(table.version).read_all()
    assert set(changed["_change_type"].to_pylist()) <= {"delete"}
    assert _rows(changed) == leaving
    assert _rows(after.scan(at=table.version).to_arrow()) == before
    again = expire(JobRun(Expire(table_uri="test:"), Spark(), _opened(store, now_ms, 5)))
    assert (again.status, again.version) == ("nothing_to_do", after.version)
