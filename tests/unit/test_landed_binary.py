"""Landed Avro and Arrow files: types, rejected rows, damaged files and files that expand too far."""

from __future__ import annotations

import io
import random
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from storage_core.write.ingest import arrow_blocks, avro_blocks
from storage_core.write.ingest.batch import parse_blocks, parse_file
from storage_core.write.ingest.convert import Parsed
from storage_core.write.ingest.landing import ContentHash, LandedFile, LandingSpec, content_of

AT = datetime(2026, 1, 31, 10, 0, 0, 123456, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False),
        ("s", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("d", pa.decimal128(20, 2)),
        ("m", pa.map_(pa.string(), pa.int64())),
        ("l", pa.list_(pa.float64())),
        ("o", pa.struct([("x", pa.int32()), ("y", pa.string())])),
        ("b", pa.binary()),
        ("id", pa.string()),
        ("kind", pa.string()),
        ("flag", pa.bool_()),
    ]
)
ROW: dict[str, Any] = {
    "n": 1,
    "s": "é",
    "at": AT,
    "local": datetime(1, 1, 1),  # noqa: DTZ001  # a local time
    "day": date(2026, 1, 31),
    "d": Decimal("-123456789012345678.25"),
    "m": {"a": 1, "b": None},
    "l": [1.5, None],
    "o": {"x": 7, "y": "ü"},
    "b": b"\xff\x00",
    "id": "6f4dd3c6-3a0a-5d0e-9a43-7a1a5f0b6a53",
    "kind": "PUT",
    "flag": True,
}
EMPTY: dict[str, Any] = {**dict.fromkeys(ROW), "n": 2}


def optional(kind: Any) -> list[Any]:
    return ["null", kind]


AVRO = {
    "type": "record",
    "name": "row",
    "namespace": "a.b",
    "fields": [
        {"name": "n", "type": "int"},
        {"name": "s", "type": optional("string")},
        {"name": "at", "type": optional({"type": "long", "logicalType": "timestamp-micros"})},
        {"name": "local", "type": optional({"type": "long", "logicalType": "local-timestamp-micros"})},
        {"name": "day", "type": optional({"type": "int", "logicalType": "date"})},
        {"name": "d", "type": optional({"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 2})},
        {"name": "m", "type": optional({"type": "map", "values": optional("long")})},
        {"name": "l", "type": optional({"type": "array", "items": optional("double")})},
        {
            "name": "o",
            "type": optional(
                {
                    "type": "record",
                    "name": "inner",
                    "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "string"}],
                }
            ),
        },
        {"name": "b", "type": optional("bytes")},
        {"name": "id", "type": optional({"type": "string", "logicalType": "uuid"})},
        {"name": "kind", "type": optional({"type": "enum", "name": "kind", "symbols": ["PUT", "DELETE"]})},
        {"name": "flag", "type": optional("boolean")},
    ],
}


def avro(schema: Any, rows: list[dict[str, Any]], codec: str = "null", **more: Any) -> bytes:
    sink = io.BytesIO()
    fastavro.writer(sink, fastavro.parse_schema(schema), rows, codec=codec, **more)
    return sink.getvalue()


def one_column(kind: Any, values: list[Any], codec: str = "null") -> bytes:
    schema = {"type": "record", "name": "r", "fields": [{"name": "c", "type": kind}]}
    return avro(schema, [{"c": each} for each in values], codec)


def arrow(rows: pa.Table, kind: str = "file", **options: Any) -> bytes:
    sink = io.BytesIO()
    new = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
    with new(sink, rows.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(rows, max_chunksize=3)
    return sink.getvalue()


def parsed(folder: Path, form: str, data: bytes, schema: pa.Schema = SCHEMA) -> Parsed:
    (folder / "a").write_bytes(data)
    file = LandedFile("a", len(data), folder.resolve().as_uri())
    return parse_file(file, LandingSpec(uri=file.uri, format=form), schema, None)  # type: ignore[arg-type]


def whole_reason(found: Parsed) -> str:
    [only] = found.rejected
    assert (only.line, found.rows.num_rows) == (None, 0)
    return only.reason


def reasons(found: Parsed) -> list[tuple[int | None, str]]:
    return [(each.line, each.reason) for each in found.rejected]


def typed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**each, "m": None if each["m"] is None else [*each["m"].items()]} for each in rows]


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "zstandard"])
def test_every_type_of_avro_becomes_the_type_of_the_table(tmp_path: Path, codec: str) -> None:
    rows = [ROW, EMPTY, *({**ROW, "n": number} for number in range(3, 500))]
    found = parsed(tmp_path, "avro", avro(AVRO, rows, codec, sync_interval=2_000))
    assert found.rejected == ()
    assert found.rows.schema == SCHEMA
    assert found.rows.to_pylist() == typed(rows)


@pytest.mark.parametrize("kind", ["file", "stream"])
@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
def test_arrow_files_and_streams_give_the_same_rows(tmp_path: Path, kind: str, codec: str | None) -> None:
    rows = [ROW, EMPTY, *({**ROW, "n": number} for number in range(3, 20))]
    given = pa.Table.from_pylist(typed(rows), SCHEMA)
    texts = given.set_column(1, "s", given.column("s").dictionary_encode())
    for table in (given, texts):
        found = parsed(tmp_path, "arrow", arrow(table, kind, compression=codec))
        assert found.rejected == ()
        assert found.rows.to_pylist() == typed(rows)


def test_avro_records_without_fields_reject_the_file_with_this_reason(tmp_path: Path) -> None:
    found = parsed(tmp_path, "avro", avro({"type": "record", "name": "row", "fields": []}, [{}, {}]))
    assert whole_reason(found) == (
        "the file cannot be used: the Avro record has no fields. Write records with fields. Land the whole file again "
        "under a new name"
    )


@pytest.mark.parametrize("form", ["avro", "arrow"])
def test_the_hash_of_a_file_is_that_of_its_bytes(tmp_path: Path, form: str) -> None:
    data = avro(AVRO, [ROW]) if form == "avro" else arrow(pa.Table.from_pylist(typed([ROW]), SCHEMA))
    (tmp_path / "a").write_bytes(data)
    file, content = LandedFile("a", len(data), tmp_path.resolve().as_uri()), ContentHash()
    spec = LandingSpec(uri=file.uri, format=form)  # type: ignore[arg-type]
    assert [each.rows.num_rows for each in parse_blocks(file, spec, SCHEMA, None, content=content)] == [1]
    assert content.value == content_of(file)


@pytest.mark.parametrize(
    ("kind", "values", "type_", "wanted"),
    [
        ({"type": "long", "logicalType": "timestamp-millis"}, [1], pa.timestamp("us", "UTC"), [1_000]),
        ({"type": "long", "logicalType": "timestamp-nanos"}, [2_000], pa.timestamp("us", "UTC"), [2]),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, [-1], pa.timestamp("us"), [-1_000]),
        ({"type": "fixed", "name": "f", "size": 2}, [b"ab"], pa.binary(), [b"ab"]),
        (["string", "null"], ["a", None], pa.string(), ["a", None]),
        (["null"], [None], pa.string(), [None]),
        ("int", [5], pa.float64(), [5.0]),
        ("float", [0.5], pa.float64(), [0.5]),
        ("long", [5], pa.int16(), [5]),
    ],
)
def test_other_types_of_avro_convert_exactly(
    tmp_path: Path, kind: Any, values: list[Any], type_: pa.DataType, wanted: list[Any]
) -> None:
    plain = {k: v for k, v in kind.items() if k != "logicalType"} if isinstance(kind, dict) else kind
    data = one_column(plain, values)
    if isinstance(kind, dict) and "logicalType" in kind:  # written as numbers, with the logical type in the header
        data = _with_schema(data, kind)
    found = parsed(tmp_path, "avro", data, pa.schema([("c", type_)]))
    assert found.rejected == ()
    column = found.rows.column("c")
    assert (column.cast(pa.int64()) if pa.types.is_timestamp(type_) else column).to_pylist() == wanted


def _with_schema(data: bytes, kind: Mapping[str, Any]) -> bytes:
    schema = {"type": "record", "name": "r", "fields": [{"name": "c", "type": kind}]}
    empty = avro(schema, [])
    values = [each["c"] for each in fastavro.reader(io.BytesIO(data))]  # type: ignore[index,call-overload]
    body = io.BytesIO()
    for each in values:
        fastavro.schemaless_writer(
            body, {"type": "record", "name": "r", "fields": [{"name": "c", "type": "long"}]}, {"c": each}
        )
    block = body.getvalue()
    return empty + bytes([2 * len(values), 2 * len(block)]) + block + empty[-16:]


def test_an_avro_row_that_is_not_valid_is_rejected_by_its_number(tmp_path: Path) -> None:
    # The new text of the schema has the same length.
    data = one_column(optional("bytes"), [b"a", None, b"\xff"]).replace(b'["null", "bytes"]', b'["null","string"]')
    found = parsed(tmp_path, "avro", data, pa.schema([("c", pa.string())]))
    assert found.rows.to_pylist() == [{"c": "a"}, {"c": None}]
    [(line, reason)] = reasons(found)
    assert line == 3
    assert reason.startswith("column c: ")
    required = pa.schema([pa.field("c", pa.int64(), nullable=False)])
    found = parsed(tmp_path, "avro", one_column(optional("long"), [1, None]), required)
    assert reasons(found) == [(2, "column c: a value is required")]


def test_a_decimal_with_too_many_digits_rejects_its_row(tmp_path: Path) -> None:
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}
    empty = avro({"type": "record", "name": "r", "fields": [{"name": "c", "type": kind}]}, [])
    block = b"\x04\x03\xe7" + b"\x04\x03\xe8"  # 999 and 1000
    data = empty + bytes([4, 2 * len(block)]) + block + empty[-16:]
    found = parsed(tmp_path, "avro", data, pa.schema([("c", pa.decimal128(3, 1))]))
    assert found.rows.to_pylist() == [{"c": Decimal("99.9")}]
    assert [line for line, _ in reasons(found)] == [2]


@pytest.mark.parametrize(
    ("kind", "values", "reason"),
    [
        (["int", "string"], [1], "column 'c' is a union of 2 types, which tables do not support"),
        ({"type": "fixed", "name": "d", "size": 12, "logicalType": "duration"}, [bytes(12)], "type duration"),
        ("double", [1.5], "the columns of the file are not the columns of the table"),
    ],
)
def test_types_that_a_table_does_not_hold_reject_the_file(tmp_path: Path, kind: Any, values: Any, reason: str) -> None:
    assert reason in whole_reason(parsed(tmp_path, "avro", one_column(kind, values), pa.schema([("c", pa.int64())])))


def test_columns_that_the_table_lacks_reject_the_file(tmp_path: Path) -> None:
    schema = pa.schema([("x", pa.int64())])
    assert "not the columns of the table" in whole_reason(parsed(tmp_path, "avro", one_column("int", [1]), schema))
    reason = whole_reason(parsed(tmp_path, "arrow", arrow(pa.table({"c": [1]})), schema))
    assert "not the columns of the table" in reason


@pytest.mark.parametrize("form", ["avro", "arrow file", "arrow stream"])
def test_a_damaged_file_gives_its_rows_or_one_rejection(tmp_path: Path, form: str) -> None:
    rows = [{**ROW, "n": number} for number in range(20)]
    table = pa.Table.from_pylist(typed(rows), SCHEMA)
    data = avro(AVRO, rows, "deflate") if form == "avro" else arrow(table, form.split()[1], compression="lz4")
    chance = random.Random(form)
    for end in (*range(1, len(data), max(1, len(data) // 40)), len(data) - 1, len(data) - 8, len(data) - 16):
        assert whole_reason(parsed(tmp_path, form.split(maxsplit=1)[0], data[:end])).startswith(
            "the file cannot be used: "
        )
    for _ in range(60):
        damaged = bytearray(data)
        damaged[chance.randrange(len(data))] ^= chance.randrange(1, 256)
        found = parsed(tmp_path, form.split(maxsplit=1)[0], bytes(damaged))
        assert found.rows.num_rows + len(found.rejected) in (1, len(rows))


@pytest.mark.parametrize("form", ["avro", "arrow"])
@pytest.mark.parametrize("data", [b"{}\n", b"\x1f\x8b\x08" + bytes(20), b"PAR1" + bytes(30)])
def test_another_kind_of_file_is_rejected(tmp_path: Path, form: str, data: bytes) -> None:
    reason = whole_reason(parsed(tmp_path, form, data))
    assert ("gzip" if data[:1] == b"\x1f" else f"{form.title()} file") in reason


def test_several_streams_in_a_file_are_refused(tmp_path: Path) -> None:
    data = arrow(pa.table({"c": [1]}), "stream")
    reason = whole_reason(parsed(tmp_path, "arrow", data + data, pa.schema([("c", pa.int64())])))
    assert "bytes follow the end of the Arrow stream" in reason


def test_blocks_and_batches_that_expand_too_far_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_blocks, "LARGEST_BLOCK", 2**16)
    monkeypatch.setattr(arrow_blocks, "LARGEST_BATCH", 2**16)
    schema = pa.schema([("c", pa.string())])
    text = "x" * 2**20
    assert "expands to more than" in whole_reason(
        parsed(tmp_path, "avro", one_column("string", [text], "deflate"), schema)
    )
    assert "expands to" in whole_reason(
        parsed(tmp_path, "arrow", arrow(pa.table({"c": [text]}), compression="zstd"), schema)
    )


def test_a_billion_rows_of_nulls_are_refused(tmp_path: Path) -> None:
    sink = io.BytesIO()
    batch = pa.record_batch([pa.nulls(10**9)], ["c"])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    reason = whole_reason(parsed(tmp_path, "arrow", sink.getvalue(), pa.schema([("c", pa.string())])))
    assert "the file expands to more than" in reason


def test_dictionary_indices_outside_of_their_values_reject_the_file(tmp_path: Path) -> None:
    good = pa.DictionaryArray.from_arrays(pa.array([0, 1, 1234567], pa.int32()), pa.array(["a", "b"]), safe=False)
    reason = whole_reason(parsed(tmp_path, "arrow", arrow(pa.table({"c": good})), pa.schema([("c", pa.string())])))
    assert "the values of the file are not valid" in reason
