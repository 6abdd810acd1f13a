"""What one checkpointed state lists: its manifests as parts in columns, each read when first looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from storage_core.errors import Corrupt, NotFound
from storage_core.formats.avro_state import ManifestInfo
from storage_core.formats.keys import KeyKind, parse
from storage_core.log.files.columns import ManifestBounds, paths_of, rows_at, without_paths
from storage_core.objectstore.prefetch import prefetch

PARALLEL_READS = 2
"""Each thread that decodes a manifest keeps some 40 MB of what the decoder freed."""

Keep = Callable[[ManifestBounds], bool]
Recover = Callable[[Exception], pa.Table]


class Part:
    """The entries of one manifest, read when first looked at and kept; what `info` says of them is known without."""

    def __init__(self, info: ManifestInfo, read: Callable[[], pa.Table], *, typed_bounds: bool = True) -> None:
        """Stand for what `read` gives; `typed_bounds` are in the order of the columns' types, others of text."""
        self.info = info
        self._read = read
        self._typed_bounds = typed_bounds
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
        """The entries as columns of `FILES_SCHEMA`, dead ones too. One GET the first time. Raises `Corrupt`."""
        if self._table is None:
            self._table = self._read()
        return self._table

    def passing(self) -> pa.Table:
        """Return what `table` does without keeping it."""
        return self._read() if self._table is None else self._table

    @property
    def rows(self) -> Mapping[str, int]:
        """The row of every path."""
        if self._rows is None:
            self._rows = {path: row for row, path in enumerate(paths_of(self.table))}
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

    def passing(self, dead: frozenset[str]) -> Iterator[pa.Table]:
        """Yield what `tables` does, one part at a time, and keep none. Raises where a part cannot be read."""
        hidden = self.tombstones | dead
        for part in self._parts():
            yield without_paths(part.passing(), hidden)

    def only(self, parts: Iterable[Part], dead: frozenset[str] = frozenset()) -> Iterator[pa.Table]:
        """Yield the entries of these parts, without tombstones and `dead`."""
        hidden = self.tombstones | dead
        for part in self._read(parts):
            yield without_paths(part.table, hidden)

    def find(self, path: str) -> pa.Table | None:
        """Return the live entry of this path as a table of one row, or None. Reads the parts that may hold it."""
        if path in self.tombstones:
            return None
        found = self.part_of(path)
        return None if found is None else found.table.slice(found.rows[path], 1)

    def find_all(self, paths: Iterable[str]) -> Iterator[pa.Table]:
        """Yield the live entries of such of these paths as have one, part by part. Reads the parts that may hold them.

        Of many paths this costs far less than `find` of each.
        """
        places: dict[int, tuple[Part, list[int]]] = {}
        for path in paths:
            found = None if path in self.tombstones else self.part_of(path)
            if found is not None:
                places.setdefault(id(found), (found, []))[1].append(found.rows[path])
        for part, rows in places.values():
            yield rows_at(part.table, np.array(rows, np.int64))

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
            for _ in prefetch(lambda part: part.table, unread, PARALLEL_READS):
                pass
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
