"""The stores of a raw log, and the union of their histories (docs/architecture/ingestion.md, "Raw log").

A chunk has the same bytes in every store. The name of a chunk contains the writer and the number of the chunk. So
stores, restored backups and copied folders can be combined. The union contains each chunk once, and one valid copy
replaces all torn, damaged or missing copies. A chunk without a valid copy is a gap in the sequence numbers of its
writer. A gap is reported and never skipped. There is one exception. If all copies of a writer's last chunks are lost,
nothing shows that these chunks existed. Collected chunks are not a gap.

The records of a history are ordered by the start of the segment in ms, then by writer, number and position in the
chunk. For the records of one writer, the order of the history is exactly the order of acknowledgement. Records of
different writers are ordered by the clocks of the writers, which may differ.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, assert_never

from storage_core.base.arguments import checked_fields
from storage_core.base.errors import Corrupt, InvalidInput, NotFound, Unavailable
from storage_core.base.text import quoted, repeated
from storage_core.data.formats.documents import Collected, decode_collected
from storage_core.data.formats.keys import COLLECTED_KEY, LIVE_PREFIX, ChunkKey, parse_raw, raw_chunk_key
from storage_core.data.formats.raw_chunk import RawColumns, decode_columns
from storage_core.store.contract import LIST_FROM, PAGE_KEYS, ObjectInfo, ObjectStore, exists
from storage_core.store.resolve import open_store

Place = str | Path | ObjectStore


@checked_fields
@dataclass(frozen=True, slots=True)
class RawStore:
    """One store of a raw log. A mandatory store acknowledges every append. An optional store may fail or lag."""

    place: Place
    mandatory: bool = True


def opened(stores: Sequence[Place | RawStore]) -> list[tuple[ObjectStore, bool]]:
    """Return each store, and whether it is mandatory. No request.

    Raises `InvalidInput` if no store is given, or if a store is given twice. A second copy in the same location adds no
    safety.
    """
    given = [each if isinstance(each, RawStore) else RawStore(each) for each in stores]
    found = [(_open(each.place), each.mandatory) for each in given]
    if not found:
        raise InvalidInput("a raw log needs at least one store. Give one")
    for uri in repeated(store.uri for store, _ in found):
        raise InvalidInput(f"{uri} is given twice. Give each store of a raw log once", uri=uri)
    return found


def _open(place: Place) -> ObjectStore:
    if isinstance(place, str | Path):
        return open_store(place)
    if not hasattr(place, "make_durable"):
        raise InvalidInput(f"a store of a raw log is {quoted(place)}. Give a location, an open store or a RawStore.")
    return place


# One chunk of a raw log, read from any store with a valid copy (lessons 60 and 61).


@dataclass(frozen=True, slots=True, kw_only=True)
class RawChunkRef:
    """One chunk of the union.

    `keys` are the keys of the object that stores the chunk. A chunk has several names only if a person renamed folders.
    """

    writer: str
    number: int
    segment_ms: int
    keys: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "keys": list(self.keys)}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> RawChunkRef:
        """Return the reference that `to_json` returned."""
        return cls(**{**found, "keys": tuple(found["keys"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A chunk without a valid copy, with the fault of each copy."""

    chunk: RawChunkRef
    reasons: tuple[str, ...]


def read_columns(stores: Sequence[ObjectStore], ref: RawChunkRef) -> RawColumns | Damage:
    """Return the chunk from its first valid copy. A valid copy has this writer, this number and unchanged bytes.

    Raises `Unavailable` if a store does not answer and no other store has a valid copy. The state of the chunk is then
    unknown. Raises `Unsupported` for a chunk of a newer release. One GET if the first copy is valid.
    """
    reasons: list[str] = []
    silent: list[str] = []
    for store in stores:
        for key in ref.keys:
            try:
                return _read(store, key, ref)
            except (Corrupt, NotFound) as error:
                reasons.append(f"{store.uri}: {error.found}")
            except Unavailable as error:
                silent.append(f"{store.uri}: {error}")
    if silent:
        raise Unavailable(
            f"chunk {ref.number} of writer {ref.writer}: {', '.join(silent)}. No other store has a complete copy. Try "
            "again later",
            writer=ref.writer,
            number=ref.number,
        )
    return Damage(chunk=ref, reasons=tuple(reasons))


def _read(store: ObjectStore, key: str, ref: RawChunkRef) -> RawColumns:
    found = decode_columns(store.get(key).data, key)
    if (found.key.writer, found.key.number) != (ref.writer, ref.number):
        raise Corrupt(
            f"{key}: expected chunk {ref.number} of writer {ref.writer}, found chunk {found.key.number} of writer "
            f"{found.key.writer}",
            key=key,
        )
    return found


# The collected position of each writer, which the stores of the raw log contain (docs/architecture/collection.md).
#
# Before a chunk is deleted in any store, the position is written to every store that answers. A position never
# decreases. If one store has the current position, a reader uses the highest position of all stores. The position in a
# store can be too low, but never too high. If all positions are too low, collected chunks look missing, but no data is
# lost.


_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredCollected:
    """The collected positions in one store, by writer, and the ETag of the object (None if there is no object)."""

    writers: Mapping[str, Collected]
    etag: str | None


def read_collected(store: ObjectStore) -> StoredCollected:
    """Return the collected positions in the store, or no positions if the object is damaged. One GET.

    Raise `Unsupported` for a newer format.
    """
    try:
        blob = store.get(COLLECTED_KEY)
    except NotFound:
        return StoredCollected({}, None)
    try:
        return StoredCollected(decode_collected(blob.data), blob.etag)
    except Corrupt as error:
        _logger.warning("%s: %s. The other stores are used", store.uri, error.found)
        return StoredCollected({}, blob.etag)


def furthest(*several: Mapping[str, Collected]) -> dict[str, Collected]:
    """Return the entry with the highest position of each writer."""
    found: dict[str, Collected] = {}
    for writers in several:
        for writer, each in writers.items():
            if writer not in found or each.number > found[writer].number:
                found[writer] = each
    return found


CLOSED_AFTER_MS = 10 * 60_000
"""The age at which a segment without a successor counts as closed.

Writers begin a new segment when the current segment has reached half of `CLOSED_AFTER_MS`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawSegment:
    """One segment of the raw log: the numbers and the total bytes of its chunks. A chunk in several stores counts once.

    `copies` contains the number of listed chunks of each store.
    """

    writer: str
    segment_ms: int
    first_number: int
    last_number: int
    chunks: int
    bytes: int
    copies: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingChunks:
    """Missing chunks `first` to `last` of a writer that has a higher chunk number. No store has these chunks."""

    writer: str
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Missing records `first` to `last` of a writer. No store has these records.

    If `last` is None, an unknown number of records from `first` on is missing.
    """

    writer: str
    first: int
    last: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The result of reading all chunks of a history."""

    chunks: int
    records: int
    gaps: tuple[Gap, ...]
    damaged: tuple[Damage, ...]


def require_raw_log(stores: Sequence[ObjectStore]) -> None:
    """Raise `NotFound` if no store has an object of a raw log.

    Otherwise, a mistyped location would look like a complete raw log.

    A store that does not answer counts as a store with a raw log.

    Cost:
        One LIST for each store, up to the first store that has a raw log.
    """
    for store in stores:
        try:
            if any(parse_raw(each.key) is not None for each in islice(store.list(""), PAGE_KEYS)):
                return
        except Unavailable:
            return
    uris = ", ".join(store.uri for store in stores)
    raise NotFound(f"{uris}: there is no raw log here. Check the location", uri=uris)


class History:
    """The combined history of the listed chunks of all stores. The history contains only the names of the chunks.

    The content of each chunk is read later, chunk by chunk. `unreachable` are stores that did not answer. The history
    does not contain a chunk that only unreachable stores have. `collected` contains for each writer the last chunk that
    may have been collected. A chunk that no store lists is not missing if its number is at most the number of this
    collected chunk.
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
        """Return the number of the last chunk of a writer that may have been collected, or 0 if there is none."""
        return self.collected[writer].number if writer in self.collected else 0

    @property
    def writers(self) -> list[str]:
        """The ids of all writers, sorted."""
        return sorted(self._listed)

    @property
    def chunks(self) -> list[RawChunkRef]:
        """All chunks, in the order of the history."""
        refs = [ref for writer in self._listed for ref in self.chunks_of(writer)]
        return sorted(refs, key=lambda each: (each.segment_ms, each.writer, each.number))

    def chunks_of(self, writer: str) -> list[RawChunkRef]:
        """Return the chunks of one writer by number. A later chunk is never in an earlier segment."""
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
        """The missing chunks that are followed by a later chunk of the same writer. No request."""
        return [
            MissingChunks(writer=writer, first=first, last=last)
            for writer in self.writers
            for first, last in _holes(self._listed[writer], self.collected_up_to(writer))
        ]

    def segments(self) -> list[RawSegment]:
        """Return all segments in the order of the history. No request."""
        grouped: dict[tuple[int, str], list[RawChunkRef]] = defaultdict(list)
        for ref in self.chunks:
            grouped[ref.segment_ms, ref.writer].append(ref)
        return [self._segment(refs) for refs in grouped.values()]

    def closed_segments(self, now_ms: int, closed_after_ms: int = CLOSED_AFTER_MS) -> list[RawSegment]:
        """Return the closed segments.

        A segment is closed if its writer has a newer segment or it is at least `closed_after_ms` old.

        If a wrong clock makes the age too high, a chunk may be added later. No plan has passed the number of this chunk
        yet.
        """
        found = self.segments()
        newest = {each.writer: each.segment_ms for each in found}
        return [
            each
            for each in found
            if each.segment_ms < newest[each.writer] or now_ms - each.segment_ms >= closed_after_ms
        ]

    def read(self) -> Iterator[RawColumns | Gap | Damage]:
        """Yield every record once, in chunks in the order of the history. Also yields gaps and damage in order.

        Raises `Unavailable` if a store does not answer and no other store has a valid copy of the chunk. Raises
        `Unsupported` for chunks of a newer release. One GET per chunk, and one more per invalid copy. Memory holds one
        chunk.
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
        """Read all chunks.

        Return the number of existing chunks and records, the gaps, and the damaged chunks. Cost and errors: see `read`.
        """
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
    """A listed chunk: the stores that have it, the size of its largest copy, and one key per segment start."""

    keys: dict[int, str]
    uris: set[str]
    size: int


def union(stores: Sequence[Place | RawStore]) -> History:
    """Return the combined history of the stores, mandatory and optional.

    Objects whose names are not names of chunks are ignored. Raises `Unavailable` if no store answers.

    Cost:
        One LIST per 1,000 chunks and store, and one GET of each record of collected positions. If numbers are missing,
        a second check finds chunks that were added during the listing. It takes one LIST per adjacent segment, or one
        HEAD per number.
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
        raise Unavailable(f"no store of the raw log answers: {', '.join(reasons.values())}. Try again later")
    history = History(reached, found, sorted(reasons), collected)
    for hole in history.missing:
        _recheck(found, reached, hole)
    return history


def _add(found: dict[str, dict[int, _Found]], store: ObjectStore, infos: Iterable[ObjectInfo]) -> None:
    for info in infos:
        key = parse_raw(info.key)
        if isinstance(key, ChunkKey):
            here = found[key.writer].setdefault(key.number, _Found({}, set(), 0))
            here.keys[key.segment_ms] = info.key
            here.uris.add(store.uri)
            here.size = max(here.size, info.size)


def _recheck(found: dict[str, dict[int, _Found]], stores: Sequence[ObjectStore], hole: MissingChunks) -> None:
    """Search for missing chunks in the adjacent segments.

    A listing can lack a chunk that exists.
    """
    beside = [each for number in (hole.first - 1, hole.last + 1) if (each := found[hole.writer].get(number))]
    for began in sorted({ms for each in beside for ms in each.keys}):
        keys = [
            raw_chunk_key(ChunkKey(segment_ms=began, writer=hole.writer, number=number))
            for number in range(hole.first, min(hole.last, hole.first + LIST_FROM) + 1)
        ]
        for store in stores:
            if hole.last - hole.first >= LIST_FROM:
                _add(found, store, store.list(keys[0].rpartition("/")[0] + "/"))
            else:
                _add(found, store, (store.head(key) for key in keys if exists(store, key)))


def _holes(numbers: Iterable[int], before: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of numbers that are missing between the number `before` and the greatest number."""
    for number in sorted(numbers):
        if number > before + 1:
            yield before + 1, number - 1
        before = max(before, number)


def _after(chunk: RawColumns, last: int) -> RawColumns | None:
    """Return the chunk without the records up to `last`, or None if no record remains."""
    if chunk.first > last:
        return chunk
    known = last + 1 - chunk.first
    rest = chunk.records.slice(known)
    ids = None if chunk.unique_ids is None else chunk.unique_ids.slice(known)
    return replace(chunk, first=last + 1, records=rest, unique_ids=ids) if rest.num_rows else None
