"""The live splits of a snapshot: what a state lists, less what was removed since, and what was added since.

The list of a large table is kept in columns, in the parts that the state's manifests are, and a part is read only when
somebody looks into it. Versions after the state are few, so what they added is kept as actions. Two snapshots that
follow one another share the parts; making the later one costs what lies between them.
"""

from __future__ import annotations

from collections.abc import Collection, ItemsView, Iterator, Mapping, ValuesView
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from storage_core.log.actions import Add
from storage_core.log.files.columns import adds_of, paths_of, rows_at, table_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from storage_core.log.files.listed import Keep, ListedFiles

_MOST_MADE = 4096
"""Actions of single rows that are kept, about a kilobyte each."""


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
        """Return the version that added a live split, and its time in ms. Raises `KeyError` for any other path."""
        added = self.added.get(path)
        if added is not None:
            return added.at
        if self._times is not None:
            return self._times[path]
        return _times_of(self._entry(path))[0]

    def among(self, paths: Collection[str]) -> dict[str, Add]:
        """Return the live splits that have one of these paths, by path; only they become records."""
        found = {path: self.added[path].add for path in paths if path in self.added}
        rest = [path for path in paths if path not in found and path not in self.removed]
        if self._records is not None:
            return found | {path: self._records[path] for path in rest if path in self._records}
        tables = () if self.listed is None else self.listed.find_all(rest)
        return found | {add.path: add for add in chain.from_iterable(map(adds_of, tables))}

    def records_at(self, table: pa.Table, places: npt.NDArray[np.int64]) -> tuple[Add, ...]:
        """Return the actions at these places of `table`, in that order. Of a few thousand each is made once."""
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
        """Return the live split of this path if that is known without a request, as it is of the newest commits."""
        added = self.added.get(path)
        return None if added is None else added.add

    @property
    def is_read(self) -> bool:
        """Whether `table` reads nothing."""
        return self.listed is None or all(part.is_read for part in self.listed.parts)

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

    def passing(self) -> Iterator[pa.Table]:
        """Yield what `tables` does and keep none of it. Raises `Corrupt` and `NotFound` for a lost manifest."""
        if self.listed is not None:
            yield from self.listed.passing(self._dead)
        yield self.added_table()

    def total(self, column: Literal["size", "numRecords"]) -> int:
        """Return the sum of a metric over the live splits; splits without it add nothing."""
        import pyarrow.compute as pc

        listed = () if self.listed is None else self.listed.tables(self._dead)
        sums = (pc.sum(table.column(column)).as_py() or 0 for table in listed)
        return sum(sums) + sum(getattr(each.add, column) or 0 for each in self.added.values())

    def deleted_rows(self) -> int:
        """Return how many rows of the live splits their deletion vectors hide."""
        return sum(add.deleted_rows.cardinality for add in self.marked() if add.deleted_rows is not None)

    def marked(self) -> list[Add]:
        """Return the live splits with a deletion vector, one of no rows included; only they have to be records."""
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


def _times_of(table: pa.Table) -> list[tuple[int, int]]:
    columns = (table.column(name).fill_null(0).to_pylist() for name in ("addedAtVersion", "addedAtTimestamp"))
    return list(zip(*columns, strict=True))
