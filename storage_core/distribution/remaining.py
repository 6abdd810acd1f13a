"""What of a raw log a table still lacks, and the terms of distribution (docs/architecture/ingestion.md, "Raw log").

An offset is the number of a writer's last distributed chunk: up to it, everything was distributed or given up. Since
numbers run on over the segments of a writer, distributing again from the same offsets gives the same chunks and those
that came since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from storage_core.errors import Unavailable
from storage_core.raw_log.chunks import RawChunkRef
from storage_core.raw_log.history import CLOSED_AFTER_MS, History, MissingChunks

ROUND_BYTES = 256 * 2**20
WORK_BYTES = 32 * 2**20
LEAST_WORK_BYTES = 4 * 2**20
"""Of less, another task costs more than it saves, and the tables get more and smaller splits and parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributionPlan:
    """Chunks to distribute, in the order of the history, and the offsets to commit with what was distributed.

    `held` are the missing chunks that stopped a writer: what lies behind each waits. `given_up` are those that the plan
    gives up: their records are never distributed, even when a copy turns up later.
    """

    chunks: tuple[RawChunkRef, ...]
    offsets: Mapping[str, int]
    held: tuple[MissingChunks, ...]
    given_up: tuple[MissingChunks, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How to distribute. Sizes are bytes of chunks as they are stored.

    `slots` is how many works run at a time: a round is cut into as many of equal size, or a multiple of that, so that
    none has to wait for the last one; but into works of at most `work_bytes`, and not below `LEAST_WORK_BYTES`.
    `give_up_to` gives up what is missing of a writer up to a chunk number. `damaged` are chunks, by writer and number,
    that were found to have no sound copy: they count as missing.
    """

    closed_after_ms: int = CLOSED_AFTER_MS
    round_bytes: int = ROUND_BYTES
    work_bytes: int = WORK_BYTES
    slots: int = 1
    give_up_to: Mapping[str, int] = field(default_factory=dict)
    damaged: frozenset[tuple[str, int]] = frozenset()


def left(history: History, after: Mapping[str, int], terms: Terms, *, now_ms: int) -> DistributionPlan:
    """Return the chunks behind the offsets `after` (0 for unknown writers) that lie in closed segments. No request.

    A writer's chunks are never planned across a missing one, for an older record must not come after a newer one; what
    is missing of a writer up to `give_up_to` is given up. What was collected had been distributed to every table that
    there was: a newer one begins behind it. Raises `Unavailable` for giving up while a store does not
    answer: it may have what is missing. A store that is lost for good is taken off the list.
    """
    if terms.give_up_to and history.unreachable:
        raise Unavailable(f"{', '.join(history.unreachable)} may have what is missing, and does not answer; try later")
    closed = {(each.writer, each.segment_ms) for each in history.closed_segments(now_ms, terms.closed_after_ms)}
    offsets = dict(after)
    planned: list[RawChunkRef] = []
    held: list[MissingChunks] = []
    given_up: list[MissingChunks] = []
    for writer in history.writers:
        for ref in history.chunks_of(writer):
            offset = max(offsets.get(writer, 0), history.collected_up_to(writer))
            if ref.number <= offset:
                continue
            if (writer, ref.segment_ms) not in closed:
                break
            is_sound = (writer, ref.number) not in terms.damaged
            if ref.number > offset + 1 or not is_sound:
                last = ref.number - is_sound
                missing = MissingChunks(writer=writer, first=offset + 1, last=last)
                is_given_up = last <= terms.give_up_to.get(writer, 0)
                (given_up if is_given_up else held).append(missing)
                if not is_given_up:
                    break
            if is_sound:
                planned.append(ref)
            offsets[writer] = ref.number
    planned.sort(key=lambda each: (each.segment_ms, each.writer, each.number))
    return DistributionPlan(chunks=tuple(planned), offsets=offsets, held=tuple(held), given_up=tuple(given_up))
