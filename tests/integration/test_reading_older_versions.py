"""A read of an older version returns the base rows of this version. Higher consistency levels raise an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core.base.errors import InvalidInput
from storage_core.read.answers import ArrowRows
from tidemark import Table

INDEX = {"name": "tags", "kind": "bitmap", "columns": ["tag"]}

# Each way to read, with the argument `at` (a version or None) and a consistency level or None.
READS: Mapping[str, Callable[..., object]] = {
    "scan": lambda table, **how: table.scan(**how).to_arrow(),
    "sql": lambda table, **how: table.sql("select * from t", **how),
    "search": lambda table, **how: table.search("x", index="tags", **how),
    "get": lambda table, **how: table.get(1, **how),
    "get_many": lambda table, **how: table.get_many([1], **how),
    "get_many of nothing": lambda table, **how: table.get_many([], **how),
}


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Make a keyed table whose only row is unmerged."""
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("tag", pa.string())])
    table = Table.create(str(tmp_path / "table"), schema, primary_key="k", indexes=[INDEX])
    table.append([{"k": 1, "tag": "x"}])
    return table.uri


@pytest.mark.parametrize("level", ["committed", "latest"])
@pytest.mark.parametrize("read", READS)
def test_an_older_version_has_no_consistency_above_its_base(uri: str, read: str, level: str) -> None:
    for table, how in ((Table.open(uri, at=0), {}), (Table.open(uri), {"at": 0}), (Table.open(uri, at=0), {"at": 0})):
        with pytest.raises(InvalidInput, match=r"which returns only merged rows. Leave consistency out"):
            READS[read](table, consistency=level, **how)


@pytest.mark.parametrize("read", READS)
def test_without_a_consistency_or_with_that_of_its_base_an_older_version_is_read(uri: str, read: str) -> None:
    for table, how in ((Table.open(uri, at=0), {}), (Table.open(uri), {"at": 0})):
        for level in ({}, {"consistency": "snapshot"}):
            found = READS[read](table, **how, **level)
            assert found in (None, [None], []) or (isinstance(found, pa.Table | ArrowRows) and found.num_rows == 0)


def test_a_lookup_in_the_newest_version_sees_every_acknowledged_row_unless_told_otherwise(uri: str) -> None:
    table = Table.open(uri)
    assert table.get(1) == {"k": 1, "tag": "x"}
    assert table.get_many([1], consistency="committed") == [{"k": 1, "tag": "x"}]
    assert table.get(1, consistency="snapshot") is None


@pytest.mark.parametrize("level", ["committed", "latest"])
def test_the_history_of_an_older_version_is_that_of_its_base(uri: str, level: str) -> None:
    older = Table.open(uri, at=0)
    with pytest.raises(InvalidInput, match="returns only merged rows"):
        older.read_history(consistency=level)
    assert older.read_history().records.num_rows == 0
    assert Table.open(uri).read_history().records.num_rows == 1
