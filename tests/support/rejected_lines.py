"""The rejected lines in a table's quarantine, one by one, as tests look at them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from storage_core.formats.quarantine_entry import RejectedLines
from storage_core.objectstore.contract import ObjectStore
from storage_core.quarantine import read_entries


def rejected_lines(store: ObjectStore) -> Iterator[dict[str, Any]]:
    """Yield every rejection: `source`, `size` of the file, `line`, `reason`, `text`, `encoding`, the object's `key`.

    In order of key, then line; quarantined rows are no rejections. One LIST per 1,000 objects and one GET per
    object. Raises `Corrupt` naming an object that is no quarantine entry.
    """
    for key, entry in read_entries(store):
        if isinstance(entry, RejectedLines):
            yield from ({"key": key, "source": entry.source, "size": entry.size, **each} for each in entry.rejected)
