"""Snippets: of the texts of rows that were found the fragment with most of what was looked for, in which it is marked.

What is marked follows from the text and the query alone: how often a word is in the index has no weight. So snippets
are the same whatever the index covers, and on whatever page a row is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from storage_core.index import fulltext, native_errors, text_syntax, text_terms, text_tokenizers
from storage_core.index.fulltext import TextQuery
from storage_core.index.text_files import ROW_FIELD
from storage_core.index.text_limits import Node
from storage_core.index.text_queries import QueryBuilder
from storage_core.settings.index import IndexDefinition

if TYPE_CHECKING:
    import tantivy

MOST_BYTES: Final = 150
"""Of the text of a fragment in UTF-8; a single longer word is a fragment too."""

_SIGMAS = "σς"
_HEAP_BYTES = 15_000_000  # the least that a writer takes; it grows by what it is given
_ROOM_PER_TEXT = 8


def snippets(query: TextQuery, rows: pa.Table) -> pa.StructArray:
    """Return per row the fragment of each column of the index as HTML; null where nothing in it matches.

    Words that match are in `<b>` and `</b>`, and `<`, `>`, `&` and both quotes of the text are escaped. Those are the
    words that the query looks for, by the tokenizer of the column: of a phrase each of them, of a prefix, a fuzzy word
    or a range all that fit, and none behind NOT. Memory is a few times that of the texts.
    Raises `Unavailable` when the machine lacks it.
    """
    definition = query.definition
    texts = {column: rows.column(column).to_pylist() for column in definition.columns}
    size = sum(rows.column(column).nbytes for column in definition.columns)
    what = f"snippets of index {definition.name!r}"
    with native_errors.writing(what, room_bytes=_ROOM_PER_TEXT * size):
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
    folded = text_tokenizers.folded(definition, column, text)
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
    """An index whose one document has all the texts, so each word is in one document, and weighs as much as others."""

    definition: IndexDefinition
    index: tantivy.Index

    @staticmethod
    def of(definition: IndexDefinition, texts: Mapping[str, Sequence[str | None]]) -> _Words:
        import tantivy

        document = tantivy.Document()
        for column, values in texts.items():
            for value in values:
                if value is not None:
                    document.add_text(column, text_tokenizers.folded(definition, column, value))
        return _Words(definition, _indexed([document], definition))

    @property
    def searcher(self) -> tantivy.Searcher:
        return self.index.searcher()

    def of_query(self, query: TextQuery) -> tantivy.Query:
        """Return a query for each of the words that a query looks for."""
        import tantivy

        leaves = [*_looked_for(query.tree)]
        parsed = QueryBuilder(self.definition, self.index, marking=True).of(text_syntax.any_of(leaves))
        found = [parsed, *(self._fitting(parsed) if any(map(_is_of_several, leaves)) else ())]
        return tantivy.Query.boolean_query([(tantivy.Occur.Should, each) for each in found])

    def _fitting(self, parsed: tantivy.Query) -> Iterator[tantivy.Query]:
        """A query for each word of the texts that fits: each is a document of an index that is asked."""
        import tantivy

        named = [
            (column, word)
            for column in self.definition.columns
            for word, _ in self.searcher.terms_with_prefix(column, "")
        ]
        as_they_are = IndexDefinition(
            self.definition.name, "fulltext", self.definition.columns, {"tokenizer": text_tokenizers.RAW}
        )
        schema = fulltext.tantivy_schema(as_they_are)
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

    index = tantivy.Index(fulltext.tantivy_schema(definition))
    text_tokenizers.register(index, definition, marking=True)
    writer = index.writer(heap_size=_HEAP_BYTES, num_threads=1)
    for each in documents:
        writer.add_document(each)
    writer.commit()
    index.reload()
    return index


def _looked_for(node: Node) -> Iterator[Node]:
    """The leaves of a tree that do not take rows away; `check_tree` let it through."""
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
    return node["type"] in ("range", "prefix") or text_terms.term_of(node) is not None
