"""Test program: a process that reads through a disk cache and damages the cache's entries.

`python -m tests.integration.cache_reader TABLE THREADS READS SEED` starts THREADS threads. Each thread reads columns of
the table in the folder TABLE, READS times. The thread compares the results with the table's objects. After each read
the thread damages 2 % of the cache's entries. The environment contains the location of the cache. At the end the
program prints its results as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from random import Random
from threading import Lock

import pyarrow as pa

from storage_core.base.errors import TidemarkError
from storage_core.base.limits import CacheSettings
from storage_core.split import read as split_reading
from storage_core.store.pieces import bounded_folder
from tests.support.elsewhere import open_elsewhere
from tidemark import Table

SHARE = 0.02
SMALL_SPLIT_BYTES = 2**14
"""Splits above this size are read by ranges. With this small value, the small splits of the test count as large."""
OPENED_ANEW = 0.2


def digest(rows: pa.Table) -> str:
    """Return a checksum that is equal for tables with the same rows in the same order."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows.combine_chunks())
    return sha256(sink.getvalue()).hexdigest()


def flipped(file: Path, random: Random) -> None:
    """Flip one bit of the file."""
    with file.open("r+b") as opened:
        place = random.randrange(max(1, opened.seek(0, os.SEEK_END)))
        opened.seek(place)
        found = opened.read(1)
        opened.seek(place)
        opened.write(bytes([found[0] ^ 1 << random.randrange(8)]) if found else b"?")


def cut(file: Path, random: Random) -> None:
    """Truncate the file at a random position."""
    os.truncate(file, random.randrange(file.stat().st_size + 1))


def renamed(file: Path, random: Random) -> None:
    """Rename the file to the name of a random cache entry, and thus replace this entry."""
    file.rename(random.choice(sorted(file.parent.glob("*.split"))))


def link(file: Path, _random: Random) -> None:
    """Replace the file with a dangling symbolic link."""
    file.unlink()
    file.symlink_to("nowhere")


DAMAGES: tuple[Callable[[Path, Random], None], ...] = (
    flipped,
    flipped,
    cut,
    renamed,
    link,
    lambda file, _random: file.unlink(),
)


class Reader:
    """The state that the threads of this process share: expected checksums and counters."""

    def __init__(self, table: Path) -> None:
        self.table = table
        self.settings = CacheSettings.of(os.environ)
        self.seen: Counter[str] = Counter()
        self.largest = 0
        self._lock = Lock()
        whole = Table.open(str(table)).scan().to_arrow()
        self.names = whole.column_names
        self.expected = {name: digest(whole.select([name])) for name in self.names}

    def read(self, reads: int, random: Random) -> None:
        """Read random columns `reads` times, and damage the cache after each read."""
        table = open_elsewhere(self.table)
        for _ in range(reads):
            if random.random() < OPENED_ANEW:
                table = open_elsewhere(self.table)
            before = table.cache_counts
            name = random.choice(self.names)
            try:
                found = self._one(table, name)
            except TidemarkError:
                found = self._one(table, name)
                self._count(retried=1)
            counts = table.cache_counts - before
            self._count(
                reads=1,
                wrong=int(digest(found) != self.expected[name]),
                hits=counts.hits,
                misses=counts.misses,
                failures=counts.failures,
            )
            self._damage(random)

    def _one(self, table: Table, name: str) -> pa.Table:
        return table.scan([name]).to_arrow()

    def _damage(self, random: Random) -> None:
        folder = bounded_folder(self.settings)
        assert folder is not None
        entries = folder.entries()
        taken = sum(each.size_bytes for each in entries)
        damaged = 0
        for each in entries:
            if random.random() < SHARE:
                with suppress(FileNotFoundError, FileExistsError):  # other threads damage the same files
                    random.choice(DAMAGES)(folder.path / each.name, random)
                    damaged += 1
        self._count(damaged=damaged, over=int(taken > folder.most_bytes))
        with self._lock:
            self.largest = max(self.largest, taken)

    def _count(self, **seen: int) -> None:
        with self._lock:
            self.seen.update(seen)


def main(table: str, threads: str, reads: str, seed: str) -> None:
    """Run the reading threads and print the counters."""
    split_reading.SMALL_SPLIT_BYTES = SMALL_SPLIT_BYTES
    reader = Reader(Path(table))
    with ThreadPoolExecutor(int(threads)) as pool:
        for done in [pool.submit(reader.read, int(reads), Random(f"{seed} {each}")) for each in range(int(threads))]:
            done.result()
    sys.stdout.write(json.dumps({**reader.seen, "largest": reader.largest}))


if __name__ == "__main__":
    main(*sys.argv[1:])
