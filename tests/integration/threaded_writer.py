"""Test programs: writers that a test kills, and maintenance that runs concurrently.

`python -m tests.integration.threaded_writer write URI FOLDER` reads numbers from its input. For each number the program
forks a writer and prints the writer's process id. A fork is much faster than a new interpreter. Each thread of a writer
has its own keys and its own journal in the folder. The thread records each operation in the journal before the
operation begins and after it is acknowledged.

`… maintain URI FOLDER` merges, sorts, compacts and collects, each in its own thread. The program ends when the folder
contains a file `stop`. The program ends only after each thread except the sorter has worked at least once. The program
then prints the number of times that each thread has worked. The threads use no leases, so that the test also covers
interference between two maintenance processes.
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

from storage_core.base.clock import SystemClock, SystemIds
from storage_core.base.errors import CommitConflict, TidemarkError
from storage_core.log.log import TransactionLog
from storage_core.maintain.collect import collect
from storage_core.store.memory import MemoryStore
from storage_core.store.resolve import open_store
from storage_core.table import Table
from storage_core.write.region.records import WriterOptions
from storage_core.write.region.writer import RegionWriter
from tests.support.clock import ManualClock
from tests.support.keyed_table import KeyedTable, Row

THREADS = 3
KEYS = 6
OPERATIONS = ("put", "put", "patch", "delete", "reset", "gather")
CALLS_OF_A_WRITER = 1_000_000
"""A value is the writer's number times this factor plus the call's number, so values of a key only grow."""

PAUSE_S = 0.01
"""The longest pause between two calls of a thread.

The pauses may be long, because the test only needs many different points of interruption.
"""

MAINTAINERS_PAUSE_S = 0.05

READS_OF_LATENESS = 4
"""The delay of a collector's clock, as a multiple of the duration of a read.

The delay is necessary, because a busy machine slows all processes.
"""

CERTAIN = ("merged", "compacted", "collected")
"""Steps that always have work. A program that waits for these steps therefore ends."""


def journal_of(folder: str, writer: int, thread: int) -> Path:
    """Return the path of the journal of a writer's thread."""
    return Path(folder) / f"{writer}.{thread}.journal"


def write(uri: str, folder: str, number: int) -> None:
    """Claim the region and write from several threads until this process is killed."""
    store = open_store(uri)
    snapshot = TransactionLog(store).snapshot()
    options = WriterOptions(flush_rows=60)
    writer = RegionWriter.open(store, snapshot, clock=SystemClock(), ids=SystemIds(), options=options)
    for thread in range(THREADS):
        threading.Thread(target=write_thread, args=(writer, folder, number, thread)).start()


def write_thread(writer: RegionWriter, folder: str, number: int, thread: int) -> None:
    """Make random calls on the keys of this thread. Write a line to the journal before and after each call."""
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
    """Make one call and return when it is acknowledged."""
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
    """Fork a writer for each line of the input, until the input ends."""
    open_store(uri)
    with KeyedTable(MemoryStore("warm")).create().writer() as warm:  # loads late imports once instead of once per fork
        warm.put({"tailnum": "a"})
        warm.flush()
    for line in sys.stdin:
        child = os.fork()
        if not child:
            with suppress(TidemarkError):  # if the writer is fenced, its threads end with this error
                write(uri, folder, int(line))
            return
        print(child, flush=True)  # noqa: T201 -- the answer
        os.waitpid(child, 0)


def maintain(uri: str, folder: str) -> None:
    """Merge, sort, compact and collect until the file `stop` exists, and print the counts."""
    done = dict.fromkeys(("merged", "tidied", "compacted", "collected"), 0)
    acts = dict(zip(done, (merged, tidied, compacted, collected), strict=True))

    def work(name: str) -> None:
        table = KeyedTable(open_store(uri), ids=SystemIds())
        while not (Path(folder) / "stop").exists() or not all(done[each] for each in CERTAIN):
            began = time.monotonic()
            with suppress(CommitConflict):
                done[name] += acts[name](table)
            time.sleep(max(MAINTAINERS_PAUSE_S, 2 * (time.monotonic() - began)))  # pause longer if the store is slow

    run_all([partial(work, name) for name in done])
    print(json.dumps(done))  # noqa: T201 -- the answer


def run_all(acts: list[Callable[[], None]]) -> None:
    """Run the functions concurrently, and end this program at once when one fails."""
    with ThreadPoolExecutor(len(acts)) as pool:
        for each in as_completed([pool.submit(act) for act in acts]):
            if error := each.exception():
                print(repr(error), file=sys.stderr, flush=True)  # noqa: T201 -- what the test shows
                os._exit(1)


def merged(table: KeyedTable) -> bool:
    """Merge the flushed rows."""
    return table.merge() is not None


def tidied(table: KeyedTable) -> bool:
    """Sort the pending generations. A fast merger may leave no generation to sort."""
    return table.sort()


def compacted(table: KeyedTable) -> bool:
    """Compact the pending splits."""
    return table.compact() is not None


def collected(table: KeyedTable) -> bool:
    """Delete expired objects with a clock that is late. The delay is a multiple of the duration of a read."""
    clock = SystemClock()
    began_ms = clock.now_ms()
    Table.open(table.store.uri).scan(consistency="latest").to_arrow()
    took_ms = clock.now_ms() - began_ms
    late = ManualClock(clock.now_ms() - READS_OF_LATENESS * took_ms)
    return bool(collect(table.store, table.log, clock=late).deleted)


if __name__ == "__main__":
    {"write": fork_writers, "maintain": maintain}[sys.argv[1]](*sys.argv[2:])
