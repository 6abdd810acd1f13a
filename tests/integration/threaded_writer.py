"""Programs for the test beside this one: writers to be killed, and maintainers that work beside them the whole time.

`python -m tests.integration.threaded_writer write URI FOLDER` reads numbers from its input, forks a writer for each,
which is much faster than starting one, and prints its process id. Each thread of a writer has keys of its own, and a
journal in the folder in which it says what it is going to do and, once that was acknowledged, that it did.
`… maintain URI FOLDER` merges, sorts, compacts and collects, each in a thread, until there is a file `stop` in the
folder and each but the sorter has done something; then it prints how often. Without leases: what two of them do to each
other is tried as well.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

from storage_core.clock import SystemClock
from storage_core.errors import CommitConflict, TidemarkError
from storage_core.gc.collect import collect
from storage_core.ids import SystemIds
from storage_core.log.log import TransactionLog
from storage_core.objectstore.memory import MemoryStore
from storage_core.objectstore.resolve import open_store
from storage_core.region.options import WriterOptions
from storage_core.region.writer import RegionWriter
from storage_core.table import Table
from tests.support.clock import ManualClock
from tests.support.keyed_table import KeyedTable, Row

THREADS = 3
KEYS = 6
OPERATIONS = ("put", "put", "patch", "delete", "reset", "gather")
CALLS_OF_A_WRITER = 1_000_000
"""A value is the number of its writer times this, plus the number of its call: per key they only grow."""

PAUSE_S = 0.01
"""Between two calls of a thread, at most: what counts is where writers are interrupted, not how much they do."""

MAINTAINERS_PAUSE_S = 0.05

READS_OF_LATENESS = 4
"""A collector is late by so many times what a read takes: on a busy machine everybody works on one thing for longer."""

CERTAIN = ("merged", "compacted", "collected")
"""What there is to do in any case, so that a program which waits for it ends."""


def journal_of(folder: str, writer: int, thread: int) -> Path:
    """Where a thread of a writer says what it does."""
    return Path(folder) / f"{writer}.{thread}.journal"


def write(uri: str, folder: str, number: int) -> None:
    """Claim the region and write from several threads until somebody ends this process."""
    store = open_store(uri)
    snapshot = TransactionLog(store).snapshot()
    options = WriterOptions(flush_rows=60)
    writer = RegionWriter.open(store, snapshot, clock=SystemClock(), ids=SystemIds(), options=options)
    for thread in range(THREADS):
        threading.Thread(target=write_thread, args=(writer, folder, number, thread)).start()


def write_thread(writer: RegionWriter, folder: str, number: int, thread: int) -> None:
    """Make random calls on keys of this thread, each between two lines of the journal."""
    random = Random(f"{number}.{thread}")
    journal = os.open(journal_of(folder, number, thread), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for value in range(number * CALLS_OF_A_WRITER, (number + 1) * CALLS_OF_A_WRITER):
        operation = random.choice([*OPERATIONS, "flush"])
        keys = [f"{thread}-{random.randrange(KEYS)}" for _ in range(random.randint(1, 3))]
        os.write(journal, f"{json.dumps([operation, keys, value])}\n".encode())
        call(writer, operation, [{"tailnum": key, "seats": value} for key in keys])
        os.write(journal, b"done\n")
        time.sleep(random.uniform(0.0, PAUSE_S))


def call(writer: RegionWriter, operation: str, rows: list[Row]) -> None:
    """Make one call; return when it is acknowledged."""
    match operation:
        case "put":
            writer.put(rows)
        case "patch":
            writer.patch(rows)
        case "reset":
            writer.reset(rows)
        case "delete":
            writer.delete([row["tailnum"] for row in rows])
        case "gather":
            for row in rows:
                writer.put(row, durable=False)
            writer.sync()
        case _:
            writer.flush()


def fork_writers(uri: str, folder: str) -> None:
    """Fork a writer for each line of the input, until it ends."""
    open_store(uri)
    with KeyedTable(MemoryStore("warm")).create().writer() as warm:  # what is loaded late is loaded once, not per fork
        warm.put({"tailnum": "a"})
        warm.flush()
    for line in sys.stdin:
        child = os.fork()
        if not child:
            with suppress(TidemarkError):  # it was fenced: the threads end with that
                write(uri, folder, int(line))
            return
        print(child, flush=True)  # noqa: T201 -- the answer
        os.waitpid(child, 0)


def maintain(uri: str, folder: str) -> None:
    """Merge, sort, compact and collect until told to stop, and print how often each did something."""
    done = dict.fromkeys(("merged", "tidied", "compacted", "collected"), 0)
    acts = dict(zip(done, (merged, tidied, compacted, collected), strict=True))

    def work(name: str) -> None:
        table = KeyedTable(open_store(uri), ids=SystemIds())
        while not (Path(folder) / "stop").exists() or not all(done[each] for each in CERTAIN):
            began = time.monotonic()
            with suppress(CommitConflict):
                done[name] += acts[name](table)
            time.sleep(max(MAINTAINERS_PAUSE_S, 2 * (time.monotonic() - began)))  # a slow store is not kept busy by us

    run_all([partial(work, name) for name in done])
    print(json.dumps(done))  # noqa: T201 -- the answer


def run_all(acts: list[Callable[[], None]]) -> None:
    """Run them side by side; where one fails this program does, at once."""
    with ThreadPoolExecutor(len(acts)) as pool:
        for each in as_completed([pool.submit(act) for act in acts]):
            if error := each.exception():
                print(repr(error), file=sys.stderr, flush=True)  # noqa: T201 -- what the test shows
                os._exit(1)


def merged(table: KeyedTable) -> bool:
    """Merge what is flushed."""
    return table.merge() is not None


def tidied(table: KeyedTable) -> bool:
    """Sort the generations that wait; a merger that keeps up may leave none."""
    return table.sort()


def compacted(table: KeyedTable) -> bool:
    """Compact what there is to compact."""
    return table.compact() is not None


def collected(table: KeyedTable) -> bool:
    """Delete what the horizon of the table lets go, by a clock that is the later the longer a read takes."""
    clock = SystemClock()
    began_ms = clock.now_ms()
    Table.open(table.store.uri).scan(consistency="latest").to_arrow()
    took_ms = clock.now_ms() - began_ms
    late = ManualClock(clock.now_ms() - READS_OF_LATENESS * took_ms)
    return bool(collect(table.store, table.log, clock=late).deleted)


if __name__ == "__main__":
    {"write": fork_writers, "maintain": maintain}[sys.argv[1]](*sys.argv[2:])
