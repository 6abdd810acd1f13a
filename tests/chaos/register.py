"""Checker of the reads that request one key of a keyed table. The key must be a linearizable register.

A call takes effect as a whole, at one instant between its start and its end. A call without a recorded end takes effect
later or never. The next claim of the region decides whether the call took effect. A call without a recorded end can
take effect only until the next claim of the region was granted (`Write.latest`). A rejected call never takes effect.

A read returns the content of the key at one instant of the read's time interval. At a consistency level below `latest`,
the time interval of a read starts before the read. In one session, two reads at the same level see states of the key in
the order of the reads.

The search goes through the events in time order and keeps every state of the key that explains all reads so far. This
is the algorithm of Wing and Gong. When a call ends, the search applies an unfinished write only if the result of the
call requires this write. A read does not change the key. The search therefore assigns each read to the earliest instant
at which the read fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

State = tuple[int | None, int | None] | None
"""The content of a key: the values of its columns `a` and `b`, or None if there is no row."""


class Condition(Protocol):
    """A condition on the content of a key, from the result of a read."""

    def matches(self, state: State) -> bool:
        """Return True if a read of a key with this state could return this content."""
        ...


@dataclass(frozen=True, slots=True)
class Is:
    """A read found exactly this row, or found that the key has no row."""

    state: State

    def matches(self, state: State) -> bool:
        """Return True if the state is exactly the one that was read."""
        return state == self.state


def tag_of(value: int | None) -> str | None:
    """Return the value of the column `tag` in a row with this value of `a`."""
    return None if value is None else f"t{value % 3}"


@dataclass(frozen=True, slots=True)
class WithoutTag:
    """A search for a tag did not find the key."""

    tag: str

    def matches(self, state: State) -> bool:
        """Return True if the key has no row, or a row with another tag."""
        return state is None or tag_of(state[0]) != self.tag


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A write to the key. `ended` is None if the end was not recorded. The write has no effect after `latest`."""

    name: str
    operation: str
    value: int
    begun: int
    ended: int | None
    latest: int | None = None

    def after(self, state: State) -> State:
        """Return the state of the key after the call."""
        match self.operation:
            case "put" | "reset":
                return (self.value, self.value)
            case "patch":
                return (None if state is None else state[0], self.value)
            case _:
                return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A read of the key by one session. The key had this content at some instant from `since` to `ended`."""

    session: str
    since: int
    begun: int
    ended: int
    found: Condition


class _Kind(IntEnum):
    """The kinds of events.

    The values order the events of one instant. As a result, two calls overlap if one ends at the instant at which the
    other starts.
    """

    BEGIN_WRITE = 0
    BEGIN_READ = 1
    END_READ = 2
    END_WRITE = 3
    GIVE_UP = 4


@dataclass(frozen=True, slots=True)
class _Possible:
    """A possible explanation of the events so far.

    An explanation contains the state of the key, the unfinished writes that took effect, and the unfinished reads that
    have already returned.
    """

    state: State = None
    applied: frozenset[int] = frozenset()
    read: frozenset[int] = frozenset()


@dataclass(slots=True)
class _Search:
    writes: Sequence[Write]
    reads: Sequence[Read]
    before: dict[int, int]
    open_writes: set[int] = field(default_factory=set)
    open_reads: list[int] = field(default_factory=list)
    possible: set[_Possible] = field(default_factory=lambda: {_Possible()})

    def step(self, kind: _Kind, number: int) -> bool:
        """Process one event. Return True if some order of the calls explains all events so far."""
        match kind:
            case _Kind.BEGIN_WRITE:
                self.open_writes.add(number)
            case _Kind.BEGIN_READ:
                self.open_reads.append(number)
                self.possible = {self._with_reads(each) for each in self.possible}
            case _Kind.END_READ:
                found = {way for each in self.possible for way in self._until(each, read=number)}
                self.possible = {_Possible(each.state, each.applied, each.read - {number}) for each in found}
                self.open_reads.remove(number)
            case _Kind.END_WRITE | _Kind.GIVE_UP:
                found = {way for each in self.possible for way in self._until(each, write=number)}
                if kind is _Kind.GIVE_UP:
                    found |= self.possible
                self.possible = {_Possible(each.state, each.applied - {number}, each.read) for each in found}
                self.open_writes.remove(number)
        return bool(self.possible)

    def _until(self, way: _Possible, *, write: int | None = None, read: int | None = None) -> Iterator[_Possible]:
        """Apply open writes in any order, and stop as soon as the given call has happened."""
        if write in way.applied or read in way.read:
            yield way
            return
        for each in self.open_writes - way.applied:
            after = _Possible(self.writes[each].after(way.state), way.applied | {each}, way.read)
            yield from self._until(self._with_reads(after), write=write, read=read)

    def _with_reads(self, way: _Possible) -> _Possible:
        """Mark each unfinished read whose result is the current state. A read never prevents another read."""
        read = set(way.read)
        for each in self.open_reads:
            before = self.before.get(each)
            waits = before in self.open_reads and before not in read
            if each not in read and not waits and self.reads[each].found.matches(way.state):
                read.add(each)
        return _Possible(way.state, way.applied, frozenset(read))


def unexplained(writes: Sequence[Write], reads: Sequence[Read]) -> str | None:
    """Return a message about the first call that no order explains, or None. At the start, the key has no row."""
    reads = sorted(reads, key=lambda each: each.begun)
    search = _Search(writes, reads, _sessions(reads))
    for at, kind, number in sorted(_events(writes, reads)):
        if not search.step(kind, number):
            what: object = reads[number] if kind is _Kind.END_READ else writes[number]
            return f"at {at} nothing explains {what}\n{_told(writes, reads, at)}"
    return None


def _sessions(reads: Sequence[Read]) -> dict[int, int]:
    """Return, for each read, the previous read of the same session."""
    last: dict[str, int] = {}
    before: dict[int, int] = {}
    for number, each in enumerate(reads):
        if each.session in last:
            before[number] = last[each.session]
        last[each.session] = number
    return before


def _events(writes: Sequence[Write], reads: Sequence[Read]) -> Iterator[tuple[int, _Kind, int]]:
    for number, write in enumerate(writes):
        yield write.begun, _Kind.BEGIN_WRITE, number
        ends = [each for each in (write.ended, write.latest) if each is not None]
        if ends:
            yield max(write.begun, min(ends)), _Kind.GIVE_UP if write.ended is None else _Kind.END_WRITE, number
    for number, read in enumerate(reads):
        yield read.since, _Kind.BEGIN_READ, number
        yield read.ended, _Kind.END_READ, number


def _told(writes: Sequence[Write], reads: Sequence[Read], until: int) -> str:
    """Return the relevant history of the key, one line per call."""
    lines = [
        (each.begun, f"{each.begun} to {each.ended}: {each.name} {each.operation} {each.value}") for each in writes
    ]
    lines += [
        (each.begun, f"{each.begun} to {each.ended}: {each.session} since {each.since} {each.found}") for each in reads
    ]
    return "\n".join(line for begun, line in sorted(lines) if begun <= until)
