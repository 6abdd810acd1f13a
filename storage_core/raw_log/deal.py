"""What of a raw log is to be dealt next, and one chunk of it as a Spark task reads it (design page 03, "Raw log").

A position is the number of a writer's last dealt chunk: up to it, everything was dealt or given up. Since numbers run
on over the segments of a writer, dealing again from the same positions gives the same chunks and those that came since.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import pyarrow as pa

from storage_core.errors import SEE_CORRUPT, Corrupt, Unavailable
from storage_core.formats.raw_chunk import RawChunk
from storage_core.raw_log.chunks import Damage, RawChunkRef, read_copies
from storage_core.raw_log.history import CLOSED_AFTER_MS, History, MissingChunks
from storage_core.raw_log.stores import Place, RawStore, opened

RECORD_COLUMNS = pa.schema(
    [
        pa.field("record_id", pa.string(), nullable=False),
        pa.field("timestamp_ms", pa.int64(), nullable=False),
        pa.field("table", pa.string(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("operation", pa.string(), nullable=False),
        pa.field("fields", pa.string(), nullable=False),
    ]
)
"""The columns of records as text; `raw_log.read.typed` makes rows of `fields`, which `formats.raw_fields` reads."""


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
    (writer, number): those that `read_chunk` found to be `Corrupt`. Raises `Unavailable` for giving up while a store
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


def read_chunk(stores: Sequence[Place | RawStore], ref: RawChunkRef | Mapping[str, object]) -> pa.Table:
    """Return the records of one chunk in order, with the columns `RECORD_COLUMNS`. One GET where a copy is sound.

    For tasks: `ref` may be what `RawChunkRef.to_json` gave. Raises `Corrupt` naming every copy when no store has the
    chunk whole; `Unavailable` when one that may have it does not answer; `Unsupported` for a newer release's chunk.
    """
    known = ref if isinstance(ref, RawChunkRef) else RawChunkRef.from_json(ref)
    found = read_copies([store for store, _ in opened(stores)], known)
    if isinstance(found, Damage):
        raise Corrupt(
            f"chunk {known.number} of writer {known.writer}: no store has it whole: {'; '.join(found.reasons)}; "
            f"restore a copy of it; {SEE_CORRUPT}",
            writer=known.writer,
            number=known.number,
        )
    return table_of(found)


def table_of(chunk: RawChunk) -> pa.Table:
    """Return the records of a chunk as a table with the columns `RECORD_COLUMNS`."""
    columns = [
        chunk.ids,
        [each.timestamp_ms for each in chunk.records],
        [each.table for each in chunk.records],
        [each.key for each in chunk.records],
        [each.operation for each in chunk.records],
        [each.fields for each in chunk.records],
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, RECORD_COLUMNS, strict=True)]
    return pa.Table.from_arrays(arrays, schema=RECORD_COLUMNS)
