"""A checker of recorded histories. The checker decides if a reader may see a result during concurrent changes.

Each actor records its calls with stamps of one logical clock. A lower stamp is always earlier than a higher stamp.
`check` then requires an explanation for each read: in each region, the read must equal a prefix of the writes. The
prefix contains all writes that the consistency level guarantees, and all writes that the session has already read. If a
read has a gap, a duplicate, an invented row, a stale value or an older value, no prefix of the writes equals the read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count, product

Rows = Mapping[str, int]


class Level(StrEnum):
    """The consistency level that a reader requests."""

    SNAPSHOT = "snapshot"
    COMMITTED = "committed"
    LATEST = "latest"
    IN_PROCESS = "in-process"


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A call that put values or deleted keys (None) in one region. The calls of a region do not overlap.

    `given` is the logical time directly after the call returned. `durable` is the logical time directly after the call
    was acknowledged. Without `durable`, the outcome of the call is unknown. A rejected call is not a write.
    """

    region: str
    begun: int
    given: int | None
    durable: int | None
    changes: Mapping[str, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A flush or merge of a region.

    A read at `level` that begins after `ended` sees all rows that were durable before `covers`.
    """

    level: Level
    region: str
    covers: int
    ended: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """The result of a read of these keys, or of all keys (None). A session makes one read at a time."""

    session: str
    level: Level
    begun: int
    ended: int
    found: tuple[tuple[str, int], ...]
    keys: frozenset[str] | None = None


@dataclass(slots=True)
class History:
    """The records of all threads, and the stamps that order them."""

    writes: list[Write] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    _stamps: Iterator[int] = field(default_factory=lambda: count(1))

    def stamp(self) -> int:
        """Return a number higher than all numbers before."""
        return next(self._stamps)


def check(history: History, region_of: Callable[[str], str]) -> None:
    """Raise `AssertionError` if a read has no explanation. The error contains the read.

    `region_of` returns the region of a key. A write with unknown outcome happened or did not happen. All reads must
    agree with the same choice for all these writes. Each write with unknown outcome doubles the number of histories
    that the checker tries for the region.
    """
    for read in history.reads:
        names = [key for key, _ in read.found]
        if len(names) != len(set(names)):
            raise AssertionError(f"a key is there twice: {read}")
    regions = {write.region for write in history.writes}
    known = {region_of(key) for read in history.reads for key, _ in read.found}
    if known - regions:
        raise AssertionError(f"rows of regions that nobody wrote to: {sorted(known - regions)}")
    for region in sorted(regions):
        _check_region(history, region, region_of)


def _check_region(history: History, region: str, region_of: Callable[[str], str]) -> None:
    writes = sorted((each for each in history.writes if each.region == region), key=lambda each: each.begun)
    marks = [each for each in history.marks if each.region == region]
    reads = [_of_region(each, region, region_of) for each in sorted(history.reads, key=lambda each: each.begun)]
    open_ones = [each for each in writes if each.durable is None]
    failures: list[str] = []
    for choice in product((True, False), repeat=len(open_ones)):
        without = {id(each) for each, kept in zip(open_ones, choice, strict=True) if not kept}
        failure = _unexplained([each for each in writes if id(each) not in without], marks, reads)
        if failure is None:
            return
        failures.append(failure)
    raise AssertionError(f"region {region}: {failures[0]}")


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of a read that concerns one region."""

    read: Read
    keys: frozenset[str] | None
    found: Rows


def _of_region(read: Read, region: str, region_of: Callable[[str], str]) -> _Part:
    keys = None if read.keys is None else frozenset(key for key in read.keys if region_of(key) == region)
    return _Part(read, keys, {key: value for key, value in read.found if region_of(key) == region})


def _unexplained(writes: Sequence[Write], marks: Sequence[Mark], parts: Sequence[_Part]) -> str | None:
    """Return the first unexplained read.

    The function assigns the shortest matching prefix to each read, because a short prefix requires the fewest writes
    from later reads.
    """
    states = _states(writes)
    floors: dict[tuple[str, Level], int] = {}
    for part in parts:
        read, seat = part.read, (part.read.session, part.read.level)
        least = max(_promised(writes, marks, read), floors.get(seat, 0))
        most = sum(each.begun < read.ended for each in writes)
        fits = (at for at in range(least, most + 1) if _restricted(states[at], part.keys) == part.found)
        floors[seat] = next(fits, -1)
        if floors[seat] < 0:
            return (
                f"no prefix of {least} to {most} writes explains {part.found} of {read}; the shortest gives "
                f"{_restricted(states[min(least, most)], part.keys)}"
            )
    return None


def _states(writes: Sequence[Write]) -> list[Rows]:
    """Return the content of the region after no write, after the first write, and so on."""
    states: list[Rows] = [{}]
    for write in writes:
        after = {**states[-1], **write.changes}
        states.append({key: value for key, value in after.items() if value is not None})
    return states


def _restricted(state: Rows, keys: frozenset[str] | None) -> Rows:
    return state if keys is None else {key: value for key, value in state.items() if key in keys}


def _promised(writes: Sequence[Write], marks: Sequence[Mark], read: Read) -> int:
    """Return the number of writes that the consistency level of the read guarantees to this read."""
    match read.level:
        case Level.IN_PROCESS:
            return _prefix(writes, lambda each: each.given, read.begun)
        case Level.LATEST:
            return _prefix(writes, lambda each: each.durable, read.begun)
        case Level.COMMITTED | Level.SNAPSHOT:
            # A record in the base is also a committed record.
            levels = {read.level, Level.SNAPSHOT}
            covers = [each.covers for each in marks if each.level in levels and each.ended < read.begun]
            return _prefix(writes, lambda each: each.durable, max(covers, default=0))


def _prefix(writes: Sequence[Write], stamp: Callable[[Write], int | None], before: int) -> int:
    """Return the number of writes up to the last write whose logical time is lower than `before`."""
    stamps = [stamp(each) for each in writes]
    return max((at + 1 for at, each in enumerate(stamps) if each is not None and each < before), default=0)
