"""What of a raw log is left to deal into a table (design page 03, "Raw log").

A position is the number of a writer's last dealt chunk: up to it, everything was dealt or given up. Since numbers run
on over the segments of a writer, dealing again from the same positions gives the same chunks and those that came since.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from storage_core.errors import Unavailable
from storage_core.raw_log.chunks import RawChunkRef
from storage_core.raw_log.history import CLOSED_AFTER_MS, History, MissingChunks


@dataclass(frozen=True, slots=True, kw_only=True)
class DealPlan:
    """Chunks to deal, in the order of the history, and the positions to commit together with what was dealt.

    `held` are the missing chunks that stopped a writer: what lies behind each waits. `given_up` are those that the plan
    passes: their records are never dealt, even when a copy turns up later.
    """

    chunks: tuple[RawChunkRef, ...]
    positions: Mapping[str, int]
    held: tuple[MissingChunks, ...]
    given_up: tuple[MissingChunks, ...]


def deal_plan(
    history: History,
    after: Mapping[str, int],
    *,
    now_ms: int,
    closed_after_ms: int = CLOSED_AFTER_MS,
    pass_up_to: Mapping[str, int] = MappingProxyType({}),
    damaged: Collection[tuple[str, int]] = (),
) -> DealPlan:
    """Return the chunks behind the positions `after` (0 for unknown writers) that lie in closed segments. No request.

    A writer's chunks are never planned across a missing one, for an older record must not come after a newer one; with
    `pass_up_to` what is missing of a writer up to that number is given up. Missing are, too, the `damaged` chunks
    (writer, number): those that were found to have no sound copy. Raises `Unavailable` for giving up while a store
    does not answer: it may have what is missing. A store that is lost for good is taken off the list.
    """
    if pass_up_to and history.unreachable:
        raise Unavailable(f"{', '.join(history.unreachable)} may have what is missing, and does not answer; try later")
    closed = {(each.writer, each.segment_ms) for each in history.closed_segments(now_ms, closed_after_ms)}
    positions = dict(after)
    planned: list[RawChunkRef] = []
    held: list[MissingChunks] = []
    given_up: list[MissingChunks] = []
    for writer in history.writers:
        for ref in history.chunks_of(writer):
            position = positions.get(writer, 0)
            if ref.number <= position:
                continue
            if (writer, ref.segment_ms) not in closed:
                break
            is_sound = (writer, ref.number) not in damaged
            if ref.number > position + 1 or not is_sound:
                last = ref.number - is_sound
                missing = MissingChunks(writer=writer, first=position + 1, last=last)
                passes = last <= pass_up_to.get(writer, 0)
                (given_up if passes else held).append(missing)
                if not passes:
                    break
            if is_sound:
                planned.append(ref)
            positions[writer] = ref.number
    planned.sort(key=lambda each: (each.segment_ms, each.writer, each.number))
    return DealPlan(chunks=tuple(planned), positions=positions, held=tuple(held), given_up=tuple(given_up))
