"""Search by several indexes at once: each ranks rows by itself, and their rankings are fused (decision 0121)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import pyarrow as pa

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.index import fulltext
from storage_core.index.cache import SegmentCache
from storage_core.index.coverage import Coverage
from storage_core.index.fulltext import Hit
from storage_core.search import ranking as by_one
from storage_core.search.fusion import fusion_of
from storage_core.search.hybrid_answer import Answer
from storage_core.search.hybrid_question import asks_several, of_one_index, parts_of
from storage_core.search.kept import Kept
from storage_core.search.live import Live
from storage_core.search.order import Best
from storage_core.search.question import IndexQuestion, SearchQuestion, page
from storage_core.search.searched import Searched
from storage_core.search.text_filter import TextFilter
from storage_core.search.trace import Trace


def search(
    searched: Searched,
    given: SearchQuestion,
    columns: Sequence[str] | None = None,
    *,
    limit: object = 10,
    offset: object = 0,
    trace: Trace | None = None,
) -> pa.Table:
    """Return what `ranking.search` does, of one index or fused of several; see `fusion` for the formulas.

    Several are asked for a `query` and a `vector`, or where `index` is a list of names: full-text indexes are asked
    the query, indexes of vectors the vector; without names the only one of each. `weights` are by the names of indexes,
    1 where none is given. A full-text index of weight 0 filters: only rows that it finds are answers.

    Beside the columns of the rows: `score`, the fused one; with a vector `distance`, of the first index of vectors; of
    each index, as named or text first, `<index>_rank` (from 1) and `<index>_score`. All but `score` are null
    for a row that is not in the window of the index; an index that only filters has none. A name that another column
    has gets `_` before it. Rows are in the order of their window, in each by score, then as in a search of one index.

    Raises what a search of each index raises, `InvalidInput` also for weights and fusion that make no sense. Requests:
    those of a search of each index for as many rows as the window has, of each window that is needed; what is hidden,
    and which rows meet the filter, is looked up once for all. With a filter by text all its matches are held in memory.
    """
    how, snapshot, kept = fusion_of(given.fusion), searched.snapshot, searched.kept
    first, after = page(limit, offset)
    if given.boosts is not None and not isinstance(given.boosts, Mapping):
        raise InvalidInput(f"boosts are {quoted(given.boosts)}; give a number by the name of a column")
    if not asks_several(given):
        return by_one.search(searched, of_one_index(given), columns, limit=limit, offset=offset, trace=trace)
    parts = parts_of(snapshot, given)
    names = tuple(snapshot.schema.names) if columns is None else tuple(columns)
    definitions = [each.definition for each in (*parts.filtering, *parts.ranking)]
    overlay = searched.overlay()

    def best(covered: Sequence[Coverage], cached: SegmentCache) -> pa.Table:
        wanted = searched.row_filter()
        found = searched.sources(covered, overlay, cached)
        split = len(parts.filtering)
        filtering = [Live(own, wanted) for own in found[:split]]
        matched = [
            TextFilter(own.sources, _hits(own, each, kept=kept, root=cached.root), snapshot.config.primary_key)
            for own, each in zip(filtering, parts.filtering, strict=True)
        ]
        lives = [Live(own, wanted, matched) for own in found[split:]]
        if trace is not None:
            trace.begin(dict(zip((each.name for each in definitions), [*filtering, *lives], strict=True)), wanted)

        def ranked(number: int, window: int) -> Best:
            rows = Best(snapshot, window, names, is_named=True)
            by_one.add_best(lives[number], parts.ranking[number], rows, window, kept=kept, root=cached.root)
            return rows

        rows = Answer(snapshot, parts, names, how).rows(ranked, first + after)
        lives[0].require_sound()
        return rows

    return searched.attempted(best, definitions).slice(after)


def _hits(live: Live, one: IndexQuestion, *, kept: Kept, root: Path) -> list[Hit]:
    """All rows that a text finds."""
    query = cast("fulltext.TextQuery", one.question)
    with kept.searchers.searcher(one.definition, live.sources, root) as searcher:
        return query.every_hit(searcher, live=live)
