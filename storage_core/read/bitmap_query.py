"""What a search asks of a bitmap index, as a predicate over the columns of the index."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Final, cast

import pyarrow as pa

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted, shortened
from storage_core.headroom import require_headroom
from storage_core.read.predicate import And, Compare, Comparison, IsNull, Or, Predicate, Scalar, negate
from storage_core.settings.index import IndexDefinition
from storage_core.system_errors import out_of_memory, unavailable

_COPIES = 8  # of a text, of which each character may take four bytes, and its Arrow forms
_COMPARISONS: Final = {str(each): each for each in Comparison}


def parse(query: object, definition: IndexDefinition, schema: pa.Schema) -> Predicate:
    """Return the predicate that a query asks for: a value, several of them (any matches), or columns (all match).

    Text is `404`, `404,500`, a JSON list, or a JSON object of columns. Of a column it has a value, a list of them, or
    an object of conditions that all hold: `=`, `<>`, `<`, `<=`, `>`, `>=` with a value, `in` and `not in` with a list,
    `between` with the least and the greatest, and `is null` with true or false. As in SQL, a null meets none of them
    but `is null`.

    Values are read by the type of the column; timestamps as ISO 8601. An index over several columns takes an object
    only. Raises `InvalidInput` when a value does not read or is null, or a column is not in the index.
    """
    decoded = _decode_text(query, definition) if isinstance(query, str) else query
    if not isinstance(decoded, Mapping):
        if len(definition.columns) > 1:
            example = json.dumps({name: ["…"] for name in definition.columns}, ensure_ascii=False)
            raise _refused(definition, f"it covers several columns; ask for some of them as {example}")
        decoded = {definition.columns[0]: decoded}
    if not decoded:
        raise _refused(definition, "the query names no column")
    return And(tuple(_Column(name, definition, schema).meets(given) for name, given in decoded.items()))


class _Column:
    """A column of the index, and what is asked of it."""

    def __init__(self, name: str, definition: IndexDefinition, schema: pa.Schema) -> None:
        if name not in definition.columns:
            raise _refused(definition, f"column {name!r} is not one of {', '.join(definition.columns)}")
        self._name = name
        self._definition = definition
        self._kind = schema.field(name).type

    def meets(self, given: object) -> Predicate:
        if not isinstance(given, Mapping):
            return self._one_of(given)
        if not given:
            raise self._refused(f"no condition on {self._name!r}")
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
            raise self._refused(f"{quoted(name, 300)} is no condition on {self._name!r}; there are {known}")
        return others[name](value)

    def _one_of(self, given: object) -> Predicate:
        values = self._values(_listed(given))
        if not values:
            raise self._refused(f"no value to look for in {self._name!r}")
        return Or(tuple(Compare(self._name, Comparison.EQ, each) for each in values))

    def _between(self, given: object) -> Predicate:
        values = self._values(_listed(given))
        if len(values) != 2:
            raise self._refused(
                f"between takes the least and the greatest value of {self._name!r}, found {len(values)}"
            )
        least, greatest = values
        return And((Compare(self._name, Comparison.GE, least), Compare(self._name, Comparison.LE, greatest)))

    def _is_null(self, given: object) -> Predicate:
        if not isinstance(given, bool):
            raise self._refused(f"is null takes true or false, found {quoted(given, 300)}")
        return IsNull(self._name, negated=not given)

    def _values(self, listed: Sequence[object]) -> list[Scalar]:
        size = sum(len(each) for each in listed if isinstance(each, str))
        # for which Arrow ends the process
        with require_headroom(f"values to look for in {self._name!r}", size=_COPIES * size):
            return [self._scalar(each) for each in listed]

    def _scalar(self, value: object) -> Scalar:
        """Every value goes through its text: Arrow parses text strictly, but cuts 404.5 to an integer silently."""
        if value is None:
            raise self._refused(f"null is not a value of {self._name!r}; ask for nulls by {{'is null': true}}")
        if pa.types.is_string(self._kind) and not isinstance(value, str):
            raise self._refused(f"{self._name!r} holds strings, found {quoted(value, 300)}; put it in quotes")
        try:
            return cast("Scalar", pa.scalar(_text(value), pa.string()).cast(self._kind).as_py())
        except (pa.ArrowException, MemoryError, ValueError) as error:  # the last for half a character, or many digits
            if out_of_memory(error):
                raise unavailable(f"a value of {self._name!r}", error) from error
            reason = f"{quoted(value, 300)} does not read as {self._kind} for {self._name!r}: {shortened(str(error))}"
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
        reason = f"{quoted(text, 300)} is not JSON ({error}); write a value that starts with [ or {{ as a JSON list"
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
