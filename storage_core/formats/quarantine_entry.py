"""Bytes of a quarantine entry: JSON with sorted keys, its id made from them (docs/spec.md, section 14). Pure, no I/O.

An entry holds either lines of a landed file that are no rows (format 1), or quarantined rows (format 2): these
as an Arrow IPC stream, so that every value comes back exactly as it came in.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from storage_core.errors import Corrupt, Unsupported
from storage_core.formats.arrow_stream import read_stream

LINES_FORMAT = 1
ROWS_FORMAT = 2
_NAMESPACE = uuid.UUID("6f4dd3c6-3a0a-5d0e-9a43-7a1a5f0b6a53")
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedLines:
    """Lines of the landed file `source`, of `size` bytes; each has `line`, `reason`, `text` and `encoding`."""

    source: str
    size: int
    rejected: tuple[Mapping[str, Any], ...]

    @property
    def reasons(self) -> Mapping[str, int]:
        """How many lines each reason rejected."""
        return Counter(str(each["reason"]) for each in self.rejected)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedRows:
    """Rows that came in whole and are not in the table, for one `reason`.

    `source` is the way in, or the landed file and then of `size` bytes; `by` who brought them, `arrived_ms` when (the
    newest, in milliseconds since the epoch). Rows of a region writer are records: `_op` and `_fields` come first.
    """

    source: str
    size: int | None = None
    reason: str
    by: str
    arrived_ms: int
    rows: pa.Table

    @property
    def reasons(self) -> Mapping[str, int]:
        """How many rows there are, under their one reason."""
        return {self.reason: self.rows.num_rows}


Entry = RejectedLines | QuarantinedRows


def encode(entry: Entry) -> bytes:
    """Return the bytes of the entry."""
    if isinstance(entry, RejectedLines):
        body: dict[str, Any] = {
            "formatVersion": LINES_FORMAT,
            "source": entry.source,
            "size": entry.size,
            "rejected": [dict(each) for each in entry.rejected],
        }
    else:
        body = {
            "formatVersion": ROWS_FORMAT,
            "source": entry.source,
            "size": entry.size,
            "reason": entry.reason,
            "by": entry.by,
            "arrivedAt": entry.arrived_ms,
            "count": entry.rows.num_rows,
            "rows": base64.b64encode(_stream_of(entry.rows)).decode("ascii"),
        }
    return json.dumps(body, ensure_ascii=False, sort_keys=True).encode()


def decode(data: bytes, key: str, entry_id: str | None) -> Entry:
    """Return the entry in `data`; `key` is for the error, `entry_id` what its key says that it is.

    Raises `Corrupt` when it is not what was written, `Unsupported` for the format of a newer release.
    """
    try:
        body = json.loads(data)
        version = body["formatVersion"]
        if version > ROWS_FORMAT:
            raise Unsupported(f"{key}: a quarantine entry of format {version}; upgrade", key=key)
        if version not in (LINES_FORMAT, ROWS_FORMAT):
            raise Corrupt(f"{key}: a quarantine entry of format {version!r}, which never was", key=key)
        if entry_id != id_of(data):
            raise Corrupt(f"{key}: the content of the quarantine entry is not what was written", key=key)
        return _rows_entry(body, key) if version == ROWS_FORMAT else _lines_entry(body)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Corrupt(f"{key}: not a quarantine entry: {error!r}", key=key) from error


def id_of(data: bytes) -> str:
    """Return the id of the entry with these bytes: equal entries are one object."""
    return str(uuid.uuid5(_NAMESPACE, hashlib.sha256(data).hexdigest()))


def _lines_entry(body: Mapping[str, Any]) -> RejectedLines:
    rejected: Sequence[Mapping[str, Any]] = body["rejected"]
    if not isinstance(rejected, list) or not all({"line", "reason"} <= each.keys() for each in rejected):
        raise ValueError("`rejected` is not a list of lines")
    return RejectedLines(source=str(body["source"]), size=int(body["size"]), rejected=tuple(rejected))


def _rows_entry(body: Mapping[str, Any], key: str) -> QuarantinedRows:
    rows, _ = read_stream(base64.b64decode(body["rows"], validate=True), "the quarantine entry", key)
    if rows.num_rows != body["count"]:
        raise ValueError(f"expected {body['count']} rows, found {rows.num_rows}")
    return QuarantinedRows(
        source=str(body["source"]),
        size=None if body["size"] is None else int(body["size"]),
        reason=str(body["reason"]),
        by=str(body["by"]),
        arrived_ms=int(body["arrivedAt"]),
        rows=rows,
    )


def _stream_of(rows: pa.Table) -> bytes:
    # One batch whatever the chunks were: the same rows are the same bytes.
    whole = rows.replace_schema_metadata(None).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, whole.schema, options=_OPTIONS) as writer:
        writer.write_table(whole)
    data: bytes = sink.getvalue().to_pybytes()
    return data
