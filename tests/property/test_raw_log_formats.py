"""Names and fields of the raw log: all content is read back unchanged, and each object has exactly one name."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.data.formats import keys
from storage_core.data.formats.keys import ChunkKey, raw_chunk_key
from storage_core.data.formats.raw_chunk import LogRecord, RawChunk, columns_of, decode_chunk, encode_chunk
from storage_core.data.formats.raw_fields import Digits, decode_fields, encode_fields
from storage_core.store.contract import is_safe_key
from storage_core.write.raw_log.read import typed_records
from tests.support.scale import scaled

WRITER = "00000000-0000-4000-8000-000000000000"

uuids = st.uuids().map(str)
chunk_keys = st.builds(
    ChunkKey, segment_ms=st.integers(0, 2**63 - 1), writer=uuids, number=st.integers(1, keys.MAX_NUMBER)
)
texts = st.text(st.characters(codec="utf-8"), max_size=20)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    texts,
    st.binary(max_size=10),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.dates(),
    st.datetimes().map(lambda each: each.replace(fold=0)),
    st.datetimes(timezones=st.just(dt.UTC)).map(lambda each: each.replace(fold=0)),
)
names = texts | st.sampled_from(["$", "$$", "$bytes", "$map", "$decimal"])
nested = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=8
)


@given(chunk_keys)
def test_a_chunk_key_comes_back_and_is_safe_in_every_store(key: ChunkKey) -> None:
    assert keys.parse_raw(raw_chunk_key(key)) == key
    assert is_safe_key(raw_chunk_key(key))


@given(chunk_keys, st.data())
@settings(max_examples=scaled(300))
def test_a_changed_name_is_another_object_or_not_ours(key: ChunkKey, data: st.DataObject) -> None:
    text = raw_chunk_key(key)
    position = data.draw(st.integers(0, len(text)))
    insert = data.draw(st.sampled_from(["", "0", "1", "a", "A", ".", "-", "/", " ", "\n", "٣"]))
    changed = text[:position] + insert + text[position + data.draw(st.integers(0, 2)) :]
    found = keys.parse_raw(changed)
    assert found is None or (isinstance(found, ChunkKey) and raw_chunk_key(found) == changed)


def _with_floats(value: Any) -> Any:
    match value:
        case Digits():
            return value.as_float()
        case dict():
            return {name: _with_floats(each) for name, each in value.items()}
        case list():
            return [*map(_with_floats, value)]
        case _:
            return value


@given(st.dictionaries(names, nested, max_size=5))
@settings(max_examples=scaled(150))
def test_fields_come_back_with_their_types(fields: dict[str, Any]) -> None:
    assert repr(_with_floats(decode_fields(encode_fields(fields)))) == repr(fields)


@given(st.text(max_size=40))
def test_fields_of_any_text_are_an_object_or_invalid_input(text: str) -> None:
    try:
        found = decode_fields(text)
    except ValueError:  # `InvalidInput` is a `ValueError`
        return
    assert isinstance(found, dict)


@given(chunk_keys, st.integers(1, 2**40), st.lists(st.dictionaries(names, scalars, max_size=3), min_size=1, max_size=5))
def test_a_chunk_comes_back(key: ChunkKey, first: int, rows: list[dict[str, Any]]) -> None:
    records = tuple(
        LogRecord(timestamp_ms=index, table="t", operation="put", fields=encode_fields(row), key=str(index) or None)
        for index, row in enumerate(rows)
    )
    chunk = RawChunk(key=key, first=first, records=records)
    assert decode_chunk(encode_chunk(chunk), "here") == chunk


SCHEMA = pa.schema(
    [
        pa.field("long", pa.int64()),
        pa.field("double", pa.float64()),
        pa.field("text", pa.string()),
        pa.field("bytes", pa.binary()),
        pa.field("decimal", pa.decimal128(38, 6)),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("local", pa.timestamp("us")),
        pa.field("map", pa.map_(pa.string(), pa.list_(pa.int64()))),
        pa.field("struct", pa.struct([pa.field("a", pa.int64()), pa.field("b", pa.string())])),
    ]
)
longs = st.integers(-(2**63), 2**63 - 1)
typed_rows = st.fixed_dictionaries(
    {
        "long": st.none() | longs,
        "double": st.none() | st.floats(allow_nan=False),
        "text": st.none() | texts,
        "bytes": st.none() | st.binary(max_size=8),
        "decimal": st.none() | st.decimals(-(10**31), 10**31, places=6),
        "day": st.none() | st.dates(),
        "at": st.none() | st.datetimes(timezones=st.just(dt.UTC)),
        "local": st.none() | st.datetimes(),
        "map": st.none() | st.dictionaries(texts, st.lists(longs, max_size=2), max_size=2),
        "struct": st.none() | st.fixed_dictionaries({"a": st.none() | longs, "b": st.none() | texts}),
    }
)


def _typed(rows: list[dict[str, Any]]) -> Any:
    key = ChunkKey(segment_ms=0, writer=WRITER, number=1)
    records = tuple(LogRecord(timestamp_ms=0, table="t", operation="put", fields=encode_fields(row)) for row in rows)
    return typed_records(columns_of(RawChunk(key=key, first=1, records=records)).records, SCHEMA)


@given(st.lists(typed_rows, min_size=1, max_size=5))
@settings(max_examples=scaled(50))
def test_rows_of_the_table_are_kept_exactly(rows: list[dict[str, Any]]) -> None:
    found = _typed(rows)
    assert found.rejected == ()
    assert found.records.select(SCHEMA.names).to_pylist(maps_as_pydicts="strict") == rows


@given(st.lists(st.dictionaries(st.sampled_from(SCHEMA.names), scalars | st.lists(scalars, max_size=2)), max_size=5))
@settings(max_examples=scaled(100))
def test_a_record_of_any_values_is_kept_or_rejected_and_never_fails(rows: list[dict[str, Any]]) -> None:
    found = _typed(rows)
    kept, rejected = found.ids.to_pylist(), [each.record_id for each in found.rejected]
    assert sorted([*kept, *rejected]) == [f"{WRITER}:{number}" for number in range(1, len(rows) + 1)]
    values = found.records.to_pylist()
    for identity, row in zip(kept, values, strict=True):
        given_row = rows[int(identity.rpartition(":")[2]) - 1]
        assert [name for name in SCHEMA.names if row[name] is not None] == [
            name for name in SCHEMA.names if given_row.get(name) is not None
        ]
