"""Full-text segments: tantivy indexes over the text columns of one split, and snippets of rows.

Each indexed column is one text field of the same name. The fast field `_row` is the row number in the split. A search
links the files of all its segments into one directory with one `meta.json`. The searcher then scores with the
statistics of the whole corpus. Therefore the scores are equal to the scores of a single index. The scores do not depend
on the division of documents into segments. Tantivy orders equal scores by segment, then by document.

A snippet is a fragment of a found text. The snippet is the fragment with the largest number of searched words, and
these words are marked. A snippet depends only on the text and the query, and not on the frequency of a word in the
index. Therefore a snippet is the same on every page of a result, and for every coverage of the index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from storage_core.base.errors import Corrupt, InvalidInput
from storage_core.base.process import scratch_folder
from storage_core.base.text import choice_of, quoted, shortened
from storage_core.data.rows.codes import Mask
from storage_core.data.rows.keys import Positions, bitmap_of
from storage_core.data.rows.vectors import type_text
from storage_core.data.settings.index import IndexDefinition
from storage_core.index import damage, text_files, text_queries
from storage_core.index.text_files import ROW_FIELD, Searcher, compose
from storage_core.index.text_queries import Node, QueryBuilder

if TYPE_CHECKING:
    import tantivy


LENIENT, STRICT = "lenient", "strict"
SYNTAXES = (LENIENT, STRICT)

# This is the maximum size of the text in one writer. The limit is far below the writer's heap, so a writer never
# flushes early. Therefore every index that is built here is one tantivy segment, with its documents in row order.
_CHUNK_TEXT_BYTES = 64 * 2**20
_CHUNK_ROWS = 500_000
_HEAP_BYTES = 1_000_000_000  # an upper bound: memory is allocated page by page as documents arrive
_BATCH_ROWS = 10_000
_ROOM_PER_TEXT = 4  # the bytes of memory that indexing takes per byte of text
_SPARE_HITS = 64  # the number of additional hits, which often show that no later hit has the score of the last hit
_PAGE_HITS = 250_000
_ROW_BITS = 32  # the row numbers of a split have at most 32 bits

Found: TypeAlias = "tuple[Any, tantivy.DocAddress]"
Scores = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Hits:
    """Matching rows as three arrays of the same length.

    Attributes:
        sources: For each row, the position of its segment among the composed segments.
        rows: The row numbers in their segments.
        scores: The scores of the rows.
    """

    sources: Positions
    rows: Positions
    scores: Scores

    @staticmethod
    def of_source(source: int, rows: Positions, score: float) -> Hits:
        """Return rows of one source that all have the same score."""
        return Hits(np.full(len(rows), source, np.int64), rows, np.full(len(rows), score))

    @staticmethod
    def joined(parts: Sequence[Hits]) -> Hits:
        """Return the rows of all parts, in the order of the parts."""
        if len(parts) == 1:
            return parts[0]
        return Hits(
            np.concatenate([np.zeros(0, np.int64), *(each.sources for each in parts)]),
            np.concatenate([np.zeros(0, np.int64), *(each.rows for each in parts)]),
            np.concatenate([np.zeros(0, np.float64), *(each.scores for each in parts)]),
        )

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    @property
    def ids(self) -> Positions:
        """A number for each row. No other row of the sources has the same number."""
        return self.sources << _ROW_BITS | self.rows

    def take(self, wanted: Positions | Mask) -> Hits:
        """Return the rows at these positions, or the rows that the mask selects."""
        return Hits(self.sources[wanted], self.rows[wanted], self.scores[wanted])

    def positions_by_source(self) -> Mapping[int, Positions]:
        """Return for each source the positions of its rows in the arrays, ascending."""
        return {source: np.flatnonzero(self.sources == source) for source in np.unique(self.sources).tolist()}

    def by_source(self) -> Mapping[int, Hits]:
        """Return the rows of each source, in the same order."""
        return {source: self.take(own) for source, own in self.positions_by_source().items()}


def validate(definition: IndexDefinition, schema: pa.Schema) -> None:
    """Raise `InvalidInput` if the index cannot be built over the texts of `schema`."""
    for column in definition.columns:
        if column == ROW_FIELD:
            raise InvalidInput(
                f"index {definition.name!r}: the column name {ROW_FIELD!r} is reserved. Rename the column"
            )
        if not column or column.startswith("-"):
            what = (
                f"a full-text index cannot contain a column named {column!r}. Remove the column from the index, "
                "then rename the column"
            )
            raise InvalidInput(f"index {definition.name!r}: {what}")
        if not pa.types.is_string(kind := schema.field(column).type):
            raise InvalidInput(
                f"index {definition.name!r}: full text needs string columns, but {column!r} has type "
                f"{type_text(kind)}. Name other columns"
            )
    text_files.validate_tokenizers(definition)


def build(rows: pa.Table, definition: IndexDefinition) -> dict[str, bytes]:
    """Return the files of a segment over `rows`, as a mapping from name to content. `rows` are one split's rows in
    order.

    A null value adds no field to the document and matches nothing. Memory is bounded by the size of the split. Scratch
    files are in the temporary folder. Tantivy syncs these files to disk. For a small split, the sync takes most of the
    time. A `TMPDIR` in memory avoids this cost.
    """
    room_bytes = _ROOM_PER_TEXT * min(_text_bytes(rows, definition), _CHUNK_TEXT_BYTES)
    what = f"full-text segment of index {definition.name!r}"
    with damage.writing(what, room_bytes=room_bytes), scratch_folder("fulltext") as root:
        built = [root / f"chunk-{start}" for start, _ in _chunks(rows, definition)]
        for directory, (start, chunk) in zip(built, _chunks(rows, definition), strict=True):
            _build_chunk(directory, chunk, start, definition)
        compose(built, root / "whole", definition)
        return {each.name: each.read_bytes() for each in sorted((root / "whole").iterdir())}


def _hits(searcher: Searcher, found: Sequence[Found], index: str) -> Hits:
    """Return the documents that tantivy found. Raises `Corrupt` unless each document has a row of its own."""
    composed, addresses = searcher.composed, [address for _, address in found]
    numbers = searcher.tantivy.fast_field_values(ROW_FIELD, addresses)
    if len(composed.sources) == 1:
        sources = np.full(len(found), composed.sources[0], np.int64)
    else:
        segments = np.fromiter((each.segment_ord for each in addresses), np.int64, len(found))
        sources = np.array(composed.sources, np.int64)[segments]
    try:
        rows = np.array(numbers, np.int64)
    except (TypeError, OverflowError) as error:
        raise _without_row(index) from error
    hits = Hits(sources, rows, np.fromiter((score for score, _ in found), np.float64, len(found)))
    is_row = (rows >= 0) & (rows < np.array(composed.rows, np.int64)[sources])
    if not is_row.all() or len(np.unique(hits.ids)) < len(rows):
        raise _without_row(index)
    return hits


def _without_row(index: str) -> Corrupt:
    return text_files.corrupt(f"index {index!r}", "a document has a row that is not in its split or occurs twice")


@dataclass(frozen=True, slots=True)
class TextQuery:
    """A query for one index, created by `parse`.

    `tree` is the syntax tree of the text, and `parsed` is the tantivy query that was built from the tree.
    """

    text: str
    definition: IndexDefinition
    tree: Node = field(compare=False)
    parsed: tantivy.Query = field(compare=False)

    def hits(self, searcher: Searcher, limit: int, *, live: Callable[[Hits], Hits] | None = None) -> Hits:
        """Return the best `limit` live documents. Also return all live documents with the same score as the last one.

        They are ordered by score, then position, then row. `live` returns the live hits among the given hits, in their
        order. Without `live` all hits count as live. Documents that are not live count in the statistics of the scores,
        as in every search of these files.
        """
        found = Hits.joined([])
        for page, lowest in self._pages(searcher, limit + _SPARE_HITS):
            found = Hits.joined([found, page if live is None else live(page)])
            if len(found) >= limit and lowest < found.scores[limit - 1]:
                break
        return found if len(found) <= limit else found.take(found.scores >= found.scores[limit - 1])

    def every_hit(self, searcher: Searcher, *, live: Callable[[Hits], Hits]) -> Hits:
        """Return all live documents of a searcher, in the order of `hits`."""
        return Hits.joined([live(page) for page, _ in self._pages(searcher, _PAGE_HITS)])

    def _pages(self, searcher: Searcher, size: int) -> Iterator[tuple[Hits, float]]:
        """Yield all matching documents, best first, in growing pages, each with the lowest score in the page.

        Each page is a search for the best documents up to its size, without the documents of earlier pages. If several
        documents have equal scores, the size determines which of them tantivy returns. A search with an offset would
        therefore miss some documents and return others twice.
        """
        seen = np.zeros(0, np.int64)
        count = searcher.tantivy.num_docs
        while True:
            # Tantivy's collector allocates memory for `size` hits in advance. Therefore `size` never exceeds the number
            # of documents.
            size = min(size, count)
            with damage.reading(f"index {self.definition.name!r}"):
                found = searcher.tantivy.search(self.parsed, size, count=False).hits if size else []
                hits = _hits(searcher, found, self.definition.name)
            fresh = hits.take(~np.isin(hits.ids, seen)) if len(seen) else hits
            seen = np.concatenate([seen, fresh.ids])
            if len(fresh):
                yield fresh, float(found[-1][0])
            if len(found) < size or size == count:
                return
            size = min(5 * size, max(2 * size, size + _PAGE_HITS))


def parse(
    text: str, definition: IndexDefinition, *, syntax: object = LENIENT, boosts: Mapping[str, float] | None = None
) -> TextQuery:
    """Return the query that `text` expresses over all columns of the index.

    The text can select a column (`request:kibana`).

    `kib*` matches all words with this prefix. `kibana~1` and `kibana~2` match words that differ from `kibana` by at
    most one or two changes (`text_queries`). `NOT` and `-` exclude rows from the matches of their group. If the group
    has no other clause, `NOT` and `-` exclude rows from the whole table. The group then matches the rows that are not
    excluded, and each matching row gets the score 0.

    An invalid text is read as a query for any of its words. A text is invalid in these cases:

    - The text cannot be parsed, or it searches a column that the index does not have.
    - The text exceeds a limit of `text_queries`.
    - The text is a query that an index cannot answer exactly. An index cannot exactly answer a query for every value of
      a column (`request:*`) or for the prefix of a phrase. An index also cannot exactly answer a query for a prefix of
      fewer than two characters or of several words.

    Args:
        text: The text of the query.
        definition: The definition of the index.
        syntax: `lenient`, or `strict` to refuse a text that is not a valid query.
        boosts: The factor for the scores of each column, by the name of the column.

    Raises:
        InvalidInput: The text has too many characters, or is not valid and `syntax` is `strict`.
    """
    import tantivy

    if syntax not in SYNTAXES:
        raise InvalidInput(choice_of("syntax", syntax, SYNTAXES))
    query = TextQuery(text=text, definition=definition, tree=text_queries.words(""), parsed=tantivy.Query.empty_query())
    with _refusing(query):
        text_queries.check_length(text)
        weights = _boosts(definition, boosts)
        try:
            return _read(query, weights, is_strict=syntax == STRICT)
        except ValueError:
            if syntax == STRICT:
                raise
        return _read_words(query, weights)


def _boosts(definition: IndexDefinition, given: Mapping[str, float] | None) -> dict[str, float]:
    """Return the boosts of columns. Raises `ValueError`."""
    boosts: dict[str, object] = {**(given or {})}
    for column, boost in boosts.items():
        if column not in definition.columns:
            raise ValueError(f"a boost is given for {quoted(column)}, which is not a column of the index")
        if isinstance(boost, bool) or not isinstance(boost, int | float) or not 0 < boost <= text_queries.MAX_BOOST:
            raise ValueError(f"the boost of {column!r} is {quoted(boost)}. Give a number above 0, such as 2.5")
    return {column: float(boost) for column, boost in boosts.items() if isinstance(boost, int | float)}


def _read(query: TextQuery, boosts: Mapping[str, float], *, is_strict: bool) -> TextQuery:
    """Return the query that the text expresses according to its syntax.

    Raises `ValueError` with the reason if the text is not a valid query.
    """
    if not query.text.strip():
        raise ValueError("it is empty")
    text_queries.check_text(query.text)
    tree = text_queries.read(query.text)
    text_queries.check_tree(tree)
    return _built(query, tree, boosts, is_strict=is_strict)


def _read_words(query: TextQuery, boosts: Mapping[str, float]) -> TextQuery:
    """Return a query for any of the words of the text."""
    text = query.text.encode("utf-8", "replace").decode()
    return _built(query, text_queries.words(text), boosts, is_strict=False)


def _built(query: TextQuery, tree: Node, boosts: Mapping[str, float], *, is_strict: bool) -> TextQuery:
    with damage.as_query_error():
        builder = QueryBuilder(query.definition, _index(query.definition), boosts, is_strict=is_strict)
        return replace(query, tree=tree, parsed=builder.of(tree))


def _index(definition: IndexDefinition) -> tantivy.Index:
    """Return an index without documents, with the schema and the tokenizers of the definition."""
    import tantivy

    index = tantivy.Index(tantivy_schema(definition))
    text_files.register(index, definition)
    return index


@contextmanager
def _refusing(query: TextQuery) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise _unparsable(query, str(error)) from error


def _unparsable(query: TextQuery, reason: str) -> InvalidInput:
    columns = ", ".join(query.definition.columns)
    return InvalidInput(
        f"the full-text query {quoted(query.text, 300)} on index {query.definition.name!r} cannot be run: "
        f"{shortened(reason, 300)}. "
        f'Fields are {columns}. Put text with `:`, `/`, `(`, `[` or `"` in double quotes',
        index=query.definition.name,
        query=shortened(query.text, 300),
    )


def tantivy_schema(definition: IndexDefinition) -> tantivy.Schema:
    """Return the schema of an index: its columns, and the row number."""
    import tantivy

    builder = tantivy.SchemaBuilder()
    for column in definition.columns:
        builder.add_text_field(column, tokenizer_name=text_files.tokenizer_of(definition, column))
    builder.add_unsigned_field(ROW_FIELD, fast=True)
    return builder.build()


def _chunks(rows: pa.Table, definition: IndexDefinition) -> Iterator[tuple[int, pa.Table]]:
    """Yield pairs (first row number, rows) in order. The rows of each pair fit into the memory of one index writer."""
    pieces = max(1, -(-_text_bytes(rows, definition) // _CHUNK_TEXT_BYTES), -(-rows.num_rows // _CHUNK_ROWS))
    step = max(1, -(-rows.num_rows // pieces))
    for start in range(0, rows.num_rows, step):
        yield start, rows.slice(start, step)


def _text_bytes(rows: pa.Table, definition: IndexDefinition) -> int:
    size: int = sum(rows.column(each).nbytes for each in definition.columns)
    return size * text_files.expansion(definition)


def _build_chunk(directory: Path, rows: pa.Table, first_row: int, definition: IndexDefinition) -> None:
    import tantivy

    directory.mkdir()
    schema = tantivy_schema(definition)
    index = tantivy.Index(schema, path=str(directory), reuse=False)
    text_files.register(index, definition)
    writer = index.writer(heap_size=_HEAP_BYTES, num_threads=1)
    numbers = np.arange(first_row, first_row + rows.num_rows, dtype=np.uint64)
    texts = text_files.folded_rows(definition, rows.select(list(definition.columns)))
    numbered = texts.append_column(ROW_FIELD, pa.array(numbers))
    lengths = {each: text_files.gram_of(definition, each) for each in definition.columns}
    grams = {column: length for column, length in lengths.items() if length is not None}
    # Tantivy accepts one document object at a time. The batches limit the number of Python objects that exist at once.
    for batch in numbered.to_batches(max_chunksize=_BATCH_ROWS):
        for document in batch.to_pylist():
            fields = {name: value for name, value in document.items() if value is not None}
            for name in grams.keys() & fields.keys():
                fields[name] = text_files.prepared(fields[name], grams[name])
            writer.add_document(tantivy.Document.from_dict(fields, schema))
    writer.commit()
    writer.wait_merging_threads()


# All rows that match a full-text query.
#
# The rows have no scores. The rows of the index are searched in blocks, in bounded memory.


BLOCK_ROWS: Final = 2**17
"""The number of rows that are searched at a time. For each match, Tantivy returns an object of 100 bytes."""

_GREATEST = 2**64 - 1


def matches(query: TextQuery, searcher: Searcher) -> Iterator[tuple[int, BitMap]]:
    """Yield the matching rows of each source. A source is a position in the list of segments of the searcher.

    The rows of a source may be yielded in several pieces.

    Raises:
        Corrupt: A document has no row number, or two documents have the same row number.
    """
    for start, stop, most in _blocks(searcher.composed.rows):
        with damage.reading(f"index {query.definition.name!r}"):
            wanted = _within(query, start, _GREATEST if stop == max(searcher.composed.rows) else stop - 1)
            found = searcher.tantivy.search(wanted, most + 1, count=False).hits
            hits = _hits(searcher, found, query.definition.name)
        for source, own in hits.by_source().items():
            yield source, bitmap_of(own.rows)


def number_of_matches(query: TextQuery, searcher: Searcher) -> int:
    """Return the number of documents that match."""
    if not searcher.tantivy.num_docs:
        return 0
    with damage.reading(f"index {query.definition.name!r}"):
        found: Any = searcher.tantivy.search(query.parsed, 1, count=True)  # the type stubs of tantivy lack `count`
        return int(found.count)


def _blocks(rows: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield ranges of row numbers that together cover all rows.

    Each range comes with the number of its rows in all sources.
    """
    counts, start = np.sort(np.array(rows, np.int64)), 0
    while len(counts) and start < counts[-1]:
        left = counts[np.searchsorted(counts, start, side="right") :]
        stop = min(start + max(1, BLOCK_ROWS // len(left)), int(counts[-1]))
        yield start, stop, int(np.minimum(left, stop).sum() - start * len(left))
        start = stop


def _within(query: TextQuery, first: int, last: int) -> tantivy.Query:
    import tantivy

    schema = tantivy_schema(query.definition)
    rows = tantivy.Query.range_query(schema, ROW_FIELD, tantivy.FieldType.Unsigned, first, last)
    scored = [tantivy.Query.const_score_query(each, 0.0) for each in (query.parsed, rows)]
    return tantivy.Query.boolean_query([(tantivy.Occur.Must, each) for each in scored])


MOST_BYTES: Final = 150
"""The maximum size of a fragment in bytes of UTF-8. A longer word is a fragment by itself."""

_SIGMAS = "σς"
_SNIPPET_HEAP_BYTES = 15_000_000  # the smallest heap that a writer accepts. The heap grows with the input.
_SNIPPET_ROOM_PER_TEXT = 8


def snippets(query: TextQuery, rows: pa.Table) -> pa.StructArray:
    """Return an HTML fragment for each row and each column of the index.

    The fragment is null if nothing in the column matches.

    Matching words are enclosed in `<b>` and `</b>`. The characters `<`, `>`, `&` and both quotes of the text are
    escaped. The tokenizer of the column determines the words. Each word of a searched phrase is a matching word. If the
    query contains a prefix, a fuzzy word or a range, every word that it matches is also a matching word. Words after
    NOT are not marked. Memory is a few times the size of the texts.

    Raises:
        Unavailable: The machine lacks memory.
    """
    definition = query.definition
    texts = {column: rows.column(column).to_pylist() for column in definition.columns}
    size = sum(rows.column(column).nbytes for column in definition.columns)
    what = f"snippets of index {definition.name!r}"
    with damage.writing(what, room_bytes=_SNIPPET_ROOM_PER_TEXT * size):
        found = _marked(query, texts)
    return pa.StructArray.from_arrays([pa.array(each, pa.string()) for each in found], names=[*texts])


def _marked(query: TextQuery, texts: Mapping[str, Sequence[str | None]]) -> list[list[str | None]]:
    import tantivy

    words = _Words.of(query.definition, texts)
    wanted = words.of_query(query)
    found = []
    for column, values in texts.items():
        marker = tantivy.SnippetGenerator.create(words.searcher, wanted, words.index.schema, column)
        marker.set_max_num_chars(MOST_BYTES)
        definition = query.definition
        found.append([None if value is None else _html(marker, definition, column, value) for value in values])
    return found


def _html(marker: tantivy.SnippetGenerator, definition: IndexDefinition, column: str, text: str) -> str | None:
    import tantivy

    document = tantivy.Document()
    folded = text_files.folded(definition, column, text)
    document.add_text(column, folded)
    snippet = marker.snippet_from_doc(document)
    if not snippet.highlighted():
        return None
    html = str(snippet.to_html())
    if folded == text:
        return html
    start = folded.find(snippet.fragment())
    written = iter([each for each in text[start:] if each in _SIGMAS])
    return "".join(next(written) if each in _SIGMAS else each for each in html)


@dataclass(frozen=True, slots=True)
class _Words:
    """An index with one document that contains all the texts.

    All words are in one document, so each word has the same weight.
    """

    definition: IndexDefinition
    index: tantivy.Index

    @staticmethod
    def of(definition: IndexDefinition, texts: Mapping[str, Sequence[str | None]]) -> _Words:
        import tantivy

        document = tantivy.Document()
        for column, values in texts.items():
            for value in values:
                if value is not None:
                    document.add_text(column, text_files.folded(definition, column, value))
        return _Words(definition, _indexed([document], definition))

    @property
    def searcher(self) -> tantivy.Searcher:
        return self.index.searcher()

    def of_query(self, query: TextQuery) -> tantivy.Query:
        """Return a query that matches any word for which `query` searches."""
        import tantivy

        leaves = [*_looked_for(query.tree)]
        parsed = QueryBuilder(self.definition, self.index, marking=True).of(text_queries.any_of(leaves))
        found = [parsed, *(self._fitting(parsed) if any(map(_is_of_several, leaves)) else ())]
        return tantivy.Query.boolean_query([(tantivy.Occur.Should, each) for each in found])

    def _fitting(self, parsed: tantivy.Query) -> Iterator[tantivy.Query]:
        """Yield one query for each word of the texts, if the word matches `parsed`.

        Each word is a document of a separate index, and `parsed` is searched in that index.
        """
        import tantivy

        named = [
            (column, word)
            for column in self.definition.columns
            for word, _ in self.searcher.terms_with_prefix(column, "")
        ]
        as_they_are = IndexDefinition(
            self.definition.name, "fulltext", self.definition.columns, {"tokenizer": text_files.RAW}
        )
        schema = tantivy_schema(as_they_are)
        documents = (
            tantivy.Document.from_dict({column: word, ROW_FIELD: number}, schema)
            for number, (column, word) in enumerate(named)
        )
        words = _indexed(documents, as_they_are).searcher()
        hits = words.search(parsed, max(1, len(named)), count=False).hits
        for number in words.fast_field_values(ROW_FIELD, [address for _, address in hits]):
            column, word = named[int(number or 0)]
            yield tantivy.Query.term_query(self.index.schema, column, word)


def _indexed(
    documents: Iterator[tantivy.Document] | Sequence[tantivy.Document], definition: IndexDefinition
) -> tantivy.Index:
    import tantivy

    index = tantivy.Index(tantivy_schema(definition))
    text_files.register(index, definition, marking=True)
    writer = index.writer(heap_size=_SNIPPET_HEAP_BYTES, num_threads=1)
    for each in documents:
        writer.add_document(each)
    writer.commit()
    index.reload()
    return index


def _looked_for(node: Node) -> Iterator[Node]:
    """Yield the leaves of a tree, without the leaves that exclude rows. `check_tree` must have accepted the tree."""
    match node["type"]:
        case "bool":
            for occur, child in node["clauses"]:
                if occur != "must_not":
                    yield from _looked_for(child)
        case "boost":
            yield from _looked_for(node["underlying"])
        case "all":
            return
        case _:
            yield node


def _is_of_several(node: Node) -> bool:
    return node["type"] in ("range", "prefix") or text_queries.term_of(node) is not None
