"""Partitioning of a table. The tests cover fields, their texts, Iceberg's partition values, folders and keys."""

from __future__ import annotations

import datetime as dt
import string
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.base.errors import InvalidInput
from storage_core.data.formats.keys import folder_value, parse, partition_folder, split_key
from storage_core.data.formats.kinds import KeyKind
from storage_core.data.rows.codes import sortable
from storage_core.data.rows.hashes import iceberg_hashes
from storage_core.data.rows.windows import by_partition, check_partitions, range_keys, value_type
from storage_core.data.settings.layout import PartitionTransform, partition_field, partition_fields
from storage_core.log.deletion_vector import is_data_path
from storage_core.store.contract import is_safe_key

UTC_TIME = pa.timestamp("us", tz="UTC")
_NAIVE = dt.datetime(1, 1, 1, tzinfo=dt.UTC).replace(tzinfo=None)
AN_ID = "00000000-0000-0000-0000-000000000001"


@pytest.mark.parametrize(
    ("value", "type_", "hashed"),
    [
        (34, pa.int32(), 2017239379),
        (34, pa.int64(), 2017239379),
        (Decimal("14.20"), pa.decimal128(9, 2), -500754589),
        (dt.date(2017, 11, 16), pa.date32(), -653330422),
        (_NAIVE.replace(2017, 11, 16, 22, 31, 8), pa.timestamp("us"), -2047944441),
        (dt.datetime(2017, 11, 16, 22, 31, 8, tzinfo=dt.UTC), UTC_TIME, -2047944441),
        ("iceberg", pa.string(), 1210000089),
        ("", pa.string(), 0),
    ],
)
def test_values_hash_as_the_specification_of_iceberg_lists_them(value: object, type_: pa.DataType, hashed: int) -> None:
    assert iceberg_hashes(pa.array([value], type_)).view(np.int32).tolist() == [hashed]


@given(st.lists(st.text(), min_size=1))
def test_texts_hash_by_murmur3_in_its_standard_form(texts: list[str]) -> None:
    found = iceberg_hashes(pa.array(["left out", *texts], pa.string()).slice(1))
    assert found.tolist() == [_murmur3(text.encode()) for text in texts]


def _murmur3(data: bytes) -> int:
    """Compute Murmur3 as its author defines it: x86, 32 bits, seed 0."""
    hashed, whole = 0, len(data) // 4 * 4
    for at in range(0, whole, 4):
        hashed ^= _scrambled(int.from_bytes(data[at : at + 4], "little"))
        hashed = (_rotated(hashed, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
    hashed ^= _scrambled(int.from_bytes(data[whole:], "little")) ^ len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        hashed = ((hashed ^ (hashed >> shift)) * factor) & 0xFFFFFFFF
    return hashed ^ (hashed >> 16)


def _scrambled(word: int) -> int:
    return (_rotated((word * 0xCC9E2D51) & 0xFFFFFFFF, 15) * 0x1B873593) & 0xFFFFFFFF


def _rotated(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & 0xFFFFFFFF


def _value(text: str, value: object, type_: pa.DataType) -> str | None:
    field = partition_field(text)
    ((found, _),) = by_partition(pa.table({field.column: pa.array([value], type_)}), [field])
    return found.get(field.name)


@pytest.mark.parametrize(
    ("field", "value", "type_", "text"),
    [
        ("c", "a/b é=~", pa.string(), "a/b é=~"),
        ("c", "", pa.string(), ""),
        ("c", None, pa.string(), None),
        ("c", "x" * 2000, pa.string(), "x" * 1024),
        ("c", True, pa.bool_(), "true"),
        ("c", -7, pa.int16(), "-7"),
        ("c", Decimal("1.50"), pa.decimal128(9, 2), "1.50"),
        ("c", dt.date(2015, 5, 17), pa.date32(), "2015-05-17"),
        ("c", _NAIVE.replace(2015, 5, 17, 10), pa.timestamp("us"), "2015-05-17T10:00:00.000000"),
        ("bucket[16](c)", 34, pa.int64(), "3"),
        ("bucket[16](c)", None, pa.int64(), None),
        ("truncate[10](c)", 17, pa.int32(), "10"),
        ("truncate[10](c)", -1, pa.int32(), "-10"),
        ("truncate[10](c)", -(2**63), pa.int64(), str(-(2**63))),
        ("truncate[3](c)", "éabc", pa.string(), "éab"),
        ("year(c)", dt.date(2015, 5, 17), pa.date32(), "2015"),
        ("month(c)", dt.date(2015, 5, 17), pa.date32(), "2015-05"),
        ("day(c)", dt.datetime(1969, 12, 31, 23, 59, tzinfo=dt.UTC), UTC_TIME, "1969-12-31"),
        ("hour(c)", dt.datetime(1969, 12, 31, 23, 59, tzinfo=dt.UTC), UTC_TIME, "1969-12-31-23"),
        ("year(c)", _NAIVE, pa.timestamp("us"), "0001"),
        ("day(c)", None, UTC_TIME, None),
    ],
)
def test_values_are_texts_as_the_specification_has_them(
    field: str, value: object, type_: pa.DataType, text: str | None
) -> None:
    assert _value(field, value, type_) == text


_TIMES = st.datetimes()


@given(
    st.one_of(
        st.tuples(st.just(pa.int64()), st.integers(-(2**63), 2**63 - 1), st.sampled_from(["c", "truncate[7](c)"])),
        st.tuples(st.just(pa.string()), st.text(), st.sampled_from(["c", "truncate[2](c)"])),
        st.tuples(
            st.just(pa.timestamp("us")), _TIMES, st.sampled_from(["c", "year(c)", "month(c)", "day(c)", "hour(c)"])
        ),
        st.tuples(st.just(pa.date32()), st.dates(), st.sampled_from(["c", "year(c)", "month(c)", "day(c)"])),
    )
)
def test_a_value_lies_between_the_bounds_that_its_partition_gives(case: tuple[pa.DataType, object, str]) -> None:
    type_, value, text = case
    field = partition_field(text)
    found = range_keys(field, pa.array([_value(text, value, type_)], pa.string()), type_)
    assert found is not None
    (low,), (high,) = (each.to_pylist() for each in found)
    (key,) = sortable(pa.array([value], type_)).to_pylist()
    assert low is None or low <= key
    assert high is None or key <= high
    if field.transform is PartitionTransform.IDENTITY:
        assert low == key == high


def test_rows_of_a_partition_keep_their_order_and_null_is_none_of_the_values() -> None:
    rows = pa.table({"t": ["b", None, "a", "b", "", None], "n": [0, 1, 2, 3, 4, 5]})
    found = [(dict(values), part.column("n").to_pylist()) for values, part in by_partition(rows, partition_fields("t"))]
    assert found == [({"t": ""}, [4]), ({"t": "a"}, [2]), ({"t": "b"}, [0, 3]), ({}, [1, 5])]


def test_a_column_of_texts_in_codes_has_the_values_of_its_texts() -> None:
    rows = pa.table({"t": pa.array(["b", None, "a", "b"]).dictionary_encode()})
    assert [values for values, _ in by_partition(rows, partition_fields(["t"]))] == [{"t": "a"}, {"t": "b"}, {}]


@given(st.text(), st.text())
def test_texts_that_differ_have_folders_that_differ_and_are_safe_keys(one: str, other: str) -> None:
    folders = [partition_folder("c", each) for each in (one, other, None)]
    assert len({*folders}) == len({one, other}) + 1
    names = [partition_folder(each, "v") for each in (one, other)]
    for partition in (*folders, *names):
        key = split_key(3600, windowed=True, split_id=AN_ID, partition=f"{partition}/x=1")
        assert is_safe_key(key)
        assert is_data_path(key)
        assert max(map(len, key.split("/"))) <= 255
        assert (parsed := parse(key)) is not None
        assert (parsed.kind, parsed.key, parsed.window, parsed.id) == (KeyKind.SPLIT, key, 3600, AN_ID)


@pytest.mark.parametrize(
    ("value", "folder"),
    [
        (None, "__HIVE_DEFAULT_PARTITION__"),
        ("", ""),
        ("2015-05-17", "2015-05-17"),
        ("a b/c=%", "a%20b%2Fc%3D%25"),
        ("é", "%C3%A9"),
        ("~", "%7E"),
        ("..", ".."),
        ("/a", "%2Fa"),
        ("a/../../b", "~"),
        ("a%2F..%2Fb", "~"),
        ("__HIVE_DEFAULT_PARTITION__", "~"),
        ("x" * 129, "~"),
    ],
)
def test_folders_are_encoded_or_a_checksum_where_they_cannot_be(value: str | None, folder: str) -> None:
    found = folder_value(value)
    if folder[:1] == "~":
        assert found[0] == "~"
        assert len(found) == 33
        assert {*found[1:]} <= {*string.hexdigits}
    else:
        assert found == folder


@pytest.mark.parametrize(
    "key",
    [
        f"splits/t=a/splits/0/{AN_ID}.parquet",
        f"t=a/{AN_ID}.parquet",
        f"t=a//splits/0/{AN_ID}.parquet",
        f"t/splits/0/{AN_ID}.parquet",
        f"t=a b/splits/0/{AN_ID}.parquet",
        f"t=a/splits/0/{AN_ID}.dv",
        f"t=a/splits/00/{AN_ID}.parquet",
        f"_gc/t=a/splits/0/{AN_ID}.parquet",
    ],
)
def test_no_other_key_is_that_of_a_split_of_a_partition(key: str) -> None:
    assert parse(key) is None


@pytest.mark.parametrize("text", ["tenant", "day(ts)", "bucket[16](id)", "truncate[4](a b)", "identity(day(ts))"])
def test_the_text_of_a_field_is_canonical(text: str) -> None:
    assert partition_field(text).text == text


def test_a_column_that_is_called_like_a_transform_can_be_named() -> None:
    field = partition_field("identity(day(ts))")
    assert (field.column, field.name) == ("day(ts)", "day(ts)")
    assert partition_field("identity(ts)").text == "ts"


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (
            ["days(ts)"],
            r"partition_by has 'days\(ts\)'. Give the name of a column, or one of bucket\[n\]\(column\)",
        ),
        (["bucket(id)"], "Give the name of a column"),
        (["bucket[0](id)"], "Give the name of a column"),
        (["day[3](ts)"], "Give the name of a column"),
        ([f"bucket[{2**31}](id)"], "n from 1 to"),
        ([""], "Give the name of a column"),
        (["a", "b", "c", "d", "e"], "has 5 fields .*. A table has at most 4"),
        (["bucket[2](id)", "bucket[3](id)"], "names 'id_bucket' twice. Name each field once"),
    ],
)
def test_what_is_no_field_is_refused_saying_what_there_is(texts: list[str], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        partition_fields(texts)


_SCHEMA = pa.schema(
    [("id", pa.int64()), ("x", pa.float64()), ("ts", UTC_TIME), ("ts_DAY", pa.string()), ("l", pa.list_(pa.int64()))]
)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("tenant", "partition_by: unknown column 'tenant'. The table has"),
        ("x", "identity has no value for 'x' of type double. Partition by another column, or by another transform"),
        ("l", "identity has no value for 'l'"),
        ("hour(id)", "hour has no value for 'id'"),
        ("truncate[2](ts)", "truncate has no value for 'ts'"),
        ("bucket[2](x)", "bucket has no value for 'x'"),
        (
            "day(ts)",
            r"day\(ts\) needs the name 'ts_day', but the table has a column of this name. Rename that column",
        ),
    ],
)
def test_a_field_that_fits_no_column_is_refused_saying_what_to_do(text: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        check_partitions([partition_field(text)], _SCHEMA, ())


def test_a_keyed_table_is_partitioned_by_columns_of_its_key_only() -> None:
    fields = partition_fields(["bucket[4](id)", "day(ts)"])
    schema = pa.schema([("id", pa.int64()), ("ts", UTC_TIME)])
    check_partitions(fields, schema, ["ts", "id"])
    with pytest.raises(InvalidInput, match=r"day\(ts\): 'ts' is not a column of the key \['id'\], so one key"):
        check_partitions(fields, schema, ["id"])


def test_the_order_of_values_is_that_of_their_type() -> None:
    assert value_type(partition_field("truncate[2](c)"), pa.int16()) == pa.int16()
    assert value_type(partition_field("bucket[2](c)"), pa.string()) == pa.int32()
    assert value_type(partition_field("month(c)"), pa.date32()) == pa.string()
