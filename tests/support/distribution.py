"""A raw log and tables to distribute it into, without Spark: the tasks run here, from their JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from storage_core.distribution import execute
from storage_core.distribution.outcome import DistributionOutcome
from storage_core.distribution.remaining import Terms
from storage_core.distribution.rounds import Distributor, Tasks
from storage_core.distribution.work import DivideResult, DivideWork, FillResult, FillWork, Source
from storage_core.ids import Ids
from storage_core.log.log import TransactionLog
from storage_core.objectstore.contract import ObjectStore
from storage_core.raw_log.history import union
from storage_core.settings.table import TableConfig
from storage_core.split.read import read_split
from tests.support.clock import START_MS, ManualClock
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable

Step = Literal["divide", "fill"]

LATER_MS = START_MS + 10**9
"""Every segment of a raw log that was written at `START_MS` is closed by then."""

EVENTS = pa.schema([pa.field("n", pa.int64(), nullable=False), ("text", pa.string())])


@dataclass(slots=True, kw_only=True)
class InlineTasks:
    """Runs work items in this process. `stores` are those of the raw log, `tables` those of the tables by URI."""

    stores: Sequence[ObjectStore]
    tables: Mapping[str, ObjectStore]
    clock: ManualClock
    ids: Ids

    def divide(self, works: Sequence[DivideWork]) -> list[DivideResult]:
        """Run `execute.divide` for each."""
        travelled = [DivideWork.from_json(_travelled(each.to_json())) for each in works]
        assert travelled == list(works)
        results = [
            execute.divide(each, self.stores, self.tables.__getitem__, clock=self.clock, ids=self.ids)
            for each in travelled
        ]
        return [DivideResult.from_json(_travelled(each.to_json())) for each in results]

    def fill(self, works: Sequence[FillWork]) -> list[FillResult]:
        """Run `execute.fill` for each."""
        results = [
            execute.fill(
                FillWork.from_json(_travelled(each.to_json())),
                self.tables[each.uri],
                clock=self.clock,
                ids=self.ids,
            )
            for each in works
        ]
        return [FillResult.from_json(_travelled(each.to_json())) for each in results]


@dataclass(slots=True)
class TasksMeanwhile:
    """Tasks before one kind of which, once, something else happens."""

    tasks: Tasks
    happens: Callable[[], object]
    before: Step = "divide"
    _happened: bool = field(default=False, init=False)

    def divide(self, works: Sequence[DivideWork]) -> list[DivideResult]:
        """Let it happen first where it is to be before `divide`."""
        self._once("divide")
        return self.tasks.divide(works)

    def fill(self, works: Sequence[FillWork]) -> list[FillResult]:
        """Let it happen first where it is to be before `fill`."""
        self._once("fill")
        return self.tasks.fill(works)

    def _once(self, step: Step) -> None:
        if step == self.before and not self._happened:
            self._happened = True
            self.happens()


@dataclass(slots=True)
class Board:
    """The tables of a raw log by name, in stores of their own; `distribute` distributes into all of them.

    Every distributor has ids of its own; boards on the same stores take seeds that differ. `raw_clock` is that of the
    stores where a test made them with it.
    """

    stores: Sequence[ObjectStore]
    tables: Mapping[str, ObjectStore]
    seed: int = 1
    clock: ManualClock = field(default_factory=lambda: ManualClock(LATER_MS))
    raw_clock: ManualClock = field(default_factory=ManualClock)

    def create(self, **given: str | TableConfig | None) -> Board:
        """Create every table, of `EVENTS`: append tables, keyed ones where a key column is given, or as configured."""
        for name, store in self.tables.items():
            found = given.get(name)
            config = found if isinstance(found, TableConfig) else TableConfig(primary_key=(found,) if found else ())
            KeyedTable(store, ids=SeededIds(len(name) + self.seed)).create(EVENTS, config)
        return self

    def distributor(self) -> Distributor:
        """Return a distributor of what the stores hold now."""
        self.seed += 1_000
        ids = SeededIds(self.seed)
        by_uri = {store.uri: store for store in self.tables.values()}
        return Distributor(
            source=Source(
                name="events",
                stores=tuple(each.uri for each in self.stores),
                tables=tuple(self.tables),
            ),
            history=union(list(self.stores)),
            logs={name: TransactionLog(each, clock=self.clock, ids=ids) for name, each in self.tables.items()},
            tasks=InlineTasks(stores=self.stores, tables=by_uri, clock=self.clock, ids=ids),
            clock=self.clock,
            ids=ids,
        )

    def distribute(self, terms: Terms | None = None) -> DistributionOutcome:
        """Distribute everything that can be distributed."""
        return self.distributor().distribute(terms or Terms())

    def numbers(self, name: str) -> list[int]:
        """Return the values of `n` in an append table, in ascending order."""
        store = self.tables[name]
        splits = TransactionLog(store).snapshot().splits.values()
        return sorted(n for add in splits for n in read_split(store, add).column("n").to_pylist())

    def rows(self, name: str) -> dict[object, dict[str, object]]:
        """Return what a `latest` reader sees of a keyed table, by key."""
        return KeyedTable(self.tables[name]).rows()


def _travelled(body: Any) -> Any:
    return json.loads(json.dumps(body))
