"""For every encoding, codec and nesting in use, a read of a Parquet file returns the same values as Arrow."""

from __future__ import annotations

import base64
import io
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.parquet import encryption

from storage_core.base.errors import Corrupt
from storage_core.data.rows.conform import conform
from storage_core.write.ingest.parquet_files import Chunk, check_pages, footer_of, parquet_blocks, valid_batches

ROWS = 700
TEXTS = [None if row % 5 == 0 else f"value {row // 3}" for row in range(ROWS)]
LISTS = [None if row % 7 == 0 else TEXTS[row : row + row % 4] for row in range(ROWS)]
MAPS = [
    None if row % 6 == 0 else [(f"k{each}", None if row % 5 == 0 else f"v{row}") for each in range(row % 3)]
    for row in range(ROWS)
]
TAGS = pa.map_(pa.string(), pa.string())
TABLE = pa.table(
    {
        "n": pa.array(range(ROWS), pa.int64()),
        "half": pa.array([row / 2 for row in range(ROWS)], pa.float64()),
        "text": pa.array(TEXTS, pa.string()),
        "raw": pa.array([None if each is None else each.encode() for each in TEXTS], pa.binary()),
        "texts": pa.array(LISTS, pa.list_(pa.field("element", pa.string()))),
        "tags": pa.array(MAPS, TAGS),
        "counts": pa.array([None if each is None else [(1, 2)] for each in MAPS], pa.map_(pa.int64(), pa.int32())),
        "deep": pa.array([[{"tags": each}] for each in MAPS], pa.list_(pa.field("element", pa.struct({"tags": TAGS})))),
    }
)

TEXT_LEAVES = ("text", "raw", "texts.list.element", "tags.key_value.key", "tags.key_value.value")


def read(data: bytes, schema: pa.Schema) -> pa.Table:
    blocks = list(parquet_blocks("a.parquet", io.BytesIO(data), schema))
    assert not any(each.rejected for each in blocks)
    return pa.concat_tables([schema.empty_table(), *(each.rows for each in blocks)])


def written(table: pa.Table, **settings: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **settings)
    return sink.getvalue()


@pytest.mark.parametrize(
    "encodings",
    [
        dict.fromkeys(TEXT_LEAVES, "PLAIN"),
        dict.fromkeys(TEXT_LEAVES, "DELTA_BYTE_ARRAY"),
        dict.fromkeys(TEXT_LEAVES, "DELTA_LENGTH_BYTE_ARRAY")
        | {"n": "DELTA_BINARY_PACKED", "half": "BYTE_STREAM_SPLIT"},
        None,
    ],
    ids=["plain", "delta", "delta lengths", "dictionary"],
)
@pytest.mark.parametrize("page_version", ["1.0", "2.0"])
def test_every_encoding_is_read_in_both_versions_of_pages(
    encodings: Mapping[str, str] | None, page_version: str
) -> None:
    data = written(
        TABLE,
        column_encoding=encodings,
        use_dictionary=encodings is None,
        data_page_version=page_version,
        row_group_size=300,
        data_page_size=200,
    )
    assert read(data, TABLE.schema).equals(TABLE)


@pytest.mark.parametrize("codec", ["snappy", "gzip", "brotli", "zstd", "lz4", "none"])
def test_every_codec_is_read_with_page_indexes_and_without_statistics(codec: str) -> None:
    data = written(TABLE, compression=codec, write_page_index=True, write_page_checksum=True, store_schema=False)
    assert read(data, TABLE.schema).equals(TABLE)
    bare = written(TABLE, compression=codec, write_statistics=False)
    assert read(bare, TABLE.schema).equals(TABLE)


def test_a_column_may_be_a_dictionary_in_one_row_group_and_delta_encoded_in_the_next(tmp_path: Path) -> None:
    query = "select case when i < 4096 then 'same' else 'other ' || i end as text from range(8192) r(i)"
    file = tmp_path / "a.parquet"
    duckdb.sql(f"copy ({query}) to '{file}' (format parquet, parquet_version v2, row_group_size 4096)")
    groups = pq.ParquetFile(file).metadata
    assert [groups.row_group(at).column(0).encodings for at in range(2)] == [
        ("RLE_DICTIONARY",),
        ("DELTA_LENGTH_BYTE_ARRAY",),
    ]
    texts = read(file.read_bytes(), pa.schema({"text": pa.string()})).column("text").to_pylist()
    assert texts == ["same"] * 4096 + [f"other {row}" for row in range(4096, 8192)]


def test_int96_timestamps_are_read_beside_texts_in_several_row_groups() -> None:
    days = [19_000, None, -135_000, 193_000]  # days in 2022, 1600 and 2498
    moments = pa.array([None if day is None else day * 86_400_000_000 for day in days], pa.timestamp("us"))
    table = pa.table({"at": moments, "text": ["a", "b", "a", "c"], "texts": [["a"], ["b"], ["a"], ["c"]]})
    data = written(table, use_deprecated_int96_timestamps=True, row_group_size=2, store_schema=False)
    assert read(data, table.schema).equals(table)


def test_maps_are_read_whatever_their_groups_are_called() -> None:
    data = written(TABLE.select(["n", "tags"]), store_schema=False).replace(b"key_value", b"map_entry")
    assert read(data, TABLE.select(["n", "tags"]).schema).equals(TABLE.select(["n", "tags"]))


def test_files_without_rows_and_without_row_groups_are_read() -> None:
    sink = io.BytesIO()
    pq.ParquetWriter(sink, TABLE.schema).close()
    for data in (sink.getvalue(), written(TABLE.slice(0, 0))):
        assert read(data, TABLE.schema).num_rows == 0


def test_sizes_of_old_writers_that_leave_out_the_header_of_the_dictionary_are_taken() -> None:
    table = TABLE.select(["text"])
    data = written(table, write_statistics=False)
    chunk = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0).column(0)
    pages = data[chunk.dictionary_page_offset :]
    check_pages(
        pages[: chunk.total_compressed_size + 100], Chunk("text", 4, chunk.total_compressed_size - 10, False, False)
    )


STRING, ENUM, JSON = (b"\x4c\x1c", 0), (b"\x4c\x4c", 4), (b"\x4c\xcc", 19)
"""The logical types of a text in Thrift's compact protocol, and the numbers of their converted types."""


def with_logical_type(data: bytes, logical: tuple[bytes, int]) -> bytes:
    """Return the file of one text column with another logical type."""
    old = b"\x25\x00" + STRING[0]
    assert data.count(old) == 1
    return data.replace(old, b"\x25" + bytes([2 * logical[1]]) + logical[0])


ID = "0f0e0d0c-0b0a-0908-0706-050403020100"


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_uuids_land_as_text_or_as_bytes_as_the_column_is_declared(tmp_path: Path, kind: pa.DataType) -> None:
    file = tmp_path / "a.parquet"
    known = f"map {{'a': uuid '{ID}'}} as known, {{'id': uuid '{ID}'}} as one"
    query = f"select uuid '{ID}' as id, [uuid '{ID}', null] as ids, {known}"
    duckdb.sql(f"copy ({query} union all select null, null, null, null) to '{file}'")
    schema = pa.schema(
        {
            "id": kind,
            "ids": pa.list_(pa.field("element", kind)),
            "known": pa.map_(pa.string(), kind),
            "one": pa.struct({"id": kind}),
        }
    )
    value = ID if kind == pa.string() else uuid.UUID(ID).bytes
    stored = pa.table({"id": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([uuid.UUID(ID).bytes], pa.binary(16)))})
    assert read(file.read_bytes(), schema).to_pylist() == [
        {"id": value, "ids": [value, None], "known": [("a", value)], "one": {"id": value}},
        dict.fromkeys(schema.names),
    ]
    assert read(written(stored), pa.schema({"id": kind})).to_pylist() == [{"id": value}]
    assert conform(stored, pa.schema({"id": kind})).to_pylist() == [{"id": value}]


def test_json_lands_as_text_and_is_read_as_a_dictionary(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    duckdb.sql(f"copy (select '[1]'::json as j, ['1'::json] as l from range(200)) to '{file}'")
    schema = pa.schema({"j": pa.string(), "l": pa.list_(pa.field("element", pa.string()))})
    assert read(file.read_bytes(), schema).to_pylist() == [{"j": "[1]", "l": ["1"]}] * 200
    stored = pa.table({"j": pa.ExtensionArray.from_storage(pa.json_(), pa.array(["[1]"] * 200))})
    for data in (file.read_bytes(), written(stored)):
        for batch in valid_batches("a", io.BytesIO(data), lambda _: None, schema):
            assert pa.types.is_dictionary(batch.column("j").type), "else a text that is repeated is held as often"


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_enums_and_json_land_as_text_or_as_bytes_as_the_column_is_declared(kind: pa.DataType) -> None:
    table = pa.table({"colour": ["red", None, "blue"]})
    for logical in (ENUM, JSON):
        data = with_logical_type(written(table, store_schema=False, write_statistics=False), logical)
        assert pq.ParquetFile(io.BytesIO(data)).schema.column(0).logical_type.type == (
            "ENUM" if logical == ENUM else "JSON"
        )
        texts = ["red", None, "blue"] if kind == pa.string() else [b"red", None, b"blue"]
        assert read(data, pa.schema({"colour": kind})).column("colour").to_pylist() == texts
        assert footer_of("a", io.BytesIO(data))[0].columns == pa.schema({"colour": pa.string()})


@pytest.mark.parametrize(("query", "told"), [("interval 1 day", "INTERVAL"), ("1::variant", "VARIANT")])
def test_types_that_no_table_has_are_refused_by_their_name(tmp_path: Path, query: str, told: str) -> None:
    file = tmp_path / "a.parquet"
    duckdb.sql(f"copy (select {query} as c) to '{file}'")
    with pytest.raises(Corrupt, match=f"column 'c' has the logical type {told}, which tables do not support"):
        read(file.read_bytes(), pa.schema({"c": pa.binary()}))


def test_a_map_whose_keys_may_be_null_is_refused_with_that_reason() -> None:
    map_ = pa.table({"m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))})
    data = written(map_, store_schema=False)
    name = data.index(b"\x03key")  # two bytes before is the key's repetition type, REQUIRED
    optional = data[: name - 2] + b"\x02" + data[name - 1 :]
    with pytest.raises(Corrupt, match="its schema allows null as a key of a map"):
        footer_of("a", io.BytesIO(optional))


def test_booleans_of_eight_bits_are_booleans() -> None:
    given = pa.table({"b": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0, None], pa.int8()))})
    assert conform(given, pa.schema({"b": pa.bool_()})).column("b").to_pylist() == [True, False, None]
    assert read(written(given), pa.schema({"b": pa.bool_()})).column("b").to_pylist() == [True, False, None]


class _Keys(encryption.KmsClient):  # type: ignore[misc]
    def wrap_key(self, key: bytes, _name: str) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, key: bytes, _name: str) -> bytes:
        return base64.b64decode(key)


@pytest.mark.parametrize("plaintext_footer", [True, False])
def test_an_encrypted_file_is_called_encrypted(plaintext_footer: bool) -> None:
    settings = encryption.EncryptionConfiguration(
        "footer", column_keys={"c": ["text"]}, plaintext_footer=plaintext_footer
    )
    factory = encryption.CryptoFactory(lambda _: _Keys())
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), settings)
    data = written(TABLE.select(["text"]), encryption_properties=properties)
    with pytest.raises(Corrupt, match="encrypted, and Tidemark has no keys"):
        read(data, TABLE.schema)
