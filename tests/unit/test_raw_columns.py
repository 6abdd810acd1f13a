"""A chunk decoded as columns equals the chunk decoded record by record, and reports the same errors."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any, cast

import fastavro
import pytest

from storage_core.base.errors import Corrupt
from storage_core.data.formats import raw_chunk
from storage_core.data.formats.avro import CHECKSUM_KEY, OPEN_CHECKSUM, with_checksum
from storage_core.data.formats.keys import ChunkKey
from storage_core.data.formats.raw_chunk import (
    FEW,
    OPERATIONS,
    RECORD_COLUMNS,
    ChunkHead,
    LogRecord,
    RawChunk,
    columns_of,
    decode_chunk,
    decode_columns,
    encode_chunk,
)

KEY = ChunkKey(segment_ms=1, writer="00000000-0000-4000-8000-000000000000", number=7)
CHUNK = RawChunk(
    key=KEY,
    first=2**40,
    records=tuple(
        LogRecord(
            timestamp_ms=-number,
            table=f"t{number % 3}",
            operation=OPERATIONS[number % 4],
            fields=f'{{"é":{number}}}',
            key=None if number % 5 else f"k\x00{number}",
        )
        for number in range(FEW)
    ),
)


def _changed(metadata: dict[str, str], second: dict[str, Any]) -> bytes:
    """Return the chunk with other metadata and another second record, and with a valid checksum."""
    reader = fastavro.reader(io.BytesIO(encode_chunk(CHUNK)))
    records = [cast("dict[str, Any]", each) for each in reader]
    records[1] |= second
    ours = {name: text for name, text in reader.metadata.items() if name.startswith("tidemark.")}
    target = io.BytesIO()
    fastavro.writer(target, reader.writer_schema, records, metadata={**ours, **metadata, CHECKSUM_KEY: OPEN_CHECKSUM})
    return with_checksum(target.getvalue())


@pytest.mark.parametrize("records", [1, FEW - 1, FEW])
def test_the_columns_are_those_of_the_records(records: int) -> None:
    chunk = replace(CHUNK, records=CHUNK.records[:records])
    found = decode_columns(encode_chunk(chunk), "here")
    assert found == columns_of(chunk)
    assert found.records.schema == RECORD_COLUMNS


def test_a_chunk_of_many_records_is_decoded_without_an_object_per_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(head: ChunkHead, data: bytes, where: str) -> RawChunk:
        raise AssertionError(f"{where}: {head.key}, {len(data)} bytes decoded record by record")

    monkeypatch.setattr(raw_chunk, "decode_behind", refused)
    assert decode_columns(encode_chunk(CHUNK), "here").records.num_rows == FEW


@pytest.mark.parametrize(
    ("metadata", "second"),
    [
        ({}, {"id": f"{KEY.writer}:1"}),
        ({}, {"id": f"{KEY.writer}:0{2**40 + 1}"}),
        ({"tidemark.writer": "00000000-0000-4000-8000-000000000001"}, {}),
        ({"tidemark.first": str(2**40 + 1), "tidemark.last": str(2**40 + FEW)}, {}),
        ({"tidemark.last": str(2**40 + FEW)}, {}),
        ({"tidemark.first": str(10**19 - FEW), "tidemark.last": str(10**19 - 1)}, {}),
    ],
)
def test_records_that_are_not_those_of_the_header_are_refused_in_the_same_words(
    metadata: dict[str, str], second: dict[str, Any]
) -> None:
    data = _changed(metadata, second)
    with pytest.raises(Corrupt) as expected:
        decode_chunk(data, "here")
    with pytest.raises(Corrupt) as found:
        decode_columns(data, "here")
    assert str(found.value) == str(expected.value)


def test_no_bit_of_a_large_chunk_can_change_unnoticed() -> None:
    data = encode_chunk(CHUNK)
    for position in range(0, len(data), len(data) // 40):
        changed = bytearray(data)
        changed[position] ^= 1 << position % 8
        with pytest.raises(Corrupt):
            decode_columns(bytes(changed), "here")
