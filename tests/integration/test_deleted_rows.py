"""Every way to read one table returns all rows except those that deletion vectors hide."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_core.base.clock import SystemClock
from storage_core.base.errors import Corrupt, SnapshotExpired
from storage_core.compact import execute as compaction
from storage_core.data.formats.keys import parse
from storage_core.data.formats.kinds import KeyKind
from storage_core.data.settings.index import IndexDefinition
from storage_core.data.settings.table import TableConfig
from storage_core.index import catch_up
from storage_core.log.deletion_vector import VectorStorage
from storage_core.maintain.collect import collect
from storage_core.store.contract import Overwrite
from storage_core.table import Table
from tests.support import merge_plan
from tests.support.deleted_rows import delete_places, delete_where

SCHEMA = pa.schema(
    [
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("n", pa.int64()),
        pa.field("text", pa.string()),
        pa.field("kind", pa.string()),
    ]
)
START = dt.datetime(2024, 2, 29, 10, tzinfo=dt.UTC)
INDEXES = (IndexDefinition("words", "fulltext", ("text",)), IndexDefinition("by_kind", "bitmap", ("kind",)))
ROWS = 6_000
Row = Mapping[str, Any]


def _row(n: int) -> dict[str, Any]:
    text = f"word{n % 7} " + "tide " * (n % 4)
    return {"at": START + dt.timedelta(seconds=n), "n": n, "text": text, "kind": f"k{n % 5}"}


def _fresh(uri: str, schema: pa.Schema = SCHEMA, indexes: tuple[IndexDefinition, ...] = INDEXES) -> Table:
    return Table.create(uri, schema, time_column="at", indexes=indexes)


@pytest.fixture(params=["local", "memory"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    """Make a table of several windows whose first rows have an index segment, on a disk or in memory."""
    uri = str(tmp_path / "t") if request.param == "local" else f"memory://deleted-{tmp_path.name}"
    found = _fresh(uri)
    found.append([_row(n) for n in range(ROWS)])
    _catch_up(found)
    found.append([_row(n) for n in range(ROWS, ROWS + 500)])
    return found


def _catch_up(table: Table) -> None:
    for index in ("words", "by_kind"):
        plan = catch_up.plan(table.snapshot, index)
        built = [catch_up.execute(table.store, work, ids=table.log.ids) for work in plan.work]
        table.log.commit(table.snapshot, plan.actions(built), operation="INDEX")
        table.refresh()


def _is_dead(n: int) -> bool:
    return n % 3 == 0 if n < 3_000 else n % 500 == 1


@pytest.fixture
def marked(table: Table) -> Table:
    """Delete every third row of the first windows and a few other rows, with inline deletion vectors."""
    delete_where(table.log, lambda row: _is_dead(row["n"]))
    kinds = {add.deletionVector.storage for add in table.refresh().snapshot.splits.values() if add.deletionVector}
    assert kinds == {VectorStorage.INLINE}
    return table


LIVE = [n for n in range(ROWS + 500) if not _is_dead(n)]


def _numbers(rows: pa.Table) -> list[int]:
    return sorted(rows.column("n").to_pylist())


def test_scans_and_queries_never_return_them(marked: Table) -> None:
    assert _numbers(marked.scan().to_arrow()) == LIVE
    assert sorted(n for batch in marked.scan(["n"]).to_reader(100) for n in batch.column("n").to_pylist()) == LIVE
    assert marked.sql("select count(*) as c, min(n) as low, max(n) as high from t").to_pylist() == [
        {"c": len(LIVE), "low": LIVE[0], "high": LIVE[-1]}
    ]
    for low, high in ((0, 10), (2_990, 3_010), (3_001, 3_001), (3_002, 3_002), (5_990, 6_200)):
        wanted = [n for n in LIVE if low <= n <= high]
        assert _numbers(marked.scan(filter=f"n between {low} and {high}").to_arrow()) == wanted
        assert _numbers(marked.sql(f"select n from t where n >= {low} and n <= {high}")) == wanted
    assert marked.sql("select count(*) as c from t where n = 3").to_pylist() == [{"c": 0}]
    assert _numbers(marked.sql("select n from t order by n desc limit 3")) == LIVE[-3:]


def test_metrics_count_visible_rows(marked: Table) -> None:
    assert marked.snapshot.rows == len(LIVE) == marked.describe()["rows"]
    assert sum(int(str(each["rows"])) for each in marked.files()) == len(LIVE)
    marked.log.checkpoint(marked.snapshot)
    opened = Table.open(marked.uri)
    assert opened.snapshot.checkpoint_version is not None
    assert opened.snapshot.rows == len(LIVE), "read from manifests"


def test_full_text_returns_the_best_live_rows_from_segments_and_without(marked: Table, tmp_path: Path) -> None:
    everything = marked.search("tide", index="words", limit=10 * ROWS)
    assert _numbers(everything) == [n for n in LIVE if n % 4]
    for limit in (1, 7, 900):
        found = marked.search("tide", index="words", limit=limit, cache_dir=tmp_path / "cache")
        assert found.equals(everything.slice(0, limit)), "the best are a prefix, whatever was deleted between them"


def test_bitmap_hits_are_live(marked: Table) -> None:
    assert _numbers(marked.search("k1", index="by_kind", limit=10 * ROWS)) == [n for n in LIVE if n % 5 == 1]
    assert marked.search("k0", index="by_kind", limit=3).num_rows == 3


def test_a_segment_built_over_deleted_rows_finds_the_same(marked: Table) -> None:
    before = marked.search("tide", index="words", limit=10 * ROWS)
    _catch_up(marked)
    assert marked.search("tide", index="words", limit=10 * ROWS).equals(before)
    assert _numbers(marked.search("k3", index="by_kind", limit=10 * ROWS)) == [n for n in LIVE if n % 5 == 3]


def test_changes_show_each_deleted_row_once_as_a_delete(marked: Table) -> None:
    version = marked.version
    delete_where(marked.log, lambda row: row["n"] in (1, 3, 4))  # row 3 is already deleted
    marked.refresh()
    dead = [n for n in range(ROWS + 500) if _is_dead(n)]
    first, second = (marked.changes(start, start + 1).read_all() for start in (version - 1, version))
    assert (_numbers(first), set(first.column("_change_type").to_pylist())) == (dead, {"delete"})
    assert (_numbers(second), set(second.column("_change_type").to_pylist())) == ([1, 4], {"delete"})
    net: dict[int, int] = {}
    for row in marked.changes(0).read_all().to_pylist():
        net[row["n"]] = net.get(row["n"], 0) + (1 if row["_change_type"] == "insert" else -1)
    assert sorted(n for n, times in net.items() if times == 1) == _numbers(marked.scan().to_arrow())
    assert set(net.values()) == {0, 1}


def test_a_restore_brings_them_back_and_changes_say_so(marked: Table) -> None:
    before = marked.version
    marked.restore(before - 1)
    assert _numbers(marked.scan().to_arrow()) == list(range(ROWS + 500))
    back = marked.changes(before).read_all()
    assert set(back.column("_change_type").to_pylist()) == {"insert"}
    assert _numbers(back) == [n for n in range(ROWS + 500) if _is_dead(n)]
    assert _numbers(marked.scan(at=before).to_arrow()) == LIVE


def test_a_compaction_leaves_them_out_for_good(marked: Table) -> None:
    marked.append([_row(n) for n in range(0, 6_500, 100)])
    operations = merge_plan.plan(marked.snapshot)
    inputs = {add.path for operation in operations for add in operation.inputs}
    assert any(add.deleted_rows for add in marked.snapshot.splits.values() if add.path in inputs)
    expected = _numbers(marked.scan().to_arrow())
    for operation in operations:
        result = compaction.execute(marked.store, operation, ids=marked.log.ids, now_ms=1)
        marked.log.commit(marked.snapshot, result.actions, operation="COMPACT")
    version = marked.version
    marked.refresh()
    assert not any(add.deleted_rows for add in marked.snapshot.splits.values() if add.path not in inputs)
    assert _numbers(marked.scan().to_arrow()) == expected
    assert marked.changes(version).read_all().num_rows == 0
    assert marked.snapshot.rows == len(expected)


@pytest.mark.parametrize("name", ["file_row_number", "FILE_INDEX", "filename"])
def test_columns_called_like_those_of_duckdb_are_the_table_s_own(tmp_path: Path, name: str) -> None:
    schema = pa.schema([SCHEMA.field("at"), SCHEMA.field("n"), pa.field(name, pa.int64())])
    table = _fresh(str(tmp_path / "t"), schema, ())
    table.append([{"at": START, "n": n, name: 100 - n} for n in range(50)])
    delete_where(table.log, lambda row: row["n"] < 10)
    rows = table.refresh().scan(filter=f"{name} > 0").to_arrow().to_pylist()
    assert sorted((row["n"], row[name]) for row in rows) == [(n, 100 - n) for n in range(10, 50)]


def _with_stored_vector(uri: str) -> tuple[Table, str]:
    table = _fresh(uri, indexes=())
    table.append([{**_row(0), "n": n} for n in range(20_000)])
    (path,) = table.snapshot.splits
    delete_places(table.log, {path: [n * n % 19_997 for n in range(4_000)]})
    vector = table.refresh().snapshot.splits[path].deletionVector
    assert vector is not None
    assert vector.path is not None
    return table, vector.path


def test_many_scattered_rows_make_a_vector_of_its_own_object(tmp_path: Path) -> None:
    table, key = _with_stored_vector(str(tmp_path / "t"))
    parsed = parse(key)
    assert parsed is not None
    assert parsed.kind is KeyKind.VECTOR
    dead = {n * n % 19_997 for n in range(4_000)}
    assert table.snapshot.rows == 20_000 - len(dead) == table.scan(["n"]).to_arrow().num_rows
    assert set(_numbers(table.sql("select n from t"))).isdisjoint(dead)


def test_the_collector_takes_a_vector_that_no_version_names(tmp_path: Path) -> None:
    table, key = _with_stored_vector(str(tmp_path / "t"))
    (path,) = table.snapshot.splits
    add = table.snapshot.splits[path]
    delete_places(table.log, {path: range(0, 20_000, 3)})
    newest = table.refresh().snapshot.splits[path].deletionVector
    assert newest is not None
    assert newest.path not in (None, key)
    config = TableConfig(
        time_column="at", window_seconds=900, checkpoint_interval=1, version_retention_ms=0, gc_horizon_ms=0
    )
    for note in ("one", "two"):  # the second checkpoint is the base and has no reference to the older deletion vector
        metadata = table.snapshot.metadata
        changed = type(metadata)(
            id=metadata.id,
            schemaString=metadata.schemaString,
            configuration=config.to_configuration(),
            description=note,
        )
        table.log.commit(table.refresh().snapshot, [changed], operation="CHANGE")
    for _ in range(2):
        collect(table.store, table.log, clock=SystemClock(), horizon_ms=0)
    assert [info.key for info in table.store.list("") if info.key.endswith(".dv")] == [newest.path]
    assert add.path in {info.key for info in table.store.list("splits/")}
    assert table.refresh().scan().to_arrow().num_rows == table.snapshot.rows


def test_a_damaged_or_vanished_vector_is_an_error_for_every_reader(tmp_path: Path) -> None:
    table, key = _with_stored_vector(f"memory://vectors-{tmp_path.name}")
    data = table.store.get(key).data
    readers: tuple[Callable[[], object], ...] = (
        lambda: table.scan().to_arrow(),
        lambda: table.sql("select count(n) from t"),
        lambda: table.changes(1).read_all(),
    )
    for damaged in (data[:-1], data[:-1] + bytes([data[-1] ^ 1]), b""):
        table.store.put(key, damaged, Overwrite())
        for read in readers:
            with pytest.raises(Corrupt, match="deletion vector"):
                read()
    table.store.delete([key])
    for read in readers:
        with pytest.raises(SnapshotExpired, match=r"\.dv|Read changes from"):
            read()
