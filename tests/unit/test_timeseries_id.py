"""`timeseries_id` has the values of docs/architecture/reference-values.md and follows from a row's columns."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from storage_core.base.errors import InvalidInput
from storage_core.data.rows.hashes import siphash_2_4
from storage_core.data.rows.sort_order import bind, series_ids, with_series
from storage_core.data.settings.table import TableConfig
from storage_core.table import Table

SCHEMA = pa.schema(
    [
        pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False),
        ("metric_name", pa.string()),
        ("metric_type", pa.int8()),
        ("env", pa.string()),
        ("host", pa.string()),
        ("service", pa.string()),
        ("sum", pa.string()),
        ("value", pa.float64()),
        ("timeseries_id", pa.int64()),
    ]
)
TEXT = "metric_name|timeseries_id|timestamp/V2"
ORDER = bind(TableConfig(time_column="at", sort_schema=TEXT), SCHEMA)
TAGS = {"env": "prod", "host": "node-1", "service": "api"}
BARE, TAGGED = 8585688161913568022, -1249054409005369755
AT = dt.datetime(2015, 5, 17, tzinfo=dt.UTC)


def plain_siphash(data: bytes) -> int:
    """Compute SipHash of one message with Python integers."""

    def rotated(x: int, bits: int) -> int:
        return (x << bits | x >> (64 - bits)) & (2**64 - 1)

    def turn(a: int, b: int, c: int, d: int) -> tuple[int, int, int, int]:
        a = (a + b) % 2**64
        b = rotated(b, 13) ^ a
        a = rotated(a, 32)
        c = (c + d) % 2**64
        d = rotated(d, 16) ^ c
        a = (a + d) % 2**64
        d = rotated(d, 21) ^ a
        c = (c + b) % 2**64
        b = rotated(b, 17) ^ c
        return a, b, rotated(c, 32), d

    state = tuple(int.from_bytes(b"somepseudorandomlygeneratedbytes"[at : at + 8], "big") for at in range(0, 32, 8))
    a, b, c, d = state
    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) % 256])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        a, b, c, d = turn(*turn(a, b, c, d ^ word))
        a ^= word
    a, b, c, d = turn(*turn(*turn(*turn(a, b, c ^ 0xFF, d))))
    found = a ^ b ^ c ^ d
    return found - 2**64 if found >> 63 else found


def metric(**fields: object) -> pa.Table:
    return pa.Table.from_pylist([{"at": AT, "metric_name": "cpu.usage", "metric_type": 0, **fields}], schema=SCHEMA)


def test_the_golden_ids_of_page_09() -> None:
    assert series_ids([("cpu.usage", 0, {}), ("cpu.usage", 0, TAGS)]).tolist() == [BARE, TAGGED]
    assert series_ids([("cpu.usage", 0, dict(reversed(TAGS.items())))]).tolist() == [TAGGED]


def test_many_messages_hash_like_each_alone() -> None:
    messages = [bytes(range(length % 256)) * (1 + length // 256) for length in range(300)]
    assert siphash_2_4(messages).tolist() == [plain_siphash(message) for message in messages]
    assert siphash_2_4([]).tolist() == []


def test_name_type_and_every_tag_tell_series_apart() -> None:
    alike = [("m", 0, {"a": "b"}), ("m", 1, {"a": "b"}), ("n", 0, {"a": "b"}), ("m", 0, {"ab": ""}), ("m", 0, {})]
    assert len(set(series_ids(alike).tolist())) == len(alike)


def test_rows_get_the_id_of_their_series_from_the_columns() -> None:
    rows = pa.concat_tables(
        [metric(**TAGS, value=1.5), metric(value=2.5, sum="left out"), metric(**TAGS), metric(timeseries_id=7, **TAGS)]
    )
    assert with_series(rows, ORDER).column("timeseries_id").to_pylist() == [TAGGED, BARE, TAGGED, 7]
    assert with_series(rows, ORDER).schema.equals(SCHEMA)


def test_a_missing_type_counts_as_none_and_a_text_named_so_is_a_tag() -> None:
    assert with_series(metric(metric_type=None), ORDER).column("timeseries_id").to_pylist() == [BARE]
    rows = metric().drop_columns("metric_type")
    assert with_series(rows, ORDER).column("timeseries_id").to_pylist() == [BARE]
    tagged = rows.append_column("metric_type", pa.array(["gauge"]))
    expected = series_ids([("cpu.usage", 0, {"metric_type": "gauge"})]).tolist()
    assert with_series(tagged, ORDER).column("timeseries_id").to_pylist() == expected


def test_rows_without_name_and_tags_are_one_series() -> None:
    rows = metric().select(["at", "value", "timeseries_id"])
    expected = series_ids([("", 0, {})]).tolist()
    assert with_series(pa.concat_tables([rows, rows]), ORDER).column("timeseries_id").to_pylist() == expected * 2


def test_without_such_a_column_in_the_order_rows_stay_as_they_are() -> None:
    rows = metric(**TAGS)
    assert with_series(rows, bind(TableConfig(time_column="at"), SCHEMA)) is rows
    without = rows.drop_columns("timeseries_id")
    assert with_series(without, ORDER) is without
    assert with_series(rows.slice(0, 0), ORDER).num_rows == 0


def test_a_type_that_is_no_byte_is_refused() -> None:
    with pytest.raises(InvalidInput, match="metric_type is -1"):
        with_series(metric(metric_type=-1), ORDER)


def test_an_append_clusters_the_points_of_a_series() -> None:
    table = Table.create("memory://series", SCHEMA, time_column="at", sort_schema=TEXT)
    points = [
        {"at": AT + dt.timedelta(seconds=second), "metric_name": "cpu.usage", "host": host, "value": second / 2}
        for second in range(4)
        for host in ("b", "a")
    ]
    table.append(points)
    found = table.scan(["timeseries_id", "host", "value"]).to_arrow().to_pylist()
    ids = {host: series_ids([("cpu.usage", 0, {"host": host})]).tolist()[0] for host in ("a", "b")}
    assert [(row["timeseries_id"], row["value"]) for row in found] == [
        (ids[host], value) for host in sorted(ids, key=lambda each: ids[each]) for value in (1.5, 1.0, 0.5, 0.0)
    ]
