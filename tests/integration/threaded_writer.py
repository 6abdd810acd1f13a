"""Programs for the test beside this one: writers to be killed, and a merger that runs the whole time.

`python -m tests.integration.threaded_writer write ROOT` reads names from its input, forks a writer for each, which is
much faster than starting one, and prints its process id. Each thread of a writer has keys of its own, and a journal in
which it says what it is going to do and, once that was acknowledged, that it did. `… merge ROOT` merges until there is
a file `stop` beside the table.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from random import Random

from storage_core.clock import SystemClock
from storage_core.errors import CommitConflict, TidemarkError
from storage_core.ids import SystemIds
from storage_core.log.log import TransactionLog
from storage_core.objectstore.local import LocalStore
from storage_core.objectstore.memory import MemoryStore
from storage_core.region.options import WriterOptions
from storage_core.region.writer import RegionWriter
from storage_core.testkit.keyed_table import KeyedTable, Row

THREADS = 3
KEYS = 6
OPERATIONS = ("put", "put", "patch", "delete", "reset", "gather")
PAUSE_S = 0.01
"""Writers and merger pause so long at most: what counts is where they are interrupted, not how much they do."""


def store_of(root: str) -> LocalStore:
    """The store of the table."""
    return LocalStore(Path(root) / "planes")


def journal_of(root: str, name: str, thread: int) -> Path:
    """Where a thread of a writer says what it does."""
    return Path(root) / f"{name}.{thread}.journal"


def write(root: str, name: str) -> None:
    """Claim the region and write from several threads until somebody ends this process."""
    store, clock = store_of(root), SystemClock()
    snapshot = TransactionLog(store).snapshot()
    options = WriterOptions(flush_rows=60)
    writer = RegionWriter.open(store, snapshot, clock=clock, ids=SystemIds(), options=options)
    threads = [threading.Thread(target=write_thread, args=(writer, root, name, number)) for number in range(THREADS)]
    for thread in threads:
        thread.start()


def write_thread(writer: RegionWriter, root: str, name: str, thread: int) -> None:
    """Make random calls on keys of this thread, each between two lines of the journal."""
    random = Random(f"{name}.{thread}")
    journal = os.open(journal_of(root, name, thread), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in range(1_000_000):
        operation = random.choice([*OPERATIONS, "flush"])
        keys = [f"{thread}-{random.randrange(KEYS)}" for _ in range(random.randint(1, 3))]
        os.write(journal, f"{json.dumps([operation, keys, number])}\n".encode())
        call(writer, operation, [{"tailnum": key, "seats": number} for key in keys])
        os.write(journal, b"done\n")
        time.sleep(random.uniform(0.0, PAUSE_S))


def call(writer: RegionWriter, operation: str, rows: list[Row]) -> None:
    """Make one call; return when it is acknowledged."""
    match operation:
        case "put":
            writer.put(rows)
        case "patch":
            writer.patch([{"tailnum": row["tailnum"], "seats": row["seats"]} for row in rows])
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


def fork_writers(root: str) -> None:
    """Fork a writer for each line of the input, until it ends."""
    with KeyedTable(MemoryStore("warm")).create().writer() as warm:  # what is loaded late is loaded once, not per fork
        warm.put({"tailnum": "a"})
        warm.flush()
    for line in sys.stdin:
        child = os.fork()
        if not child:
            with suppress(TidemarkError):  # it was fenced: the threads end with that
                write(root, line.strip())
            return
        print(child, flush=True)  # noqa: T201 -- the answer
        os.waitpid(child, 0)


def merge(root: str) -> None:
    """Merge again and again until told to stop."""
    table = KeyedTable(store_of(root), ids=SystemIds())
    while not (Path(root) / "stop").exists():
        with suppress(CommitConflict):
            table.merge()
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    {"write": fork_writers, "merge": merge}[sys.argv[1]](sys.argv[2])
