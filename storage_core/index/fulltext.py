"""Full-text segments: tantivy indexes over the text columns of one split, composed at query time.

Each indexed column is one text field of the same name, and `_row`, a fast field, is the row number in the split. A
search links the files of any number of segments into one directory with one `meta.json`. The searcher then scores
with the statistics of the whole corpus, so scores do not depend on how the documents are spread over segments:
they equal those of a single index. Tantivy breaks ties of the score by segment, then by document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted, shortened
from storage_core.index import native_errors, text_files, text_limits, text_syntax, text_tokenizers
from storage_core.index.text_composed import Searcher, compose
from storage_core.index.text_files import ROW_FIELD
from storage_core.index.text_limits import Node
from storage_core.index.text_queries import QueryBuilder
from storage_core.rows.vectors import type_text
from storage_core.scratch import scratch_folder
from storage_core.settings.index import IndexDefinition

if TYPE_CHECKING:
    import tantivy

LENIENT, STRICT = "lenient", "strict"
SYNTAXES = (LENIENT, STRICT)

# One writer holds at most this much text. It is far below the writer's heap, so that a writer never flushes early:
# every index below is then one tantivy segment whose documents are in row order.
_CHUNK_TEXT_BYTES = 64 * 2**20
_CHUNK_ROWS = 500_000
_HEAP_BYTES = 1_000_000_000  # an upper bound; memory is taken page by page as documents arrive
_BATCH_ROWS = 10_000
_ROOM_PER_TEXT = 4  # bytes of memory per byte of text while it is indexed
_SPARE_HITS = 64  # beyond the limit, to see at once that no other scores as much as the last
_PAGE_HITS = 250_000

Found: TypeAlias = "tuple[Any, tantivy.DocAddress]"


class Hit(NamedTuple):
    """One matching document: `source` is the position of its segment among those composed, `row` its row number."""

    source: int
    row: int
    score: float


def validate(definition: IndexDefinition, schema: pa.Schema) -> None:
    """Return only when the index can be built over texts of `schema`; raises `InvalidInput`."""
    for column in definition.columns:
        if column == ROW_FIELD:
            raise InvalidInput(f"index {definition.name!r}: the column name {ROW_FIELD!r} is reserved; rename it")
        if not column or column.startswith("-"):
            what = f"full text cannot be over a column named {column!r}; take it out of the index, then rename it"
            raise InvalidInput(f"index {definition.name!r}: {what}")
        if not pa.types.is_string(kind := schema.field(column).type):
            found = f"{column!r} is {type_text(kind)}"
            raise InvalidInput(f"index {definition.name!r}: full text needs string columns, {found}")
    text_tokenizers.validate(definition)


def build(rows: pa.Table, definition: IndexDefinition) -> dict[str, bytes]:
    """Return the files of a segment over `rows`, the rows of one split in order, as name ▸ content.

    A null has no field and matches nothing. Memory is bounded by the split. Scratch files go to the temporary folder;
    tantivy syncs them to disk, which is most of the cost of a small split, so a `TMPDIR` in memory helps.
    """
    room_bytes = _ROOM_PER_TEXT * min(_text_bytes(rows, definition), _CHUNK_TEXT_BYTES)
    what = f"full-text segment of index {definition.name!r}"
    with native_errors.writing(what, room_bytes=room_bytes), scratch_folder("fulltext") as root:
        built = [root / f"chunk-{start}" for start, _ in _chunks(rows, definition)]
        for directory, (start, chunk) in zip(built, _chunks(rows, definition), strict=True):
            _build_chunk(directory, chunk, start, definition)
        compose(built, root / "whole", definition)
        return {each.name: each.read_bytes() for each in sorted((root / "whole").iterdir())}


@dataclass(frozen=True, slots=True)
class TextQuery:
    """A query for one index; make it with `parse`. `tree` is what the text was read as, `parsed` made of it."""

    text: str
    definition: IndexDefinition
    tree: Node = field(compare=False)
    parsed: tantivy.Query = field(compare=False)

    def hits(
        self, searcher: Searcher, limit: int, *, live: Callable[[list[Hit]], list[Hit]] | None = None
    ) -> list[Hit]:
        """Return the best `limit` live documents of a searcher, and all that score as the last of them.

        By score, then position, then row. `live` returns those of some hits that are live, in their order; without it
        all are. Documents that are not live count in the statistics behind the scores, as in every search of these
        files.
        """
        found: list[Hit] = []
        for page, lowest in self._pages(searcher, limit + _SPARE_HITS):
            found += page if live is None else live(page)
            if len(found) >= limit and lowest < found[limit - 1].score:
                break
        return [hit for hit in found if len(found) <= limit or hit.score >= found[limit - 1].score]

    def every_hit(self, searcher: Searcher, *, live: Callable[[list[Hit]], list[Hit]]) -> list[Hit]:
        """Return all live documents of a searcher, in the order of `hits`."""
        return [hit for page, _ in self._pages(searcher, _PAGE_HITS) for hit in live(page)]

    def _pages(self, searcher: Searcher, size: int) -> Iterator[tuple[list[Hit], float]]:
        """Yield all matching documents, best first, in larger and larger pages, each with the lowest score reached.

        Each is of a search for the best so many, less what was found before. Which of equal scores tantivy counts among
        them depends on their number, so a search from an offset would leave some out and find others twice.
        """
        seen = [BitMap() for _ in searcher.composed.rows]
        count = searcher.tantivy.num_docs
        while True:
            # The collector allocates for all it may return up front, so that never exceeds what can be found.
            size = min(size, count)
            with native_errors.reading(f"index {self.definition.name!r}"):
                found = searcher.tantivy.search(self.parsed, size, count=False).hits if size else []
                hits = self._new(searcher, found, seen)
            if hits:
                yield hits, float(found[-1][0])
            if len(found) < size or size == count:
                return
            size = min(5 * size, max(2 * size, size + _PAGE_HITS))

    def _new(self, searcher: Searcher, found: list[Found], seen: list[BitMap]) -> list[Hit]:
        """Return the documents that were not seen before, which are then."""
        hits: list[Hit] = []
        composed = searcher.composed
        named = [BitMap() for _ in composed.rows]
        rows = searcher.tantivy.fast_field_values(ROW_FIELD, [address for _, address in found])
        for (score, address), row in zip(found, rows, strict=True):
            source = composed.sources[address.segment_ord]
            if not isinstance(row, int) or not 0 <= row < composed.rows[source] or row in named[source]:
                raise text_files.corrupt(f"index {self.definition.name!r}", f"a document names row {row!r} of a split")
            named[source].add(row)
            if row not in seen[source]:
                seen[source].add(row)
                hits.append(Hit(source=source, row=row, score=float(score)))
        return hits


def parse(
    text: str, definition: IndexDefinition, *, syntax: object = LENIENT, boosts: Mapping[str, float] | None = None
) -> TextQuery:
    """Return the query, parsed over all columns of the index unless it names one (`request:kibana`).

    `kib*` asks for all words that begin so, `kibana~1` and `kibana~2` for those that are so many changes away
    (`text_terms`). `boosts` multiplies the scores of columns. `NOT` and `-` take away from the group they are in, or
    from all rows where the group has nothing else; what only a negation found scores 0.

    A text that is not such a query asks for any of its words. It is none where it does not parse, names a column that
    the index lacks, is beyond a limit of `text_limits`, or asks for what an index cannot answer exactly: whether a
    column has a value (`request:*`), the prefix of a phrase, or a prefix of fewer than two characters or of several
    words. With `syntax="strict"` it raises `InvalidInput`. So does, in both, a text of too many characters.
    """
    import tantivy

    if syntax not in SYNTAXES:
        raise InvalidInput(f"syntax is {syntax!r}; ask for one of {', '.join(SYNTAXES)}")
    query = TextQuery(text=text, definition=definition, tree=text_syntax.words(""), parsed=tantivy.Query.empty_query())
    with _refusing(query):
        text_limits.check_length(text)
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
            raise ValueError(f"a boost is given for {quoted(column)}, which the index does not have")
        if isinstance(boost, bool) or not isinstance(boost, int | float) or not 0 < boost <= text_limits.MAX_BOOST:
            raise ValueError(f"the boost of {column!r} is {quoted(boost)}; it is a number above 0, as 2.5")
    return {column: float(boost) for column, boost in boosts.items() if isinstance(boost, int | float)}


def _read(query: TextQuery, boosts: Mapping[str, float], *, is_strict: bool) -> TextQuery:
    """Return the query that the text is by its syntax. Raises `ValueError` that says why there is none."""
    if not query.text.strip():
        raise ValueError("it is empty")
    text_limits.check_text(query.text)
    tree = text_syntax.read(query.text)
    text_limits.check_tree(tree)
    return _built(query, tree, boosts, is_strict=is_strict)


def _read_words(query: TextQuery, boosts: Mapping[str, float]) -> TextQuery:
    """Return the query for any of the words of the text."""
    text = query.text.encode("utf-8", "replace").decode()
    return _built(query, text_syntax.words(text), boosts, is_strict=False)


def _built(query: TextQuery, tree: Node, boosts: Mapping[str, float], *, is_strict: bool) -> TextQuery:
    with native_errors.as_query_error():
        builder = QueryBuilder(query.definition, _index(query.definition), boosts, is_strict=is_strict)
        return replace(query, tree=tree, parsed=builder.of(tree))


def _index(definition: IndexDefinition) -> tantivy.Index:
    """An index without documents, for its schema and tokenizers."""
    import tantivy

    index = tantivy.Index(tantivy_schema(definition))
    text_tokenizers.register(index, definition)
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
        f"full-text query {quoted(query.text, 300)} on index {query.definition.name!r}: {shortened(reason, 300)}. "
        f'Fields are {columns}; put text with `:`, `/`, `(`, `[` or `"` in double quotes',
        index=query.definition.name,
        query=shortened(query.text, 300),
    )


def tantivy_schema(definition: IndexDefinition) -> tantivy.Schema:
    """Return the schema of an index: its columns, and the number of a row."""
    import tantivy

    builder = tantivy.SchemaBuilder()
    for column in definition.columns:
        builder.add_text_field(column, tokenizer_name=text_tokenizers.tokenizer_of(definition, column))
    builder.add_unsigned_field(ROW_FIELD, fast=True)
    return builder.build()


def _chunks(rows: pa.Table, definition: IndexDefinition) -> Iterator[tuple[int, pa.Table]]:
    """Yield (first row number, rows) in order, each small enough for one writer."""
    pieces = max(1, -(-_text_bytes(rows, definition) // _CHUNK_TEXT_BYTES), -(-rows.num_rows // _CHUNK_ROWS))
    step = max(1, -(-rows.num_rows // pieces))
    for start in range(0, rows.num_rows, step):
        yield start, rows.slice(start, step)


def _text_bytes(rows: pa.Table, definition: IndexDefinition) -> int:
    size: int = sum(rows.column(each).nbytes for each in definition.columns)
    return size * text_tokenizers.expansion(definition)


def _build_chunk(directory: Path, rows: pa.Table, first_row: int, definition: IndexDefinition) -> None:
    import tantivy

    directory.mkdir()
    schema = tantivy_schema(definition)
    index = tantivy.Index(schema, path=str(directory), reuse=False)
    text_tokenizers.register(index, definition)
    writer = index.writer(heap_size=_HEAP_BYTES, num_threads=1)
    numbers = np.arange(first_row, first_row + rows.num_rows, dtype=np.uint64)
    texts = text_tokenizers.folded_rows(definition, rows.select(list(definition.columns)))
    numbered = texts.append_column(ROW_FIELD, pa.array(numbers))
    lengths = {each: text_tokenizers.gram_of(definition, each) for each in definition.columns}
    grams = {column: length for column, length in lengths.items() if length is not None}
    # tantivy takes one document object at a time; the batches keep the Python objects of a few rows alive only.
    for batch in numbered.to_batches(max_chunksize=_BATCH_ROWS):
        for document in batch.to_pylist():
            fields = {name: value for name, value in document.items() if value is not None}
            for name in grams.keys() & fields.keys():
                fields[name] = text_tokenizers.prepared(fields[name], grams[name])
            writer.add_document(tantivy.Document.from_dict(fields, schema))
    writer.commit()
    writer.wait_merging_threads()
