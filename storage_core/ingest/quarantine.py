"""Lines of landed files that are no rows, kept in the table's quarantine with file, line and reason.

One object (`storage_core.quarantine`) holds the rejections of one block of one file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from storage_core.formats.quarantine_entry import RejectedLines
from storage_core.ingest.rejection import RejectedLine
from storage_core.objectstore.contract import ObjectStore
from storage_core.quarantine import keep, read_entries


def write_quarantine(store: ObjectStore, source: str, size: int, rejected: Sequence[RejectedLine]) -> str:
    """Keep the rejections of one file (`source`, of `size` bytes) and return the key; durable when this returns.

    Idempotent: the same rejections are the same object. One PUT. Raises what `quarantine.keep` raises.
    """
    lines = tuple({key: value for key, value in asdict(each).items() if key != "file"} for each in rejected)
    return keep(store, RejectedLines(source=source, size=size, rejected=lines))


def read_quarantine(store: ObjectStore) -> Iterator[dict[str, Any]]:
    """Yield every rejection: `source`, `size` of the file, `line`, `reason`, `text`, `encoding`, the object's `key`.

    In order of key, then line; rows that were set aside are no rejections. One LIST per 1,000 objects and one GET per
    object. Raises `Corrupt` naming an object that is no quarantine entry.
    """
    for key, entry in read_entries(store):
        if isinstance(entry, RejectedLines):
            yield from ({"key": key, "source": entry.source, "size": entry.size, **each} for each in entry.rejected)
