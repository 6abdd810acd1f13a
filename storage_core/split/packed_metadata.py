"""The key-value metadata of a split in one compressed entry, so that a split of few rows costs little (decision 0137).

What a file says of itself is mostly the same words in every file. They are in a dictionary that is a part of the
format: it never changes, another one would be another name of the entry.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Final

import pyarrow.parquet as pq

from storage_core.errors import Corrupt
from storage_core.split.metadata import CHECKSUM, FORMAT_KEY, PREFIX

PACKED: Final = PREFIX + "packed"
PACKED_FORMAT: Final = "2"
"""What the entry `format` beside it says, so that a release that cannot unpack it refuses the file."""

_MOST_BYTES: Final = 64 * 2**20
_WORDS: Final = (
    b'tidemark.index.{"columns":["kind":"fulltext","options":{}tidemark.lateDatatidemark.primaryKey'
    b'{"format":"ndjson","null_values":[],"pattern":null,"suffix":null,"time_format":null,"uri":"'
    b'"tidemark.encodings":"{\\"DICTIONARY\\",\\"DELTA_BINARY_PACKED\\",'
    b'\\"PLAIN\\""tidemark.replaces":"{\\"splits/null/'
    b'"tidemark.chunk_checksums":"","tidemark.column_regexes":"{\\"^$\\"}","tidemark.configuration":"{\\"tidemark.'
    b'checkpointInterval\\":\\"tidemark.landing\\":\\"tidemark.sortSchema\\":\\"timestamp/V2\\",'
    b'\\"tidemark.splitMetadata'
    b'\\":\\"packed\\",\\"tidemark.timeColumn\\":\\"timestamp\\",\\"tidemark.windowSeconds\\":\\"900\\"}",'
    b'"tidemark.format":"1",'
    b'"tidemark.max_row_key":"[\\"","tidemark.max_values":"{\\"","tidemark.min_row_key":"[\\"",'
    b'"tidemark.min_values":"{\\""'
    b'T00:00:00.000000Z\\"}","tidemark.null_counts":"{\\"\\":0,\\"\\":1,\\"}","tidemark.nulls":"last",'
    b'"tidemark.num_merge_ops":'
    b'"0","tidemark.num_records":"1","tidemark.operation":"compact","tidemark.operation":"append",'
    b'"tidemark.operation_id":'
    b'"tidemark.path":"splits/all/.parquet","tidemark.planned_version":"1","tidemark.schema_hash":"","'
    + CHECKSUM.encode()
    + b'":"",'
    b'"tidemark.sort_schema":"timestamp/V2","tidemark.table_id":"",'
    b'"tidemark.table_schema":"{\\"fields\\":[{\\"metadata\\":{},'
    b'\\"name\\":\\"\\",\\"nullable\\":true,\\"type\\":\\"double\\"},{\\"metadata\\":{},\\"name\\":\\"\\",'
    b'\\"nullable\\":true,\\"type\\":'
    b'\\"long\\"},{\\"metadata\\":{},\\"name\\":\\"\\",\\"nullable\\":false,\\"type\\":\\"timestamp\\"},'
    b'{\\"metadata\\":{},\\"name\\":'
    b'\\"\\",\\"nullable\\":true,\\"type\\":\\"string\\"}],\\"type\\":\\"struct\\"}","tidemark.window_seconds":"3600",'
    b'"tidemark.window_start":"'
)


def packed(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the two entries that `entries_of` makes the metadata of again."""
    body = json.dumps(dict(metadata), sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()
    compressor = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS, 9, zlib.Z_DEFAULT_STRATEGY, _WORDS)
    data = compressor.compress(body) + compressor.flush()
    return {FORMAT_KEY: PACKED_FORMAT, PACKED: base64.b85encode(data).decode()}


def entries_of(footer: pq.FileMetaData, where: str) -> dict[str, str]:
    """Return the key-value metadata of a file, unpacked where it is packed. Raises `Corrupt` naming `where`.

    Raises `UnicodeDecodeError` for what is no text.
    """
    found = {key.decode(): value.decode() for key, value in (footer.metadata or {}).items()}
    if PACKED not in found or found.get(FORMAT_KEY) != PACKED_FORMAT:
        return found
    others = {key: value for key, value in found.items() if key not in (PACKED, FORMAT_KEY)}
    try:
        reader = zlib.decompressobj(-zlib.MAX_WBITS, _WORDS)
        body = reader.decompress(base64.b85decode(found[PACKED]), _MOST_BYTES)
        entries = json.loads(body) if reader.eof else None
    except (ValueError, zlib.error, RecursionError) as error:
        raise Corrupt(f"{where}: what the file says about itself cannot be unpacked: {error}", key=where) from error
    if not isinstance(entries, dict) or not all(isinstance(each, str) for each in entries.values()):
        raise Corrupt(f"{where}: what the file says about itself is not what was packed", key=where)
    return others | entries
