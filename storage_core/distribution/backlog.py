"""How much a raw log holds, and how much of it its tables still lack. No request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from storage_core.raw_log.history import History

ByTable = Mapping[str, Mapping[str, int]]
"""Of each table its offsets by writer (`distribution.offsets`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Chunks and bytes that the stores hold, each chunk once; by table the chunks that it lacks, where it lacks any.

    `waiting_chunks` are those that some table lacks, `oldest_waiting_ms` when the segment of the oldest began.
    `collected` are by table the chunks that may have been collected before it was a table of this raw log.
    """

    chunks: int
    bytes: int
    tables: Mapping[str, int]
    waiting_chunks: int
    oldest_waiting_ms: int | None
    collected: Mapping[str, int]


def backlog(history: History, offsets: ByTable) -> Backlog:
    """Return what the history holds beyond the offsets. A chunk in a segment that is open waits as well."""
    reached = everywhere(history, offsets)
    chunks = history.chunks
    waiting = [each for each in chunks if each.number > reached[each.writer]]
    behind = {
        name: sum(each.number > max(own.get(each.writer, 0), history.collected_up_to(each.writer)) for each in chunks)
        for name, own in offsets.items()
    }
    return Backlog(
        chunks=len(chunks),
        bytes=sum(each.bytes for each in history.segments()),
        tables={name: count for name, count in behind.items() if count},
        waiting_chunks=len(waiting),
        oldest_waiting_ms=min((each.segment_ms for each in waiting), default=None),
        collected=collected_before(history, offsets),
    )


def collected_before(history: History, offsets: ByTable) -> dict[str, int]:
    """Return by table how many chunks that it lacks may have been collected, where there are any: it came later."""
    before = {
        name: sum(max(0, each.number - own.get(writer, 0)) for writer, each in history.collected.items())
        for name, own in offsets.items()
    }
    return {name: count for name, count in before.items() if count}


def everywhere(history: History, offsets: ByTable) -> dict[str, int]:
    """Return by writer the number up to which every table has its chunks; without a table that is none.

    A table that came later begins behind what was collected.
    """
    return {
        writer: min((max(own.get(writer, 0), history.collected_up_to(writer)) for own in offsets.values()), default=0)
        for writer in history.writers
    }
