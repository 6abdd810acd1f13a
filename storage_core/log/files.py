"""The live splits of a snapshot: what a state lists, less what was removed since, and what was added since (page 02).

The list of a large table is kept in columns, in the parts that the state's manifests are, and a part is read only when
somebody looks into it. Versions after the state are few, so what they added is kept as actions. Two snapshots that
follow one another share the parts; making the later one costs what lies between them.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, ValuesView
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import Corrupt, NotFound
from storage_core.formats.avro_state import ManifestInfo
from storage_core.formats.keys import KeyKind, parse
from storage_core.log.actions import Add
from storage_core.log.file_columns import FILES_SCHEMA, ManifestBounds, adds_of, table_of
from storage_core.log.safe_path import is_safe_path

PARALLEL_READS = 8

# Segments of letters, digits and a few marks that do not begin with a dot: nothing in them can leave the table.
_PLAIN_PATH = r"^[A-Za-z0-9_=-][A-Za-z0-9_=.-]*(?:/[A-Za-z0-9_=-][A-Za-z0-9_=.-]*)*$"

Keep = Callable[[ManifestBounds], bool]
Recover = Callable[[Exception], pa.Table]


@dataclass(frozen=True, slots=True)
class Added:
    """A split with the version that added it and that version's time in ms."""

    add: Add
    version: int
    timestamp_ms: int

    @property
    def at(self) -> tuple[int, int]:
        """Version and time."""
        return self.version, self.timestamp_ms


class Part:
    """The entries of one manifest, read when first looked at and kept; what `info` says of them is known without."""

    def __init__(self, info: ManifestInfo, read: Callable[[], pa.Table], *, ours: bool = True) -> None:
        """Stand for what `read` gives; `ours` tells that the bounds are in the order of the columns' types."""
        self.info = info
        self._read = read
        self._ours = ours
        # Plain attributes: before Python 3.12 a `cached_property` lets one thread at a time read, of all parts.
        self._table: pa.Table | None = None
        self._rows: Mapping[str, int] | None = None

    @staticmethod
    def of(info: ManifestInfo, table: pa.Table) -> Part:
        """Return a part that is in memory already."""
        part = Part(info, lambda: table)
        part._table = table  # its own class
        return part

    @property
    def bounds(self) -> ManifestBounds:
        """What may be among the entries."""
        info = self.info
        return ManifestBounds(
            partitions=info.partition_bounds or {},
            in_order_of_type=self._ours,
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
        """The entries as columns of `FILES_SCHEMA`, dead ones too. One GET the first time. Raises `Corrupt`."""
        if self._table is None:
            self._table = self._read()
        return self._table

    @property
    def rows(self) -> Mapping[str, int]:
        """The row of every path."""
        if self._rows is None:
            self._rows = {path: row for row, path in enumerate(_paths(self.table))}
        return self._rows

    def may_hold(self, path: str) -> bool:
        """Return False when the window in the path lies outside the part's."""
        parsed = parse(path)
        if parsed is None or parsed.kind is not KeyKind.SPLIT or self.bounds.windows is None:
            return True
        if parsed.window is None:
            return self.bounds.has_null_window
        return self.bounds.windows[0] <= parsed.window <= self.bounds.windows[1]


@dataclass(frozen=True)
class ListedFiles:
    """What one state lists: its parts, and the paths in them that are dead. Not slotted: parts may be replaced once.

    `live` counts the splits, `bytes` is their size. `closed` tells that every later removal names a live split and no
    later addition one, which holds in logs of ours. `recover` lists the same splits from elsewhere when a part cannot
    be read: slower, same answer.
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
        """Whether every part that was looked at could be read."""
        return not self._recovered

    def tables(self, dead: frozenset[str], keep: Keep | None = None) -> Iterator[pa.Table]:
        """Yield the entries of the parts that `keep` lets through, without tombstones and `dead`. Read in parallel."""
        return self.only((part for part in self._parts() if keep is None or keep(part.bounds)), dead)

    def only(self, parts: Iterable[Part], dead: frozenset[str] = frozenset()) -> Iterator[pa.Table]:
        """Yield the entries of these parts, without tombstones and `dead`."""
        hidden = self.tombstones | dead
        without = pa.array(sorted(hidden), pa.string()) if hidden else None
        for part in self._read(parts):
            if without is None:
                yield part.table
            else:
                yield part.table.filter(pc.invert(pc.is_in(part.table.column("path"), value_set=without)))

    def find(self, path: str) -> pa.Table | None:
        """Return the live entry of this path as a table of one row, or None. Reads the parts that may hold it."""
        if path in self.tombstones:
            return None
        found = self.part_of(path)
        return None if found is None else found.table.slice(found.rows[path], 1)

    def part_of(self, path: str) -> Part | None:
        """Return the part that lists the path, dead or alive; None when none does."""
        wanted = [part for part in self._parts() if part.may_hold(path)]
        return next((part for part in self._read(wanted) if path in part.rows), None)

    def _parts(self) -> tuple[Part, ...]:
        return tuple(self._recovered) or self.parts

    def _read(self, parts: Iterable[Part]) -> list[Part]:
        wanted = list(parts)
        unread = [part for part in wanted if not part.is_read]
        try:
            if len(unread) > 1:
                with ThreadPoolExecutor(PARALLEL_READS) as pool:
                    list(pool.map(lambda part: part.table, unread))
            elif unread:
                _ = unread[0].table
        except (Corrupt, NotFound) as error:
            if self.recover is None or self._recovered:
                raise
            # The list as a whole, not the one part: elsewhere the entries lie in other parts.
            table = self.recover(error)
            self._recovered.append(Part.of(_unknown(table), table))
            return list(self._recovered)
        return wanted


def _unknown(table: pa.Table) -> ManifestInfo:
    return ManifestInfo(path="", num_entries=table.num_rows, min_added_at_version=0, max_added_at_version=0)


class LiveFiles(Mapping[str, Add]):
    """The live splits by path, in no order. Made of columns: `table` gives them all, iterating makes records of them.

    Reading a manifest may raise `Corrupt` and `Unavailable`, whatever is called; `len` reads none.
    """

    def __init__(
        self,
        listed: ListedFiles | None = None,
        removed: frozenset[str] = frozenset(),
        added: Mapping[str, Added] | None = None,
        *,
        certain: bool = True,
    ) -> None:
        """Hide `removed` of `listed` and put `added` over it; `certain` tells that all of `removed` is listed."""
        self.listed = listed
        self.removed = removed
        self.added: Mapping[str, Added] = added or {}
        self.certain = certain
        self._all: pa.Table | None = None
        self._records: dict[str, Add] | None = None
        self._times: dict[str, tuple[int, int]] | None = None

    def __len__(self) -> int:
        if self.listed is None:
            return len(self.added)
        if self._is_exact:
            return self.listed.live - len(self.removed) + len(self.added)
        return sum(table.num_rows for table in self.tables())

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
        """Return the version that added a live split, and its time in ms. Raises `KeyError` for any other path."""
        added = self.added.get(path)
        if added is not None:
            return added.at
        if self._times is not None:
            return self._times[path]
        return _times_of(self._entry(path))[0]

    def recent(self, path: str) -> Add | None:
        """Return the live split of this path if that is known without a request, as it is of the newest commits."""
        added = self.added.get(path)
        return None if added is None else added.add

    def table(self, keep: Keep | None = None) -> pa.Table:
        """Return one row per live split, columns of `FILES_SCHEMA`; manifests that `keep` refuses are left unread.

        `keep` may let through manifests that hold nothing wanted, never the other way round; splits added since the
        state are always among the rows.
        """
        if keep is not None:
            return pa.concat_tables(self.tables(keep))
        if self._all is None:
            self._all = pa.concat_tables(self.tables())
        return self._all

    def tables(self, keep: Keep | None = None) -> Iterator[pa.Table]:
        """Yield the rows of `table` piece by piece."""
        if self.listed is not None:
            yield from self.listed.tables(self._dead, keep)
        yield self.added_table()

    def total(self, column: Literal["size", "numRecords"]) -> int:
        """Return the sum of a figure over the live splits; splits without it add nothing."""
        listed = () if self.listed is None else self.listed.tables(self._dead)
        sums = (pc.sum(table.column(column)).as_py() or 0 for table in listed)
        return sum(sums) + sum(getattr(each.add, column) or 0 for each in self.added.values())

    def added_table(self) -> pa.Table:
        """Return the rows of the splits added since the state. Reads nothing."""
        return table_of([each.add for each in self.added.values()], [each.at for each in self.added.values()])

    def _as_records(self) -> dict[str, Add]:
        if self._records is None:
            listed = () if self.listed is None else self.listed.tables(self._dead)
            found = {add.path: add for add in chain.from_iterable(map(adds_of, listed))}
            self._records = found | {path: each.add for path, each in self.added.items()}
        return self._records

    def _added_at(self) -> dict[str, tuple[int, int]]:
        if self._times is None:
            listed = () if self.listed is None else self.listed.tables(self._dead)
            found = {path: at for table in listed for path, at in zip(_paths(table), _times_of(table), strict=True)}
            self._times = found | {path: each.at for path, each in self.added.items()}
        return self._times

    @property
    def _is_exact(self) -> bool:
        return self.listed is not None and self.listed.closed and self.certain and not self.replacing

    @property
    def replacing(self) -> frozenset[str]:
        """Additions that may stand for an entry of the list: all in logs of others, in ours those with a vector."""
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
    """Applies additions and removals in order; `build` hands over what it has."""

    def __init__(self, base: LiveFiles | None) -> None:
        """Start from `base`, which stays as it is."""
        self._listed = base.listed if base is not None else None
        self._removed: set[str] = set(base.removed) if base is not None else set()
        self._added: dict[str, Added] = dict(base.added) if base is not None else {}
        self._certain = base.certain if base is not None else True

    def add(self, add: Add, version: int, timestamp_ms: int) -> None:
        """Make the split live, in place of what was live under its path."""
        self._added[add.path] = Added(add, version, timestamp_ms)

    def remove(self, path: str) -> None:
        """End the split; nothing happens when it was not live."""
        added = self._added.pop(path, None)
        if self._listed is None:
            return
        if added is None:
            self._removed.add(path)
        elif added.add.deletionVector is not None and path not in self._removed:
            # It may have stood for a listed entry, which must not come back now.
            self._removed.add(path)
            self._certain = False

    def build(self) -> LiveFiles:
        """Return the live splits."""
        return LiveFiles(self._listed, frozenset(self._removed), self._added, certain=self._certain)


def conform(table: pa.Table, where: str) -> pa.Table:
    """Return entries as columns of `FILES_SCHEMA`: missing ones null, unknown ones dropped. Raises `Corrupt`."""
    columns = []
    for wanted in FILES_SCHEMA:
        if wanted.name not in table.column_names:
            columns.append(pa.nulls(table.num_rows, wanted.type))
            continue
        try:
            columns.append(table.column(wanted.name).cast(wanted.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise Corrupt(f"{where}: the field {wanted.name!r} is not {wanted.type}: {error}", key=where) from error
    found = pa.Table.from_arrays(columns, schema=FILES_SCHEMA)
    _require_safe_paths(found.column("path"), where)
    return found


def _require_safe_paths(paths: pa.ChunkedArray, where: str) -> None:
    """Raise `Corrupt` for a path that is missing or leaves the table. What is not plain is looked at one by one."""
    plain = pc.fill_null(pc.match_substring_regex(paths, _PLAIN_PATH), fill_value=False)
    for path in paths.filter(pc.invert(plain)).to_pylist():
        if path is None or not is_safe_path(path):
            raise Corrupt(f"{where}: the path {path!r} leaves the table", key=where)


def _paths(table: pa.Table) -> list[str]:
    paths: list[str] = table.column("path").to_pylist()
    return paths


def _times_of(table: pa.Table) -> list[tuple[int, int]]:
    columns = (pc.fill_null(table.column(name), 0).to_pylist() for name in ("addedAtVersion", "addedAtTimestamp"))
    return list(zip(*columns, strict=True))
