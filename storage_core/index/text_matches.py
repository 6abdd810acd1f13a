"""All rows that a full-text query matches, without scores: so many rows of the index at a time, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from pyroaring import BitMap

from storage_core.index import fulltext, native_errors, text_files
from storage_core.index.fulltext import TextQuery
from storage_core.index.text_composed import Searcher
from storage_core.index.text_files import ROW_FIELD

if TYPE_CHECKING:
    import tantivy

BLOCK_ROWS: Final = 2**17
"""So many rows of the index are asked about at a time: tantivy returns an object of a hundred bytes per match."""

_GREATEST = 2**64 - 1


def matches(query: TextQuery, searcher: Searcher) -> Iterator[tuple[int, BitMap]]:
    """Yield the matching rows of each source, by its position among those composed, in one piece or several.

    Raises `Corrupt` for documents that name no row, or one twice.
    """
    for start, stop, most in _blocks(searcher.composed.rows):
        with native_errors.reading(f"index {query.definition.name!r}"):
            wanted = _within(query, start, _GREATEST if stop == max(searcher.composed.rows) else stop - 1)
            addresses = [address for _, address in searcher.tantivy.search(wanted, most + 1, count=False).hits]
            rows = searcher.tantivy.fast_field_values(ROW_FIELD, addresses)
        sources = [searcher.composed.sources[each.segment_ord] for each in addresses]
        for source, found in groupby(sorted(zip(sources, rows, strict=True), key=itemgetter(0)), key=itemgetter(0)):
            yield source, _bitmap([row for _, row in found], searcher.composed.rows[source], query)


def number_of_matches(query: TextQuery, searcher: Searcher) -> int:
    """Return how many documents match."""
    if not searcher.tantivy.num_docs:
        return 0
    with native_errors.reading(f"index {query.definition.name!r}"):
        found: Any = searcher.tantivy.search(query.parsed, 1, count=True)  # its types do not tell of the count
        return int(found.count)


def _blocks(rows: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield ranges of row numbers, together all, and how many rows of all sources each has: few enough."""
    counts, start = np.sort(np.array(rows, np.int64)), 0
    while len(counts) and start < counts[-1]:
        left = counts[np.searchsorted(counts, start, side="right") :]
        stop = min(start + max(1, BLOCK_ROWS // len(left)), int(counts[-1]))
        yield start, stop, int(np.minimum(left, stop).sum() - start * len(left))
        start = stop


def _within(query: TextQuery, first: int, last: int) -> tantivy.Query:
    import tantivy

    schema = fulltext.tantivy_schema(query.definition)
    rows = tantivy.Query.range_query(schema, ROW_FIELD, tantivy.FieldType.Unsigned, first, last)
    scored = [tantivy.Query.const_score_query(each, 0.0) for each in (query.parsed, rows)]
    return tantivy.Query.boolean_query([(tantivy.Occur.Must, each) for each in scored])


def _bitmap(rows: Sequence[object], count: int, query: TextQuery) -> BitMap:
    found = BitMap(row for row in rows if isinstance(row, int) and 0 <= row < count)
    if len(found) != len(rows):
        where = f"index {query.definition.name!r}"
        raise text_files.corrupt(where, f"{len(rows) - len(found)} documents name no row of a split, or one twice")
    return found
