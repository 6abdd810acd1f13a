"""Names, fields and chunks of the raw log survive a round trip, and foreign or incomplete ones are refused."""

from __future__ import annotations

import datetime as dt
import io
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import fastavro
import numpy as np
import pytest

from storage_core.base.errors import Corrupt, InvalidInput, Unsupported
from storage_core.data.formats import keys
from storage_core.data.formats.avro import CHECKSUM_KEY, OPEN_CHECKSUM, with_checksum
from storage_core.data.formats.keys import ChunkKey, raw_chunk_key
from storage_core.data.formats.raw_chunk import LogRecord, RawChunk, decode_chunk, encode_chunk
from storage_core.data.formats.raw_fields import Digits, decode_fields, encode_fields
from tests.support.damage import flip_bit, truncate

WRITER = "3b9f1c1e-0d6a-4f6e-9a53-0f4f6c1d2e3a"
KEY = ChunkKey(segment_ms=1_700_000_000_000, writer=WRITER, number=7)
CHUNK = RawChunk(
    key=KEY,
    first=41,
    records=(
        LogRecord(timestamp_ms=1_700_000_000_123, table="users", operation="put", fields='{"id":1,"name":"Ärger"}'),
        LogRecord(timestamp_ms=1_700_000_000_123, table="users", operation="patch", fields='{"id":1,"age":null}'),
        LogRecord(timestamp_ms=1_700_000_000_124, table="clicks", operation="reset", fields="{}", key="k"),
        LogRecord(timestamp_ms=1_700_000_000_125, table="users", operation="delete", fields='{"id":2}', key=""),
    ),
)
GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "raw-chunk-1.avro"


def _with_checksum(metadata: dict[str, str], schema: Any = None, records: list[dict[str, Any]] | None = None) -> bytes:
    """Return a file with the checksum of a chunk and with foreign content."""
    target = io.BytesIO()
    simple = {"type": "record", "name": "LogRecord", "fields": [{"name": "id", "type": "string"}]}
    fastavro.writer(target, schema or simple, records or [], metadata={**metadata, CHECKSUM_KEY: OPEN_CHECKSUM})
    return with_checksum(target.getvalue())


# Names.


def test_a_chunk_is_named_by_the_start_of_its_segment_its_writer_and_its_number() -> None:
    assert raw_chunk_key(KEY) == f"live/1700000000000.{WRITER}/00000000000000000007.avro"
    assert keys.parse_raw(raw_chunk_key(KEY)) == KEY


@pytest.mark.parametrize(
    "key",
    [
        f"live/01.{WRITER}/00000000000000000007.avro",
        f"live/1.{WRITER}/7.avro",
        f"live/1.{WRITER}/00000000000000000000.avro",
        f"live/1.{WRITER}/99999999999999999999.avro",
        f"live/1.{WRITER.upper()}/00000000000000000007.avro",
        f"live/-1.{WRITER}/00000000000000000007.avro",
        f"live/1.{'-' * 36}/00000000000000000007.avro",
        f"live/1.{WRITER}/00000000000000000007.avro\n",
        f"live/1.{WRITER}/00000000000000000007.avro.part",
        f"live/1.{WRITER} (copy)/00000000000000000007.avro",
        "live/.DS_Store",
        "_transaction_log/00000000000000000001.json",
        "splits/all/a.parquet",
        "",
    ],
)
def test_a_name_that_no_writer_makes_is_not_ours(key: str) -> None:
    assert keys.parse_raw(key) is None


def test_quarantine_and_probe_are_named_as_beside_a_table() -> None:
    for key in (keys.quarantine_key("live/1.x", WRITER), keys.probe_key(WRITER)):
        parsed = keys.parse_raw(key)
        assert parsed == keys.parse(key) is not None


@pytest.mark.parametrize(
    "parts",
    [{"writer": "me"}, {"number": 0}, {"number": 2**63}, {"segment_ms": -1}],
)
def test_a_name_cannot_be_built_from_parts_out_of_range(parts: dict[str, Any]) -> None:
    whole: dict[str, Any] = {"segment_ms": 1, "writer": WRITER, "number": 1, **parts}
    with pytest.raises(InvalidInput):
        raw_chunk_key(ChunkKey(**whole))


# Fields.

VALUES: list[Any] = [
    None,
    True,
    "",
    "$bytes",
    "grün \U0001f30a\x00\n",
    0,
    2**63 - 1,
    -(2**63),
    float("inf"),
    float("-inf"),
    Decimal("1.50"),
    Decimal("-12345678901234567890123456789.012345678"),
    Decimal("1E+3"),
    dt.datetime(2024, 2, 29, 12, 30, 0, 1, tzinfo=dt.UTC),
    dt.datetime(1, 1, 1),  # noqa: DTZ001 -- a column may have no zone
    dt.date(9999, 12, 31),
    b"",
    b"\x00\xff",
    [],
    [1, [True, None]],
    {},
    {"a": {"b": [b"1"]}},
    {"$bytes": "no bytes"},
    {"$$": 1, "$map": [], "plain": 2},
    [(1, "one"), (None, "none")],
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_comes_back_with_its_type(value: Any) -> None:
    back = decode_fields(encode_fields({"x": value, "$y": value}))
    assert list(back) == ["x", "$y"]
    for found in back.values():
        assert type(found) is type(value)
        assert repr(found) == repr(value)


@pytest.mark.parametrize("value", [0.1, -0.0, 1e300, 5e-324, 12345678901234568.0], ids=repr)
def test_a_float_comes_back_as_its_digits(value: float) -> None:
    back = decode_fields(encode_fields({"x": [value]}))
    assert back == {"x": [Digits(repr(value))]}
    assert repr(back["x"][0].as_float()) == repr(value)


@pytest.mark.parametrize(
    "text",
    [
        '{"x":12345678901234567.123,"y":0.10}',
        '{"x":[1E+3,{"y":-0.0}],"z":{"$map":[[1,0.1000000000000000000001]]}}',
        '{"x":"é","$$y":{"$decimal":"1.0"},"z":1.50}',
    ],
)
def test_the_digits_that_a_producer_wrote_are_kept(text: str) -> None:
    assert encode_fields(decode_fields(text)) == text


def test_not_a_number_comes_back_as_such() -> None:
    assert repr(decode_fields(encode_fields({"x": float("nan")}))["x"]) == "nan"


def test_a_moment_of_another_zone_is_the_same_moment_in_utc() -> None:
    instant = dt.datetime(2024, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    assert decode_fields(encode_fields({"x": instant})) == {"x": instant}


def test_numbers_of_numpy_are_numbers() -> None:
    fields = {"a": np.int64(2**62), "b": np.float32(0.5), "c": np.bool_(True)}
    assert decode_fields(encode_fields(fields)) == {"a": 2**62, "b": Digits("0.5"), "c": True}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (2**63, "64 bits"),
        (Decimal("NaN"), "not a decimal"),
        ("\ud800", "Unicode"),
        (object(), "cannot store a value of the type object"),
        (dt.timedelta(1), "cannot store a value of the type timedelta"),
    ],
)
def test_a_value_without_a_form_is_refused_before_it_is_written(value: Any, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        encode_fields({"x": value})


def test_fields_nested_without_end_are_refused_both_ways() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidInput):
        encode_fields({"x": endless})
    with pytest.raises(InvalidInput):
        decode_fields('{"x":' + "[" * 200_000 + "]" * 200_000 + "}")


def test_one_name_given_twice_among_many_is_found_in_time_linear_in_their_number() -> None:
    names = [*range(2**19), 2**19 - 1]
    with pytest.raises(InvalidInput, match="the field '524287' is given twice"):
        decode_fields("{" + ",".join(f'"{name}":0' for name in names) + "}")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "1",
        "{",
        '{"a":1},{"b":2}',
        '{"x":NaN}',
        '{"x":{"$new":1}}',
        '{"x":{"$bytes":1,"$date":2}}',
        '{"x":{"$bytes":"***"}}',
        '{"x":{"$date":"soon"}}',
        '{"x":{"$timestamp":"2024-01-01T00:00:00"}}',
        '{"x":{"$local":"2024-01-01T00:00:00+01:00"}}',
        '{"x":{"$timestamp":"2024-01-01T02:00:00+02:00"}}',
        '{"x":{"$timestamp":"2024-01-01T00:00:00Z"}}',
        '{"x":{"$timestamp":"2024-01-01 00:00:00+00:00"}}',
        '{"x":{"$timestamp":"2024-01-01T00:00:00.123456789+00:00"}}',
        '{"x":{"$timestamp":"2024-01-01T00:00:00.000000001+00:00"}}',
        '{"x":{"$timestamp":"2024-01-01T00:00:00.5+00:00"}}',
        '{"x":{"$timestamp":"2024-01-01T00:00:00,123456+00:00"}}',
        '{"x":{"$timestamp":"20240101T000000+00:00"}}',
        '{"x":{"$timestamp":"2024-W01-1T00:00:00+00:00"}}',
        '{"x":{"$local":"2024-01-01T00:00:00.123456789"}}',
        '{"x":{"$local":"20240101T000000"}}',
        '{"x":{"$local":"2024-W01-1T00:00:00"}}',
        '{"x":{"$local":"2024-01-01"}}',
        '{"x":{"$date":"20240101"}}',
        '{"x":{"$date":"2024-W01-1"}}',
        '{"x":{"$decimal":"ten"}}',
        '{"x":{"$decimal":[]}}',
        '{"x":{"$float":"1.5"}}',
        '{"x":{"$map":[[1]]}}',
        '{"x":{"$map":7}}',
        '{"$date":"2024-01-01"}',
        '{"x":1,"x":1}',
        '{"x":[{"y":1,"y":2}]}',
        '{"x":1e400}',
        '{"x":-1e400}',
        '{"x":1e-99999999999999999999}',
        '{"x":{"$decimal":1.5}}',
    ],
)
def test_text_that_no_writer_makes_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        decode_fields(text)


# Chunks.


def test_a_chunk_comes_back_and_its_records_have_ids() -> None:
    back = decode_chunk(encode_chunk(CHUNK), "here")
    assert back == CHUNK
    assert (back.last, back.ids[0], back.ids[-1]) == (44, f"{WRITER}:41", f"{WRITER}:44")


def test_equal_chunks_have_equal_bytes() -> None:
    assert encode_chunk(CHUNK) == encode_chunk(CHUNK)


def test_the_golden_chunk_still_opens() -> None:
    assert decode_chunk(GOLDEN.read_bytes(), "golden") == CHUNK


def test_any_avro_reader_opens_a_chunk() -> None:
    first = next(iter(fastavro.reader(io.BytesIO(encode_chunk(CHUNK)))))
    assert first == {
        "id": f"{WRITER}:41",
        "timestamp_ms": 1_700_000_000_123,
        "table": "users",
        "key": None,
        "operation": "put",
        "fields": '{"id":1,"name":"Ärger"}',
    }


def test_no_bit_of_a_chunk_can_change_unnoticed() -> None:
    data = encode_chunk(CHUNK)
    for position in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << position % 8
        with pytest.raises((Corrupt, Unsupported)):
            decode_chunk(bytes(flipped), "here")


@pytest.mark.parametrize("seed", range(50))
def test_a_chunk_that_is_cut_or_longer_is_refused(seed: int) -> None:
    data = encode_chunk(CHUNK)
    for changed in (truncate(data, Random(seed)), data + data, data + b"\x00", flip_bit(data, Random(seed)), b""):
        with pytest.raises(Corrupt, match="here"):
            decode_chunk(changed, "here")


def test_a_chunk_of_a_newer_release_says_so() -> None:
    with pytest.raises(Unsupported, match="format '3'"):
        decode_chunk(_with_checksum({"tidemark.format": "3"}), "here")


@pytest.mark.parametrize(
    ("metadata", "why"),
    [({}, "without the checksum of a chunk"), ({"tidemark.format": "1"}, "another schema")],
)
def test_a_checksummed_file_that_is_no_chunk_is_refused(metadata: dict[str, str], why: str) -> None:
    with pytest.raises(Corrupt, match=why):
        decode_chunk(_with_checksum(metadata), "here")


def test_an_unsealed_avro_file_is_refused() -> None:
    target = io.BytesIO()
    fastavro.writer(target, {"type": "record", "name": "X", "fields": []}, [], metadata={"tidemark.format": "1"})
    with pytest.raises(Corrupt, match="without the checksum"):
        decode_chunk(target.getvalue(), "here")


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"tidemark.first": "40"}, "expected records 40 to 44"),
        ({"tidemark.first": "42", "tidemark.last": "45"}, "expected record 42"),
        ({"tidemark.number": "seven"}, "incomplete"),
        ({"tidemark.last": "-1"}, "incomplete"),
    ],
)
def test_metadata_that_contradict_the_records_are_refused(changed: dict[str, str], why: str) -> None:
    reader = fastavro.reader(io.BytesIO(encode_chunk(CHUNK)))
    records = list(reader)
    metadata = {name: str(value) for name, value in reader.metadata.items() if name.startswith("tidemark.")}
    data = _with_checksum({**metadata, **changed}, reader.writer_schema, records)  # type: ignore[arg-type]
    with pytest.raises(Corrupt, match=why):
        decode_chunk(data, "here")


def test_a_small_file_that_becomes_too_much_is_refused_before_it_is_expanded() -> None:
    record = {"id": "x" * 2**24}
    target = io.BytesIO()
    schema: Any = {"type": "record", "name": "X", "fields": [{"name": "id", "type": "string"}]}
    fastavro.writer(target, schema, [record] * 9, codec="zstandard", metadata={CHECKSUM_KEY: OPEN_CHECKSUM})
    data = with_checksum(target.getvalue())
    assert len(data) < 2**20
    with pytest.raises(Corrupt, match="9 records of 1509"):
        decode_chunk(data, "here")


def test_a_chunk_holds_at_least_one_record() -> None:
    with pytest.raises(InvalidInput):
        encode_chunk(RawChunk(key=KEY, first=1, records=()))
