"""The union of the histories that the stores of a raw log hold (docs/architecture/ingestion.md, "Raw log").

A chunk is the same bytes wherever it lies, named by its writer and number. So stores, restored backups and folders that
were copied together add up: a chunk counts once, and one sound copy heals all torn, damaged or missing ones. What has
no sound copy shows as a gap in the sequence numbers of its writer, and is reported, never skipped over. Only the end
cannot show: when every copy of a writer's last chunks is gone, nothing tells that they were there. What was collected
is no gap (`raw_log.collected`).

Order: by the start of the segment in ms, then writer, number, and place in the chunk. Within one writer that is exactly
the order in which it acknowledged. Across writers it is by their clocks, as far as these agree.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import assert_never

from storage_core.errors import Unavailable
from storage_core.formats.raw_collected import Collected
from storage_core.formats.raw_columns import RawColumns
from storage_core.formats.raw_keys import COLLECTED_KEY, LIVE_PREFIX, ChunkKey, chunk_key, parse
from storage_core.objectstore.contract import ObjectInfo, ObjectStore
from storage_core.objectstore.reading import LIST_FROM, exists
from storage_core.raw_log.chunks import Damage, RawChunkRef, read_columns
from storage_core.raw_log.collected import furthest, read_collected
from storage_core.raw_log.stores import Place, RawStore, opened

CLOSED_AFTER_MS = 10 * 60_000
"""A segment that nobody followed up counts as closed at this age: twice the age at which writers begin another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawSegment:
    """One segment of the union: its chunks by number, their bytes once, and how many of them each store lists."""

    writer: str
    segment_ms: int
    first_number: int
    last_number: int
    chunks: int
    bytes: int
    copies: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingChunks:
    """Chunks `first` to `last` of a writer that no store has, though a later one is there."""

    writer: str
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Records `first` to `last` of a writer that no store has; None: from `first` on, nobody knows how many."""

    writer: str
    first: int
    last: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What reading everything found."""

    chunks: int
    records: int
    gaps: tuple[Gap, ...]
    damaged: tuple[Damage, ...]


class History:
    """What the stores listed when this was made, as one history. Holds names; contents are read one chunk at a time.

    `unreachable` are stores that did not answer: what only they have is missing here for now. `collected` says by
    writer up to which chunk it may have been collected: what is not listed up to there is not missing.
    """

    def __init__(
        self,
        stores: Sequence[ObjectStore],
        listed: Mapping[str, Mapping[int, _Found]],
        unreachable: Sequence[str],
        collected: Mapping[str, Collected],
    ) -> None:
        self.stores = tuple(stores)
        self.unreachable = tuple(unreachable)
        self.collected = collected
        self._listed = listed

    def collected_up_to(self, writer: str) -> int:
        """Return the number of the last chunk of a writer that may have been collected, 0 for none."""
        return self.collected[writer].number if writer in self.collected else 0

    @property
    def writers(self) -> list[str]:
        """The ids of all writers, sorted."""
        return sorted(self._listed)

    @property
    def chunks(self) -> list[RawChunkRef]:
        """All chunks in the order of the history."""
        refs = [ref for writer in self._listed for ref in self.chunks_of(writer)]
        return sorted(refs, key=lambda each: (each.segment_ms, each.writer, each.number))

    def chunks_of(self, writer: str) -> list[RawChunkRef]:
        """The chunks of one writer by number; a chunk never lies before the segment of an earlier one."""
        found = sorted(self._listed.get(writer, {}).items())
        starts = accumulate((min(each.keys) for _, each in found), max)
        return [
            RawChunkRef(
                writer=writer, number=number, segment_ms=start, keys=tuple(each.keys[ms] for ms in sorted(each.keys))
            )
            for (number, each), start in zip(found, starts, strict=True)
        ]

    @property
    def missing(self) -> list[MissingChunks]:
        """The chunks that no store has, though a later one of their writer is there. No request."""
        return [
            MissingChunks(writer=writer, first=first, last=last)
            for writer in self.writers
            for first, last in _holes(self._listed[writer], self.collected_up_to(writer))
        ]

    def segments(self) -> list[RawSegment]:
        """All segments in the order of the history. No request."""
        grouped: dict[tuple[int, str], list[RawChunkRef]] = defaultdict(list)
        for ref in self.chunks:
            grouped[ref.segment_ms, ref.writer].append(ref)
        return [self._segment(refs) for refs in grouped.values()]

    def closed_segments(self, now_ms: int, closed_after_ms: int = CLOSED_AFTER_MS) -> list[RawSegment]:
        """The segments that nobody writes to any more: a newer one of the writer is there, or the age has passed.

        A clock may be wrong about the age; then a chunk comes later, under a number that no plan has passed.
        """
        found = self.segments()
        newest = {each.writer: each.segment_ms for each in found}
        return [
            each
            for each in found
            if each.segment_ms < newest[each.writer] or now_ms - each.segment_ms >= closed_after_ms
        ]

    def read(self) -> Iterator[RawColumns | Gap | Damage]:
        """Yield every record once, chunk by chunk in the order of the history, and what is missing where it is missed.

        One GET per chunk; one more per copy that is not sound. Memory: one chunk. Raises `Unavailable` when a store
        does not answer and no other has the chunk whole; `Unsupported` for chunks of a newer release.
        """
        last: Counter[str] = Counter()
        torn: set[str] = set()
        for ref in self.chunks:
            chunk = read_columns(self.stores, ref)
            if isinstance(chunk, Damage):
                torn.add(ref.writer)
                yield chunk
                continue
            torn.discard(ref.writer)
            known = max(last[ref.writer], self._collected_records(ref.writer))
            if chunk.first > known + 1:
                yield Gap(writer=ref.writer, first=known + 1, last=chunk.first - 1)
            if fresh := _after(chunk, last[ref.writer]):
                yield fresh
            last[ref.writer] = max(last[ref.writer], chunk.last)
        yield from (Gap(writer=writer, first=last[writer] + 1, last=None) for writer in sorted(torn))

    def verify(self) -> Verified:
        """Read everything and return what is there and what is missing. Costs and raises what `read` does."""
        chunks = records = 0
        gaps: list[Gap] = []
        damaged: list[Damage] = []
        for each in self.read():
            match each:
                case RawColumns():
                    chunks += 1
                    records += each.records.num_rows
                case Gap():
                    gaps.append(each)
                case Damage():
                    damaged.append(each)
                case _:
                    assert_never(each)
        return Verified(chunks=chunks, records=records, gaps=tuple(gaps), damaged=tuple(damaged))

    def _collected_records(self, writer: str) -> int:
        return self.collected[writer].sequence if writer in self.collected else 0

    def _segment(self, refs: Sequence[RawChunkRef]) -> RawSegment:
        found = [self._listed[ref.writer][ref.number] for ref in refs]
        copies = Counter(uri for each in found for uri in each.uris)
        return RawSegment(
            writer=refs[0].writer,
            segment_ms=refs[0].segment_ms,
            first_number=refs[0].number,
            last_number=refs[-1].number,
            chunks=len(refs),
            bytes=sum(each.size for each in found),
            copies={store.uri: copies[store.uri] for store in self.stores},
        )


@dataclass(slots=True)
class _Found:
    """Where the listings show a chunk: its keys by the start of the segment, the stores, the largest copy."""

    keys: dict[int, str]
    uris: set[str]
    size: int


def union(stores: Sequence[Place | RawStore]) -> History:
    """Return the history that the stores hold together, mandatory or not.

    One LIST per 1,000 chunks and store, and a GET of each that was collected; where numbers are missing, a second look
    (a LIST per neighbouring segment, or a HEAD per number) tells a hole from a listing that was overtaken. What is not
    a chunk by its name is left alone. Raises `Unavailable` when no store answers.
    """
    places = [store for store, _ in opened(stores)]
    found: dict[str, dict[int, _Found]] = defaultdict(dict)
    reached: list[ObjectStore] = []
    reasons: dict[str, str] = {}
    collected: dict[str, Collected] = {}
    for store in places:
        try:
            listed = [*store.list(LIVE_PREFIX)]
            if any(each.key == COLLECTED_KEY for each in listed):
                collected = furthest(collected, read_collected(store).writers)
            _add(found, store, listed)
            reached.append(store)
        except Unavailable as error:
            reasons[store.uri] = str(error)
    if not reached:
        raise Unavailable(f"no store of the raw log answers: {'; '.join(reasons.values())}; try again later")
    history = History(reached, found, sorted(reasons), collected)
    for hole in history.missing:
        _recheck(found, reached, hole)
    return history


def _add(found: dict[str, dict[int, _Found]], store: ObjectStore, infos: Iterable[ObjectInfo]) -> None:
    for info in infos:
        key = parse(info.key)
        if isinstance(key, ChunkKey):
            here = found[key.writer].setdefault(key.number, _Found({}, set(), 0))
            here.keys[key.segment_ms] = info.key
            here.uris.add(store.uri)
            here.size = max(here.size, info.size)


def _recheck(found: dict[str, dict[int, _Found]], stores: Sequence[ObjectStore], hole: MissingChunks) -> None:
    """Look for the chunks of a hole in the segments beside it: a listing is no proof that something is not there."""
    beside = [each for number in (hole.first - 1, hole.last + 1) if (each := found[hole.writer].get(number))]
    for began in sorted({ms for each in beside for ms in each.keys}):
        keys = [
            chunk_key(ChunkKey(segment_ms=began, writer=hole.writer, number=number))
            for number in range(hole.first, min(hole.last, hole.first + LIST_FROM) + 1)
        ]
        for store in stores:
            if hole.last - hole.first >= LIST_FROM:
                _add(found, store, store.list(keys[0].rpartition("/")[0] + "/"))
            else:
                _add(found, store, (store.head(key) for key in keys if exists(store, key)))


def _holes(numbers: Iterable[int], before: int) -> Iterator[tuple[int, int]]:
    """Yield the stretches that are missing behind `before`, up to the greatest number."""
    for number in sorted(numbers):
        if number > before + 1:
            yield before + 1, number - 1
        before = max(before, number)


def _after(chunk: RawColumns, last: int) -> RawColumns | None:
    """Return the chunk without the records up to `last`, which were there before; None when nothing is left."""
    if chunk.first > last:
        return chunk
    known = last + 1 - chunk.first
    rest = chunk.records.slice(known)
    ids = None if chunk.unique_ids is None else chunk.unique_ids.slice(known)
    return replace(chunk, first=last + 1, records=rest, unique_ids=ids) if rest.num_rows else None
