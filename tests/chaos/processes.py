"""The processes of a run: writers, appenders, maintainers, a collector, and readers of a keyed and an append table.

Each process makes random calls one after another and records the calls in its journal. The process stops when the stop
flag in the shared memory (`Board`) is set. Nothing here checks results. An outcome that `journal` does not allow ends
the process with an error.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from storage_core.table import Table
from storage_core.write.region.records import WriterOptions
from storage_core.write.region.writer import RegionWriter
from tests.chaos.board import Board
from tests.chaos.journal import DONE, Journal
from tests.chaos.register import tag_of
from tests.support import upkeep

KEYS = [f"k{number}" for number in range(6)]
TAGS = ["t0", "t1", "t2"]
LEVELS = ["snapshot", "committed", "latest", "latest"]
VALUES = 1_000_000
"""The number of integers that are reserved for the values that one process writes.

The integers of a process begin at `VALUES` times the number of the process.
"""

EVENTS_SHARE = 0.3
"""The share of reads that read the append table."""

PACES = {"writer": 1.5, "appender": 0.2, "maintainer": 0.5, "collector": 0.25}
"""For each role, the maximum number of calls of a process, divided by the number of calls of all readers."""

LEAD = 4
"""The number of calls that a process may make before it must wait for the readers."""

HOUR_S = 3_600
EVENTS = pa.schema(
    [
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("id", pa.int64(), nullable=False),
        pa.field("tag", pa.string()),
    ]
)
ITEMS = pa.schema(
    [pa.field("id", pa.string(), nullable=False), ("a", pa.int64()), ("b", pa.int64()), ("tag", pa.string())]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The work of one process, and its parameters."""

    role: str
    number: int
    place: int
    seed: int
    items: str
    events: str
    horizon_ms: int
    folder: Path
    environment: dict[str, str]
    readers: tuple[int, ...]

    @property
    def name(self) -> str:
        """The name of the journal of this process."""
        return f"{self.role}-{self.number}"


def run(task: Task, places: int) -> None:
    """Do the work of the task in this process."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.update(task.environment)
    logging.disable(logging.WARNING)  # otherwise, many warnings about fenced writers are printed
    board = Board(task.folder / "board", places)
    journal = Journal(task.folder / f"{task.name}.journal", board, task.place)
    random = Random(f"{task.seed} {task.name}")
    try:
        ROLES[task.role](task, journal, random)
    except BaseException:
        (task.folder / f"{task.name}.failed").write_text(traceback.format_exc())
        raise


def _end_with_parent() -> None:
    """End this process when the test is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def keep_pace(task: Task, journal: Journal) -> None:
    """Wait until the readers have made enough calls.

    Without this wait, fast processes would leave the readers no time.
    """
    board = journal.board
    while not board.stopped and board.events(task.place) > LEAD + PACES[task.role] * sum(
        board.events(place) for place in task.readers
    ):
        time.sleep(0.005)


def write(task: Task, journal: Journal, random: Random) -> None:
    """Claim the region of the keyed table, and make calls with the writer.

    Stop after a random number of calls or when fenced, and repeat.
    """
    values = iter(range(task.number * VALUES, (task.number + 1) * VALUES))
    while not journal.board.stopped:
        keep_pace(task, journal)
        opened: list[RegionWriter] = []
        options = WriterOptions(flush_rows=random.choice([8, 1000]), linger_ms=random.choice([1, 1000]))

        def claim(options: WriterOptions = options, opened: list[RegionWriter] = opened) -> int:
            writer = Table.open(task.items).writer(options=options)
            assert isinstance(writer, RegionWriter)
            opened.append(writer)
            return writer.epoch

        outcome, epoch = journal.call(claim, op="claim")
        if outcome != DONE:
            continue
        for _ in range(random.randint(3, 25)):
            keep_pace(task, journal)
            if not _write_once(opened[0], epoch, next(values), journal, random):
                break
        journal.call(opened[0].close, op="close")


def _write_once(writer: RegionWriter, epoch: int, value: int, journal: Journal, random: Random) -> bool:
    """Make one call. Return True if the writer is still usable."""
    operation = random.choice(["put", "put", "patch", "delete", "reset", "gather", "flush"])
    keys = random.sample(KEYS, random.randint(1, 3))
    whole = [{"id": key, "a": value, "b": value, "tag": tag_of(value)} for key in keys]

    def gather() -> None:
        for row in whole:
            writer.put(row, durable=False)
        writer.sync()

    act: dict[str, Callable[[], object]] = {
        "put": lambda: writer.put(whole),
        "reset": lambda: writer.reset(whole),
        "patch": lambda: writer.patch([{"id": key, "b": value} for key in keys]),
        "delete": lambda: writer.delete(keys),
        "gather": gather,
        "flush": writer.flush,
    }
    outcome, _ = journal.call(act[operation], op=operation, epoch=epoch, keys=keys, value=value)
    return outcome == DONE and not journal.board.stopped


def append(task: Task, journal: Journal, random: Random) -> None:
    """Append a few rows at a time to the append table, at random times within three hours."""
    ids = iter(range(task.number * VALUES, (task.number + 1) * VALUES))
    while not journal.board.stopped:
        keep_pace(task, journal)
        rows = [next(ids) for _ in range(random.randint(1, 4))]
        given = [
            {"timestamp": random.randrange(3 * HOUR_S) * 1_000_000, "id": each, "tag": random.choice(TAGS)}
            for each in rows
        ]

        def act(given: list[dict[str, object]] = given) -> int:
            return Table.open(task.events).append(pa.Table.from_pylist(given, schema=EVENTS)).rows

        journal.call(act, op="append", rows=rows)


def merged(table: Table) -> dict[str, int]:
    """Run all pending merges, and return the last merged generation of each region."""
    upkeep.merge(table)
    return dict(table.refresh().snapshot.merged_generations)


def maintain(task: Task, journal: Journal, random: Random) -> None:
    """Run maintenance steps of both tables one after another, without a lease.

    Other processes run maintenance steps of these tables concurrently.
    """
    while not journal.board.stopped:
        keep_pace(task, journal)
        step = random.choice(["merge", "merge", "sort", "compact", "compact", "catch_up", "checkpoint"])
        items = step in {"merge", "sort"} or random.random() < 0.5

        def act(step: str = step, items: bool = items) -> object:
            table = Table.open(task.items if items else task.events)
            return merged(table) if step == "merge" else getattr(upkeep, step)(table)

        journal.call(act, op=step)


def collect(task: Task, journal: Journal, random: Random) -> None:
    """Collect all objects that were not needed when the oldest running work began."""
    while not journal.board.stopped:
        keep_pace(task, journal)
        uri = random.choice([task.items, task.events])

        def act(uri: str = uri) -> int:
            at_ms = journal.board.oldest_ms()
            return len(upkeep.collect(Table.open(uri), at_ms=at_ms, horizon_ms=task.horizon_ms).deleted)

        journal.call(act, op="collect")


def read(task: Task, journal: Journal, random: Random) -> None:
    """Read the keyed table and the append table in every way. Open new `Table` objects after several reads."""
    while not journal.board.stopped:
        opened: list[Table] = []

        def open_both(opened: list[Table] = opened) -> None:
            opened[:] = [Table.open(task.items), Table.open(task.events)]

        outcome, _ = journal.call(open_both, keeps=True, op="open")
        session = f"{task.name}.{journal.calls}"
        for _ in range(random.randint(1, 8)):
            if outcome != DONE or journal.board.stopped:
                break
            outcome = _read_once(opened, session, journal, random)


@dataclass(frozen=True, slots=True, kw_only=True)
class Requested:
    """The request of a read.

    A request consists of the level, the way to read, and the rows (all, some keys, or the rows with a tag).
    """

    level: str
    way: str
    keys: tuple[str, ...] | None = None
    tag: str | None = None


def _read_once(opened: list[Table], session: str, journal: Journal, random: Random) -> str:
    items, events = opened
    if random.random() < EVENTS_SHARE:
        way = random.choice(["scan", "sql", "search"])
        look = partial(ids_of_events, events, way)
        return journal.call(look, goes_on=True, keeps=True, op="look", session=session, way=way)[0]
    requested = _question(random)
    said = {name: value for name, value in asdict(requested).items() if value is not None}
    read = partial(rows_of_items, items, requested)
    return journal.call(read, goes_on=True, keeps=True, op="read", session=session, **said)[0]


def _question(random: Random) -> Requested:
    level, way = random.choice(LEVELS), random.choice(["scan", "sql", "get", "get_many", "search", "history"])
    match way:
        case "get" | "get_many":
            return Requested(level=level, way=way, keys=tuple(random.sample(KEYS, 1 if way == "get" else 3)))
        case "search":
            return Requested(level=level, way=way, tag=random.choice(TAGS))
        case _:
            return Requested(level="latest" if way == "history" else level, way=way)


def rows_of_items(table: Table, requested: Requested) -> list[list[object]]:
    """Return the rows found in the keyed table: ID, a, b and tag of every row."""
    found: list[dict[str, Any] | None]
    level, keys = requested.level, requested.keys or ()
    if level == "snapshot":
        table.refresh()  # else the read sees no new rows. At higher levels, a read must never mix old and new rows
    match requested.way:
        case "scan":
            found = [*table.scan(consistency=level).to_arrow().to_pylist()]
        case "sql":
            found = [*table.sql("select * from t", consistency=level).to_pylist()]
        case "get":
            found = [table.get(keys[0], consistency=level)]
        case "get_many":
            found = [*table.get_many(keys, consistency=level)]
        case "search":
            found = [*table.search(requested.tag, index="tags", limit=1000, consistency=level).to_pylist()]
        case _:
            return replayed(table)
    return [[each[name] for name in ITEMS.names] for each in found if each is not None]


def replayed(table: Table) -> list[list[object]]:
    """Read the whole history, apply its records in order, and return the resulting rows."""
    rows: dict[str, dict[str, object]] = {}
    for page in table.read_history_pages(page_bytes=500):
        if page.restarted:
            rows = {}
        for record in page.records.to_pylist():
            key = record["id"]
            given = {name: record[name] for name in ITEMS.names}
            match record["_op"]:
                case 1:
                    empty: dict[str, object] = dict.fromkeys(ITEMS.names)
                    patched = {name: given[name] for name in ["id", *record["_fields"]]}
                    rows[key] = {**rows.get(key, empty), **patched}
                case 2:
                    rows.pop(key, None)
                case _:
                    rows[key] = given
    return [[each[name] for name in ITEMS.names] for each in rows.values()]


def ids_of_events(table: Table, way: str) -> list[int]:
    """Return the IDs found in the append table."""
    table.refresh()
    match way:
        case "scan":
            found = table.scan(["id"]).to_arrow()
        case "sql":
            found = table.sql("select id from t")
        case _:
            found = table.search(TAGS, index="tags", limit=1_000_000)
    ids: list[int] = found.column("id").to_pylist()
    return ids


ROLES: dict[str, Callable[[Task, Journal, Random], None]] = {
    "writer": write,
    "appender": append,
    "maintainer": maintain,
    "collector": collect,
    "reader": read,
}
