"""Lines of landed files that are no rows, kept in the table's quarantine with file, line and reason.

One object (`storage_core.quarantine`) holds the rejections of one block of one file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

from storage_core.errors import NotFound
from storage_core.formats.keys import parse
from storage_core.formats.quarantine_entry import RejectedLines
from storage_core.ingest.rejection import RejectedLine
from storage_core.ingest.tally import tally
from storage_core.objectstore.contract import ObjectStore
from storage_core.quarantine import Kept, entry_keys, keep, read_entry

MOST_ENTRIES = 1_000
_OF_ROWS = frozenset({"append", "writer", "merge"})
"""Sources of which no entry holds lines."""


def write_quarantine(store: ObjectStore, source: str, size: int, rejected: Sequence[RejectedLine]) -> Kept:
    """Keep the rejections of one file (`source`, of `size` bytes) and return where; durable when this returns.

    Idempotent: the same rejections are the same object. One PUT. Raises what `quarantine.keep` raises.
    """
    lines = tuple({key: value for key, value in asdict(each).items() if key != "file"} for each in rejected)
    return keep(store, RejectedLines(source=source, size=size, rejected=lines))


@dataclass(frozen=True, slots=True)
class Quarantined:
    """Rejected lines that stand in a table's quarantine, by reason (`tally`), and how many entries were not read."""

    reasons: Mapping[str, int]
    unread: int

    @property
    def lines(self) -> int:
        """How many they are, of those that were read."""
        return sum(self.reasons.values())


def quarantined(store: ObjectStore, most: int = MOST_ENTRIES) -> Quarantined:
    """Return the rejected lines that nobody has removed yet, of at most so many entries.

    One LIST per 1,000 objects and one GET per entry of a landed file. An entry that is removed meanwhile is none.
    Raises `Corrupt` naming an object that is no quarantine entry.
    """
    keys, reasons = [key for key in entry_keys(store) if _may_hold_lines(key)], dict[str, int]()
    for key in keys[:most]:
        with suppress(NotFound):
            entry = read_entry(store, key)
            if isinstance(entry, RejectedLines):
                reasons = tally(reasons, entry.reasons)
    return Quarantined(reasons, len(keys[most:]))


def _may_hold_lines(key: str) -> bool:
    parsed = parse(key)
    return parsed is not None and parsed.source not in _OF_ROWS
