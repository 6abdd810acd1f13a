"""All rows that match a question, without scores: what is counted, or ordered by a column.

Rows are named by the source that they are in, as those of a search are, and found exactly however index and merge lag.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeVar

from pyroaring import BitMap

from storage_core.errors import InvalidInput
from storage_core.index import fulltext
from storage_core.index.cache import SegmentCache
from storage_core.index.coverage import Coverage
from storage_core.index.text_composed import Searcher
from storage_core.index.text_matches import BLOCK_ROWS, matches, number_of_matches
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.prefetch import prefetch
from storage_core.read.overlay import Overlay
from storage_core.read.predicate import Predicate
from storage_core.search.hybrid_question import one_index
from storage_core.search.live import Live
from storage_core.search.question import SearchQuestion, index_for, question
from storage_core.search.searched import Searched
from storage_core.settings.index import IndexDefinition

_AT_ONCE = 4

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Query:
    """What rows match: a full-text query, or a condition on columns with bitmaps."""

    definition: IndexDefinition
    parsed: fulltext.TextQuery | Predicate

    @staticmethod
    def of(
        snapshot: Snapshot,
        query: object,
        *,
        index: object,
        syntax: object = fulltext.LENIENT,
        what: str = "a count or a facet",
    ) -> Query:
        """Return what is asked of one index, which takes a query, for `what`. Raises `InvalidInput`, `NotFound`."""
        definition = index_for(snapshot, one_index(index, what), by_vector=False)
        parsed = question(definition, snapshot, SearchQuestion(query=query, syntax=syntax))
        if not isinstance(parsed, fulltext.TextQuery | Predicate):
            raise InvalidInput(f"index {definition.name!r} takes a vector, which ranks rows; no row is a match")
        return Query(definition, parsed)


def matched(searched: Searched, query: Query, of: Callable[[Matches], _Answer]) -> _Answer:
    """Return what `of` returns for the matches, called again where a segment turns out to be unusable.

    Requests: those of `overlay.take_apart`, and what `Matches` makes. Raises as `search` does.
    """
    overlay = searched.overlay()

    def attempt(covered: Sequence[Coverage], cached: SegmentCache) -> _Answer:
        own = Matches(searched, query, overlay, covered=covered[0], cached=cached)
        found = of(own)
        own.require_sound()
        return found

    return searched.attempted(attempt, [query.definition])


class Matches:
    """The live rows that match a query and meet the filter, by their `sources`."""

    def __init__(
        self, searched: Searched, query: Query, overlay: Overlay, *, covered: Coverage, cached: SegmentCache
    ) -> None:
        """Look at no row yet."""
        self.searched, self.overlay, self.covered, self.cached = searched, overlay, covered, cached
        self._query = query
        [self.sources] = searched.sources([covered], overlay, cached)
        self._live = Live(self.sources, searched.row_filter())

    def rows(self, numbers: Sequence[int] | None = None) -> Iterator[tuple[int, BitMap]]:
        """Yield matching rows of the sources with these numbers, or of all, each source in one piece or several.

        Requests: one GET per source whose segment is not cached; per source with matches those of its deleted rows,
        and those of the filter's columns of these rows, where bitmap indexes do not answer it.
        """
        every = range(len(self.sources)) if numbers is None else numbers
        held, count = dict[int, BitMap](), 0
        for source, found in self._found([each for each in every if not self._live.excludes(each)]):
            held[source] = held[source] | found if source in held else found
            count += len(found)
            if count >= BLOCK_ROWS:
                yield from self._of_live(held)
                held, count = {}, 0
        yield from self._of_live(held)

    def number(self) -> int:
        """Return how many rows match. Where none can be hidden, they are not looked at one by one."""
        parsed = self._query.parsed
        if isinstance(parsed, fulltext.TextQuery) and self._is_whole():
            with self._searcher(range(len(self.sources))) as searcher:
                return number_of_matches(parsed, searcher)
        return sum(len(rows) for _, rows in self.rows())

    def require_sound(self) -> None:
        """Raise `InvalidInput` for a filter that cannot be evaluated."""
        self._live.require_sound()

    def _searcher(self, numbers: Sequence[int]) -> AbstractContextManager[Searcher]:
        parts = [self.sources[each] for each in numbers]
        return self.searched.kept.searchers.searcher(self._query.definition, parts, self.cached.root)

    def _found(self, numbers: Sequence[int]) -> Iterator[tuple[int, BitMap]]:
        """Matching rows, also those that are no answer, in pieces of which one is at hand."""
        parsed = self._query.parsed
        if isinstance(parsed, fulltext.TextQuery):
            with self._searcher(numbers) as searcher:
                for place, found in matches(parsed, searcher):
                    yield numbers[place], found
            return
        each_found = prefetch(lambda each: self.sources[each].matching(parsed), numbers, _AT_ONCE)
        for source, found in zip(numbers, each_found, strict=True):
            for start in range(0, len(found), BLOCK_ROWS):
                yield source, found[start : start + BLOCK_ROWS]

    def _of_live(self, found: Mapping[int, BitMap]) -> Iterator[tuple[int, BitMap]]:
        return ((source, rows) for source, rows in self._live.left(found).items() if rows)

    def _is_whole(self) -> bool:
        """Whether every row of every source is to be found."""
        if self._live.is_filtered or self.overlay.deletes.num_rows:
            return False
        if any(add.deleted_rows is not None for add in self.searched.snapshot.splits.marked()):
            return False
        return not any(prefetch(lambda each: each.deleted(), self.sources, _AT_ONCE))
