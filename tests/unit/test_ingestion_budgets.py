"""One table with the exact requests of claim, append, flush, merge and `get`, for a table with one region.

A change here changes the cost for users (docs/architecture/object-store.md, "Request budgets"). The counts do not
include opening the log.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from storage_core.table import Table
from storage_core.write.region import merge
from storage_core.write.region.writer import RegionWriter
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable

Cost = dict[str, int]
NEVER_THERE = "N1x"
"""A key within all bounds, but in none of the Bloom filters."""

BEYOND = "Z"


class Costly:
    """A table with counted requests. Generation `g` holds the planes N0 to N9 with `g` seats."""

    def __init__(self, generations: int = 0) -> None:
        self.store = MeteredStore(MemoryStore("planes"))
        self.table = KeyedTable(self.store).create()
        for generation in range(generations):
            with self.writer() as writer:
                writer.put([{"tailnum": f"N{number}", "seats": generation} for number in range(10)])
                writer.flush()

    def writer(self) -> RegionWriter:
        return self.table.writer()

    def cost(self, act: Callable[[], object]) -> Cost:
        """Return the number of requests of an action by kind, without unused kinds."""
        before = self.store.requests
        act()
        return {kind: count - before[kind] for kind, count in self.store.requests.items() if count > before[kind]}

    def claim(self) -> Cost:
        snapshot, clock = self.table.snapshot, self.table.clock
        return self.cost(lambda: RegionWriter.open(self.store, snapshot, clock=clock, ids=SeededIds(9)))

    def merge(self) -> Cost:
        snapshot = self.table.snapshot

        def act() -> None:
            for work in merge.plan(self.store, snapshot):
                self.table.commit(snapshot, work, self.table.execute(work))

        return self.cost(act)

    def get(self, key: str, consistency: str) -> Cost:
        log = self.table.log
        table = Table(self.store, log, log.snapshot())
        return self.cost(lambda: table.get(key, consistency=consistency))


@pytest.mark.parametrize(("entries", "heads"), [(0, 5), (1, 5), (5, 7)])
def test_a_claim_reads_each_entry_that_is_in_no_generation_and_looks_for_the_tail_in_growing_steps(
    entries: int, heads: int
) -> None:
    costly = Costly(generations=3)
    with costly.writer() as writer:
        for _ in range(entries):
            writer.put({"tailnum": "a"})
    assert costly.claim() == {"get": 6 + entries, "put": 3, "head": heads}


def test_the_first_claim_of_a_region_lists_once_that_it_is_new() -> None:
    assert Costly().claim() == {"get": 4, "put": 3, "list": 1, "head": 3}


@pytest.mark.parametrize("rows", [1, 1_000])
def test_an_append_is_one_put_and_a_flush_five_and_one_without_rows_nothing(rows: int) -> None:
    costly = Costly()
    with costly.writer() as writer:
        assert costly.cost(lambda: writer.put([{"tailnum": f"{row}"} for row in range(rows)])) == {"put": 1}
        assert costly.cost(writer.flush) == {"get": 4, "put": 5, "head": 1}
        assert costly.cost(writer.flush) == {}


@pytest.mark.parametrize("generations", [1, 2, 6])
def test_a_merge_costs_three_gets_per_generation_and_one_per_small_split_that_it_touches(generations: int) -> None:
    costly = Costly(generations)
    assert costly.merge() == {"get": 2 + 3 * generations, "put": 2, "head": 2}
    assert costly.merge() == {"get": 2, "head": 1}
    with costly.writer() as writer:
        writer.put([{"tailnum": f"N{number}", "seats": 77} for number in range(3)])
        writer.flush()
    assert costly.merge() == {"get": 2 + 3 + 1, "put": 2, "head": 2}


PER_GENERATION = {"N1": 1, NEVER_THERE: 0, BEYOND: 0}
"""GETs per generation: its entry, if the bounds and the Bloom filter do not exclude the key.

The region's manifest has copies of the bounds and the filter.
"""

PER_SPLIT = {"N1": 1, NEVER_THERE: 0, BEYOND: 0}
"""GETs per split: one, because a small file is read whole.

A split needs no GET if its bounds or its expression exclude the key.
"""


@pytest.mark.parametrize("key", ["N1", NEVER_THERE, BEYOND])
@pytest.mark.parametrize("generations", [1, 4])
def test_a_get_pays_for_what_admits_its_key(key: str, generations: int) -> None:
    costly = Costly(generations)
    # The newest record of N1 has its whole row, so earlier generations are not requested.
    gets = PER_GENERATION[key]
    assert costly.get(key, "latest") == {"get": 6 + gets, "head": 1}
    assert costly.get(key, "committed") == {"get": 4 + gets, "head": 1}
    assert costly.get(key, "snapshot") == {}
    costly.merge()
    gets = PER_SPLIT[key]
    assert costly.get(key, "latest") == {"get": 6 + gets, "head": 1}
    assert costly.get(key, "committed") == {"get": 4 + gets, "head": 1}
    assert costly.get(key, "snapshot") == ({"get": gets} if gets else {})
