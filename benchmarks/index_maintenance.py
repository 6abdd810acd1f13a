"""The cost of up-to-date indexes while a table grows, with appends, index catch-ups and some compactions.

The bytes are all bytes that are written for indexes, including translations. Nothing is collected during the benchmark.
The processor time is the time of the index catch-ups. The comparison "rebuilding" runs the same appends and compactions
as the table with index catch-ups. The comparison "rebuilding" builds every segment again after each compaction. Lance
appends the same rows and runs `optimize_indices` after each append. Lance runs `compact_files` as often as Tidemark
compacts.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.metrics import Metric, command
from benchmarks.peers import NotMeasuredError, lance_python, printed
from storage_core.log.actions import RemoveIndexSegment
from tests.support.upkeep import catch_up, compact
from tidemark import Table

Size = tuple[int, int, int]
"""The number of appends, the number of rows per append, and the number of appends between two compactions."""
FULL: Size = (100, 10_000, 10)
SMALL: Size = (6, 200, 3)
WORDS = np.array(["tide", "ebb", "flood", *(f"word{each}" for each in range(5_000))])
INDEXES = [
    {"name": "words", "kind": "fulltext", "columns": ["line"]},
    {"name": "levels", "kind": "bitmap", "columns": ["level"]},
]


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield bytes and processor seconds per million rows.

    Also yield the number of segments that a search opens after the last append.
    """
    size = SMALL if small else FULL
    appends, rows, _ = size
    millions = appends * rows / 1e6
    with tempfile.TemporaryDirectory(prefix="tidemark-benchmark-") as folder:
        root = Path(folder)
        kept = _Grown(root / "kept", is_rebuilt=False).grow(size)
        rebuilt = _Grown(root / "rebuilt", is_rebuilt=True).grow(size)
        label = f"{appends} appends of {rows:,} rows"
        kept_mb, rebuilt_mb = (each.index_bytes / millions / 1e6 for each in (kept, rebuilt))
        yield Metric(
            name=f"{label}, written for indexes per million rows",
            value=kept_mb,
            unit="MB",
            against="rebuilding",
            ratio=rebuilt_mb / kept_mb,
        )
        yield Metric(
            name=f"{label}, processor time of catch-ups per million rows",
            value=kept.seconds / millions,
            unit="s",
            against="rebuilding",
            ratio=rebuilt.seconds / kept.seconds,
        )
        yield _against_lance(root, label, kept, size, make=not small)
        for name in ("words", "levels"):
            yield Metric(
                name=f"{label}, segments that {name} has at the end", value=kept.segments(name), unit="segments"
            )
        found = [grown.table.search("tide AND ebb", index="words", limit=50).to_pylist() for grown in (kept, rebuilt)]
        if found[0] != found[1]:
            raise RuntimeError("a table whose indexes were kept answers otherwise than one whose indexes were rebuilt")


class _Grown:
    """A table that grows, and the cost of its indexes."""

    def __init__(self, folder: Path, *, is_rebuilt: bool) -> None:
        self._folder, self._is_rebuilt = folder, is_rebuilt
        self.table = Table.create(str(folder), rows_of(0, 1).schema, indexes=INDEXES)
        self.seconds = 0.0

    def grow(self, size: Size) -> _Grown:
        """Append rows, compact at the given interval, and update the indexes after each append."""
        appends, rows, every = size
        for number in range(1, appends + 1):
            self.table.append(rows_of(number, rows))
            if number % every == 0:
                compact(self.table)
                if self._is_rebuilt:
                    self._drop()
            started = time.process_time()
            catch_up(self.table)
            self.seconds += time.process_time() - started
        self.table = self.table.refresh()
        return self

    @property
    def index_bytes(self) -> int:
        """All bytes that were written for indexes."""
        return sum(file.stat().st_size for file in (self._folder / "_indices").rglob("*") if file.is_file())

    def segments(self, index: str) -> int:
        """Return how many segments a search of an index opens."""
        (found,) = self.table.explain_search(index=index).indexes
        return len({path for paths in found.segments.values() for path in paths})

    def _drop(self) -> None:
        """Commit the removal of all segments."""
        head = self.table.refresh().snapshot
        dropped = [RemoveIndexSegment(index=each.index, path=each.path) for each in head.segments.values()]
        self.table.log.commit(head, dropped, operation="DROP SEGMENTS")


def _against_lance(root: Path, label: str, kept: _Grown, size: Size, *, make: bool) -> Metric:
    appends, rows, every = size
    name = f"{label}, processor time of Lance's optimize_indices per million rows"
    files = root / "rows"
    files.mkdir()
    millions = appends * rows / 1e6
    try:
        python = lance_python(make=make)
        for number in range(1, appends + 1):
            pq.write_table(rows_of(number, rows), files / f"{number:05}.parquet")
        found = printed(python, "lance_maintenance", str(root / "lance"), str(files), str(every))
    except NotMeasuredError as error:
        return Metric(name=name, value=kept.seconds, unit="s", against=f"Lance (not measured: {error})", ratio=0)
    seconds = float(found["seconds"])
    return Metric(name=name, value=seconds / millions, unit="s", against="ours", ratio=kept.seconds / seconds)


def rows_of(seed: int, count: int) -> pa.Table:
    """Return rows with a time, a line of twelve words, and one of four log levels."""
    random = np.random.default_rng(seed)
    lines = [" ".join(words) for words in random.choice(WORDS, (count, 12)).tolist()]
    levels = random.choice(["debug", "info", "warning", "error"], count).tolist()
    return pa.table({"at": np.arange(count) + seed * count, "level": levels, "line": lines})


if __name__ == "__main__":
    sys.exit(command(measure, str(__doc__)))
