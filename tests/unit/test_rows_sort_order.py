"""Binding of a sort schema to a table (docs/architecture/compaction.md)."""

from __future__ import annotations

import pyarrow as pa
import pytest

from storage_core.base.errors import InvalidInput
from storage_core.data.rows.sort_order import OrderColumn, bind, parse_sort_schema
from storage_core.data.settings.table import TableConfig

SCHEMA = pa.schema(
    [
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("status", pa.int32()),
        pa.field("path", pa.string()),
        pa.field("share", pa.float64()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("tiebreaker", pa.int64()),
    ]
)


def test_timestamp_means_the_time_column_whatever_its_name() -> None:
    order = bind(TableConfig(time_column="at", sort_schema="status__i|-path|timestamp/V2"), SCHEMA)
    assert order.columns == (OrderColumn("status", False), OrderColumn("path", True), OrderColumn("at", True))
    assert order.text == "status__i|path:-|timestamp/V2"


@pytest.mark.parametrize(
    ("own", "canonical"),
    [
        ("status__i|-path|at/V2", "status__i|path:-|timestamp/V2"),
        ("at/V2", "timestamp/V2"),
        ("by=status|&path|at__i:-|tiebreaker/V2 nulls first", "by=status|&path|timestamp|tiebreaker/V2 nulls first"),
        ("status|at&path/V2", "status|&path|timestamp/V2"),
    ],
)
def test_the_time_column_stands_under_its_own_name_and_is_stored_as_timestamp(own: str, canonical: str) -> None:
    order = bind(TableConfig(time_column="at", sort_schema=own), SCHEMA)
    assert order == bind(TableConfig(time_column="at", sort_schema=canonical), SCHEMA)
    assert order.text == parse_sort_schema(own, "at").text == canonical
    with pytest.raises(InvalidInput, match=r"NAME of the time column|Write the '&' before a column"):
        parse_sort_schema(own)
    with pytest.raises(InvalidInput, match="without a direction or a type"):
        bind(TableConfig(time_column="at", sort_schema="status|+at/V2"), SCHEMA)


def test_columns_behind_the_cutoff_are_not_compared_but_time_is() -> None:
    order = bind(TableConfig(time_column="at", sort_schema="status|&path|timestamp|tiebreaker/V2"), SCHEMA)
    assert [column.name for column in order.columns] == ["status", "at", "tiebreaker"]
    assert order.text == "status|&path|timestamp|tiebreaker/V2"


def test_a_time_column_alone_orders_newest_first() -> None:
    order = bind(TableConfig(time_column="at"), SCHEMA)
    assert order.columns == (OrderColumn("at", True),)
    assert order.text == "timestamp/V2"


def test_a_keyed_table_without_time_is_ordered_by_its_key() -> None:
    order = bind(TableConfig(primary_key=("path", "status")), SCHEMA)
    assert order.columns == (OrderColumn("path", False), OrderColumn("status", False))
    assert order.text == "key(path,status)"


def test_a_keyed_table_with_time_is_ordered_by_its_sort_schema() -> None:
    order = bind(TableConfig(time_column="at", primary_key=("path", "at"), sort_schema="path|timestamp/V2"), SCHEMA)
    assert order.text == "path|timestamp/V2"


def test_a_table_with_neither_has_no_order() -> None:
    order = bind(TableConfig(), SCHEMA)
    assert order.columns == ()
    assert order.text == ""


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (
            TableConfig(time_column="at", sort_schema="status__s|timestamp/V2"),
            "'status' as string, but the column has the type int32",
        ),
        (
            TableConfig(time_column="at", sort_schema="path__i|timestamp/V2"),
            "'path' as int64, but the column has the type string",
        ),
        (TableConfig(time_column="at", sort_schema="status__nf|timestamp/V2"), "declares 'status' as float64"),
        (TableConfig(time_column="at", sort_schema="host|timestamp/V2"), "'host'"),
        (TableConfig(time_column="at", sort_schema="tags|timestamp/V2"), "no order"),
        (TableConfig(time_column="at", sort_schema="at|timestamp/V2"), "'at' twice"),
        (TableConfig(time_column="path"), "time_column is 'path', which has the type"),
        (TableConfig(time_column="missing"), "'missing'"),
        (TableConfig(sort_schema="path|timestamp/V2"), "no time column"),
        (TableConfig(primary_key=("nope",)), "'nope'"),
        (TableConfig(primary_key=("tags",)), "no order"),
    ],
)
def test_an_order_that_the_table_cannot_have_is_refused(config: TableConfig, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        bind(config, SCHEMA)


def test_a_default_type_of_a_name_does_not_contradict_the_table() -> None:
    assert bind(TableConfig(time_column="at", sort_schema="status|timestamp/V2"), SCHEMA).columns[0].name == "status"


def test_a_sort_schema_may_put_nulls_first_in_every_column() -> None:
    order = bind(TableConfig(time_column="at", sort_schema="-path|status|timestamp/V2 nulls first"), SCHEMA)
    assert order.columns == (
        OrderColumn("path", True, nulls_first=True),
        OrderColumn("status", False, nulls_first=True),
        OrderColumn("at", True, nulls_first=True),
    )
    assert order.text == "path:-|status|timestamp/V2 nulls first"


def test_an_order_describes_all_that_its_sort_schema_names() -> None:
    order = bind(TableConfig(time_column="at", sort_schema="status|&path|timestamp/V2"), SCHEMA)
    assert order.statistics == ("path",)
    assert order.described == {"status", "path", "at"}
    assert bind(TableConfig(primary_key=("path",)), SCHEMA).described == {"path"}


def test_an_order_of_present_columns_lacks_those_that_are_missing_and_is_the_same_in_all_else() -> None:
    order = bind(TableConfig(time_column="at", sort_schema="status|&path|timestamp/V2"), SCHEMA)
    present = order.present(["at", "share"])
    assert present.columns == (OrderColumn("at", True),)
    assert (present.text, present.statistics) == (order.text, order.statistics)
