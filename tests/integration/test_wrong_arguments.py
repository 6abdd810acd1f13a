"""An argument of a wrong type raises a typed error with the name of the argument, before any read or write."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from storage_core.base.errors import InvalidInput
from tidemark import QueryLimits, Table, col, expr

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("s", pa.string())])
INDEXES: tuple[dict[str, object], ...] = (
    {"name": "words", "kind": "fulltext", "columns": ["s"]},
    {"name": "ids", "kind": "bitmap", "columns": ["id"]},
)
FIVE: Any = 5


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "t"), SCHEMA, primary_key="id", indexes=INDEXES)


@pytest.mark.parametrize("at", [1.5, dt.date(2026, 1, 1), True, [], b"1"])
def test_a_version_is_a_number_a_time_or_a_tag_and_nothing_else(table: Table, at: Any) -> None:
    for call in (lambda: Table.open(table.uri, at=at), lambda: table.scan(at=at), lambda: table.sql("from t", at=at)):
        with pytest.raises(InvalidInput, match=r"is not a version\. Give a version number"):
            call()


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda table: table.scan(columns=[]), "a scan needs a column"),
        (lambda table: table.scan(columns="id"), "columns is 'id'. Give a list of names or None"),
        (lambda table: table.scan(columns=5), "columns is 5. Give a list of names or None"),
        (lambda table: table.scan(columns=[5]), "columns is a list of 1 value. Give a list of names"),
        (lambda table: table.scan(filter=5), "filter is 5. Give a Filter, a text or None"),
        (lambda table: table.scan(filter=col("id")), "Give a Filter, a text or None"),
        (lambda table: table.scan(filter=col("id") == object()), "cannot be compared"),
        (lambda table: table.scan(filter=col("id").isin(FIVE)), "the values of isin are"),
        (lambda table: table.scan(filter=col("id").isin(range(300_000))), "isin has more than 10000 values"),
        (lambda table: table.sql(None), "query is None. Give a text"),
        (lambda table: table.search("a", index="words", limit="5"), "limit is '5'"),
        (lambda table: table.search("1", index="ids", limit=True), "limit is True"),
        (lambda table: table.search("a", index="words", offset=-1), "offset is -1"),
        (lambda table: table.search("a", index="words", offset="5"), "offset is '5'"),
        (lambda table: table.search("a", index="words", columns=["score"]), "unknown column 'score'"),
        (
            lambda table: table.search("a", index="words", columns="id"),
            "columns is 'id'. Give a list of names or None",
        ),
        (lambda table: table.search("a", index="words", filter=5), "filter is 5. Give a Filter, a text or None"),
        (lambda table: table.search("a", index="words", filter="nope = 1"), "nope"),
        (lambda table: table.search("a", index="words", filter="id in (select 1)"), "not one condition"),
        (lambda table: table.search("a", index="words", at=0, consistency="latest"), "Leave consistency out"),
        (lambda table: table.search("a", index="words", syntax="loose"), "syntax is 'loose'. Give lenient or strict"),
        (lambda table: table.search("can't", index="words", syntax="strict"), "the text is not a valid query"),
        (lambda table: table.search("s:*", index="words", syntax="strict"), "cannot find the rows that have a value"),
        (lambda table: table.get(2**63), "does not fit the key columns"),
        (lambda table: table.get({"id": 1, "other": 2}), "does not have one value for each"),
        (
            lambda table: table.append(pd.Series([1], name="id")),
            "the rows are of the type Series. Give mappings of columns to values",
        ),
        (lambda table: table.append(5), "Give mappings of columns to values"),
        (lambda table: table.read_history(page_bytes="5"), "page_bytes is '5'. Give a whole number"),
        (lambda table: table.read_history(page_bytes=None), "page_bytes is None. Give a whole number"),
        (lambda table: table.read_history(page_bytes=math.nan), "page_bytes is nan. Give a whole number"),
        (lambda table: table.read_history(page_bytes=True), "page_bytes is True. Give a whole number"),
        (lambda table: table.read_history(page_bytes=1.5), "page_bytes is 1.5. Give a whole number"),
        (lambda table: table.read_history(consistency=["latest"]), "consistency is a list of 1 value. Give a text"),
        (lambda table: table.read_history(token=5), "token is 5. Give a text or None"),
        (lambda table: table.scan(consistency=["latest"]), "consistency is a list of 1 value. Give a text"),
    ],
)
def test_what_a_reader_or_writer_cannot_use_is_named(
    table: Table, call: Callable[[Any], object], complaint: str
) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        call(table)


@pytest.mark.parametrize("column", ["plce", "place", "T.plce", '"a""b"'])
@pytest.mark.parametrize(
    "call",
    [
        lambda table, where: table.search("a", index="words", filter=where),
        lambda table, where: table.search_count("a", index="words", filter=where),
        lambda table, where: table.scan(["id"], filter=where).to_arrow(),
        lambda table, where: table.scan(["id"], filter=where, limits=QueryLimits()).to_arrow(),
        lambda table, where: [*table.scan(["id"], filter=where).to_reader()],
        lambda table, where: table.delete(where),
        lambda table, where: table.update({"s": "b"}, where),
        lambda table, where: table.update({"s": expr(f"({where})::varchar")}, "id = 1"),
    ],
)
def test_a_condition_on_an_unknown_column_is_refused_by_its_name_and_those_of_the_table(
    tmp_path: Path, call: Callable[[Table, str], object], column: str
) -> None:
    table = Table.create(str(tmp_path / "t"), SCHEMA, indexes=INDEXES)
    table.append({"id": 1, "s": "a"})
    with pytest.raises(InvalidInput) as caught:
        call(table, f"{column} = 1")
    name = column.removeprefix("T.").strip('"').replace('""', '"')
    assert str(caught.value) == f"unknown column {name!r}. The table has id, s"
    assert caught.value.context["columns"] == [name]


def test_what_a_condition_cannot_convert_is_said_without_the_statement_made_of_it(table: Table) -> None:
    with table.writer() as writer:
        writer.put({"id": 1, "s": "a"})
    for call in (
        lambda: table.search("a", index="words", filter="id = 'abc'", consistency="latest"),
        lambda: table.scan(filter="id = 'abc'", consistency="latest").to_arrow(),
        lambda: table.delete("id = 'abc'"),
    ):
        with pytest.raises(InvalidInput, match=r"^the text 'abc' is not a value of the type BIGINT"):
            call()


def test_a_writer_takes_rows_and_keys_only_and_a_generator_of_patches_is_whole(table: Table) -> None:
    with table.writer() as writer:
        for method in (writer.put, writer.patch):
            with pytest.raises(InvalidInput, match="Give mappings of columns to values"):
                method(pd.Series([1], name="id"))
        with pytest.raises(InvalidInput, match="column 'id'"):
            writer.delete(pd.Series([1], name="id"))
        writer.put({"id": 1, "s": "a"})
        writer.patch(row for row in [{"id": 1, "s": "b"}])
    assert table.get(1) == {"id": 1, "s": "b"}


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"indexes": 5}, "indexes is 5. Give a list"),
        ({"indexes": [5]}, "Give a list of IndexDefinition or mapping"),
        ({"indexes": {"name": "x"}}, "indexes is an object of 1 field. Give a list"),
        ({"primary_key": 5}, "primary_key is 5. Give a text, a list of names or None"),
        ({"schema": {"id": "int"}}, "Give an Arrow schema"),
        (
            {"primary_key": "id", "indexes": INDEXES, "maintained_indexes": "ids"},
            "is 'ids'. Give a list of names or None",
        ),
        ({"primary_key": "id", "indexes": INDEXES, "maintained_indexes": ["id"]}, "The table has words, ids"),
        (
            {"indexes": INDEXES, "maintained_indexes": ["ids"]},
            "maintained_indexes contains 'ids', but the setting works only for keyed tables",
        ),
    ],
)
def test_a_table_is_created_of_a_schema_and_definitions_only(
    tmp_path: Path, settings: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        Table.create(str(tmp_path / "t"), **{"schema": SCHEMA, **settings})
    assert not (tmp_path / "t").exists()


HUGE = 10**5_000_000


@pytest.mark.parametrize(
    "call",
    [
        lambda table: table.scan(filter=col("id") == HUGE),
        lambda table: table.scan(filter=col("id").isin([HUGE])),
        lambda table: table.get(HUGE),
        lambda table: Table.open(table.uri, at=HUGE),
        lambda table: table.changes(HUGE),
        lambda table: table.tag("x", HUGE),
        lambda table: table.restore(HUGE),
        lambda table: table.read_history(page_bytes=-HUGE),
        lambda table: table.search("a", index="words", limit=-HUGE),
        lambda table: table.search("a", index="words", offset=-HUGE),
        lambda _: QueryLimits(seconds=HUGE),
        lambda _: QueryLimits(memory_bytes=HUGE),
    ],
)
def test_a_number_of_five_million_digits_is_refused_without_its_digits(
    table: Table, call: Callable[[Any], object]
) -> None:
    with pytest.raises(InvalidInput, match="bits"):
        call(table)


def test_a_history_has_at_most_all_versions(table: Table) -> None:
    assert table.history(limit=HUGE) == table.history()
