"""A model of a table that consists of dictionaries and lists.

A sequence compares the table with its model after each operation.

The model of a keyed table consists of a base and the unmerged records of each region. These records are flushed,
logged, or still held by a writer. A read at a consistency level applies the records to the base in their order. An
append table is a multiset of rows. The models of keyed and append tables keep the base of every version.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]
Key = tuple[str, int]
Rows = dict[Key, Row]
Record = tuple[str, Row]

COLUMNS = ["part", "id", "timestamp", "n", "words", "attrs"]
WHOLE = "all"


def frozen(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the row as a hashable value. A map is converted to its sorted entries."""
    return tuple(tuple(sorted(row[name])) if isinstance(row[name], list) else row[name] for name in COLUMNS)


def bag(rows: Iterable[Mapping[str, Any]]) -> Counter[tuple[Any, ...]]:
    """Return the number of times that each row occurs."""
    return Counter(frozen(each) for each in rows)


@dataclass(slots=True)
class Region:
    """The unmerged records of one region, by their stage."""

    flushed: list[Record] = field(default_factory=list)
    logged: list[Record] = field(default_factory=list)
    given: list[Record] = field(default_factory=list)


@dataclass(slots=True)
class KeyedModel:
    """A keyed table.

    If `divided` is True, each `part` has a separate region. If `merges` is True, a patch of a map column is merged into
    the existing map.
    """

    merges: bool
    divided: bool = False
    base: Rows = field(default_factory=dict)
    regions: dict[str, Region] = field(default_factory=dict)
    claimed: set[str] | None = None
    versions: dict[int, Rows] = field(default_factory=dict)

    def rows(self, level: str) -> Rows:
        """Return the rows that a read at this level finds, by key."""
        found = dict(self.base)
        for each in self.regions.values():
            records = {"snapshot": [], "committed": each.flushed, "latest": each.flushed + each.logged}[level]
            self._apply(found, records)
        return found

    def at(self, version: int) -> list[Row]:
        """Return the base as of a version."""
        return [*self.versions[version].values()]

    def seen(self, level: str = "snapshot") -> list[Row]:
        """Return the rows that a read at this level finds."""
        return [*self.rows(level).values()]

    def write(self, records: list[Record], *, durable: bool) -> None:
        """Put records with the writer. A durable record also makes the earlier records of its region durable."""
        for record in records:
            region = self._region(record[1])
            region.given.append(record)
        if durable:
            for name in {self._name(row) for _, row in records}:
                self._log(self.regions[name])

    def claim(self, *names: str) -> None:
        """Open a writer, and let it claim these regions."""
        self.claimed = set(names)
        for name in names:
            self.regions.setdefault(name, Region())

    def sync(self) -> None:
        """Make all records of the writer durable."""
        for region in self.regions.values():
            self._log(region)

    def flush(self) -> None:
        """Flush the regions of the writer."""
        self.sync()
        for name in self.claimed or ():
            region = self.regions[name]
            region.flushed += region.logged
            region.logged = []

    def close(self, *, fenced: bool = False) -> int:
        """End the writer. Return the number of lost rows: the non-durable rows of a fenced writer."""
        lost = sum(len(each.given) for each in self.regions.values())
        for each in self.regions.values():
            each.given = [] if fenced else each.given
        self.sync()
        self.claimed = None
        return lost if fenced else 0

    def merge(self) -> None:
        """Merge flushed records into the base."""
        self.base = self.rows("committed")
        for each in self.regions.values():
            each.flushed = []

    def divide(self, *, divided: bool) -> None:
        """Merge all records, and continue with new regions."""
        if divided == self.divided:
            return
        self.base = self.rows("latest")
        self.regions, self.divided = {}, divided

    def restore(self, version: int) -> None:
        """Restore the base of a version. Unmerged records stay."""
        self.base = dict(self.versions[version])

    def note(self, version: int) -> None:
        """Record the current rows of the base as the content of this version."""
        self.versions[version] = dict(self.base)

    def _name(self, row: Row) -> str:
        return str(row["part"]) if self.divided else WHOLE

    def _region(self, row: Row) -> Region:
        name = self._name(row)
        if self.claimed is not None:
            self.claimed.add(name)
        return self.regions.setdefault(name, Region())

    @staticmethod
    def _log(region: Region) -> None:
        region.logged += region.given
        region.given = []

    def _apply(self, rows: Rows, records: list[Record]) -> None:
        for operation, given in records:
            key = (given["part"], given["id"])
            match operation:
                case "delete":
                    rows.pop(key, None)
                case "patch":
                    old = rows.get(key, dict.fromkeys(COLUMNS))
                    rows[key] = {**old, **given, **self._maps(old, given)}
                case _:
                    rows[key] = {name: given.get(name) for name in COLUMNS}

    def _maps(self, old: Row, given: Row) -> Row:
        """Return the map after a patch."""
        if not self.merges or given.get("attrs") is None or old["attrs"] is None:
            return {}
        return {"attrs": [*{**dict(old["attrs"]), **dict(given["attrs"])}.items()]}


@dataclass(slots=True)
class AppendModel:
    """An append table."""

    base: list[Row] = field(default_factory=list)
    versions: dict[int, list[Row]] = field(default_factory=dict)

    def at(self, version: int) -> list[Row]:
        """Return the rows of a version."""
        return self.versions[version]

    def seen(self, level: str = "snapshot") -> list[Row]:
        """Return the rows that a read finds. A read finds the same rows at every consistency level."""
        return self.base if level else []

    def add(self, rows: list[Row]) -> None:
        """Add rows."""
        self.base = [*self.base, *({name: row.get(name) for name in COLUMNS} for row in rows)]

    def restore(self, version: int) -> None:
        """Restore the rows of a version."""
        self.base = self.versions[version]

    def note(self, version: int) -> None:
        """Record the rows as of this version."""
        self.versions[version] = self.base
