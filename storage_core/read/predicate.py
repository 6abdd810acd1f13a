"""Filters as data: what a reader asks for, in a form that can prune splits and be evaluated by DuckDB.

A filter is built from typed expressions (`col("status") >= 500`) or parsed from a SQL predicate
that is parsed and never pasted (lesson 83). Both become the same tree. What the tree cannot express
stays `Opaque`: it is evaluated row by row and never prunes. Comparisons have SQL's three-valued meaning, with NaN
greatest and equal to itself (docs/architecture/compaction.md).
"""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from storage_core.arguments import checked
from storage_core.engine.constants import constant
from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.headroom import require_headroom
from storage_core.rows.columns import stored_name

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

Scalar = bool | int | float | Decimal | str | bytes | dt.date | dt.datetime
Literal: TypeAlias = "Scalar | Instant | Beginning | Day"


class Comparison(StrEnum):
    """The six comparisons; `NEGATED` and `MIRRORED` map each to its opposite and its converse."""

    EQ = "="
    NE = "<>"
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="


NEGATED = {
    Comparison.EQ: Comparison.NE,
    Comparison.NE: Comparison.EQ,
    Comparison.LT: Comparison.GE,
    Comparison.GE: Comparison.LT,
    Comparison.GT: Comparison.LE,
    Comparison.LE: Comparison.GT,
}
MIRRORED = {
    Comparison.EQ: Comparison.EQ,
    Comparison.NE: Comparison.NE,
    Comparison.LT: Comparison.GT,
    Comparison.GT: Comparison.LT,
    Comparison.LE: Comparison.GE,
    Comparison.GE: Comparison.LE,
}


@dataclass(frozen=True, slots=True)
class Instant:
    """Text that a condition casts to a date or a time. Against a column of texts DuckDB casts the column instead."""

    text: str


@dataclass(frozen=True, slots=True)
class Beginning:
    """Any text that begins with `text`, and perhaps is more than that: what `LIKE 'a%b'` says of a column of texts."""

    text: str


@dataclass(frozen=True, slots=True)
class Day:
    """Any time of a day in UTC, given as `2024-01-03`: what `ts::date = '2024-01-03'` says of a column of times."""

    text: str


@dataclass(frozen=True, slots=True)
class Compare:
    """`column <comparison> value`; unknown (not true) where the column is null."""

    column: str
    comparison: Comparison
    value: Literal


@dataclass(frozen=True, slots=True)
class IsNull:
    """The column is null, or with `negated` is not."""

    column: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class And:
    """All children are true."""

    children: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """At least one child is true."""

    children: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Opaque:
    """A verified SQL condition that pruning does not understand."""

    sql: str


Predicate = Compare | IsNull | And | Or | Opaque
Condition: TypeAlias = "Filter | str"
"""Which rows a statement is about. A statement without one is refused with advice of its own."""


MOST_NESTED = 200
"""Filters within filters; a chain of `&`, or of `|`, is one."""
MOST_CLAUSES = 10_000
"""Conditions of a chain, and values of `isin`."""


_SHORT_DIGITS = 18
_SHORT_SCALE = 9


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter that reads like Python: combine with `&`, `|` and `~`. Build one with `col` or `from_sql`.

    What is nested deeper than `MOST_NESTED` or chains more than `MOST_CLAUSES` is `InvalidInput` where it is made.
    """

    predicate: Predicate
    parts: tuple[duckdb.Expression, ...]
    """One, or those of a chain, which `predicate` is then too."""
    depth: int = 1

    def __post_init__(self) -> None:
        """Raise `InvalidInput` for a filter that is too large."""
        if self.depth > MOST_NESTED:
            raise InvalidInput(f"a filter is nested at most {MOST_NESTED} deep; chain conditions by one of & and |")
        if len(self.parts) > MOST_CLAUSES:
            raise InvalidInput(f"a filter chains at most {MOST_CLAUSES} conditions; use isin for values of a column")

    @property
    def expression(self) -> duckdb.Expression:
        """The filter as DuckDB has it: a chain is a tree as flat as can be, for each level is read within another."""
        join = operator.and_ if isinstance(self.predicate, And) else operator.or_
        left = list(self.parts)
        while len(left) > 1:
            pairs = [join(one, two) for one, two in zip(left[::2], left[1::2], strict=False)]
            left = pairs + left[len(pairs) * 2 :]
        return left[0]

    def __and__(self, other: Filter) -> Filter:
        """Both filters hold."""
        return self._chained(And, other)

    def __or__(self, other: Filter) -> Filter:
        """At least one of the filters holds."""
        return self._chained(Or, other)

    def __invert__(self) -> Filter:
        """The filter is false; where it is unknown (null), so is its inversion."""
        return Filter(negate(self.predicate), (~self.expression,), self.depth + 1)

    def _chained(self, kind: type[And | Or], other: Filter) -> Filter:
        if not isinstance(other, Filter):
            raise _no_filter(other)
        (first, left, above), (second, right, below) = _links(self, kind), _links(other, kind)
        return Filter(kind((*first, *second)), (*left, *right), 1 + max(above, below))

    def __bool__(self) -> NoReturn:
        """Raise `InvalidInput`: `and`, `or`, `not`, `if` and chained comparisons would drop conditions."""
        raise _no_truth_value()


def _links(given: Filter, kind: type[And | Or]) -> tuple[tuple[Predicate, ...], tuple[duckdb.Expression, ...], int]:
    """The filter as links of a chain, and how deep the deepest is: its own links, where it is one of that kind."""
    if isinstance(given.predicate, kind) and len(given.parts) > 1:
        return given.predicate.children, given.parts, given.depth - 1
    return (given.predicate,), (given.expression,), given.depth


class Column:
    """A column in a filter expression: compare it with a value to get a `Filter`."""

    __hash__ = None  # type: ignore[assignment]  # == builds a filter, so a column cannot be a dictionary key

    def __init__(self, name: str) -> None:
        self._name = name

    def __bool__(self) -> NoReturn:
        """Raise `InvalidInput`, as a filter does."""
        raise _no_truth_value()

    def __and__(self, *_: object) -> NoReturn:
        """Raise `InvalidInput`: a column is no filter."""
        raise _no_filter(self)

    __or__ = __invert__ = __and__

    def _compare(self, comparison: Comparison, value: Scalar) -> Filter:
        column, constant = _column(self._name), _constant(value)
        compare = getattr(operator, comparison.name.lower())
        return Filter(Compare(self._name, comparison, value), (compare(column, constant),))

    def __eq__(self, value: Scalar) -> Filter:  # type: ignore[override]  # expressions are not booleans
        """Rows whose value equals `value`."""
        return self._compare(Comparison.EQ, value)

    def __ne__(self, value: Scalar) -> Filter:  # type: ignore[override]  # expressions are not booleans
        """Rows whose value differs from `value`."""
        return self._compare(Comparison.NE, value)

    def __lt__(self, value: Scalar) -> Filter:
        """Rows whose value is less."""
        return self._compare(Comparison.LT, value)

    def __le__(self, value: Scalar) -> Filter:
        """Rows whose value is less or equal."""
        return self._compare(Comparison.LE, value)

    def __gt__(self, value: Scalar) -> Filter:
        """Rows whose value is greater."""
        return self._compare(Comparison.GT, value)

    def __ge__(self, value: Scalar) -> Filter:
        """Rows whose value is greater or equal."""
        return self._compare(Comparison.GE, value)

    def isin(self, values: Iterable[Scalar]) -> Filter:
        """Rows whose value is one of `values`; an empty list matches nothing."""
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise InvalidInput(f"isin takes a list of values, found {quoted(values)}")
        column = _column(self._name)
        chosen = tuple(islice(values, MOST_CLAUSES + 1))
        if len(chosen) > MOST_CLAUSES:
            raise InvalidInput(f"isin takes at most {MOST_CLAUSES} values; ask in parts, or look keys up with get_many")
        if not chosen:
            import duckdb

            return Filter(Or(()), (duckdb.SQLExpression("false"),))
        members = tuple(Compare(self._name, Comparison.EQ, value) for value in chosen)
        known = Or(members) if are_alike(chosen) else Opaque("IN")
        return Filter(known, (column.isin(*map(_constant, chosen)),))

    def is_null(self) -> Filter:
        """Rows where the column is null."""
        return Filter(IsNull(self._name), (_column(self._name).isnull(),))

    def is_not_null(self) -> Filter:
        """Rows where the column is not null."""
        return Filter(IsNull(self._name, negated=True), (_column(self._name).isnotnull(),))


def _no_truth_value() -> InvalidInput:
    return InvalidInput(
        "a filter is neither true nor false before it meets a row: write & for `and`, | for `or`, ~ for `not`, each "
        "comparison in parentheses, as in (col('n') > 1) & (col('n') < 9) for 1 < n < 9, and isin for `in`"
    )


def _no_filter(found: object) -> InvalidInput:
    shown = "a column" if isinstance(found, Column) else quoted(found)
    return InvalidInput(f"&, | and ~ take filters, found {shown}; compare a column, as in col('done') == True")


@cache
@require_headroom("a filter")
def _load_duckdb() -> None:
    """Load what a filter is often the first to need."""
    import duckdb  # noqa: F401


def _column(name: str) -> duckdb.Expression:
    _load_duckdb()
    import duckdb

    return duckdb.ColumnExpression(name)


def _constant(value: Scalar) -> duckdb.Expression:
    return constant(value, "a column cannot be compared with")


@checked
def col(name: str) -> Column:
    """Name a column for a filter expression: `(col("status") >= 500) & (col("method") == "GET")`."""
    return Column(name)


def are_alike(values: Collection[object]) -> bool:
    """Tell whether DuckDB compares a column with each of these in one condition as it does with one of them alone.

    It brings a column and all values that it is compared with to one type, so a float beside integers makes floats of
    integers and of the column, and a long decimal does too.
    """
    kinds = {type(value) for value in values}
    if kinds <= {int, Decimal} and Decimal in kinds:
        return all(_is_short(value) for value in values if isinstance(value, int | Decimal))
    return len(kinds) <= 1


def _is_short(value: int | Decimal) -> bool:
    """Whether a number has few enough digits that beside others like it, and a `BIGINT`, it stays a decimal."""
    exact = Decimal(value)
    exponent = exact.as_tuple().exponent
    return isinstance(exponent, int) and -exponent <= _SHORT_SCALE and exact.adjusted() < _SHORT_DIGITS


def renamed(predicate: Predicate, schema: pa.Schema) -> Predicate:
    """Return the predicate over splits, by the names that they have for the columns of the table."""
    names = {field.name: stored for field in schema if (stored := stored_name(field)) != field.name}
    return _renamed(predicate, names) if names else predicate


def _renamed(predicate: Predicate, names: Mapping[str, str]) -> Predicate:
    match predicate:
        case Compare() | IsNull():
            return replace(predicate, column=names.get(predicate.column, predicate.column))
        case And(children):
            return And(tuple(_renamed(child, names) for child in children))
        case Or(children):
            return Or(tuple(_renamed(child, names) for child in children))
        case Opaque():
            return predicate


def negate(predicate: Predicate) -> Predicate:
    """Return the predicate that is true exactly where this one is false; unknown stays unknown."""
    match predicate:
        case Compare(column, comparison, value):
            return Compare(column, NEGATED[comparison], value)
        case IsNull(column, negated):
            return IsNull(column, not negated)
        case And(children):
            return Or(tuple(negate(child) for child in children))
        case Or(children):
            return And(tuple(negate(child) for child in children))
        case Opaque(sql):
            return Opaque(f"NOT ({sql})")
