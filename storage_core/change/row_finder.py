"""Search for the live rows that a statement changes, by a condition or by keys.

The search does not read splits and row groups that statistics or indexes exclude. If the log's statistics show that
every row of a split matches the condition, the split is not read either. `read_row_groups` reads the row groups. The
position of a row is its position in the file. Deleted rows also have a position. `ByCondition` finds rows by a filter.
`ByKeys` finds rows by keys, and uses the bounds of splits and row groups.

Memory: at most two bytes per found row, in addition to the memory of `read_row_groups`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from operator import attrgetter
from typing import Final, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from storage_core.base.limits import QueryLimits
from storage_core.data.formats.key_hashes import Hashes, key_hashes, within
from storage_core.data.rows.codes import Mask
from storage_core.data.rows.columns import stored_rows, stored_schema
from storage_core.data.rows.keys import Positions, bitmap_of, key_codes, positions, with_room
from storage_core.log.actions import Add
from storage_core.log.snapshot import Snapshot
from storage_core.read.bitmap import Answer
from storage_core.read.bounds import is_exact, meeting, only_values
from storage_core.read.fetching import may_match
from storage_core.read.key_splits import bounds_of_keys
from storage_core.read.predicate import Compare, Filter, IsNull, Or, Predicate, in_columns, negate
from storage_core.read.pruning import conditions, groups_left, groups_with, manifests_for, prune_of
from storage_core.read.row_filter import RowFilter
from storage_core.read.verified_files import VerifiedFiles
from storage_core.split.deletion_vectors import visible
from storage_core.split.fetch import Footers
from storage_core.split.metadata import admitting
from storage_core.split.read import OpenSplit, Piece, conform_split, open_split, read_together, share_of
from storage_core.store.contract import ObjectStore
from storage_core.store.meter import all_of, prefetch

SPLITS_AT_ONCE: Final = 16
PIECES_AT_ONCE: Final = 8
HELD_BYTES: Final = 128 * 2**20
"""The approximate memory of the row groups that are read concurrently. One large row group may exceed this memory."""

NEAR_AT_ONCE: Final = 4
TOGETHER_BYTES: Final = 16 * 2**20
"""The number of bytes that one thread reads at a time from local files.

More threads would cost more time than they save.
"""

GroupsOf = Callable[[OpenSplit], Sequence[int]]
"""A function that returns the needed row groups of an open split, in ascending order."""

Used = TypeVar("Used")


@dataclass(frozen=True, slots=True)
class Part:
    """A row group of a split as stored in its file, and the position of its first row in the file."""

    split: Add
    first: int
    stored: pa.Table
    schema: pa.Schema

    @property
    def rows(self) -> pa.Table:
        """The rows with the columns of the table."""
        return conform_split(self.stored, self.schema)

    def live(self, hidden: BitMap) -> Mask:
        """Return a mask of the rows that are not hidden."""
        rows = self.stored.num_rows
        mask = visible(hidden, self.first, rows)
        return np.ones(rows, np.bool_) if mask is None else mask

    def taken(self, places: BitMap) -> pa.Table:
        """Return the rows at these positions of the file, with the columns of the table."""
        count = self.stored.num_rows
        own = positions(places & BitMap(range(self.first, self.first + count))) - self.first
        return self.rows if len(own) == count else replace(self, stored=self.stored.take(pa.array(own))).rows


@dataclass(frozen=True, slots=True)
class _Wanted(Generic[Used]):
    """The needed row groups of one split. The row groups are read one after the other."""

    pieces: Sequence[Piece]
    schema: pa.Schema
    use: Callable[[Part], Used]
    memory_bytes: int

    def used(self) -> list[Used]:
        split = self.pieces[0].split
        first_rows = split.first_rows
        read = zip(self.pieces, read_together(self.pieces), strict=True)
        return [self.use(Part(split.add, int(first_rows[piece.group]), rows, self.schema)) for piece, rows in read]


def read_row_groups(
    use: Callable[[Part], Used],
    store: ObjectStore,
    splits: Sequence[Add],
    schema: pa.Schema,
    *,
    whole: pa.Schema,
    groups: GroupsOf,
    footers: Footers,
    as_dictionary: bool = False,
) -> Generator[Used]:
    """Read the needed row groups of the splits, and yield the result of `use` for each row group, in order.

    `use` runs in several threads concurrently. Deletion vectors are not read, so `use` gets all rows, with their
    positions.

    Args:
        use: Function that is called with each row group.
        store: Store of the table.
        splits: Splits to read.
        schema: Columns to read, with their types.
        whole: All columns of the table. Both schemas contain the column metadata of `rows.columns`.
        groups: Function that returns the needed row groups of an open split.
        footers: Cache of footers.
        as_dictionary: True decodes text only for selected rows, if the file stores the text as a dictionary.

    Cost:
        Requests and errors are those of `read.fetching.fetched`, without deletion vectors.
    """
    stored = stored_schema(schema).names
    share = share_of(schema.names, whole)
    is_near = all(store.local_path(add.path) is not None for add in splits)

    def opened(add: Add) -> OpenSplit:
        is_older = add.footerXxh3 is None
        return open_split(
            store, add, whole=is_older, share=share, footers=footers, deleted=BitMap(), as_dictionary=as_dictionary
        )

    def wanted() -> Generator[_Wanted[Used]]:
        with closing(prefetch(opened, splits, 1 if is_near else SPLITS_AT_ONCE)) as found:
            for split in found:
                for pieces, size in _together(split.pieces(stored, groups(split)), TOGETHER_BYTES if is_near else 0):
                    yield _Wanted(pieces, schema, use, size)

    with (
        closing(wanted()) as keys,
        closing(
            prefetch(
                _Wanted.used,
                keys,
                NEAR_AT_ONCE if is_near else PIECES_AT_ONCE,
                weight=attrgetter("memory_bytes"),
                most=HELD_BYTES,
            )
        ) as found,
    ):
        yield from chain.from_iterable(found)


def _together(pieces: Sequence[Piece], most: int) -> Iterator[tuple[Sequence[Piece], int]]:
    """Yield groups of pieces, and the memory that each group needs.

    A group needs at most `most` bytes, or is a single larger piece.
    """
    held, size = list[Piece](), 0
    for piece in pieces:
        own = piece.memory_bytes
        if held and size + own > most:
            yield held, size
            held, size = [], 0
        held.append(piece)
        size += own
    if held:
        yield held, size


JUDGED_ROWS: Final = 2**18
"""Minimum number of rows that the query process evaluates at a time. The last evaluation may be below this minimum."""

_MOST_CONDITIONS: Final = 32
"""Maximum number of conditions that this process compares with rows. Each condition costs one comparison per row."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Splits that may contain rows for the statement. In the splits in `whole`, the statement changes all rows."""

    splits: Sequence[Add]
    whole: frozenset[str] = frozenset()


class Finder(Protocol):
    """Finds the rows that a statement changes, on any snapshot of a table."""

    def candidates(self, snapshot: Snapshot) -> Candidates:
        """Return the live splits that may contain rows for the statement.

        Makes one GET per manifest that may list such a split.
        """
        ...

    def rows(self, snapshot: Snapshot, splits: Sequence[Add], hidden: Mapping[str, BitMap]) -> dict[str, BitMap]:
        """Return the positions of the live rows in these splits that the statement changes.

        `hidden` contains the deleted rows of each split. Requests and errors are those of `read_row_groups`.
        """
        ...


@dataclass(frozen=True, eq=False)
class ByCondition:
    """Finds the rows for which a filter is true by DuckDB's rules."""

    store: ObjectStore
    wanted: Filter
    query: str
    """The name of the statement in error messages."""
    limits: QueryLimits | None = None
    verified: VerifiedFiles = field(default_factory=VerifiedFiles)

    def candidates(self, snapshot: Snapshot) -> Candidates:
        """See `Finder`."""
        predicate = self.predicate(snapshot)
        files = snapshot.splits.table(manifests_for(snapshot, predicate))
        files = files.filter(prune_of(snapshot, files, predicate).keep)
        doubtful = prune_of(snapshot, files, _not_true(predicate)).keep
        counted = files.column("numRecords").is_valid()
        adds = snapshot.splits.records_at(files, np.arange(files.num_rows))
        certain = pc.and_(pc.invert(doubtful), counted).to_pylist()
        return Candidates(adds, frozenset(add.path for add, each in zip(adds, certain, strict=True) if each))

    def rows(self, snapshot: Snapshot, splits: Sequence[Add], hidden: Mapping[str, BitMap]) -> dict[str, BitMap]:
        """See `Finder`. If a bitmap index answers the whole filter, no row is read.

        DuckDB evaluates only the rows for which `bounds.meeting` returns no result.

        Raises:
            InvalidInput: The filter cannot be evaluated.
            Unavailable: The filter exceeds a limit.
        """
        is_exact = self._is_exact(snapshot)
        bitmaps, paths = self.verified.bitmaps, [add.path for add in splits]
        judge = RowFilter(
            self.store, snapshot, self.wanted, limits=self.limits, parts=bitmaps, query=self.query, is_run=not is_exact
        )
        told = dict(zip(paths, all_of(judge.by_bitmaps, paths, SPLITS_AT_ONCE), strict=True))
        found = {path: _known(answer) - hidden[path] for path, answer in told.items() if _is_known(answer)}
        read = _Read(self, judge, snapshot, [add for add in splits if add.path not in found], told, hidden)
        for path, places in read.met() if is_exact else read.judged():
            found[path] = found.get(path, BitMap()) | places
        if not is_exact:
            judge.require_valid()
        return found

    def predicate(self, snapshot: Snapshot) -> Predicate:
        """Return the filter with the column names of the table."""
        return in_columns(self.wanted.predicate, snapshot.schema.names) or self.wanted.predicate

    def is_compared(self, snapshot: Snapshot) -> bool:
        """Return True if this process itself compares rows with the conditions of the filter, before DuckDB does."""
        return len(list(islice(conditions(self.predicate(snapshot)), _MOST_CONDITIONS + 1))) <= _MOST_CONDITIONS

    def only_values(self, snapshot: Snapshot) -> Mapping[str, pa.Scalar]:
        """Return the columns that have a single value in all found rows, with this value."""
        return only_values(self.predicate(snapshot), _types(snapshot)) if self._is_exact(snapshot) else {}

    def _is_exact(self, snapshot: Snapshot) -> bool:
        """Return True if this process can find all matching rows without DuckDB."""
        return self.is_compared(snapshot) and is_exact(self.predicate(snapshot), _types(snapshot))


@dataclass(frozen=True, slots=True)
class _Read:
    """A read of splits that finds the rows for a condition. `answers` contains the results of indexes."""

    finder: ByCondition
    judge: RowFilter
    snapshot: Snapshot
    splits: Sequence[Add]
    answers: Mapping[str, Answer]
    hidden: Mapping[str, BitMap]

    def met(self) -> Generator[tuple[str, BitMap]]:
        """Yield splits with the positions of live rows that match an exact condition."""
        predicate = self.finder.predicate(self.snapshot)

        def places(part: Part) -> tuple[str, BitMap]:
            own = pc.indices_nonzero(meeting(part.rows, predicate)).to_numpy()
            return part.split.path, bitmap_of(own + part.first) - self.hidden[part.split.path]

        return self._used(places)

    def judged(self) -> Iterator[tuple[str, BitMap]]:
        """Yield splits with the positions of live rows that match the condition according to DuckDB."""
        predicate, is_compared = self.finder.predicate(self.snapshot), self.finder.is_compared(self.snapshot)

        def possible(part: Part) -> _Doubtful:
            rows = part.rows
            mask = part.live(self.hidden[part.split.path])
            if is_compared:
                mask &= may_match(rows, predicate)
            return _Doubtful(part.split.path, part.first + np.flatnonzero(mask), rows.filter(pa.array(mask)))

        batch = _Batch(self.judge)
        with closing(self._used(possible)) as read:
            for each in read:
                batch.add(each)
                if batch.rows >= JUDGED_ROWS:
                    yield from batch.judged()
        yield from batch.judged()

    def _used(self, use: Callable[[Part], Used]) -> Generator[Used]:
        schema = pa.schema([each for each in self.snapshot.schema if each.name in self.judge.columns])
        predicate, footers = self.finder.predicate(self.snapshot), self.finder.verified.footers.of_a_read()

        def groups(split: OpenSplit) -> Sequence[int]:
            is_ours = split.add.footerXxh3 is not None
            found = groups_left(split.footer, predicate, self.snapshot.schema) if is_ours else range(split.row_groups)
            rows = self.answers[split.add.path].rows
            return found if rows is None else groups_with(rows, split.footer, found)

        store, whole = self.finder.store, self.snapshot.schema
        return read_row_groups(use, store, self.splits, schema, whole=whole, groups=groups, footers=footers)


@dataclass(frozen=True, slots=True)
class _Doubtful:
    """Rows of a split that may match a condition, and their positions in the file."""

    path: str
    places: Positions
    rows: pa.Table


@dataclass(slots=True)
class _Batch:
    """Rows that are collected and then evaluated together."""

    judge: RowFilter
    rows: int = 0
    _waiting: list[_Doubtful] = field(default_factory=list)

    def add(self, rows: _Doubtful) -> None:
        if len(rows.places):
            self._waiting.append(rows)
            self.rows += len(rows.places)

    def judged(self) -> Iterator[tuple[str, BitMap]]:
        """Evaluate the collected rows, and yield the splits with the positions of matching rows.

        The batch is empty afterwards.
        """
        waiting, count = self._waiting, self.rows
        self._waiting, self.rows = [], 0
        if not waiting:
            return
        mask = self.judge.mask(pa.concat_tables([each.rows for each in waiting]), count)
        first = 0
        for each in waiting:
            yield each.path, bitmap_of(each.places[mask[first : first + len(each.places)]])
            first += len(each.places)


def _types(snapshot: Snapshot) -> Mapping[str, pa.DataType]:
    return {each.name: each.type for each in snapshot.schema}


def _is_known(answer: Answer) -> bool:
    return answer.rows is not None and (answer.is_exact or not answer.rows)


def _known(answer: Answer) -> BitMap:
    return BitMap() if answer.rows is None else answer.rows


def _not_true(predicate: Predicate) -> Predicate:
    """Return a predicate for all rows that do not match the given predicate.

    For each row that the returned predicate selects, the given predicate is false or one of its columns is null.
    """
    columns = {each.column for each in conditions(predicate) if isinstance(each, Compare)}
    return Or((negate(predicate), *(IsNull(column) for column in sorted(columns))))


@dataclass(frozen=True, eq=False)
class ByKeys:
    """Finds the rows with one of the `keys`.

    The keys are distinct, have the table's column types, and have no nulls.
    """

    store: ObjectStore
    keys: pa.Table
    verified: VerifiedFiles = field(default_factory=VerifiedFiles)

    def candidates(self, snapshot: Snapshot) -> Candidates:
        """See `Finder`. Uses the bounds of the key columns."""
        files = snapshot.splits.table()
        ranges = bounds_of_keys(files, self._fields(snapshot))
        places = np.flatnonzero(with_room(ranges, self.keys))
        return Candidates(snapshot.splits.records_at(files, places))

    def rows(self, snapshot: Snapshot, splits: Sequence[Add], hidden: Mapping[str, BitMap]) -> dict[str, BitMap]:
        """See `Finder`."""
        found: dict[str, BitMap] = {}
        footers = self.verified.footers.of_a_read()
        fields, stored = self._fields(snapshot), stored_rows(self.keys, snapshot.schema)

        def groups(split: OpenSplit) -> Sequence[int]:
            return admitting(split.bounds, split.row_groups, stored)

        def places(part: Part) -> tuple[str, Positions]:
            return part.split.path, part.first + self._places(part.rows, part.live(hidden[part.split.path]))

        read = read_row_groups(
            places, self.store, splits, fields, whole=snapshot.schema, groups=groups, footers=footers
        )
        with closing(read) as each_part:
            for path, own in each_part:
                if len(own):
                    found[path] = found.get(path, BitMap()) | bitmap_of(own)
        return found

    def _fields(self, snapshot: Snapshot) -> pa.Schema:
        return pa.schema([snapshot.schema.field(name) for name in self.keys.column_names])

    def _places(self, held: pa.Table, mask: Mask) -> Positions:
        """Return the positions of the rows with one of the keys. Only rows in the mask are compared."""
        names = self.keys.column_names
        for name in names:
            mask &= held.column(name).is_valid().to_numpy(zero_copy_only=False)
        places = np.flatnonzero(mask)
        rows = held.take(pa.array(places))
        hashes = key_hashes(rows, names)
        alike = within(np.unique(hashes), self._by_hash.hashes)
        if not len(alike):
            return alike
        keys = self.keys.take(pa.array(self._by_hash.order[alike]))
        wanted, own = key_codes([keys, rows], names)
        return places[np.isin(own, wanted)]

    @cached_property
    def _by_hash(self) -> _ByHash:
        hashes = key_hashes(self.keys, self.keys.column_names)
        order = np.argsort(hashes)
        return _ByHash(hashes[order], order)


@dataclass(frozen=True, slots=True)
class _ByHash:
    """Hashes of keys in ascending order, and the position of each key."""

    hashes: Hashes
    order: Positions
