"""A raw log and the tables that it feeds, without Spark.

The tasks run in this process, after a round trip through JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from storage_core.base.clock import Ids
from storage_core.data.settings.table import TableConfig
from storage_core.log.log import TransactionLog
from storage_core.split.read import read_split
from storage_core.store.contract import ObjectStore
from storage_core.write.distribution import execute
from storage_core.write.distribution.rounds import DistributionOutcome, Distributor, Tasks
from storage_core.write.distribution.work import DivideResult, DivideWork, FillResult, FillWork, Source, Terms
from storage_core.write.raw_log.history import union
from tests.support.clock import START_MS, ManualClock
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable

Step = Literal["divide", "fill"]

LATER_MS = START_MS + 10**9
"""A time long after `START_MS`. All raw-log segments that were written at `START_MS` are closed at this time."""

EVENTS = pa.schema([pa.field("n", pa.int64(), nullable=False), ("text", pa.string())])


@dataclass(slots=True, kw_only=True)
class InlineTasks:
    """Runs work items in this process.

    `stores` contains the stores of the raw log. `tables` contains the stores of the tables by URI.
    """

    stores: Sequence[ObjectStore]
    tables: Mapping[str, ObjectStore]
    clock: ManualClock
    ids: Ids

    def divide(self, works: Sequence[DivideWork]) -> list[DivideResult]:
        """Run `execute.divide` for each item."""
        travelled = [DivideWork.from_json(_travelled(each.to_json())) for each in works]
        assert travelled == list(works)
        results = [
            execute.divide(each, self.stores, self.tables.__getitem__, clock=self.clock, ids=self.ids)
            for each in travelled
        ]
        return [DivideResult.from_json(_travelled(each.to_json())) for each in results]

    def fill(self, works: Sequence[FillWork]) -> list[FillResult]:
        """Run `execute.fill` for each item."""
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
    """Tasks of a distribution that call the test's action `happens` once, before the first `divide` or `fill`."""

    tasks: Tasks
    happens: Callable[[], object]
    before: Step = "divide"
    _happened: bool = field(default=False, init=False)

    def divide(self, works: Sequence[DivideWork]) -> list[DivideResult]:
        """Call `happens` if `before` is `divide`. Then execute the `divide` tasks."""
        self._once("divide")
        return self.tasks.divide(works)

    def fill(self, works: Sequence[FillWork]) -> list[FillResult]:
        """Call `happens` if `before` is `fill`. Then execute the `fill` tasks."""
        self._once("fill")
        return self.tasks.fill(works)

    def _once(self, step: Step) -> None:
        if step == self.before and not self._happened:
            self._happened = True
            self.happens()


@dataclass(slots=True)
class Board:
    """The tables of a raw log by name, each in its own store. `distribute` distributes rows into all these tables.

    A `Board` derives the IDs of its distributor from `seed`. If several `Board` objects use the same stores, their
    seeds must differ. `raw_clock` is the clock with which the test created the stores of the raw log, or None.
    """

    stores: Sequence[ObjectStore]
    tables: Mapping[str, ObjectStore]
    seed: int = 1
    clock: ManualClock = field(default_factory=lambda: ManualClock(LATER_MS))
    raw_clock: ManualClock = field(default_factory=ManualClock)

    def create(self, **given: str | TableConfig | None) -> Board:
        """Create every table with schema `EVENTS`.

        `given` contains the key or config of a table. Other tables are append tables.
        """
        for name, store in self.tables.items():
            found = given.get(name)
            config = found if isinstance(found, TableConfig) else TableConfig(primary_key=(found,) if found else ())
            KeyedTable(store, ids=SeededIds(len(name) + self.seed)).create(EVENTS, config)
        return self

    def distributor(self) -> Distributor:
        """Return a distributor of the current content of the stores."""
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
        """Return the rows of a keyed table at level `latest`, by key."""
        return KeyedTable(self.tables[name]).rows()


def _travelled(body: Any) -> Any:
    return json.loads(json.dumps(body))
