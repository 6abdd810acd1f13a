"""The request of a search: the indexes, the query for each index, and the method of fusing the rankings.

`request_of` checks the arguments of `Table.search`. `request_of` returns the indexes, the weights, and the query for
each index. The form of a query depends on the kind of index.

`fuse` computes a single score for rows that several indexes ranked (Cormack, Clarke and Büttcher, SIGIR 2009):

- Reciprocal rank fusion (`rrf`) adds `weight / (60 + rank)` for each ranking. The first rank is 1.
- Linear fusion (`linear`) adds `weight * (score - least) / (most - least)`. Here `least` and `most` are the smallest
  and greatest scores of the ranking. If all scores of a ranking are equal, linear fusion adds the weight.

A ranking that does not contain a row adds nothing to the score of the row.

`parse_bitmap_query` parses the query of a bitmap index and returns a predicate over the columns of the index.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, Literal, assert_never, cast, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.base.errors import InvalidInput, out_of_memory, unavailable
from storage_core.base.process import check_free_resources
from storage_core.base.text import choice_of, listed, quoted
from storage_core.data.rows.keys import Positions
from storage_core.data.rows.vectors import Floats
from storage_core.data.settings.index import IndexDefinition, IndexKind, Metric
from storage_core.index import fulltext, segments
from storage_core.index.vector import options_of
from storage_core.log.snapshot import Snapshot
from storage_core.read.predicate import And, Compare, Comparison, IsNull, Or, Predicate, Scalar, negate

Fusion = Literal["rrf", "linear"]

RANK_OFFSET: Final = 60

_MOST_WEIGHT: Final = 1e300  # with this limit on weights, sums of weights are finite

_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Ranking:
    """The row numbers of a ranking, best row first. Each row appears once, and the scores are in descending order."""

    rows: Positions
    scores: _Floats


def fuse(rankings: Sequence[Ranking], weights: Sequence[float], fusion: Fusion, rows: int) -> _Floats:
    """Return the score of each of `rows` rows. Rows are numbered from 0."""
    scores = np.zeros(rows)
    for ranking, weight in zip(rankings, weights, strict=True):
        scores[ranking.rows] += weight * (_reciprocal(ranking) if fusion == "rrf" else _normalised(ranking))
    return scores


def fusion_of(given: object) -> Fusion:
    """Return the method of fusion. Raises `InvalidInput`."""
    if not isinstance(given, str) or given not in get_args(Fusion):
        raise InvalidInput(choice_of("fusion", given, get_args(Fusion)))
    return cast("Fusion", given)


def weights_of(given: object, indexes: Sequence[str]) -> list[float]:
    """Return the weight of each index.

    The default is 1. Raises `InvalidInput` if an index is unknown or a weight is invalid.
    """
    if given is not None and not isinstance(given, Mapping):
        raise InvalidInput(f"weights is {quoted(given)}. Give a mapping from names of indexes to numbers")
    known = dict(given or {})
    if foreign := [each for each in known if each not in indexes]:
        raise InvalidInput(
            f"a weight is given for {quoted(foreign[0])}, but this search uses {', '.join(indexes)}. "
            "Leave the weight out, or add the index to the search"
        )
    weights = [_weight(each, known.get(each, 1.0)) for each in indexes]
    if not any(weights):
        raise InvalidInput("every weight is 0. Give at least one index a weight above 0")
    return weights


def _weight(index: str, given: object) -> float:
    number = given.item() if isinstance(given, np.number) else given
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= _MOST_WEIGHT:
        raise InvalidInput(f"the weight of {index!r} is {quoted(given)}. Give a number from 0 to {_MOST_WEIGHT:g}")
    return float(number)


def _reciprocal(ranking: Ranking) -> _Floats:
    return 1 / (RANK_OFFSET + np.arange(1, len(ranking.rows) + 1, dtype=np.float64))


def _normalised(ranking: Ranking) -> _Floats:
    if not len(ranking.scores):
        return ranking.scores
    most, least = ranking.scores[0], ranking.scores[-1]
    return np.ones(len(ranking.scores)) if most == least else (ranking.scores - least) / (most - least)


_COPIES = 8  # the memory for a text: a character may take four bytes, and the Arrow forms of the text need more memory
_COMPARISONS: Final = {str(each): each for each in Comparison}


def parse_bitmap_query(query: object, definition: IndexDefinition, schema: pa.Schema) -> Predicate:
    """Parse a bitmap query into a predicate: one value, a list (any value matches), or columns (all must match).

    The text form is `404`, `404,500`, a JSON list, or a JSON object with columns. Each column has a value, a list of
    values, or an object with conditions. All of these conditions must be true:

    - `=`, `<>`, `<`, `<=`, `>`, `>=` with a value
    - `in` and `not in` with a list
    - `between` with the smallest and the greatest value
    - `is null` with the value true or false

    As in SQL, a null value meets only the condition `is null`. Values are parsed by the type of the column, and
    timestamps as ISO 8601. A query to a bitmap index over several columns must be a JSON object.

    Raises:
        InvalidInput: A value cannot be parsed or is null, or a column is not in the index.
    """
    decoded = _decode_text(query, definition) if isinstance(query, str) else query
    if not isinstance(decoded, Mapping):
        if len(definition.columns) > 1:
            example = json.dumps({name: ["…"] for name in definition.columns}, ensure_ascii=False)
            raise _refused(definition, f"the index has several columns. Name columns in the query, as in {example}")
        decoded = {definition.columns[0]: decoded}
    if not decoded:
        raise _refused(definition, "the query names no column")
    return And(tuple(_Column(name, definition, schema).meets(given) for name, given in decoded.items()))


class _Column:
    """A column of the index, and the parser for values in conditions on the column."""

    def __init__(self, name: str, definition: IndexDefinition, schema: pa.Schema) -> None:
        if name not in definition.columns:
            raise _refused(
                definition, f"column {name!r} is not one of {', '.join(definition.columns)}. Name one of these columns"
            )
        self._name = name
        self._definition = definition
        self._kind = schema.field(name).type

    def meets(self, given: object) -> Predicate:
        if not isinstance(given, Mapping):
            return self._one_of(given)
        if not given:
            raise self._refused(f"the condition on {self._name!r} is empty")
        return And(tuple(self._condition(str(name), value) for name, value in given.items()))

    def _condition(self, name: str, value: object) -> Predicate:
        if name in _COMPARISONS:
            [found] = self._values([value])
            return Compare(self._name, _COMPARISONS[name], found)
        others: Mapping[str, Callable[[object], Predicate]] = {
            "in": self._one_of,
            "not in": lambda given: negate(self._one_of(given)),
            "between": self._between,
            "is null": self._is_null,
        }
        if name not in others:
            known = ", ".join([*_COMPARISONS, *others])
            raise self._refused(f"{quoted(name, 300)} is not a condition on {self._name!r}. Conditions are {known}")
        return others[name](value)

    def _one_of(self, given: object) -> Predicate:
        values = self._values(_listed(given))
        if not values:
            raise self._refused(f"the list of values for {self._name!r} is empty")
        return Or(tuple(Compare(self._name, Comparison.EQ, each) for each in values))

    def _between(self, given: object) -> Predicate:
        values = self._values(_listed(given))
        if len(values) != 2:
            raise self._refused(
                f"between needs two values of {self._name!r}, the least and the greatest. It has {len(values)}"
            )
        least, greatest = values
        return And((Compare(self._name, Comparison.GE, least), Compare(self._name, Comparison.LE, greatest)))

    def _is_null(self, given: object) -> Predicate:
        if not isinstance(given, bool):
            raise self._refused(f"the value of 'is null' is {quoted(given, 300)}. Give true or false")
        return IsNull(self._name, negated=not given)

    def _values(self, listed: Sequence[object]) -> list[Scalar]:
        size = sum(len(each) for each in listed if isinstance(each, str))
        # If Arrow runs out of memory here, Arrow ends the process.
        with check_free_resources(f"values to look for in {self._name!r}", size=_COPIES * size):
            return [self._scalar(each) for each in listed]

    def _scalar(self, value: object) -> Scalar:
        """Return the value, parsed from its text.

        Arrow parses text strictly, but would silently cut 404.5 to an integer.
        """
        if value is None:
            raise self._refused(f"null is not a value of {self._name!r}. Find nulls with {{'is null': true}}")
        if pa.types.is_string(self._kind) and not isinstance(value, str):
            raise self._refused(
                f"{self._name!r} contains strings, and {quoted(value, 300)} is not a string. Put the value in quotes"
            )
        try:
            return cast("Scalar", pa.scalar(_text(value), pa.string()).cast(self._kind).as_py())
        except (pa.ArrowException, MemoryError, ValueError) as error:  # ValueError: a lone surrogate or too many digits
            if out_of_memory(error):
                raise unavailable(f"a value of {self._name!r}", error) from error
            has_zone = pa.types.is_timestamp(self._kind) and self._kind.tz is not None
            advice = "Write a time with its zone offset, such as 2015-05-17T12:00:00Z" if has_zone else "Correct it"
            reason = f"{quoted(value, 300)} does not fit {self._name!r}, which has the type {self._kind}. {advice}"
            raise self._refused(reason) from error

    def _refused(self, reason: str) -> InvalidInput:
        return _refused(self._definition, reason)


def _listed(given: object) -> Sequence[object]:
    return [*given] if isinstance(given, Sequence) and not isinstance(given, str | bytes) else [given]


def _decode_text(text: str, definition: IndexDefinition) -> object:
    stripped = text.strip()
    if stripped[:1] not in ("[", "{"):
        return [each.strip() for each in text.split(",")]
    try:
        return json.loads(stripped, parse_float=Decimal)
    except (ValueError, RecursionError) as error:
        reason = f"{quoted(text, 300)} is not JSON. Write a value that starts with [ or {{ as a JSON list"
        raise _refused(definition, reason) from error


def _text(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case datetime() | date():
            return value.isoformat()
        case Decimal():
            return format(value, "f")
        case _:
            return str(value)


def _refused(definition: IndexDefinition, reason: str) -> InvalidInput:
    return InvalidInput(f"bitmap query on index {definition.name!r}: {reason}", index=definition.name)


_MOST_ROWS: Final = 2**56
"""A number that is greater than the number of rows of any table.

The windows of a search are several times larger than this number and must fit into 64 bits.
"""


@dataclass(frozen=True, slots=True, eq=False)
class VectorQuery:
    """An embedding to search for in the `column` of an index, and the number of clusters to search."""

    vector: Floats
    column: str
    metric: Metric
    nprobe: int | None


Question = fulltext.TextQuery | Predicate | VectorQuery


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SearchQuestion:
    """The arguments of a search, as `Table.search` receives them. `question` checks the arguments for each index."""

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
    """One index of a search, and the text, condition or embedding that the index must find."""

    definition: IndexDefinition
    question: Question


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """The checked request of a search.

    The request contains the indexes that rank, with their weights and the method of fusion. The request also contains
    the indexes that only filter. If `weights` is empty, a single index is used, and the result has the scores of this
    index.
    """

    ranking: Sequence[IndexQuestion]
    weights: Sequence[float] = ()
    filtering: Sequence[IndexQuestion] = ()
    fusion: Fusion = "rrf"


def request_of(snapshot: Snapshot, given: SearchQuestion) -> SearchRequest:
    """Return the request of a search. A query with a vector, or a list of names, uses several indexes.

    Raises:
        NotFound: An index is unknown.
        InvalidInput: No index accepts the question.
    """
    fusion = fusion_of(given.fusion)
    if given.boosts is not None and not isinstance(given.boosts, Mapping):
        raise InvalidInput(f"boosts is {quoted(given.boosts)}. Give a mapping from names of columns to numbers")
    is_of_both = given.query is not None and given.vector is not None
    if is_of_both or (isinstance(given.index, list | tuple) and len(given.index) != 1):
        return _request_of_several(snapshot, given, fusion)
    if given.weights is not None or given.fusion != "rrf":
        what, name = (
            ("weights are", "weights") if given.weights is not None else (f"fusion {given.fusion!r} is", "fusion")
        )
        raise InvalidInput(f"{what} only for a search by several indexes, and this search uses one. Leave {name} out")
    index = given.index[0] if isinstance(given.index, list | tuple) else given.index
    definition = index_for(snapshot, index, by_vector=given.vector is not None)
    return SearchRequest([IndexQuestion(definition, question(definition, snapshot, given))])


def index_for(snapshot: Snapshot, index: object, *, by_vector: bool) -> IndexDefinition:
    """Return the definition of the named index, or of the only index that accepts a vector or a query.

    Raises:
        NotFound: The name is unknown.
        InvalidInput: No index or several indexes fit, or the named index is of another kind.
    """
    if index is None:
        return only_index(snapshot, ["vector"] if by_vector else ["fulltext", "bitmap"])
    if not isinstance(index, str):
        raise InvalidInput(f"index is {quoted(index)}. Give the name of one index")
    definition = segments.definition_of(snapshot, index)
    if definition.kind == "primary_key":
        raise InvalidInput(
            f"index {index!r} is a primary-key index, which cannot be searched. Name another index, or look up keys "
            "with get",
            index=index,
        )
    if (definition.kind == "vector") is not by_vector:
        what = "a vector, not a query" if definition.kind == "vector" else "a query, not a vector"
        raise InvalidInput(f"index {index!r} ({definition.kind}) takes {what}. Name another index", index=index)
    return definition


def only_index(snapshot: Snapshot, kinds: Collection[IndexKind]) -> IndexDefinition:
    """Return the definition of the table's only index whose kind is in `kinds`.

    Raises `InvalidInput` if there is no such index, or if there are several.
    """
    fitting = sorted(each.name for each in snapshot.config.indexes if each.kind in kinds)
    if len(fitting) != 1:
        kind = " or ".join(kinds).replace("fulltext", "full-text")
        if fitting:
            raise InvalidInput(
                f"the table has the {kind} indexes {listed(fitting)}. Name one of these indexes as index (--index)"
            )
        raise InvalidInput(f"the table has no {kind} index. Declare an index in `indexes`")
    return segments.definition_of(snapshot, fitting[0])


def question(definition: IndexDefinition, snapshot: Snapshot, given: SearchQuestion) -> Question:
    """Return the query for the given index, in the form that the kind of index needs. Raises `InvalidInput`."""
    query, nprobe, boosts = given.query, given.nprobe, given.boosts
    if query is not None and given.vector is not None:
        raise InvalidInput(
            "a search of one index takes a query or a vector, not both. Leave out the query or the vector, or "
            "name two indexes"
        )
    if nprobe is not None and definition.kind != "vector":
        raise InvalidInput(
            f"nprobe is for searches by vector, and index {definition.name!r} has the kind {definition.kind}. Leave "
            "nprobe out"
        )
    if boosts and definition.kind != "fulltext":
        raise InvalidInput(
            f"boosts are for full text, and index {definition.name!r} has the kind {definition.kind}. Leave the boosts "
            "out"
        )
    match definition.kind:
        case "fulltext":
            if not isinstance(query, str):
                given_query = "no query was given" if query is None else f"the query is {quoted(query)}"
                raise InvalidInput(
                    f"full-text index {definition.name!r} needs a text, and {given_query}. Give words to search for"
                )
            return fulltext.parse(query, definition, syntax=given.syntax, boosts=boosts)
        case "bitmap":
            return parse_bitmap_query(query, definition, snapshot.schema)
        case "vector":
            return _vector_query(given.vector, definition, snapshot, nprobe)
        case "primary_key":
            raise InvalidInput(
                f"index {definition.name!r} is a primary-key index, which cannot be searched. Look up keys with get"
            )
        case _:
            assert_never(definition.kind)


def one_index(index: object, what: str) -> str | None:
    """Return the name of the index, or None if no name is given. Raises `InvalidInput` if several names are given."""
    if index is None:
        return None
    first, *others = names_of(index)
    if others:
        raise InvalidInput(
            f"{what} needs one index, but {quoted(index)} is a list of several indexes. Name one of these indexes"
        )
    return first


def names_of(index: object) -> list[str]:
    """Return the names in a list of indexes. Raises `InvalidInput` if the list is empty or repeats a name."""
    given = list(index) if isinstance(index, list | tuple) else [index]
    names = [each for each in given if isinstance(each, str)]
    if not names or len(names) < len(given):
        raise InvalidInput(f"index is {quoted(index)}. Give the name of one index, or a list of names")
    if len(set(names)) < len(names):
        raise InvalidInput(f"index is {quoted(index)}. Name each index once")
    return names


def page(limit: object, offset: object = 0) -> tuple[int, int]:
    """Return the number of wanted rows, and the number of rows to skip.

    Numbers above `_MOST_ROWS` are reduced to `_MOST_ROWS`, which is above the number of rows of any table.

    Raises `InvalidInput` if a number is invalid.
    """
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise InvalidInput(f"limit is {quoted(limit)}. Give 1 or more")
    if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
        raise InvalidInput(f"offset is {quoted(offset)}. Give the number of rows to skip, 0 or more")
    return min(limit, _MOST_ROWS), min(offset, _MOST_ROWS)


def _vector_query(given: object, definition: IndexDefinition, snapshot: Snapshot, nprobe: object) -> VectorQuery:
    (column,), options = definition.columns, options_of(definition)
    wanted = _numbers(given, definition.name)
    dimensions = snapshot.schema.field(column).type.list_size
    if wanted.shape != (dimensions,):
        found = f"{len(wanted)} numbers" if wanted.ndim == 1 else f"an array of the shape {wanted.shape}"
        raise InvalidInput(
            f"index {definition.name!r}: the vector has {found}, but column {column!r} has {dimensions} dimensions. "
            f"Give {dimensions} numbers"
        )
    if not np.isfinite(wanted).all():
        raise InvalidInput(
            f"index {definition.name!r}: a number of the vector is NaN, infinite or beyond 32 bits. Give finite numbers"
        )
    if options.metric == "cosine" and not wanted.any():
        raise InvalidInput(
            f"index {definition.name!r}: the vector is zero, which has no direction. The metric cosine needs a "
            "vector that is not zero"
        )
    if nprobe is not None and (isinstance(nprobe, bool) or not isinstance(nprobe, int) or nprobe < 1):
        raise InvalidInput(f"nprobe is {quoted(nprobe)}. Give a number of clusters, 1 or more")
    return VectorQuery(wanted, column, options.metric, options.nprobe if nprobe is None else nprobe)


def _numbers(given: object, index: str) -> Floats:
    try:
        found = np.asarray(given)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"index {index!r}: the vector is not a list of numbers. Write [0.1, 0.2]") from error
    if found.dtype.kind not in "fiu" or not found.ndim:
        raise InvalidInput(f"index {index!r}: {_not_numbers(given)}. Write [0.1, 0.2]")
    with np.errstate(over="ignore"):
        wanted: Floats = found.astype(np.float32)
    return wanted


def _not_numbers(given: object) -> str:
    odd = [each for each in given if not isinstance(each, int | float)] if isinstance(given, list | tuple) else []
    if odd:
        return f"the vector contains {quoted(odd[0])}, which is not a number"
    return f"the vector is {quoted(given)}, not a list or an array of numbers"


def _request_of_several(snapshot: Snapshot, given: SearchQuestion, fusion: Fusion) -> SearchRequest:
    if given.query is None and given.vector is None:
        raise InvalidInput("the search has neither a query nor a vector. Give a query, a vector or both")
    definitions = _definitions(snapshot, given.index, query=given.query, vector=given.vector)
    texts = [each for each in definitions if each.kind == "fulltext"]
    if given.nprobe is not None and len(texts) == len(definitions):
        raise InvalidInput("nprobe is for searches by vector, and this search uses no vector index. Leave nprobe out")
    boosts = given.boosts or {}
    if foreign := [each for each in boosts if not any(each in text.columns for text in texts)]:
        found = ", ".join(column for text in texts for column in text.columns)
        raise InvalidInput(
            f"a boost is given for {quoted(foreign[0])}, which is not a column of the full-text indexes. They "
            f"have {found or 'none'}"
        )
    weights = weights_of(given.weights, [each.name for each in definitions])
    ranking, filtering = list[IndexQuestion](), list[IndexQuestion]()
    for each, weight in zip(definitions, weights, strict=True):
        is_text = each.kind == "fulltext"
        own = {name: boost for name, boost in boosts.items() if name in each.columns}
        part: dict[str, Any] = (
            {"vector": None, "nprobe": None, "boosts": own} if is_text else {"query": None, "boosts": None}
        )
        asked = question(each, snapshot, replace(given, **part))
        if not weight and not is_text:
            raise InvalidInput(f"the weight of {each.name!r} is 0. A vector index cannot filter rows, so leave it out")
        (ranking if weight else filtering).append(IndexQuestion(each, asked))
    return SearchRequest(ranking, [weight for weight in weights if weight], filtering, fusion)


def _definitions(snapshot: Snapshot, index: object, *, query: object, vector: object) -> Sequence[IndexDefinition]:
    """Return the named indexes. Without names, return the full-text index and the vector index of the table.

    Raises an error if an index has no matching `query` or `vector`, or if `query` or `vector` has no matching index.
    """
    if index is None:
        return [only_index(snapshot, ["fulltext"]), only_index(snapshot, ["vector"])]
    definitions = [segments.definition_of(snapshot, name) for name in names_of(index)]
    if foreign := [each.name for each in definitions if each.kind not in ("fulltext", "vector")]:
        raise InvalidInput(
            f"index {foreign[0]!r} does not rank rows, so a fusion cannot use the index. Write the condition as "
            "a filter",
            index=foreign[0],
        )
    for given, kind, what in ((query, "fulltext", "query"), (vector, "vector", "vector")):
        fitting = [each.name for each in definitions if each.kind == kind]
        if given is not None and not fitting:
            names = ", ".join(each.name for each in definitions)
            raise InvalidInput(
                f"a {what} is given, but none of the indexes {names} takes a {what}. Name one more index, or "
                "leave out the names"
            )
        if given is None and fitting:
            raise InvalidInput(
                f"index {fitting[0]!r} ({kind}) takes a {what}, but the search has no {what}. Give a {what}, or "
                "leave this index out",
                index=fitting[0],
            )
    return definitions
