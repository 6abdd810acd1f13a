"""The cost of a search for ten rows in 200,000 and 5,000,000 lines, compared to tantivy alone and to Lance.

Tantivy searches an index of the same lines in memory, without a table. Tantivy returns addresses and not rows. Lance
returns rows. In Lance, a query of several words matches rows with any of these words.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import tantivy

import tidemark as tm
from benchmarks.metrics import Metric, beside, command, in_turns
from benchmarks.read_peers import lance_requests
from storage_core.data.settings.index import IndexDefinition
from tests.support.upkeep import catch_up

CASES = ((200_000, False, 5.0), (5_000_000, False, 15.0), (5_000_000, True, 15.0))
"""The number of lines, whether each line has a time, and the aim in milliseconds.

The time orders lines with equal scores.
"""
WORDS = ("tide", "ebb", "flood", *(f"word{each}" for each in range(500)))
QUERIES: Mapping[str, str | None] = {"tide": "tide", "tide AND ebb": None, "tide OR flood": "tide flood"}
"""The queries for Tidemark. The value of each query is the query with which Lance finds the same rows."""
MICROSECONDS = 432_000
"""The time between two lines in microseconds. One day therefore has 200,000 lines."""
_AT_ONCE = 200_000


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield the milliseconds that each search takes."""
    for rows, is_timed, aim_ms in ((5_000, False, 5.0), (5_000, True, 5.0)) if small else CASES:
        with tempfile.TemporaryDirectory(prefix="tidemark-benchmark-") as folder:
            yield from _searches(Path(folder), rows, aim_ms, is_timed=is_timed, small=small)


def _searches(root: Path, rows: int, aim_ms: float, *, is_timed: bool, small: bool) -> Iterator[Metric]:
    table, alone = _written(root, rows, is_timed=is_timed)
    searcher, runs = alone.searcher(), 3 if small else 15
    for query, for_lance in QUERIES.items():
        ours, theirs = in_turns(
            (
                partial(table.search, query, index="words", limit=10, cache_dir=root / "cache"),
                partial(searcher.search, alone.parse_query(query, ["line"]), limit=10),
            ),
            runs,
        )
        name = f"search of {rows:,} lines{' with times' if is_timed else ''}, {query}, 10 rows"
        yield Metric(name=name, value=ours, unit="ms", against=f"{aim_ms:g} ms", ratio=aim_ms / ours, aim=1)
        yield beside(f"{name}, tantivy alone", theirs, ours)
        if for_lance is not None and rows <= _AT_ONCE and not is_timed:
            lines = pa.table({"line": _lines(0, rows)})
            yield lance_requests(name, ours, lines, [for_lance] * runs, make=not small)


def _written(root: Path, rows: int, *, is_timed: bool) -> tuple[tm.Table, tantivy.Index]:
    """Create a table with indexed lines, and a tantivy index of the same lines in memory."""
    words = IndexDefinition(name="words", kind="fulltext", columns=("line",))
    at = {"at": pa.timestamp("us", "UTC")} if is_timed else {}
    schema = pa.schema([*at.items(), ("line", pa.string())])
    table = tm.Table.create(str(root / "table"), schema, time_column="at" if is_timed else None, indexes=[words])
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("line", stored=False)
    alone = tantivy.Index(builder.build())
    writer = alone.writer(num_threads=1)
    for start in range(0, rows, _AT_ONCE):
        lines = _lines(start, min(_AT_ONCE, rows - start))
        times = [pa.array(np.arange(start, start + len(lines)) * MICROSECONDS, pa.timestamp("us", "UTC"))] * is_timed
        table.append(pa.table([*times, pa.array(lines)], schema=schema))
        for line in lines:
            writer.add_document(tantivy.Document(line=line))
    writer.commit()
    alone.reload()
    table.refresh()
    catch_up(table)
    return table.refresh(), alone


def _lines(seed: int, rows: int) -> list[str]:
    return [" ".join(words) for words in np.random.default_rng(5 + seed).choice(WORDS, (rows, 12)).tolist()]


if __name__ == "__main__":
    sys.exit(command(measure, str(__doc__)))
