"""Quarantine entries without rows that are to be forgotten; the others in them stay in quarantine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from storage_core.errors import NotFound
from storage_core.forget.judge import Judge
from storage_core.formats.quarantine_entry import Entry, RejectedLines
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.prefetch import prefetch
from storage_core.quarantine import keep, read_entry

ENTRIES_AT_ONCE: Final = 4


def without_rows(store: ObjectStore, keys: Sequence[str], judge: Judge) -> None:
    """Keep what is left of each entry as an entry of its own; durable when this returns. One GET, at most one PUT each.

    An entry that is left is as of the collector's next run. Doing it again keeps nothing more.
    """

    def read(key: str) -> Entry | None:
        try:
            return read_entry(store, key)
        except NotFound:  # collected since
            return None

    for entry in prefetch(read, keys, ENTRIES_AT_ONCE):
        rest = None if entry is None else _rest(entry, judge)
        if rest is not None:
            keep(store, rest)


def _rest(entry: Entry, judge: Judge) -> Entry | None:
    if isinstance(entry, RejectedLines):
        left = tuple(each for each in entry.rejected if judge.text(str(each.get("text"))) is not True)
        return replace(entry, rejected=left) if left else None
    rows = entry.rows.filter(pa.array(~judge.arrived(entry.rows)))
    return replace(entry, rows=rows) if rows.num_rows else None
