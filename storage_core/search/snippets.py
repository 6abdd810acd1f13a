"""Snippets beside the rows that a search returns: made of these rows alone, wherever they come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.index import fulltext
from storage_core.index.text_snippets import snippets
from storage_core.log.snapshot import Snapshot
from storage_core.search.hybrid_question import names_of
from storage_core.search.order import free_name
from storage_core.search.question import index_for
from storage_core.settings.index import IndexDefinition

SNIPPETS = "snippets"


def with_snippets(
    search: Callable[[Sequence[str] | None], pa.Table],
    snapshot: Snapshot,
    query: object,
    columns: Sequence[str] | None,
    *,
    index: object,
    syntax: object,
    wanted: object = True,
) -> pa.Table:
    """Return what `search` returns of these columns, and behind them a struct with a snippet per column of the index.

    Its name is `snippets`, with `_` before where another column has the name. See `text_snippets.snippets`: HTML, null
    where nothing of the column matches. The texts are read with the rows. Raises `InvalidInput` for an index that is
    not of full text, and what `search` raises.
    """
    if wanted is not True:
        raise InvalidInput(f"snippets is {quoted(wanted)}; it is true or false")
    definition = _text_index(snapshot, index, query)
    if definition.kind != "fulltext" or not isinstance(query, str):
        raise InvalidInput(f"snippets are of full text, and index {definition.name!r} is {definition.kind}")
    parsed = fulltext.parse(query, definition, syntax=syntax)
    names = tuple(snapshot.schema.names) if columns is None else tuple(columns)
    found = search(tuple(dict.fromkeys([*names, *definition.columns])))
    added = [each for each in found.column_names if each not in snapshot.schema.names]
    name = free_name(SNIPPETS, [*snapshot.schema.names, *added])
    return found.select([*names, *added]).append_column(name, snippets(parsed, found))


def _text_index(snapshot: Snapshot, index: object, query: object) -> IndexDefinition:
    """The index whose texts are marked: that which is named, or the only one of full text of several."""
    if not isinstance(index, list | tuple):
        return index_for(snapshot, index, by_vector=query is None)
    named = [each for each in snapshot.config.indexes if each.name in names_of(index)]
    texts = [each for each in named if each.kind == "fulltext"] if len(named) > 1 else named
    if len(texts) != 1:
        raise InvalidInput(f"snippets are of one full-text index; of {quoted(index)} {len(texts)} are", index=index)
    return texts[0]
