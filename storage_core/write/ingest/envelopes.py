"""Records of Debezium: JSON objects that contain a change of a row, with or without the wrapper `schema`/`payload`.

Each envelope becomes a line with the fields of the row, the operation and the order. So these lines are processed like
other lines of JSON. A rejected record keeps the text of its envelope.

| `op` | Operation | Row |
|---|---|---|
| `c`, `r`, `u` | put | `after` |
| `d` | delete | `before` |

PostgreSQL does not send a large value that did not change, and Debezium writes a placeholder in its place. For a list
or a map, Debezium writes a list or a map whose only value is the placeholder. An envelope with placeholders becomes a
patch without the fields that have a placeholder. An envelope is rejected if a list or map in a field contains the
placeholder together with other values. A longer text that contains the placeholder is an ordinary value. A record that
is null is a tombstone, and has no effect.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import BinaryIO, Final

import numpy as np
import pyarrow as pa

from storage_core.base.text import fitted
from storage_core.write.ingest.changes import ENVELOPE_OP
from storage_core.write.ingest.convert import (
    CONVERSION,
    LineBlock,
    Parsed,
    RejectedLine,
    RowFormat,
    conversion_session,
)
from storage_core.write.ingest.text_files import (
    MARK_BYTES,
    MOST_PARTS,
    TOO_MANY,
    Reader,
    has_too_many,
    json_pieces,
    marked,
    ndjson_blocks,
    parts_of,
    unmarked,
)

UNAVAILABLE: Final = "__debezium_unavailable_value"
"""The placeholder for a value that the database did not send."""

_KIND: Final = (
    "SELECT CASE WHEN json_valid(line) THEN json_type(line) END, "
    "CASE WHEN json_valid(line) THEN json_type(line, '/payload') END, "
    "CASE WHEN json_valid(line) THEN json_type(line, '/op') END FROM lines"
)
_PARTS: Final = (
    "SELECT json_extract_string(found, '/op'), json_type(found, '/after'), json_extract(found, '/after')::VARCHAR, "
    "json_type(found, '/before'), json_extract(found, '/before')::VARCHAR, "
    "nullif(json_extract(found, $order)::VARCHAR, 'null') FROM (SELECT CASE WHEN json_type(line, '/op') IS NULL "
    "AND json_type(line, '/payload') = 'OBJECT' THEN json_extract(line, '/payload') ELSE line::JSON END AS found "
    "FROM lines)"
)
_LONGEST_WORD: Final = 50


def debezium_blocks(
    file: str, stream: BinaryIO, target: RowFormat, *, block_bytes: int, read: Reader, order: Sequence[str] | None
) -> Iterator[Parsed]:
    """Yield the changes in the envelopes of a file, in the same form as `ndjson_blocks`. `target` has a field `_op`.

    Args:
        read: divides the stream into records.
        order: the path of the order in the envelope. None: the order is in the row.
    """
    for block in read(stream, block_bytes):
        for piece in json_pieces(block, target):
            opened = _open(file, piece, order)
            texts = dict(zip(piece.numbers.tolist(), range(len(piece.numbers)), strict=True))

            def original(line: RejectedLine, piece: LineBlock = piece, texts: dict[int, int] = texts) -> RejectedLine:
                place = texts.get(line.line or 0)
                return line if place is None else replace(line, text=piece.text[place].as_py())

            yield Parsed(target.schema.empty_table(), opened.rejected, skipped=opened.tombstones)
            for rows in ndjson_blocks(file, stream, target, block_bytes=block_bytes, read=opened.read):
                yield replace(rows, rejected=tuple(map(original, rows.rejected)))


@dataclass(frozen=True, slots=True)
class _Opened:
    """The rows of some envelopes as lines, the rejected envelopes, and the number of tombstones."""

    lines: LineBlock
    rejected: tuple[RejectedLine, ...]
    tombstones: int

    def read(self, _stream: BinaryIO, _block_bytes: int) -> Iterator[LineBlock]:
        """Yield the lines. This method has the signature of a file reader."""
        yield self.lines


def _open(file: str, block: LineBlock, order: Sequence[str] | None) -> _Opened:
    reasons: dict[int, str] = {}
    for index in np.flatnonzero(parts_of(block.text) >= MOST_PARTS).tolist():
        if has_too_many(block.text[index].as_py()):
            reasons[index] = TOO_MANY
    small = [index for index in range(len(block.numbers)) if index not in reasons]
    lines = pa.table({"line": block.text.take(pa.array(small, pa.int64()))})
    with conversion_session(CONVERSION, lines=lines) as connection:
        kinds, payloads, ops = (each.to_pylist() for each in connection.sql(_KIND).to_arrow_table().columns)
    tombstones = 0
    objects: list[int] = []
    for index, own, inner, has_op in zip(small, kinds, payloads, ops, strict=True):
        if own == "NULL" or (own == "OBJECT" and inner == "NULL" and has_op is None):
            tombstones += 1
        elif own == "OBJECT":
            objects.append(index)
        else:
            reasons[index] = "the line is not valid JSON" if own is None else "the line is not a JSON object"
    places, texts = _flat_lines(block.text.take(pa.array(objects, pa.int64())), order)
    kept, flat = [], []
    for index, is_row, text in zip(objects, places, texts, strict=True):
        if is_row:
            kept.append(index)
            flat.append(text)
        else:
            reasons[index] = text
    rejected = tuple(
        RejectedLine(file, int(block.numbers[index]), reasons[index], block.text[index].as_py())
        for index in sorted(reasons)
    )
    return _Opened(LineBlock(block.numbers[kept], pa.array(flat, pa.string()), block.not_text), rejected, tombstones)


def _flat_lines(objects: pa.StringArray, order: Sequence[str] | None) -> tuple[list[bool], list[str]]:
    """Return for each envelope whether it contains a change.

    Also return the line of the row, or the rejection reason.
    """
    mark = token_hex(MARK_BYTES)
    pointer = "".join("/" + each.replace("~", "~0").replace("/", "~1") for each in order or ("op",))
    with conversion_session(CONVERSION, lines=pa.table({"line": marked(objects, mark)})) as connection:
        found = connection.sql(_PARTS, params={"order": pointer}).to_arrow_table()
    ops, after_kinds, after, before_kinds, before, orders = (each.to_pylist() for each in found.columns)
    name_of_order = json.dumps(order[-1], ensure_ascii=False) if order else ""
    fits, texts = [], []
    for op, after_kind, new, before_kind, old, at in zip(
        ops, after_kinds, after, before_kinds, before, orders, strict=True
    ):
        word = None if op is None else op.lower()
        if word not in ("c", "r", "u", "d"):
            fits.append(False)
            texts.append(
                "the record is not an envelope of Debezium: it has no op"
                if op is None
                else f"the operation {fitted(op, _LONGEST_WORD)!r} of the envelope is not supported. Use c, r, u or d"
            )
            continue
        name, row_kind, row = ("before", before_kind, old) if word == "d" else ("after", after_kind, new)
        if row_kind != "OBJECT":
            fits.append(False)
            texts.append(f"the envelope with the operation {word!r} has no object in {name}")
            continue
        if word != "d" and UNAVAILABLE in row:
            given = json.loads(row)
            sent = {field: value for field, value in given.items() if not _is_unsent(value)}
            partial = next((field for field, value in sent.items() if _has_placeholder(value)), None)
            if partial is not None:
                fits.append(False)
                texts.append(
                    f"the field {fitted(partial, _LONGEST_WORD)!r} contains {UNAVAILABLE} in place of a value, so "
                    "the value is unknown. Send the whole row again"
                )
                continue
            if len(sent) < len(given):
                word, row = "patch", json.dumps(sent, ensure_ascii=False)
        added = f'"{ENVELOPE_OP}":"{word}"' + (f",{name_of_order}:{at}" if order and at is not None else "")
        fits.append(True)
        texts.append(f"{{{added}}}" if row == "{}" else f"{row[:-1]},{added}}}")
    return fits, unmarked(pa.chunked_array([pa.array(texts, pa.string())]), mark).to_pylist()


def _is_unsent(value: object) -> bool:
    """Return whether the value is the placeholder, or a list or object that contains only the placeholder."""
    while isinstance(value, (list, dict)) and len(value) == 1:
        (value,) = value.values() if isinstance(value, dict) else value
    return value == UNAVAILABLE


def _has_placeholder(value: object) -> bool:
    """Return whether a value or a key in the list or object is the placeholder."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if each == UNAVAILABLE:
            return True
        if isinstance(each, (list, dict)):
            waiting += each
        if isinstance(each, dict):
            waiting += each.values()
    return False
