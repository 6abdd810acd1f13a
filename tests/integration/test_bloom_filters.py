"""Every split has Parquet Bloom filters for the declared columns, also after a compaction.

See docs/architecture/compaction.md, "Split files".
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from storage_core.base.errors import InvalidInput
from storage_core.compact.execute import execute
from tests.support.merge_plan import plan
from tidemark import Table

SCHEMA = pa.schema(
    [
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
        ("host", pa.string()),
        ("user", pa.int64()),
        ("load", pa.float64()),
        ("up", pa.bool_()),
    ]
)
USERS = range(0, 4000, 2)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = Table.create(
        str(tmp_path / "t"),
        SCHEMA,
        time_column="at",
        sort_schema="host|timestamp/V2",
        window="1h",
        bloom_filters=["user", "host"],
    )
    for half in (USERS[::2], USERS[1::2]):
        made.append(_rows(half))
    return made.refresh()


def _rows(users: Sequence[int]) -> pa.Table:
    return pa.table(
        {
            "at": pa.array([user * 1000 for user in users], SCHEMA.field("at").type),
            "host": [f"host-{user % 50}" for user in users],
            "user": users,
            "load": [user / 7 for user in users],
            "up": [user % 3 == 0 for user in users],
        },
        schema=SCHEMA,
    )


def left_out(path: str, column: str, values: Sequence[object]) -> int:
    """Return the number of values that DuckDB can exclude from all row groups with only the Bloom filters."""
    probe = "SELECT bool_and(bloom_filter_excludes) FROM parquet_bloom_probe(?, ?, ?)"
    with duckdb.connect() as connection:
        answers = [connection.execute(probe, [path, column, value]).fetchone() for value in values]
    return sum(bool(answer and answer[0]) for answer in answers)


def test_a_reader_learns_from_the_filters_which_values_no_row_has(table: Table) -> None:
    (operation,) = plan(table.snapshot)
    written = [*operation.inputs, *execute(table.store, operation, ids=table.log.ids, now_ms=1).adds]
    assert len(written) == 3
    merged = str(table.store.local_path(written[-1].path))
    assert (
        left_out(merged, "user", USERS) == left_out(merged, "host", [f"host-{each}" for each in range(0, 50, 2)]) == 0
    )
    for add in written:
        path = str(table.store.local_path(add.path))
        absent = [user + 1 for user in USERS[:400]]
        assert left_out(path, "user", absent) > 380
        assert left_out(path, "host", [f"host-{each}" for each in range(1, 400, 2)]) > 180
        assert left_out(path, "load", [0.123]) == 0


@pytest.mark.parametrize(("column", "message"), [("load", "double"), ("up", "bool"), ("gone", "unknown column 'gone'")])
def test_a_column_that_no_filter_can_hold_is_refused(tmp_path: Path, column: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Table.create(str(tmp_path / "t"), SCHEMA, time_column="at", bloom_filters=[column])


def test_filters_are_declared_and_changed_by_name(table: Table) -> None:
    assert table.snapshot.config.bloom_filters == ("user", "host")
    with pytest.raises(InvalidInput, match=r"bloom_filters is 'user'\. Give a list of names"):
        Table.create(table.uri + "-1", SCHEMA, time_column="at", bloom_filters="user")
    with pytest.raises(InvalidInput, match=r"sort_schema is 5\. Give a text"):
        Table.create(table.uri + "-1", SCHEMA, time_column="at", sort_schema=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="column user is declared twice"):
        Table.create(table.uri + "-2", SCHEMA, time_column="at", bloom_filters=["user", "user"])
