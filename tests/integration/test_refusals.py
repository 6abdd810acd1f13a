"""Refused changes and statements leave the table unchanged, and the error states what to do.

The table below has one line for every refusal of a change of columns, settings or rows.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

import tidemark as tm
from storage_core.base.errors import InvalidInput, NotFound
from storage_core.change.declaration import TableDeclaration
from storage_core.table import Table

Act = Callable[[Any], object]  # the parameter type is Any, because invalid values do not have the declared types

AT = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
        ("n", pa.int16()),
        ("day", pa.date32()),
        ("text", pa.string()),
        ("host", pa.string()),
        ("tags", pa.map_(pa.string(), pa.string())),
    ]
)
WORDS = {"name": "words", "kind": "fulltext", "columns": ["text"]}
COLUMNS = {"id": "int!", "n": "short"}


def _row(n: int | None, **values: object) -> dict[str, object]:
    return {"id": 1, "at": AT, "n": n, **values}


def _append() -> Table:
    table = Table.create(
        f"memory://{uuid4()}",
        SCHEMA,
        time_column="at",
        sort_schema="n|timestamp/V2",
        indexes=[WORDS],
        bloom_filters=["host"],
    )
    table.append([_row(1, host="h")])
    return table


def _keyed() -> Table:
    return Table.create(
        f"memory://{uuid4()}",
        SCHEMA,
        primary_key=["id", "day"],
        regions=[{"source": "id", "transform": "bucket", "n": 2}],
        map_columns={"tags": "merge"},
    )


def _declared(columns: dict[str, str] = COLUMNS, **more: object) -> TableDeclaration:
    return TableDeclaration.model_validate({"name": "t", "uri": "memory://declared", "columns": columns, **more})


def _of_landed() -> Table:
    landing = {"uri": "memory://landing", "format": "pattern", "pattern": "(?P<host>[a-z]+) (?P<n>[0-9]+)"}
    columns = {"host": "string", "n": "int"}
    return Table.declare(_declared(columns, landing=landing), f"memory://{uuid4()}")


def _declare(columns: dict[str, str]) -> Act:
    return lambda t: Table.declare(_declared(columns), t.uri)


def _first() -> Table:
    return Table.declare(_declared(), f"memory://{uuid4()}")


def _one() -> Table:
    return Table.create(f"memory://{uuid4()}", pa.schema([("a", pa.int64())]))


def _partitioned(text: str) -> Table:
    return Table.create(f"memory://{uuid4()}", SCHEMA, partition_by=[text])


def _named(name: str) -> Table:
    return Table.create(f"memory://{uuid4()}", pa.schema([(name, pa.int64())]))


REFUSED: dict[Callable[[], Table], list[tuple[Act, str]]] = {
    _append: [
        # Added columns.
        (lambda t: t.add_column("n", "int"), "already has a column 'n' of type int16. Choose another name"),
        (lambda t: t.add_column("TEXT", "int"), "the columns 'text' and 'TEXT' differ at most in case. Rename one"),
        (lambda t: t.add_column("c\0", "int"), "cannot name a column: the name is blank or unprintable"),
        (lambda t: t.add_column(" ", "int"), "cannot name a column: the name is blank or unprintable"),
        (lambda t: t.add_column("_change_type", "int"), "cannot name a column: change reads add a column"),
        (lambda t: t.rename_column("day", "_COMMIT_version"), "cannot name a column: change reads add a column"),
        (lambda t: t.rename_column("day", "a\nb"), "cannot name a column: the name is blank or unprintable"),
        (lambda _: _named("a\0b"), "cannot name a column: the name is blank or unprintable"),
        (lambda _: _named("_commit_timestamp"), "cannot name a column: change reads add a column"),
        (lambda t: t.add_column(5, "int"), "name is 5. Give a text"),
        (lambda t: t.add_column("w", None), "None is not a column type. Give an Arrow type or the name of one"),
        (lambda t: t.widen_column("n", 5), "5 is not a column type. Give an Arrow type or the name of one"),
        (lambda t: t.rename_column("day", None), "new is None. Give a text"),
        (lambda t: t.add_column("c", "number"), "'number' is not a column type. Use one of"),
        (lambda t: t.add_column("c", "int", default="x"), "the default of column 'c' does not fit int32"),
        (lambda t: t.add_column("c", "byte", default=300), "the default of column 'c' does not fit int8"),
        (lambda t: t.add_column("c", "binary", default=b""), "is binary, which cannot have a default"),
        (lambda t: t.add_column("c", "string", default="x" * 1025), "at most 1024 characters"),
        # Narrowed columns, and columns with another type.
        (lambda t: t.widen_column("n", "byte"), "'n' is int16 and cannot become int8 without a rewrite. .* Add a"),
        (lambda t: t.widen_column("n", "double"), "'n' is int16 and cannot become double .* Add a column of type"),
        (lambda t: t.widen_column("text", "binary"), "'text' is string and cannot become binary .* Add a column"),
        (lambda t: t.widen_column("missing", "long"), "unknown column 'missing'. The table has"),
        # Columns that the table needs.
        (lambda t: t.rename_column("n", "text"), "already has a column 'text'. Drop or rename that column first"),
        (lambda t: t.rename_column("n", "m"), "'n' cannot be renamed: it is in the sort schema. Declare another"),
        (lambda t: t.drop_column("n"), "'n' cannot be dropped: it is in the sort schema. Declare another sort schema"),
        (lambda t: t.rename_column("at", "t"), "it is the time column. Create a table without it and copy"),
        (lambda t: t.drop_column("at"), "it is the time column. Create a table without it and copy the rows"),
        (lambda t: t.rename_column("text", "t"), "it is a column of the index 'words'. Declare the table without"),
        (lambda t: t.drop_column("text"), "it is a column of the index 'words'. Declare the table without"),
        (lambda t: t.rename_column("host", "h"), "it is named in bloom_filters. Remove the column from bloom_filters"),
        (lambda t: t.drop_column("host"), "it is named in bloom_filters. Remove the column from bloom_filters"),
        (lambda t: t.relax_column("missing"), "unknown column 'missing'. The table has"),
        # Settings.
        (lambda t: t.alter({"window": None}), "Windows cannot be added or removed later."),
        (lambda t: t.alter({"window": "7m"}), "window is 7m. Give 1, 2, 3"),
        (lambda t: t.alter({"windows": "1h"}), "windows"),
        # Deleted or changed rows.
        (lambda t: t.delete(None), "delete needs a condition. Give a condition. The condition `true`"),
        (lambda t: t.update({"n": 1}, None), "update needs a condition. Give a condition. The condition `true`"),
        (lambda t: t.delete(""), "delete needs a condition. Give a condition. The condition `true`"),
        (lambda t: t.update({"n": 1}, " "), "update needs a condition. Give a condition. The condition `true`"),
        (lambda t: t.overwrite([], ""), "overwrite needs a condition. Give a condition. The condition `true`"),
        (lambda t: t.forget(""), "forget needs a condition. Give a condition. The condition `true`"),
        # Conditions that change with time. A statement is evaluated again if other processes commit meanwhile.
        (lambda t: t.delete("random() < 0.5"), "the condition of delete .* is refused: random can change when"),
        (lambda t: t.delete('"at" < now() - interval 1 day'), "now can change when .*. Write a constant"),
        (lambda t: t.delete('"at" < Current_Timestamp'), "current_timestamp can change"),
        (lambda t: t.delete("current_date > date '2026-01-01'"), "current_date can change when"),
        (lambda t: t.delete('"at" < ago(interval 1 day)'), "ago can change when"),
        (lambda t: t.delete('age("at") > interval 1 day'), "age can change when"),
        (lambda t: t.update({"text": tm.expr("uuid()")}, "true"), "the expression .*: uuid can change when"),
        (lambda t: t.update({"n": 1}, '"at" < current_localtimestamp()'), "current_localtimestamp can change"),
        (lambda t: t.overwrite([], "day = today()"), "the condition of overwrite .*: today can change when"),
        (lambda t: t.forget("random() < 0.5"), "the condition of forget .*: random can change when"),
        (lambda t: t.forget_report("random() < 0.5"), "the condition of forget .*: random can change when"),
        (lambda _: _partitioned("bucket[99999999999](n)"), r"n from 1 to 2\*\*31 - 1"),
        (lambda _: _partitioned("bucket[" + "9" * 5000 + "](n)"), r"n from 1 to 2\*\*31 - 1"),
        (lambda _: _partitioned("truncate[-1](n)"), r"n from 1 to 2\*\*31 - 1"),
        (lambda t: t.delete("nope = 1"), "nope"),
        (lambda t: t.delete("n in (select n from t)"), "not one condition"),
        (lambda t: t.delete("sum(n) > 1"), "aggregate"),
        (lambda t: t.update({}, "true"), "Give a mapping of columns to values, as in"),
        (lambda t: t.update({"nope": 1}, "true"), "unknown column 'nope'. The table has"),
        (lambda t: t.update({"n": "text"}, "true"), "does not fit the type int16"),
        (lambda t: t.update({"id": None}, "true"), "column 'id' is required, .*. Add a value"),
        (lambda t: t.update({"n": tm.expr("host")}, "true"), "has type string, but the table has int16"),
        (lambda t: t.update({"n": tm.expr("max(n)")}, "true"), "GROUP BY"),
        (lambda t: t.update({"n": tm.expr("nope")}, "false"), "nope"),
        (lambda t: t.update({"n": tm.expr("1"), "day": tm.expr("c0")}, "true"), "c0"),
        (lambda t: t.update({"n": tm.expr("place")}, "true"), "place"),
        (lambda t: t.update({"n": 1}, "true", application="a"), "the application is 'a'. Give a name and a number"),
        (
            lambda t: t.update({"n": 1}, "true", application=("a", -1)),
            r"the application is 'a' and -1\. Give a name and a number",
        ),
        (lambda _: tm.expr("n, 1"), "not one expression"),
        (lambda _: tm.expr("n from t where (1 = 1"), "not one expression|is not valid SQL"),
        (lambda _: tm.expr("row_number() over ()"), "only its own row"),
        (lambda _: tm.expr("(select 1)"), "only its own row"),
        (lambda _: tm.expr("*"), "only its own row"),
        (lambda _: tm.expr("unnest([1, 2])"), "only its own row"),
        (lambda _: tm.expr("read_text('/etc/passwd')"), "the function read_text is not allowed. Use"),
        (lambda t: t.overwrite([_row(5), _row(500)], "n < 100"), "1 does not meet the condition .* Give a condition"),
        (lambda t: t.overwrite([_row(5)], None), "overwrite needs a condition. Give a condition"),
        (lambda t: t.overwrite([{"nope": 1}], "true"), "unknown column 'nope'"),
        (lambda t: t.upsert([_row(5), _row(6), _row(5)], on="n"), "row 2 has the same n 5 as an earlier row. Keep"),
        (lambda t: t.upsert([_row(None)], on="n"), "'n' is null in row 0"),
        (lambda t: t.upsert([_row(5)], on=[]), "cannot identify rows by"),
        (lambda t: t.upsert([_row(5)], on="nope"), "on: unknown column 'nope'. The table has"),
        (lambda t: t.upsert([_row(5)], on=("n", "nope")), "on: unknown column 'nope'. The table has"),
        (lambda t: t.upsert([_row(5)], on=["n", "n"]), "cannot identify rows by"),
        (lambda t: t.upsert([_row(5)], on="tags"), "cannot be identified by .'tags'.: lists, maps and structs"),
        (lambda t: t.restore(7), "7"),
    ],
    _keyed: [
        (lambda t: t.rename_column("id", "key"), "'id' cannot be renamed: it is part of the primary key. Create a"),
        (lambda t: t.drop_column("day"), "'day' cannot be dropped: it is part of the primary key. Create a table"),
        (lambda t: t.relax_column("id"), "'id' is part of the primary key, so the column must stay required"),
        (lambda t: t.widen_column("day", "timestamp"), "is a date in the primary key, .* Create a table"),
        (lambda t: t.rename_column("tags", "labels"), "it is named in map_columns, .* Write whole values"),
        (lambda t: t.overwrite([_row(1, day=AT.date())], "true"), "a keyed table cannot be overwritten, .*."),
        (
            lambda t: t.update({"id": 2}, "true"),
            "cannot change id, which is part of the primary key. Delete the rows, then put",
        ),
        (lambda t: t.update({"n": 2}, "true", application=("a", 1)), "does not support `application`"),
        (lambda t: t.upsert([_row(1, day=AT.date())], on="n"), "on is n, but the primary key .*Give on="),
        (lambda t: t.delete(None), "delete needs a condition. Give a condition"),
        (lambda t: t.delete("random() < 0.5"), "the condition of delete .*: random can change when"),
        (lambda t: t.update({"at": tm.expr("now()")}, "true"), "the expression .*: now can change when"),
        (lambda t: t.alter({"window": "1h"}), "window needs a time_column"),
    ],
    _of_landed: [
        (lambda t: t.rename_column("host", "h"), "it is filled from the names of landed files. Declare another"),
        (lambda t: t.drop_column("host"), "it is filled from the names of landed files. Declare another pattern"),
    ],
    _one: [(lambda t: t.drop_column("a"), "'a' is the only column of the table. Add another column first")],
    _first: [
        (_declare({**COLUMNS, "new": "int!"}), "column 'new': the column is new and required. Declare the column"),
        (_declare({"id": "int", "n": "short"}), "column 'id': the column is required in the table. Run `tidemark"),
        (_declare({"id": "int!", "n": "short!"}), "column 'n': the column is nullable in the table. Declare the"),
        (_declare({"id": "int!", "n": "string"}), "column 'n': the column is short in the table. Add a column"),
        (_declare({"id": "int!"}), "column 'n': the column is in the table but not declared. Declare the column, or"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("made", "act", "message"), [(made, *each) for made, refused in REFUSED.items() for each in refused]
)
def test_what_cannot_be_is_refused_with_what_to_do_and_changes_nothing(
    made: Callable[[], Table], act: Act, message: str
) -> None:
    table = made()
    version = table.version

    with pytest.raises((InvalidInput, NotFound), match=message):
        act(table)

    assert Table.open(table.uri).version == version


def test_conditions_that_are_the_same_at_all_times_are_no_less_than_a_scan_takes() -> None:
    """The conditions use a hash of the rows, an assertion, a lambda parameter, and columns with names of functions."""
    columns = [("now", pa.int64()), ("current_date", pa.int64()), ("tags", pa.list_(pa.int64()))]
    table = Table.create(f"memory://{uuid4()}", pa.schema(columns))
    table.append([{"now": n, "current_date": n, "tags": [n]} for n in range(10)])
    table.update({"now": tm.expr("now + current_date")}, "age(to_timestamp(5), to_timestamp(0)) > interval 1 second")
    table.update({"now": tm.expr("if(now < 0, error('below'), now // 2)")}, "hash(current_date) % 1 = 0")
    assert table.delete("now > 7 and current_date > 7 and len(list_filter(tags, lambda x: x > 7)) = 1").rows == 2
    assert sorted(table.scan(["now"]).to_arrow().column("now").to_pylist()) == [*range(8)]
