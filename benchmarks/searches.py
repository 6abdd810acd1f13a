"""What a search costs: ten rows of 200,000 and of 5,000,000 lines, with tantivy alone and Lance beside it.

Tantivy has the same lines in memory and returns addresses, no rows. Lance returns rows, and any of several words will
do for it.
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
from storage_core.index import catch_up
from storage_core.settings.index import IndexDefinition

AIMS_MS = {200_000: 5.0, 5_000_000: 15.0}
"""By the number of lines."""
WORDS = ("tide", "ebb", "flood", *(f"word{each}" for each in range(500)))
QUERIES: Mapping[str, str | None] = {"tide": "tide", "tide AND ebb": None, "tide OR flood": "tide flood"}
"""Ours, and how Lance is asked for the same rows."""
_AT_ONCE = 200_000


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield milliseconds of searches."""
    for rows, aim_ms in {5_000: 5.0}.items() if small else AIMS_MS.items():
        with tempfile.TemporaryDirectory(prefix="tidemark-benchmark-") as folder:
            yield from _searches(Path(folder), rows, aim_ms, small=small)


def _searches(root: Path, rows: int, aim_ms: float, *, small: bool) -> Iterator[Metric]:
    table, alone = _written(root, rows)
    searcher, runs = alone.searcher(), 3 if small else 15
    for query, for_lance in QUERIES.items():
        ours, theirs = in_turns(
            (
                partial(table.search, query, index="words", limit=10, cache_dir=root / "cache"),
                partial(searcher.search, alone.parse_query(query, ["line"]), limit=10),
            ),
            runs,
        )
        name = f"search of {rows:,} lines, {query}, 10 rows"
        yield Metric(name=name, value=ours, unit="ms", against=f"{aim_ms:g} ms", ratio=aim_ms / ours, aim=1)
        yield beside(f"{name}, tantivy alone", theirs, ours)
        if for_lance is not None and rows <= _AT_ONCE:
            lines = pa.table({"line": _lines(0, rows)})
            yield lance_requests(name, ours, lines, [for_lance] * runs, make=not small)


def _written(root: Path, rows: int) -> tuple[tm.Table, tantivy.Index]:
    """A table whose lines are indexed, and an index in memory of the same lines."""
    words = IndexDefinition(name="words", kind="fulltext", columns=("line",))
    table = tm.Table.create(str(root / "table"), pa.schema([("line", pa.string())]), indexes=[words])
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("line", stored=False)
    alone = tantivy.Index(builder.build())
    writer = alone.writer(num_threads=1)
    for start in range(0, rows, _AT_ONCE):
        lines = _lines(start, min(_AT_ONCE, rows - start))
        table.append(pa.table({"line": lines}))
        for line in lines:
            writer.add_document(tantivy.Document(line=line))
    writer.commit()
    alone.reload()
    table.refresh()
    plan = catch_up.plan(table.snapshot, "words")
    built = [catch_up.execute(table.store, work, ids=table.log.ids) for work in plan.work]
    table.log.commit(table.snapshot, plan.actions(built), operation="INDEX")
    return table.refresh(), alone


def _lines(seed: int, rows: int) -> list[str]:
    return [" ".join(words) for words in np.random.default_rng(5 + seed).choice(WORDS, (rows, 12)).tolist()]


if __name__ == "__main__":
    sys.exit(command(measure, str(__doc__)))
