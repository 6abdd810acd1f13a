"""A table followed in steps: its rows at a version, then what each version after it added (decision 0156).

    follower = Follower(log, schema)
    end = follower.advance(start, Limit("rows", 1_000_000))
    work = follower.work(start, end)

A position is where a reader has come; it is plain data, and the same work lies between two positions whenever it is
asked for. A version that only added splits is read split by split, any other that changed rows as a whole: what it
removed and added is compared (`read.changes`). Versions that change no row are passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import InvalidInput, SnapshotExpired
from storage_core.log.actions import Add, Metadata, Remove
from storage_core.log.advance import read_version
from storage_core.log.boundary import first_version
from storage_core.log.encoding.action_json import read_action, write_actions
from storage_core.log.log import TransactionLog
from storage_core.log.sharing import open_table_store
from storage_core.log.snapshot import Snapshot
from storage_core.read.changes import DELETE, changes
from storage_core.read.portions import Portion, groups, in_order, of_splits
from storage_core.rows.change_columns import CHANGE_TYPE
from storage_core.rows.schema import from_schema_string

Unit: TypeAlias = Literal["rows", "bytes", "files"]
_KEPT: Final = 64
_WHERE: Final = "a change"


@dataclass(frozen=True, slots=True)
class Position:
    """Behind `part` splits of the table at a version, if `is_base`; else behind those that the version added.

    All versions before it were read.
    """

    version: int
    part: int = 0
    is_base: bool = False


BEGINNING: Final = Position(-1)
"""Where a reader is that has read nothing, and does not know yet of which version."""


@dataclass(frozen=True, slots=True)
class Limit:
    """How much is read at most at a time; one split, or one version that is read as a whole, may be more."""

    unit: Unit
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What one version did to the rows of a table, in the columns of `metadata`. Plain data, for any process."""

    uri: str
    version: int
    metadata: str


@dataclass(frozen=True, slots=True)
class _Step:
    """The splits that are read of a version, one after the other, or all at once as a `whole`."""

    splits: tuple[Add, ...]
    is_whole: bool = False

    @property
    def sizes(self) -> list[Mapping[Unit, int]]:
        """What each part of it weighs."""
        found: list[Mapping[Unit, int]] = [
            {"rows": each.visible_rows, "bytes": each.size, "files": 1} for each in self.splits
        ]
        return [{unit: sum(each[unit] for each in found) for unit in found[0]}] if self.is_whole and found else found


@dataclass(slots=True)
class _Budget:
    """What may be read still. Something always may: a part that is larger than the limit would never be read."""

    limit: Limit | None
    taken: int = 0
    is_untouched: bool = True

    def fitting(self, sizes: Sequence[Mapping[Unit, int]]) -> int:
        """Take as many parts as there is room for, and return their number."""
        if self.limit is None:
            return len(sizes)
        for number, size in enumerate(sizes):
            if self.taken + size[self.limit.unit] > self.limit.most and not self.is_untouched:
                return number
            self.taken, self.is_untouched = self.taken + size[self.limit.unit], False
        return len(sizes)


class Follower:
    """Reads the log of one table step by step; `columns` are those that rows are read in.

    From the beginning it reads the table at the version `first`, or with `as_changes` what came after it: then every
    version that changed rows is read as a whole. Not safe for several threads.
    """

    def __init__(self, log: TransactionLog, columns: pa.Schema, *, first: int, as_changes: bool = False) -> None:
        self._log = log
        self._first = first
        self._columns = columns
        self._as_changes = as_changes
        self._steps: dict[tuple[int, bool], _Step] = {}
        self._newest: Snapshot | None = None

    def advance(self, start: Position, limit: Limit | None = None, *, last: int | None = None) -> Position:
        """Return how far to read from `start`: as far as the limit allows, and not behind the version `last`.

        From the beginning not behind the rows of the table as it was: so that what lies between is told by the end,
        also when a reader that began later asks for it again. One GET per version that was not looked at before; where
        there is no newer one, another of the collector's boundary. Raises `SnapshotExpired` for a version that is no
        longer retained, `InvalidInput` where the columns of the table are others by now.
        """
        budget = _Budget(limit)
        if start == BEGINNING:
            first = Position(self._first, is_base=True)
            if self._as_changes:
                return Position(self._first + 1)
            return replace(first, part=budget.fitting(self._base(first.version).sizes))
        at = start
        while at.is_base or last is None or at.version <= last:
            step = self._step(at)
            if step is None:
                return at
            left = step.sizes[at.part :]
            fitting = budget.fitting(left)
            if fitting < len(left):
                return replace(at, part=at.part + fitting)
            at = Position(at.version + 1)
        return at

    def work(self, start: Position, end: Position) -> list[Portion | Change]:
        """Return what lies between two positions, for tasks. Requests and errors: those of `advance`."""
        found: list[Portion | Change] = []
        at = start
        if start == BEGINNING:
            at = replace(end, part=0) if end.is_base else end
        while at != end:
            step = self._step(at)
            if step is None:
                raise SnapshotExpired(
                    f"{self._log.store.uri}: version {at.version} is not there, and was read before: the table is "
                    "another one; start with a new checkpoint",
                    version=at.version,
                )
            is_last = (at.version, at.is_base) == (end.version, end.is_base)
            metadata = json.dumps(write_actions([self._current().metadata])[0])
            if step.is_whole:
                found += [Change(uri=self._log.store.uri, version=at.version, metadata=metadata)] if step.splits else []
            else:
                splits = step.splits[at.part : end.part if is_last else None]
                of_table = Portion(uri=self._log.store.uri, version=at.version, metadata=metadata)
                found += [of_splits(of_table, each) for each in groups(splits)]
            at = end if is_last else Position(at.version + 1)
        return found

    def _step(self, at: Position) -> _Step | None:
        key = (at.version, at.is_base)
        if key not in self._steps:
            found = self._base(at.version) if at.is_base else self._version(at.version)
            if found is None:
                return None
            while len(self._steps) >= _KEPT:
                del self._steps[next(iter(self._steps))]
            self._steps[key] = found
        return self._steps[key]

    def _base(self, version: int) -> _Step:
        snapshot = self._log.snapshot(version=version)
        return _Step(tuple(in_order(snapshot.splits.values())))

    def _version(self, version: int) -> _Step | None:
        actions = read_version(self._log.store, version)
        if actions is None:
            if version < first_version(self._log.store):
                raise SnapshotExpired(
                    f"{self._log.store.uri}: version {version} is no longer retained, and was not read yet: what it "
                    "did is not known; start with a new checkpoint",
                    version=version,
                )
            return None
        if any(isinstance(each, Metadata) for each in actions):
            self._newest = None
            self._current()
        moved = [each for each in actions if isinstance(each, Add | Remove)]
        adds = tuple(each for each in moved if isinstance(each, Add))
        if not any(each.dataChange for each in moved):
            return _Step(())
        only_adds = len(adds) == len(moved) and all(each.deletionVector is None for each in adds)
        if only_adds and not self._as_changes:
            return _Step(tuple(in_order(adds)))
        return _Step(adds or (_nothing_added(moved),), is_whole=True)

    def _current(self) -> Snapshot:
        """The newest version, whose settings rows are read under."""
        if self._newest is None:
            self._newest = self._log.snapshot()
            if not self._newest.schema.equals(self._columns, check_metadata=True):
                raise InvalidInput(
                    f"{self._log.store.uri}: the columns of the table changed: start the query again, which goes on "
                    "where it ended",
                    version=self._newest.version,
                )
        return self._newest


def changed_rows(change: Change, *, with_labels: bool) -> Iterator[pa.RecordBatch]:
    """Yield what a version did to the rows, as `changes` does; without labels just the rows that it added.

    Raises `InvalidInput` where it took rows away and there is no label to tell so, and what `changes` raises.
    """
    log = TransactionLog(open_table_store(change.uri))
    metadata = read_action(json.loads(change.metadata), Metadata, _WHERE)
    before = log.snapshot(version=change.version - 1)
    after = replace(log.snapshot(version=change.version), metadata=metadata)
    names = from_schema_string(metadata.schemaString).names
    for batch in changes(log.store, before, after):
        if with_labels:
            yield batch
            continue
        if pc.any(pc.equal(batch.column(CHANGE_TYPE), DELETE)).as_py():
            raise InvalidInput(
                f"{change.uri}: version {change.version} changed or removed rows, which a stream of rows cannot tell: "
                "follow the changes with option('changes', True) and a new checkpoint",
                version=change.version,
            )
        yield batch.select(names)


def _nothing_added(moved: Sequence[Add | Remove]) -> Add:
    """Stands for a version that only removed splits, so that it is one part of its step."""
    return Add(path=moved[0].path, size=0, modificationTime=0)
