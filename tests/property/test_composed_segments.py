"""A full-text search returns the same rows, scores and order for any distribution of documents over segments."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.data.settings.index import IndexDefinition
from storage_core.index import fulltext
from storage_core.index.text_files import open_searcher
from tests.support.listed_hits import listed
from tests.support.scale import scaled

DEFINITION = IndexDefinition("text", "fulltext", ("a", "b"))
WORDS = st.sampled_from(["x", "y", "zebra", "Ünïcode", "日本"])
TEXTS = st.none() | st.lists(WORDS, max_size=5).map(" ".join)
ROWS = st.lists(st.fixed_dictionaries({"a": TEXTS, "b": TEXTS}), min_size=1, max_size=30)
QUERIES = st.sampled_from(["x", "a:y zebra", "+x -y", '"x y"', "日本 ünïcode^2", "*", "b:[x TO z]"])
SCHEMA = pa.schema([("a", pa.string()), ("b", pa.string())])


def answers(rows: pa.Table, bounds: list[int], query: str, limit: int) -> list[tuple[float, int]]:
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        directories = []
        for position, (start, end) in enumerate(pairwise(bounds)):
            directory = root / str(position)
            directory.mkdir()
            for name, data in fulltext.build(rows.slice(start, end - start), DEFINITION).items():
                (directory / name).write_bytes(data)
            directories.append(directory)
        hits = fulltext.parse(query, DEFINITION).hits(open_searcher(directories, DEFINITION, root), limit)
        return [(hit.score, bounds[hit.source] + hit.row) for hit in listed(hits)]


@settings(max_examples=scaled(20))
@given(rows=ROWS, query=QUERIES, limit=st.integers(1, 40), data=st.data())
def test_any_spread_over_segments_gives_the_same_top_rows(
    rows: list[dict[str, str | None]], query: str, limit: int, data: st.DataObject
) -> None:
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    cuts = data.draw(st.lists(st.integers(0, len(rows)), max_size=4).map(sorted))
    whole = answers(table, [0, len(rows)], query, limit)
    assert answers(table, [0, *cuts, len(rows)], query, limit) == whole
