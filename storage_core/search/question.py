"""What a search asks: which index, and its query as that kind of index takes it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, assert_never

import numpy as np

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.index import fulltext, segments
from storage_core.index.vector import options_of
from storage_core.log.snapshot import Snapshot
from storage_core.read import bitmap_query
from storage_core.read.predicate import Predicate
from storage_core.rows.vectors import Floats
from storage_core.settings.index import IndexDefinition, IndexKind
from storage_core.settings.vector_options import Metric

_MOST_ROWS: Final = 2**56
"""More than any table has; the windows of a search, which are some times as large, are integers of 64 bits."""


@dataclass(frozen=True, slots=True, eq=False)
class VectorQuery:
    """The vector whose neighbours are asked for, in the `column` of an index, and how many clusters are looked into."""

    vector: Floats
    column: str
    metric: Metric
    nprobe: int | None


Question = fulltext.TextQuery | Predicate | VectorQuery


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SearchQuestion:
    """What a search is about, as `Table.search` takes it; what an index takes is checked by `question`."""

    query: object = None
    vector: object = None
    index: object = None
    fusion: object = "rrf"
    weights: object = None
    syntax: object = fulltext.LENIENT
    boosts: Mapping[str, float] | None = None
    nprobe: object = None


@dataclass(frozen=True, slots=True)
class IndexQuestion:
    """One index of a search, and what is asked of it."""

    definition: IndexDefinition
    question: Question


def index_for(snapshot: Snapshot, index: object, *, by_vector: bool) -> IndexDefinition:
    """Return the definition of the index of this name, else of the only one that takes a vector, or does not.

    Raises `NotFound` for an unknown name, `InvalidInput` where none or several fit, or the kind is another.
    """
    if index is None:
        return only_index(snapshot, ["vector"] if by_vector else ["fulltext", "bitmap"])
    if not isinstance(index, str):
        raise InvalidInput(f"index is {quoted(index)}; give the name of one index")
    definition = segments.definition_of(snapshot, index)
    if definition.kind == "primary_key":
        raise InvalidInput(f"index {index!r} is of the primary key: get and merges use it, no search does", index=index)
    if (definition.kind == "vector") is not by_vector:
        what = "a vector; a text or values cannot ask it" if definition.kind == "vector" else "a query, and no vector"
        raise InvalidInput(f"index {index!r} ({definition.kind}) takes {what}", index=index)
    return definition


def only_index(snapshot: Snapshot, kinds: Collection[IndexKind]) -> IndexDefinition:
    """Return the definition of the only index of these kinds. Raises `InvalidInput` where there is none, or several."""
    fitting = sorted(each.name for each in snapshot.config.indexes if each.kind in kinds)
    if len(fitting) != 1:
        kind = " or ".join(kinds).replace("fulltext", "full-text")
        found = f"{len(fitting)} {kind} indexes ({', '.join(fitting)})" if fitting else f"no {kind} index"
        raise InvalidInput(f"the table has {found}; name one with `index` (--index)")
    return segments.definition_of(snapshot, fitting[0])


def question(definition: IndexDefinition, snapshot: Snapshot, given: SearchQuestion) -> Question:
    """Return what is asked of an index of this definition. Raises `InvalidInput`."""
    query, nprobe, boosts = given.query, given.nprobe, given.boosts
    if query is not None and given.vector is not None:
        raise InvalidInput("one index takes a query or a vector, found both")
    if nprobe is not None and definition.kind != "vector":
        raise InvalidInput(f"nprobe is of searches by vector, and index {definition.name!r} is {definition.kind}")
    if boosts and definition.kind != "fulltext":
        raise InvalidInput(f"boosts are of full text, and index {definition.name!r} is {definition.kind}")
    match definition.kind:
        case "fulltext":
            if not isinstance(query, str):
                raise InvalidInput(f"full-text index {definition.name!r} takes a query as text, found {query!r}")
            return fulltext.parse(query, definition, syntax=given.syntax, boosts=boosts)
        case "bitmap":
            return bitmap_query.parse(query, definition, snapshot.schema)
        case "vector":
            return _vector_query(given.vector, definition, snapshot, nprobe)
        case "primary_key":
            raise InvalidInput(f"index {definition.name!r} is of the primary key; ask by get")
        case _:
            assert_never(definition.kind)


def page(limit: object, offset: object = 0) -> tuple[int, int]:
    """Return how many rows are wanted, and how many are left out before, of both at most more than any table has.

    Raises `InvalidInput`.
    """
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise InvalidInput(f"limit is {quoted(limit)}; ask for at least one row")
    if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
        raise InvalidInput(f"offset is {quoted(offset)}; it is the number of rows to leave out, 0 or more")
    return min(limit, _MOST_ROWS), min(offset, _MOST_ROWS)


def _vector_query(given: object, definition: IndexDefinition, snapshot: Snapshot, nprobe: object) -> VectorQuery:
    (column,), options = definition.columns, options_of(definition)
    wanted = _numbers(given, definition.name)
    dimensions = snapshot.schema.field(column).type.list_size
    if wanted.shape != (dimensions,):
        found = f"{len(wanted)} numbers" if wanted.ndim == 1 else f"an array of the shape {wanted.shape}"
        raise InvalidInput(f"index {definition.name!r}: the vector has {found}, column {column!r} has {dimensions}")
    if not np.isfinite(wanted).all():
        raise InvalidInput(f"index {definition.name!r}: a number of the vector is NaN, infinite or beyond 32 bits")
    if options.metric == "cosine" and not wanted.any():
        raise InvalidInput(f"index {definition.name!r}: the vector is zero, which has no direction; it is by cosine")
    if nprobe is not None and (isinstance(nprobe, bool) or not isinstance(nprobe, int) or nprobe < 1):
        raise InvalidInput(f"nprobe is {quoted(nprobe)}; it is a number of clusters, at least 1")
    return VectorQuery(wanted, column, options.metric, options.nprobe if nprobe is None else nprobe)


def _numbers(given: object, index: str) -> Floats:
    try:
        found = np.asarray(given)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"index {index!r}: the vector is no list of numbers: {error}") from error
    if found.dtype.kind not in "fiu" or not found.ndim:
        raise InvalidInput(f"index {index!r}: a vector is a list or an array of numbers, found {quoted(given)}")
    with np.errstate(over="ignore"):
        wanted: Floats = found.astype(np.float32)
    return wanted
