"""Kill a writer at each request of its claim, appends and flushes, before or after the request takes effect.

The expected rows are a dictionary with the effects of all calls that returned. The call during which the process ended
takes effect completely or not at all. This outcome does not change later. Another writer then continues, flushes and
merges. No row exists twice, no row is invented, and no older value replaces a newer one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from storage_core.store.contract import ObjectStore
from storage_core.store.memory import MemoryStore
from storage_core.write.region.records import WriterOptions
from storage_core.write.region.writer import RegionWriter
from tests.support.copies import copy_of
from tests.support.fault_store import Crash, CrashFault, FaultStore
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable, Row

Rows = dict[object, Row]
Change = Callable[[Rows], Rows]

NEVER_BY_ITSELF = 10**12


@dataclass(slots=True)
class Process:
    """A process that writes, and its results.

    `sure` contains the expected rows of the table after all acknowledged calls. `perhaps` also includes the effect of
    the running call.
    """

    table: KeyedTable
    sure: Rows
    perhaps: Rows = field(default_factory=dict)
    writer: RegionWriter | None = None

    def claim(self, options: WriterOptions | None = None) -> None:
        """Claim the region."""
        self.writer = self.table.writer(options)

    def put(self, *names: str, seats: int, durable: bool = True) -> None:
        """Put these planes."""
        rows = [{"tailnum": name, "seats": seats} for name in names]
        self._call(
            lambda writer: writer.put(rows, durable=durable),
            lambda known: known | {name: row(name, seats) for name in names},
            durable=durable,
        )

    def reset(self, name: str, *, seats: int) -> None:
        """Reset a plane."""
        self._call(
            lambda writer: writer.reset({"tailnum": name, "seats": seats}),
            lambda known: known | {name: row(name, seats)},
        )

    def patch(self, name: str, *, model: str) -> None:
        """Change one field of a plane."""
        self._call(
            lambda writer: writer.patch({"tailnum": name, "model": model}),
            lambda known: known | {name: {**known.get(name, row(name, None)), "model": model}},
        )

    def delete(self, name: str) -> None:
        """Delete a plane."""
        self._call(
            lambda writer: writer.delete(name),
            lambda known: {key: value for key, value in known.items() if key != name},
        )

    def sync(self) -> None:
        """Make everything durable."""
        self._call(lambda writer: writer.sync(), lambda known: known)

    def flush(self) -> None:
        """Flush a generation. The flush does not change any row of the table."""
        self._call(lambda writer: writer.flush(), lambda known: known)

    def _call(self, act: Callable[[RegionWriter], object], change: Change, *, durable: bool = True) -> None:
        assert self.writer is not None
        self.perhaps = change(self.perhaps)
        act(self.writer)
        if durable:
            self.sure = self.perhaps

    def end(self) -> None:
        """End all threads of the process, and ignore the errors about rows that were never written."""
        for end in (self.writer.close, self.writer.sync) if self.writer is not None else ():
            with suppress(Crash, Exception):
                end()


def row(name: str, seats: int | None) -> Row:
    return {"tailnum": name, "seats": seats, "model": None}


def first_day(process: Process) -> None:
    """Claim a new region, use every operation, and flush two generations."""
    process.claim()
    process.put("a", "b", "c", seats=1)
    process.put("b", seats=2)
    process.patch("a", model="X")
    process.delete("c")
    process.flush()
    process.put("c", "d", seats=3)
    process.reset("a", seats=4)
    process.flush()
    process.delete("d")


def takeover(process: Process) -> None:
    """Take over the region of another writer, change some of its records, and flush the records of both writers."""
    process.claim()
    process.put("a", "tail", seats=10)
    process.delete("merged")
    process.flush()
    process.patch("flushed", model="Y")


def in_passing(process: Process) -> None:
    """Write rows without waiting for durability.

    Several calls share an entry, and the automatic flush flushes the rows.
    """
    process.claim(WriterOptions(linger_ms=NEVER_BY_ITSELF, flush_rows=3))
    process.put("a", seats=1, durable=False)
    process.put("a", "b", seats=2, durable=False)
    process.sync()
    process.put("b", seats=3, durable=False)
    process.put("c", seats=3)
    process.delete("a")


def nothing_before(_: KeyedTable) -> Rows:
    return {}


def a_life_before(table: KeyedTable) -> Rows:
    """Write a merged generation, a flushed generation, and an unflushed WAL entry. Return the rows."""
    with table.writer() as writer:
        for name in ("merged", "flushed", "tail"):
            writer.put([{"tailnum": name, "seats": 7}, {"tailnum": "a", "seats": 7}])
            if name != "tail":
                writer.flush()
            if name == "merged":
                table.merge()
    return {name: row(name, 7) for name in ("merged", "flushed", "tail", "a")}


@pytest.mark.parametrize(
    ("script", "before"),
    [(first_day, nothing_before), (takeover, a_life_before), (in_passing, nothing_before), (in_passing, a_life_before)],
)
def test_a_writer_may_end_at_any_request_and_what_it_acknowledged_is_there_once(
    script: Callable[[Process], None], before: Callable[[KeyedTable], Rows]
) -> None:
    start = MemoryStore("table")
    known = before(KeyedTable(start).create())
    requests = run_until_crash(script, start, known, None)[1]
    outcomes = set()
    judged = set()
    for number in range(requests):
        for side in CrashFault:
            left, _, process = run_until_crash(script, start, known, (number, side))
            found = KeyedTable(left).rows()
            assert found in (process.sure, process.perhaps), (number, side)
            outcomes.add((process.sure == process.perhaps, found == process.perhaps))
            content = frozenset((info.key, left.get(info.key).data) for info in left.list(""))
            if content not in judged:  # requests that only read leave the same objects
                judged.add(content)
                another_goes_on(left, found)
    assert outcomes == {(True, True), (False, True), (False, False)}, "some calls were cut short before, some after"


def run_until_crash(
    script: Callable[[Process], None], start: ObjectStore, known: Rows, point: tuple[int, CrashFault] | None
) -> tuple[MemoryStore, int, Process]:
    """Run the script on a copy until the process ends.

    Return the remaining objects, the number of requests, and the process with its results.
    """
    left = copy_of(start)
    store = FaultStore(left)
    process = Process(KeyedTable(store, ids=SeededIds(2)), known, known)
    if point is not None:
        store.at(*point)
    try:
        script(process)
    except Crash:
        assert point is not None
    else:
        assert point is None
        assert KeyedTable(left).rows() == process.sure == process.perhaps
    requests = len(store.trace)
    process.end()
    return left, requests, process


def another_goes_on(left: MemoryStore, found: Rows) -> None:
    """Let another writer take over. Existing rows stay and are merged once, and the region continues."""
    table = KeyedTable(left, ids=SeededIds(3))
    with table.writer() as writer:
        assert table.rows() == found
        writer.put([{"tailnum": "a", "seats": 99}, {"tailnum": "new", "seats": 99}])
        writer.flush()
    expected = found | {"a": row("a", 99), "new": row("new", 99)}
    assert table.rows() == expected
    table.merge()
    base = table.base_rows()
    assert sorted(str(each["tailnum"]) for each in base) == sorted(str(name) for name in expected)
    assert {each["tailnum"]: each for each in base} == expected == table.rows()
