"""The rejected lines in the quarantine of a table, one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from storage_core.data.formats.arrow_files import RejectedLines
from storage_core.store.contract import ObjectStore
from storage_core.write.late_rows import read_entries


def rejected_lines(store: ObjectStore) -> Iterator[dict[str, Any]]:
    """Yield every rejection: `source`, `size` of the file, `line`, `reason`, `text`, `encoding`, `key` of the object.

    The order is by key, then line. Quarantined rows are not rejections. Raise `Corrupt` with the key of an object that
    is not a valid quarantine entry.

    Cost: one LIST per 1,000 objects and one GET per object.
    """
    for key, entry in read_entries(store):
        if isinstance(entry, RejectedLines):
            yield from ({"key": key, "source": entry.source, "size": entry.size, **each} for each in entry.rejected)
