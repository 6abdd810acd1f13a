"""The cost of indexes when a compaction of a fully indexed table, or a merge, only moves rows.

The benchmark fails if a compaction or merge indexes a row again, moves a watermark back or changes an answer. For
indexes, a compaction and a merge write only the new positions of rows. The benchmark compares the size of the new
positions to the size of the segments.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.metrics import Metric, command, seconds
from storage_core.index import catch_up as indexing
from storage_core.write.region.records import WriterOptions
from tests.support.upkeep import catch_up, compact, merge
from tidemark import Table

ROWS, SMALL_ROWS = 1_000_000, 8_000
PARTS = 10
DIMENSIONS = 16
LEAST_RATIO = 20.0
"""The minimum ratio of segment bytes to the index bytes that a compaction or merge writes. 20 means at most 5 %."""

WORDS = np.array([f"word{each}" for each in range(20_000)])
INDEXES = [
    {"name": "words", "kind": "fulltext", "columns": ["line"]},
    {"name": "levels", "kind": "bitmap", "columns": ["level"]},
    {"name": "near", "kind": "vector", "columns": ["place"]},
]
QUERIES: Mapping[str, Mapping[str, Any]] = {
    "words": {"query": "word17 word4711"},
    "levels": {"query": "error"},
    "near": {"vector": [0.5] * DIMENSIONS},
}
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
        ("level", pa.string()),
        ("line", pa.string()),
        ("place", pa.list_(pa.float32(), DIMENSIONS)),
    ]
)


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield the bytes that a compaction and a merge of indexed rows write for indexes, and the durations."""
    rows = (SMALL_ROWS if small else ROWS) // PARTS
    layout: dict[str, Any] = {
        "time_column": "at",
        "window": "1h",
        "sort_schema": "level|timestamp/V2",
        "indexes": INDEXES,
    }
    with tempfile.TemporaryDirectory(prefix="tidemark-benchmark-") as folder:
        appended = Table.create(f"{folder}/appended", SCHEMA, **layout)
        for part in range(PARTS):
            appended.append(rows_of(part, rows))
        catch_up(appended)
        yield from _moved(appended, "a compaction", compact)
    with tempfile.TemporaryDirectory(prefix="tidemark-benchmark-") as folder:
        keyed = Table.create(f"{folder}/keyed", SCHEMA, primary_key=["id", "at"], **layout)
        with keyed.writer(options=WriterOptions(segment_rows=1)) as writer:
            for part in range(PARTS):
                writer.put(rows_of(part, rows))
                writer.flush()
        yield from _moved(keyed, "a merge of generations", merge)


def _moved(table: Table, what: str, move: Callable[[Table], object]) -> Iterator[Metric]:
    before, answers = _index_bytes(table), _answers(table.refresh())
    took = seconds(lambda: move(table))
    head = table.refresh().snapshot
    segments = sum(each.size for each in head.segments.values())
    left = [len(indexing.plan(head, name).work) for name in QUERIES]
    behind = [head.version - indexing.watermark(head, name) for name in QUERIES]
    if any(left) or any(behind):
        raise RuntimeError(f"{what} left splits to index, {left}, and watermarks behind, by {behind} versions")
    if not _answers(table).equals(answers):
        raise RuntimeError(f"searches answer otherwise after {what}")
    written = _index_bytes(table) - before
    label = f"{what} of {head.rows:,} indexed rows, 0 of them indexed again"
    yield Metric(
        name=f"{label}: written for indexes",
        value=written / 1e6,
        unit="MB",
        against="their segments",
        ratio=segments / written,
        aim=LEAST_RATIO,
    )
    yield Metric(name=f"{label}: in all", value=took, unit="s")


def _answers(table: Table) -> pa.Table:
    """Return the rows and scores that each index finds, including unmerged rows."""
    found = [
        table.search(index=name, limit=50, columns=["id"], consistency="committed", **query).select(["id", "score"])
        for name, query in QUERIES.items()
    ]
    return pa.concat_tables(found)


def _index_bytes(table: Table) -> int:
    return sum(info.size for info in table.store.list("_indices/"))


def rows_of(seed: int, count: int) -> pa.Table:
    """Return rows of one hour, each with twelve words, one of four levels, and an embedding."""
    random = np.random.default_rng(seed)
    places = random.normal(size=count * DIMENSIONS).astype(np.float32)
    return pa.table(
        {
            "id": random.permutation(count) * PARTS + seed,
            "at": pa.array(random.integers(0, 3_600_000_000, count), SCHEMA.field("at").type),
            "level": random.choice(["debug", "info", "warning", "error"], count).tolist(),
            "line": [" ".join(words) for words in random.choice(WORDS, (count, 12)).tolist()],
            "place": pa.FixedSizeListArray.from_arrays(pa.array(places), DIMENSIONS),
        },
        SCHEMA,
    )


if __name__ == "__main__":
    sys.exit(command(measure, str(__doc__)))
