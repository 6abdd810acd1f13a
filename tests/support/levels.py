"""A keyed table, and dictionaries of the rows that each level of consistency must show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from storage_core.data.settings.table import TableConfig
from storage_core.index import catch_up
from storage_core.store.memory import MemoryStore
from storage_core.write.region.captured_regions import Unmerged, capture
from storage_core.write.region.records import WriterOptions
from tests.support.keyed_table import KeyedTable

Key = tuple[object, ...]
Row = dict[str, Any]


class Levels:
    """A table and its expected rows. `seen` maps each level (`snapshot`, `committed`, `latest`) to its rows by key."""

    def __init__(self, name: str, schema: pa.Schema, config: TableConfig, *, segment_rows: int) -> None:
        self.table = KeyedTable(MemoryStore(name)).create(schema, config)
        self.writer = self.table.writer(WriterOptions(segment_rows=segment_rows))
        self.seen: dict[str, dict[Key, Row]] = {"snapshot": {}, "committed": {}, "latest": {}}
        self._key = config.primary_key
        self._empty: Row = dict.fromkeys(schema.names)

    def take(self, step: tuple[Any, ...]) -> None:
        """Execute one step: flush, merge, catch up indexes, or write a row.

        A write is (operation, key value or tuple, fields).
        """
        match step:
            case ("flush",):
                self.writer.flush()
                self.seen["committed"] = dict(self.seen["latest"])
            case ("merge",):
                self.table.merge()
                self.seen["snapshot"] = dict(self.seen["committed"])
            case ("catch up", *indexes):
                for index in indexes or [each.name for each in self.table.snapshot.config.indexes]:
                    self._catch_up(index)
            case (operation, key, fields):
                self._write(operation, key if isinstance(key, tuple) else (key,), fields)

    def unmerged(self, level: str) -> Sequence[Unmerged]:
        """Return the unmerged records that a search of this level reads in addition to the base."""
        snapshot = self.table.snapshot
        if level == "snapshot":
            return ()
        return capture(self.table.store, snapshot, include_wal=level == "latest").parts(snapshot)

    def _write(self, operation: str, key: Key, fields: Mapping[str, Any]) -> None:
        latest, own = self.seen["latest"], dict(zip(self._key, key, strict=True))
        if operation == "delete":
            self.writer.delete(key)
            latest.pop(key, None)
            return
        getattr(self.writer, operation)({**own, **fields})
        before = latest.get(key, {}) if operation == "patch" else {}
        latest[key] = {**self._empty, **own, **before, **fields}

    def _catch_up(self, index: str) -> None:
        snapshot = self.table.snapshot
        plan = catch_up.plan(snapshot, index)
        built = [catch_up.execute(self.table.store, work, ids=self.table.ids) for work in plan.work]
        if actions := plan.actions(built):
            self.table.log.commit(snapshot, actions, operation="CATCH UP")
