"""The queries of a catalog. The log, a catalog of the log, and a dictionary answer the same queries."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from sqlalchemy import Engine, event

from storage_core.catalog.answers import Page
from storage_core.catalog.catalog import Catalog
from storage_core.compact.invariants import scope_of
from storage_core.compact.planner import group, plan_expiry
from storage_core.log.actions import Action, Add, IndexSegment, MergedGenerations, Remove, RemoveIndexSegment
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.log.versions import read_version
from storage_core.read.predicate import And, Compare, Comparison, Predicate
from storage_core.read.pruning import prune
from tests.support.fault_store import Crash

Change = tuple[int, str, str]
SINCE = dt.datetime(2026, 1, 1, 1, tzinfo=dt.UTC)
UNTIL = dt.datetime(2026, 1, 1, 3, tzinfo=dt.UTC)


class Side(Protocol):
    """The queries about the newest version of a table."""

    def live(self) -> Mapping[str, tuple[int, int]]:
        """Return the visible rows and the bytes of each live split."""
        ...

    def segments(self) -> set[str]:
        """Return the live segments."""
        ...

    def regions(self) -> Mapping[str, int]:
        """Return the last merged generation of each region."""
        ...

    def candidates(self) -> set[str]:
        """Return the splits that share scope and window with another split."""
        ...

    def between(self) -> set[str]:
        """Return the splits that may have rows with a time from `SINCE` to `UNTIL` and a column `n` of at least 2."""
        ...

    def expired(self, now_ms: int) -> set[tuple[int, int]]:
        """Return the windows that have expired, with the number of their splits."""
        ...

    def changes(self, since: int) -> list[Change]:
        """Return the splits removed and added after a version, in the order of versions."""
        ...


@dataclass(frozen=True)
class OfTheLog:
    """Answers the queries with the code that plans reads, compactions and expiry."""

    log: TransactionLog

    @property
    def head(self) -> Snapshot:
        """Return the newest snapshot."""
        return self.log.snapshot()

    def live(self) -> dict[str, tuple[int, int]]:
        """See `Side`."""
        return {path: (add.visible_rows, add.size) for path, add in self.head.splits.items()}

    def segments(self) -> set[str]:
        """See `Side`."""
        return {*self.head.segments}

    def regions(self) -> Mapping[str, int]:
        """See `Side`."""
        return self.head.merged_generations

    def candidates(self) -> set[str]:
        """See `Side`."""
        head = self.head
        found = group(head, windows=None, skipped=(), now_ms=0)
        paths = head.splits.table().column("path").to_pylist()
        groups = found.splits.group.tolist()
        return {paths[place] for place, own in zip(found.place.tolist(), groups, strict=True) if groups.count(own) > 1}

    def between(self) -> set[str]:
        """See `Side`."""
        head = self.head
        conditions: list[Predicate] = [Compare("n", Comparison.GE, 2)] if "n" in head.schema.names else []
        if head.config.time_column is not None:
            conditions.append(Compare(head.config.time_column, Comparison.GE, SINCE))
            conditions.append(Compare(head.config.time_column, Comparison.LT, UNTIL))
        return {add.path for add in prune(head, And(tuple(conditions)))}

    def expired(self, now_ms: int) -> set[tuple[int, int]]:
        """See `Side`."""
        found = plan_expiry(self.head, retention_ms=self.head.config.retention_ms, now_ms=now_ms)
        return {(each.window_start, each.splits) for each in found.windows}

    def changes(self, since: int) -> list[Change]:
        """See `Side`."""
        found: list[Change] = []
        for version in range(since + 1, self.head.version + 1):
            before, after = (dict(self.log.snapshot(version=each).splits.items()) for each in (version - 1, version))
            found += [(version, "removed", path) for path in sorted(before) if before[path] != after.get(path)]
            found += [(version, "added", path) for path in sorted(after) if after[path] != before.get(path)]
        return found


@dataclass(frozen=True)
class OfACatalogue:
    """Answers the queries from a catalog, in pages of a few rows."""

    catalog: Catalog
    uri: str
    log: TransactionLog
    page: int = 3

    def live(self) -> dict[str, tuple[int, int]]:
        """See `Side`."""
        rows = self._select("split_id, rows - deleted_rows, bytes", "splits", "AND removed_version IS NULL")
        return {str(path): (int(str(visible)), int(str(size))) for path, visible, size in rows}

    def segments(self) -> set[str]:
        """See `Side`."""
        return {str(path) for (path,) in self._select("segment_id", "segments", "AND removed_version IS NULL")}

    def regions(self) -> dict[str, int]:
        """See `Side`."""
        return {str(name): int(str(last)) for name, last in self._select("region, merged_generation", "regions")}

    def candidates(self) -> set[str]:
        """See `Side`."""
        ask = self.catalog.compaction_candidates
        return {each.split_id for each in paged(lambda at: ask(self.uri, after=at, limit=self.page))}

    def between(self) -> set[str]:
        """See `Side`."""
        has_n = "n" in self.log.snapshot().schema.names
        ask = self.catalog.splits_between
        found = paged(
            lambda at: ask(self.uri, SINCE, UNTIL, filter="n >= 2" if has_n else None, after=at, limit=self.page)
        )
        return {each.split_id for each in found}

    def expired(self, now_ms: int) -> set[tuple[int, int]]:
        """See `Side`."""
        return {(each.window_start, each.splits) for each in self.catalog.expired_windows(self.uri, now_ms=now_ms)}

    def changes(self, since: int) -> list[Change]:
        """See `Side`."""
        ask = self.catalog.changes_since
        found = paged(lambda at: ask(self.uri, since, after=at, limit=self.page))
        return [(each.version, each.change, each.split_id) for each in found]

    def _select(self, columns: str, table: str, more: str = "") -> list[tuple[object, ...]]:
        (known,) = [each for each in self.catalog.tables() if each.uri == self.uri]
        return self.catalog.sql(f"SELECT {columns} FROM {table} WHERE table_id = '{known.table_id}' {more}")[1]


@dataclass
class ByHand:
    """Answers the queries from a dictionary to which all actions of all versions were applied."""

    log: TransactionLog
    splits: dict[str, Add] = field(default_factory=dict)
    own_segments: set[str] = field(default_factory=set)
    merged: dict[str, int] = field(default_factory=dict)
    changed: list[Change] = field(default_factory=list)
    version: int = -1

    def caught_up(self) -> ByHand:
        """Apply all new versions, and return this object."""
        while (actions := read_version(self.log.store, self.version + 1)) is not None:
            before = dict(self.splits)
            for action in actions:
                self._take(action)
            self.version += 1
            after = self.splits
            gone = [path for path in sorted(before) if before[path] is not after.get(path)]
            came = [path for path in sorted(after) if after[path] is not before.get(path)]
            self.changed += [(self.version, "removed", path) for path in gone]
            self.changed += [(self.version, "added", path) for path in came]
        return self

    def live(self) -> dict[str, tuple[int, int]]:
        """See `Side`."""
        return {path: (add.visible_rows, add.size) for path, add in self.splits.items()}

    def segments(self) -> set[str]:
        """See `Side`."""
        return self.own_segments

    def regions(self) -> Mapping[str, int]:
        """See `Side`."""
        return self.merged

    def candidates(self) -> set[str]:
        """See `Side`."""
        groups: dict[object, set[str]] = {}
        for path, add in self.splits.items():
            scope = scope_of("", add)
            if scope is not None:
                groups.setdefault((scope, add.windowStart), set()).add(path)
        return {path for several in groups.values() if len(several) > 1 for path in several}

    def between(self) -> set[str]:
        """See `Side`. All times have the same text format, so the texts sort in time order."""
        schema = self.log.snapshot().schema
        since, until = (each.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z" for each in (SINCE, UNTIL))
        found = set()
        for path, add in self.splits.items():
            least, greatest = add.minValues or {}, add.maxValues or {}
            in_time = "at" not in schema.names or ("at" in greatest and greatest["at"] >= since and least["at"] < until)
            if in_time and ("n" not in schema.names or int(greatest.get("n", 0)) >= 2):
                found.add(path)
        return found

    def expired(self, now_ms: int) -> set[tuple[int, int]]:
        """See `Side`."""
        retention_ms = self.log.snapshot().config.retention_ms
        windows = [
            add.windowStart
            for add in self.splits.values()
            if retention_ms is not None
            and add.windowStart is not None
            and (add.windowStart + (add.windowSeconds or 0)) * 1000 + retention_ms <= now_ms
        ]
        return {(start, windows.count(start)) for start in windows}

    def changes(self, since: int) -> list[Change]:
        """See `Side`."""
        return [each for each in self.changed if each[0] > since]

    def _take(self, action: Action) -> None:
        match action:
            case Add():
                self.splits[action.path] = action
            case Remove():
                self.splits.pop(action.path, None)
            case IndexSegment():
                self.own_segments.add(action.path)
            case RemoveIndexSegment():
                self.own_segments.discard(action.path)
            case MergedGenerations():
                self.merged[action.region] = action.generation
            case _:
                pass


_Row = TypeVar("_Row")
_Position = TypeVar("_Position")


def paged(page_at: Callable[[_Position | None], Page[_Row, _Position]]) -> list[_Row]:
    """Return the rows of all pages."""
    rows: list[_Row] = []
    at = None
    while True:
        page = page_at(at)
        rows += page.rows
        at = page.after
        if at is None:
            return rows


@dataclass
class Killer:
    """Hook that raises `Crash` at a chosen statement of a database. `statements` counts the statements."""

    at: int | None = None
    statements: int = 0

    def __call__(self, engine: Engine) -> None:
        """Count the statements and commits of an engine from now on."""

        def each(*_: object) -> None:
            self.statements += 1
            if self.statements == self.at:
                raise Crash

        event.listen(engine, "before_cursor_execute", each)
        event.listen(engine, "commit", each)
