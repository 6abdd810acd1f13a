"""The live splits of a snapshot: the splits that a state lists, without later removals, and with later additions.

The list of a large table is stored in columns. Each manifest of the state is a `Part`, which is read only when it is
first used. `ListedFiles` contains the parts of one state. `LiveFiles` combines the parts with the versions after the
state. Only a few versions follow the state, so the additions of these versions are stored as actions. Consecutive
snapshots share the parts, so the cost of a new snapshot depends only on the changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, ItemsView, Iterable, Iterator, Mapping, ValuesView
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from storage_core.base.errors import Corrupt, NotFound
from storage_core.data.formats.avro_state import ManifestInfo
from storage_core.data.formats.keys import parse
from storage_core.data.formats.kinds import KeyKind
from storage_core.log.actions import Add
from storage_core.log.split_columns import ManifestBounds, adds_of, paths_of, rows_at, table_of, without_paths
from storage_core.store.meter import prefetch

if TYPE_CHECKING:
    import numpy.typing as npt


PARALLEL_READS = 2
"""The number of threads that read manifests concurrently.

Each thread keeps about 40 MB of memory after its decoder has freed this memory.
"""

Keep = Callable[[ManifestBounds], bool]
Recover = Callable[[Exception], pa.Table]


class Part:
    """The entries of one manifest, which is read at first use. `info` is available without a read."""

    def __init__(self, info: ManifestInfo, read: Callable[[], pa.Table], *, typed_bounds: bool = True) -> None:
        """Create a part. `read` returns the entries of the part.

        Args:
            typed_bounds: True if the bounds are in the order of the columns' types, False if they are in the order of
                strings.
        """
        self.info = info
        self._read = read
        self._typed_bounds = typed_bounds
        # These are plain attributes, because before Python 3.12 a `cached_property` has one lock for all instances.
        self._table: pa.Table | None = None
        self._rows: Mapping[str, int] | None = None

    @staticmethod
    def of(info: ManifestInfo, table: pa.Table) -> Part:
        """Return a part with entries that are already in memory."""
        part = Part(info, lambda: table)
        part._table = table  # A method of the class may set this private attribute.
        return part

    @property
    def bounds(self) -> ManifestBounds:
        """The bounds of the entries."""
        info = self.info
        return ManifestBounds(
            partitions=info.partition_bounds or {},
            in_order_of_type=self._typed_bounds,
            windows=info.windows,
            window_seconds=info.window_seconds,
            has_null_window=info.without_window != 0,
        )

    @property
    def is_read(self) -> bool:
        """Whether the entries are in memory."""
        return self._table is not None

    @property
    def table(self) -> pa.Table:
        """The entries, including dead ones, as columns of `FILES_SCHEMA`. One GET at first use. Raises `Corrupt`."""
        if self._table is None:
            self._table = self._read()
        return self._table

    def read_uncached(self) -> pa.Table:
        """Return the same table as `table`, but do not keep the table in memory."""
        return self._read() if self._table is None else self._table

    @property
    def rows(self) -> Mapping[str, int]:
        """The row number of every path."""
        if self._rows is None:
            self._rows = {path: row for row, path in enumerate(paths_of(self.table))}
        return self._rows

    def may_hold(self, path: str) -> bool:
        """Return False if the window in the path is outside of the part's bounds."""
        parsed = parse(path)
        if parsed is None or parsed.kind is not KeyKind.SPLIT or self.bounds.windows is None:
            return True
        if parsed.window is None:
            return self.bounds.has_null_window
        return self.bounds.windows[0] <= parsed.window <= self.bounds.windows[1]


@dataclass(frozen=True)
class ListedFiles:
    """The splits that one state lists: the parts of the state, and the dead paths in these parts.

    The class has no `__slots__`, because a list of parts can replace its parts once, after a failed read.

    Attributes:
        live: The number of live splits.
        bytes: The total size of the live splits.
        closed: True if every later removal is for a live split, and every later addition without a deletion vector is
            for a new path. This is always true in Tidemark's own logs.
        recover: A function that returns the same splits from another source if a part cannot be read. It is slower, but
            gives the same result.
    """

    version: int
    parts: tuple[Part, ...]
    tombstones: frozenset[str]
    live: int
    bytes: int
    closed: bool = True
    recover: Recover | None = None
    _recovered: list[Part] = field(default_factory=list, compare=False, repr=False)

    @property
    def is_intact(self) -> bool:
        """Whether every part that was used could be read."""
        return not self._recovered

    def tables(self, dead: frozenset[str], keep: Keep | None = None) -> Iterator[pa.Table]:
        """Yield the entries of the parts that `keep` accepts, without the paths in the tombstones and in `dead`.

        Parts are read in parallel.
        """
        return self.only((part for part in self._parts() if keep is None or keep(part.bounds)), dead)

    def read_uncached(self, dead: frozenset[str]) -> Iterator[pa.Table]:
        """Yield the same tables as `tables`. Read the parts one at a time, and do not keep them in memory.

        Raises the error of a part that cannot be read.
        """
        hidden = self.tombstones | dead
        for part in self._parts():
            yield without_paths(part.read_uncached(), hidden)

    def only(self, parts: Iterable[Part], dead: frozenset[str] = frozenset()) -> Iterator[pa.Table]:
        """Yield the entries of these parts, without the paths in the tombstones and in `dead`."""
        hidden = self.tombstones | dead
        for part in self._read(parts):
            yield without_paths(part.table, hidden)

    def find(self, path: str) -> pa.Table | None:
        """Return the live entry of this path as a table with one row, or None.

        Reads the parts that may contain the path.
        """
        if path in self.tombstones:
            return None
        found = self.part_of(path)
        return None if found is None else found.table.slice(found.rows[path], 1)

    def find_all(self, paths: Iterable[str]) -> Iterator[pa.Table]:
        """Yield the live entries of these paths, part by part. Reads the parts that may contain the paths.

        Paths without a live entry are skipped. For many paths, one call costs far less than one call of `find` per
        path.
        """
        places: dict[int, tuple[Part, list[int]]] = {}
        for path in paths:
            found = None if path in self.tombstones else self.part_of(path)
            if found is not None:
                places.setdefault(id(found), (found, []))[1].append(found.rows[path])
        for part, rows in places.values():
            yield rows_at(part.table, np.array(rows, np.int64))

    def part_of(self, path: str) -> Part | None:
        """Return the part that contains the path, or None. The split may already be removed from the table."""
        wanted = [part for part in self._parts() if part.may_hold(path)]
        return next((part for part in self._read(wanted) if path in part.rows), None)

    def _parts(self) -> tuple[Part, ...]:
        return tuple(self._recovered) or self.parts

    def _read(self, parts: Iterable[Part]) -> list[Part]:
        wanted = list(parts)
        unread = [part for part in wanted if not part.is_read]
        try:
            for _ in prefetch(lambda part: part.table, unread, PARALLEL_READS):
                pass
        except (Corrupt, NotFound) as error:
            if self.recover is None or self._recovered:
                raise
            # The whole list is replaced, not only this part. The source of the fallback divides the entries into parts
            # in another way than the unreadable state.
            table = self.recover(error)
            self._recovered.append(Part.of(_unknown(table), table))
            return list(self._recovered)
        return wanted


def _unknown(table: pa.Table) -> ManifestInfo:
    return ManifestInfo(path="", num_entries=table.num_rows, min_added_at_version=0, max_added_at_version=0)


_MOST_MADE = 4096
"""The maximum number of cached actions of single rows, about a kilobyte each."""


@dataclass(frozen=True, slots=True)
class Added:
    """A split, the version that added the split, and the time of that version in ms."""

    add: Add
    version: int
    timestamp_ms: int

    @property
    def at(self) -> tuple[int, int]:
        """The version that added the split, and its time in ms."""
        return self.version, self.timestamp_ms


class LiveFiles(Mapping[str, Add]):
    """The live splits by path, unordered.

    The splits are stored in columns. `table` returns the splits as columns. Iteration creates a record per split. Any
    method may read a manifest and then raise `Corrupt` or `Unavailable`. `len` reads no manifest unless an addition may
    replace a listed split.
    """

    def __init__(
        self,
        listed: ListedFiles | None = None,
        removed: frozenset[str] = frozenset(),
        added: Mapping[str, Added] | None = None,
        *,
        certain: bool = True,
    ) -> None:
        """Combine a state's list with later changes.

        The paths in `removed` are hidden. The splits in `added` replace listed splits of the same path.

        Args:
            certain: True if every path in `removed` is known to be listed.
        """
        self.listed = listed
        self.removed = removed
        self.added: Mapping[str, Added] = added or {}
        self.certain = certain
        self._all: pa.Table | None = None
        self._added: pa.Table | None = None
        self._records: dict[str, Add] | None = None
        self._made: dict[str, Add] = {}
        self._times: dict[str, tuple[int, int]] | None = None

    def __len__(self) -> int:
        if self.listed is None:
            return len(self.added)
        if self._is_exact:
            return self.listed.live - len(self.removed) + len(self.added)
        return len(self._as_records())

    def __getitem__(self, path: str) -> Add:
        added = self.added.get(path)
        if added is not None:
            return added.add
        if self._records is not None:
            return self._records[path]
        return adds_of(self._entry(path))[0]

    def __contains__(self, path: object) -> bool:
        if path in self.added or not isinstance(path, str):
            return path in self.added
        return self.listed is not None and path not in self.removed and self.listed.find(path) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._as_records())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LiveFiles):
            return self._as_records() == dict(other) if isinstance(other, Mapping) else NotImplemented
        return self._as_records() == other._as_records() and self._added_at() == other._added_at()

    __hash__ = None  # type: ignore[assignment]  # mappings are not hashable

    def values(self) -> ValuesView[Add]:
        """Return the actions that added the splits."""
        return self._as_records().values()

    def items(self) -> ItemsView[str, Add]:
        """Return paths and actions."""
        return self._as_records().items()

    def added_at(self, path: str) -> tuple[int, int]:
        """Return the version that added a live split, and its time in ms. Raises `KeyError` if `path` is not the path
        of a live split.
        """
        added = self.added.get(path)
        if added is not None:
            return added.at
        if self._times is not None:
            return self._times[path]
        return _times_of(self._entry(path))[0]

    def among(self, paths: Collection[str]) -> dict[str, Add]:
        """Return the live splits with one of these paths, by path. Only these splits are loaded as Python objects."""
        found = {path: self.added[path].add for path in paths if path in self.added}
        rest = [path for path in paths if path not in found and path not in self.removed]
        if self._records is not None:
            return found | {path: self._records[path] for path in rest if path in self._records}
        tables = () if self.listed is None else self.listed.find_all(rest)
        return found | {add.path: add for add in chain.from_iterable(map(adds_of, tables))}

    def records_at(self, table: pa.Table, places: npt.NDArray[np.int64]) -> tuple[Add, ...]:
        """Return the `Add` actions of the rows `places` of `table`, in order. A few thousand actions are cached."""
        paths: list[str] = table.column("path").take(pa.array(places)).to_pylist()
        known = self._made if self._records is None else self._records
        new = [place for place, path in zip(places.tolist(), paths, strict=True) if path not in known]
        if not new:
            return tuple(known[path] for path in paths)
        if len(known) + len(new) > _MOST_MADE:
            known, new = {}, places.tolist()
        made = known | {add.path: add for add in adds_of(rows_at(table, np.array(new)))}
        if len(made) <= _MOST_MADE:
            self._made = made
        return tuple(made[path] for path in paths)

    def recent(self, path: str) -> Add | None:
        """Return the live split of this path, or None if a request is needed. The newest splits need no request."""
        added = self.added.get(path)
        return None if added is None else added.add

    @property
    def is_read(self) -> bool:
        """Whether `table` needs no read."""
        return self.listed is None or all(part.is_read for part in self.listed.parts)

    def table(self, keep: Keep | None = None) -> pa.Table:
        """Return one row per live split, with the columns of `FILES_SCHEMA`.

        Args:
            keep: A function that returns False for a manifest to skip. It may accept a manifest without a wanted entry,
                but must not refuse a manifest with a wanted entry. Splits added since the state are always included.
        """
        if keep is not None:
            return pa.concat_tables(self.tables(keep))
        if self._all is None:
            self._all = pa.concat_tables(self.tables())
        return self._all

    def tables(self, keep: Keep | None = None) -> Iterator[pa.Table]:
        """Yield the rows of `table`, divided into several tables."""
        if self.listed is not None:
            yield from self.listed.tables(self._dead, keep)
        yield self.added_table()

    def read_uncached(self) -> Iterator[pa.Table]:
        """Yield the same tables as `tables`, but do not keep the parts in memory.

        Raises `Corrupt` and `NotFound` for a lost manifest.
        """
        if self.listed is not None:
            yield from self.listed.read_uncached(self._dead)
        yield self.added_table()

    def total(self, column: Literal["size", "numRecords"]) -> int:
        """Return the sum of a column over the live splits. A split without a value in the column does not change the
        sum.
        """
        import pyarrow.compute as pc

        listed = () if self.listed is None else self.listed.tables(self._dead)
        sums = (pc.sum(table.column(column)).as_py() or 0 for table in listed)
        return sum(sums) + sum(getattr(each.add, column) or 0 for each in self.added.values())

    def deleted_rows(self) -> int:
        """Return the number of rows of live splits that are hidden by deletion vectors."""
        return sum(add.deleted_rows.cardinality for add in self.marked() if add.deleted_rows is not None)

    def marked(self) -> list[Add]:
        """Return the live splits with a deletion vector, even an empty one.

        Only these splits are loaded as Python objects.
        """
        tables = (table.filter(table.column("deletionVector").is_valid()) for table in self.tables())
        return [add for table in tables for add in adds_of(table)]

    def added_table(self) -> pa.Table:
        """Return the rows of the splits added since the state. Reads nothing."""
        if self._added is None:
            self._added = table_of(
                [each.add for each in self.added.values()], [each.at for each in self.added.values()]
            )
        return self._added

    def _as_records(self) -> dict[str, Add]:
        if self._records is None:
            listed = () if self.listed is None else self.listed.tables(self._dead)
            found = {add.path: add for add in chain.from_iterable(map(adds_of, listed))}
            self._records = found | {path: each.add for path, each in self.added.items()}
        return self._records

    def _added_at(self) -> dict[str, tuple[int, int]]:
        if self._times is None:
            listed = () if self.listed is None else self.listed.tables(self._dead)
            found = {path: at for table in listed for path, at in zip(paths_of(table), _times_of(table), strict=True)}
            self._times = found | {path: each.at for path, each in self.added.items()}
        return self._times

    @property
    def _is_exact(self) -> bool:
        return self.listed is not None and self.listed.closed and self.certain and not self.replacing

    @property
    def replacing(self) -> frozenset[str]:
        """The paths of those `Add` actions that may replace the entry of the same path in the listed state.

        In a log of other software, any addition may replace an entry. In Tidemark's own logs, only an addition with a
        deletion vector may replace an entry.
        """
        closed = self.listed is None or self.listed.closed
        return frozenset(path for path, each in self.added.items() if not closed or each.add.deletionVector is not None)

    @property
    def _dead(self) -> frozenset[str]:
        return self.removed | self.replacing

    def _entry(self, path: str) -> pa.Table:
        found = None if self.listed is None or path in self.removed else self.listed.find(path)
        if found is None:
            raise KeyError(path)
        return found


class FilesBuilder:
    """A builder that applies additions and removals in order. `build` returns the live splits."""

    def __init__(self, base: LiveFiles | None) -> None:
        """Start from `base`. The builder does not change `base`."""
        self._listed = base.listed if base is not None else None
        self._removed: set[str] = set(base.removed) if base is not None else set()
        self._added: dict[str, Added] = dict(base.added) if base is not None else {}
        self._certain = base.certain if base is not None else True

    def add(self, add: Add, version: int, timestamp_ms: int) -> None:
        """Make the split live. The split replaces a live split with the same path."""
        self._added[add.path] = Added(add, version, timestamp_ms)

    def remove(self, path: str) -> None:
        """Remove the split. Does nothing if the split was not live."""
        added = self._added.pop(path, None)
        if self._listed is None:
            return
        if added is None:
            self._removed.add(path)
        elif added.add.deletionVector is not None and path not in self._removed:
            # The addition may have replaced a listed entry, which must not become live again.
            self._removed.add(path)
            self._certain = False

    def build(self) -> LiveFiles:
        """Return the live splits."""
        return LiveFiles(self._listed, frozenset(self._removed), self._added, certain=self._certain)


def _times_of(table: pa.Table) -> list[tuple[int, int]]:
    columns = (table.column(name).fill_null(0).to_pylist() for name in ("addedAtVersion", "addedAtTimestamp"))
    return list(zip(*columns, strict=True))
