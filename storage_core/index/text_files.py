"""The files of a full-text segment, judged before tantivy sees them.

Tantivy believes what it opens: a wrong count is read as an address, and ends in a panic. So the list of segments, the
schema, the names, the sizes and tantivy's own checksum of each file are compared with what `fulltext.build` makes.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

from storage_core.errors import Corrupt
from storage_core.foreign_text import shortened
from storage_core.index.damage import damaged
from storage_core.index.text_tokenizers import tokenizer_of
from storage_core.settings.index import IndexDefinition

META = "meta.json"
ROW_FIELD = "_row"
_KINDS = ("fast", "fieldnorm", "idx", "pos", "store", "term")

_MAX_META_BYTES = 2**20
_SEGMENT_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_FOOTER_END = struct.Struct("<II")
_FOOTER_MAGIC = 1337
_FILE_FORMAT = 7


def check(
    files: Mapping[str, bytes | memoryview], definition: IndexDefinition, *, rows: int | None, where: str
) -> None:
    """Return only when these can be the files over `rows` rows; raises `Corrupt` that names `where`.

    Without `rows` any number is right.
    """
    if META not in files:
        raise corrupt(where, f"it has no {META}")
    listed = segments_of(bytes(files[META][: _MAX_META_BYTES + 1]), definition, where)
    names = {name for each in listed for name in names_of(each)}
    if names != files.keys() - {META}:
        raise corrupt(where, f"{META} does not name its files: {sorted(names ^ (files.keys() - {META}))}")
    for name in sorted(names):
        _check_file(memoryview(files[name]), name, where)
    for each, count in listed.items():
        # One byte per document and field: a count that is not true has no such file.
        if len(files[f"{each.replace('-', '')}.fieldnorm"]) < count * len(definition.columns):
            raise corrupt(where, f"segment {each} is too small for its {count} documents")
    found = sum(listed.values())
    if rows is not None and found != rows:
        raise corrupt(where, f"it has {found} documents, expected {rows}")


def names_of(segment: str) -> list[str]:
    """Return the names of the files of one tantivy segment."""
    return [f"{segment.replace('-', '')}.{kind}" for kind in _KINDS]


def read_meta(directory: Path, definition: IndexDefinition) -> dict[str, int]:
    """Return the documents of each tantivy segment, by id and in order, of unpacked files. Raises `Corrupt`."""
    with (directory / META).open("rb") as file:
        return segments_of(file.read(_MAX_META_BYTES + 1), definition, directory.name)


def segments_of(meta: bytes, definition: IndexDefinition, where: str) -> dict[str, int]:
    """Return the documents of each tantivy segment that `meta.json` lists, by id and in order. Raises `Corrupt`."""
    if len(meta) > _MAX_META_BYTES:
        raise corrupt(where, f"{META} is larger than {_MAX_META_BYTES} bytes")
    try:
        value = json.loads(meta)
    except (ValueError, RecursionError) as error:
        raise corrupt(where, f"{META} is not JSON: {error}") from error
    match value:
        case {"segments": list(entries), "schema": list(schema), "index_settings": dict()}:
            pass
        case _:
            raise corrupt(where, f"{META} has no list of segments, schema or settings")
    if schema != schema_of(definition):
        raise corrupt(where, f"{META} has another schema than the index {definition.name!r}")
    found: dict[str, int] = {}
    for entry in entries:
        segment, count = _segment(entry, where)
        if segment in found:
            raise corrupt(where, f"{META} lists segment {segment} twice")
        found[segment] = count
    return found


def meta_of(segments: Mapping[str, int], definition: IndexDefinition) -> str:
    """Return the `meta.json` of an index over these segments, in this order."""
    listed = [{"segment_id": each, "max_doc": count, "deletes": None} for each, count in segments.items()]
    settings = {"docstore_compression": "lz4", "docstore_blocksize": 16384}
    return json.dumps(
        {"index_settings": settings, "segments": listed, "schema": schema_of(definition), "opstamp": 0}, indent=1
    )


def schema_of(definition: IndexDefinition) -> list[object]:
    """Return the schema of an index as tantivy writes it."""
    number = {"indexed": False, "fieldnorms": False, "fast": True, "stored": False}
    columns: list[object] = []
    for column in definition.columns:
        indexing = {"record": "position", "fieldnorms": True, "tokenizer": tokenizer_of(definition, column)}
        text = {"indexing": indexing, "stored": False, "fast": False}
        columns.append({"name": column, "type": "text", "options": text})
    return [*columns, {"name": ROW_FIELD, "type": "u64", "options": number}]


def corrupt(where: str, what: str) -> Corrupt:
    """Return the error of a full-text segment that is not what `fulltext.build` makes."""
    return damaged(where, f"not the files of a full-text segment: {what}")


def _segment(entry: object, where: str) -> tuple[str, int]:
    match entry:
        case {"segment_id": str(segment), "max_doc": int(count), "deletes": None} if (
            _SEGMENT_ID.fullmatch(segment) and 0 <= count < 2**31 and not isinstance(count, bool)
        ):
            return segment, count
        case _:
            raise corrupt(where, f"{META} lists {shortened(repr(entry))} as a segment")


def _check_file(data: memoryview, name: str, where: str) -> None:
    """Compare the file with the footer that tantivy ends it with: JSON with a CRC-32, its length, a magic number."""
    try:
        length, magic = _FOOTER_END.unpack(data[-_FOOTER_END.size :])
        end = len(data) - _FOOTER_END.size - length
        footer = bytes(data[max(end, 0) : -_FOOTER_END.size])
        version = json.loads(footer)["version"]
        release = {part: int(version[part]) for part in ("major", "minor", "patch")}
    except (ValueError, LookupError, TypeError, struct.error, RecursionError) as error:
        raise corrupt(where, f"{name} has no footer of tantivy") from error
    written = {"version": {**release, "index_format_version": _FILE_FORMAT}, "crc": zlib.crc32(data[: max(end, 0)])}
    # The checksum does not cover the footer itself, so that is compared with what tantivy writes, byte by byte.
    if magic != _FOOTER_MAGIC or end < 0 or footer != json.dumps(written, separators=(",", ":")).encode():
        raise corrupt(where, f"the checksum of {name} does not match")
