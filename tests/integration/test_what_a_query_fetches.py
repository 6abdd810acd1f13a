"""A query fetches only what its answer needs, and returns the same as a query over all columns of all splits.

The test counts the fetched bytes at the store.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage_core.base.errors import Corrupt
from storage_core.read.search import base
from storage_core.split.read import Piece
from storage_core.store.contract import Blob, IfAbsent, Overwrite
from storage_core.store.memory import MemoryStore
from tests.support.deleted_rows import delete_where
from tests.support.s3_server import S3Server
from tests.support.upkeep import catch_up
from tidemark import Table

SCHEMA = pa.schema([("a", pa.int64()), ("s", pa.string())])
SPLITS = 4


@pytest.fixture(params=["local", "memory", "s3"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    """Make a table of four splits with ten rows each. The first row of each split is deleted."""
    uris = {"local": str(tmp_path / "t"), "memory": f"memory://{uuid4()}"}
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        uris["s3"] = server.uri(f"fetched/{uuid4()}")
    made = Table.create(uris[request.param], SCHEMA)
    for split in range(SPLITS):
        made.append([{"a": 10 * split + each, "s": f"row {each}"} for each in range(10)])
    delete_where(made.log, lambda row: row["a"] % 10 == 0)
    return Table.open(made.uri)


COUNTS = {
    "select count(*) as n from t": [{"n": 36}],
    "select count(*) as n from t where 1 = 0": [{"n": 0}],
    "select count(*) as n from t, t as u": [{"n": 36 * 36}],
    "select 5 as n from t limit 2": [{"n": 5}, {"n": 5}],
}


@pytest.mark.parametrize("text", COUNTS)
def test_a_number_of_rows_is_told_by_the_log(table: Table, text: str) -> None:
    before = dict(table.store.requests)
    found = table.explain(text)
    assert (found.splits, [(each.name, each.splits) for each in found.steps]) == ((), [("count", SPLITS)])
    assert table.sql(text).to_pylist() == COUNTS[text]
    assert table.store.requests == before
    table.store.delete([add.path for add in table.snapshot.splits.values()])
    assert table.sql(text).to_pylist() == COUNTS[text]


def test_rows_that_nobody_counted_are_read(table: Table) -> None:
    """Splits of other writers may lack a row count."""
    head = table.snapshot
    data = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": range(10)}), data)
    theirs = bytes(data.getvalue())
    add = next(iter(head.splits.values()))
    other = replace(
        add, path="splits/theirs.parquet", size=len(theirs), numRecords=None, xxh3=None, deletionVector=None
    )
    table.store.put(other.path, theirs, IfAbsent())
    table.log.commit(head, [other], operation="TEST")
    assert table.refresh().sql("select count(*) as n, 1 as one from t").to_pylist() == [{"n": 46, "one": 1}]


@pytest.mark.parametrize("table", ["memory"], indirect=True)
def test_splits_that_are_no_files_are_fetched_side_by_side(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    all_under_way, get = threading.Barrier(SPLITS), MemoryStore.get

    def waiting(store: MemoryStore, key: str) -> Blob:
        if key.startswith("splits/"):
            all_under_way.wait(60)
        return get(store, key)

    monkeypatch.setattr(MemoryStore, "get", waiting)
    assert table.sql("select sum(a) as a from t").to_pylist() == [{"a": sum(n for n in range(40) if n % 10)}]
    assert table.scan(["a"]).to_arrow().num_rows == 36


@pytest.mark.parametrize("table", ["memory"], indirect=True)
def test_of_splits_that_are_no_files_only_what_is_read_is_decoded(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded, read = list[Collection[str] | None](), Piece.read

    def noted(piece: Piece) -> pa.Table:
        decoded.append(piece.columns)
        return read(piece)

    monkeypatch.setattr(Piece, "read", noted)
    assert table.sql("select max(s) as s from t where s < 'row 5'").to_pylist() == [{"s": "row 4"}]
    assert table.scan(["a"]).to_arrow().num_rows == 36
    assert table.sql("from t").num_rows == 36
    assert [each and set(each) for each in decoded] == [{"s"}] * SPLITS + [{"a"}] * SPLITS + [{"a", "s"}] * SPLITS


@pytest.mark.parametrize("uri", ["memory://{}", "{}"])
def test_a_search_reads_the_row_groups_of_its_hits(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "WHOLE_SPLIT_BYTES", 0)
    monkeypatch.setattr("storage_core.split.read.SMALL_SPLIT_BYTES", 2**14)
    schema = pa.schema([("a", pa.int64()), ("s", pa.string()), ("kind", pa.string())])
    index = {"name": "kinds", "kind": "bitmap", "columns": ["kind"]}
    table = Table.create(uri.format(tmp_path if uri == "{}" else uuid4()), schema, indexes=[index])
    numbers = np.arange(300_000)
    texts = np.random.default_rng(1).integers(0, 2**62, len(numbers)).astype(str)
    kinds = np.where(np.isin(numbers, (7, 140_001, 140_002)), "rare", "common")
    table.append(pa.table([numbers, texts, kinds], schema=schema))
    (add,) = table.snapshot.splits.values()
    catch_up(table)
    table.search({"kind": "common"}, index="kinds", limit=1, cache_dir=tmp_path / "cache")

    before, requests = table.store.bytes_read, dict(table.store.requests)
    found = table.search({"kind": "rare"}, index="kinds", cache_dir=tmp_path / "cache")
    expected = [{"a": each, "s": str(texts[each]), "kind": "rare", "score": 1.0} for each in (7, 140_001, 140_002)]
    assert sorted(found.to_pylist(), key=lambda row: row["a"]) == expected
    if uri == "{}":
        assert table.store.requests == requests
    else:
        assert table.store.bytes_read - before < 0.6 * add.size


@pytest.mark.parametrize("table", ["memory"], indirect=True)
def test_a_split_that_is_damaged_is_found_whatever_is_read_of_it(table: Table) -> None:
    path = next(iter(table.snapshot.splits))
    data = bytearray(table.store.get(path).data)
    data[len(data) // 2] ^= 1
    table.store.put(path, bytes(data), Overwrite())
    with pytest.raises(Corrupt, match="expected xxh3-64"):
        table.sql("select max(a) from t")
    with pytest.raises(Corrupt, match="expected xxh3-64"):
        table.scan(["s"]).to_arrow()
