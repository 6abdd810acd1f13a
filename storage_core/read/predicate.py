"""Representation of filters as data, and matching of column names.

A filter is built from typed expressions (`col("status") >= 500`) or parsed from the text of a SQL condition. A SQL text
is parsed and never pasted into a statement (lesson 83). Typed expressions and SQL texts become the same kind of tree,
which consists of `Predicate` nodes. The tree is used to prune splits, and DuckDB evaluates it on each row.

A condition that the tree cannot express becomes `Opaque`. DuckDB evaluates an `Opaque` condition on each row. Pruning
does not use the condition.

Comparisons follow SQL's three-valued logic. NaN is the greatest value and is equal to itself
(docs/architecture/compaction.md).

Column names are compared in the same way as in DuckDB. The case of ASCII letters is ignored (`folded`, `in_columns`).
"""

from __future__ import annotations

import datetime as dt
import operator
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, NoReturn, TypeAlias, assert_never

from storage_core.base.arguments import checked
from storage_core.base.errors import InvalidInput
from storage_core.base.process import check_free_resources
from storage_core.base.text import quoted
from storage_core.data.rows.columns import stored_name
from storage_core.engine.statement import constant

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa


Scalar = bool | int | float | Decimal | str | bytes | dt.date | dt.datetime
Literal: TypeAlias = "Scalar | Instant | Beginning | Day"


class Comparison(StrEnum):
    """One of the six comparisons.

    `NEGATED` maps each comparison to its negation. `MIRRORED` maps each comparison to the comparison with the two sides
    exchanged.
    """

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
    """A text that a condition casts to a date or a time.

    If a condition compares the text with a text column, DuckDB casts the column instead of the text.
    """

    text: str


@dataclass(frozen=True, slots=True)
class Beginning:
    """Any text that starts with `text`. `LIKE 'a%b'` on a column of texts becomes `Beginning("a")`."""

    text: str


@dataclass(frozen=True, slots=True)
class Day:
    """Any time within one day in UTC. For a time column, `ts::date = '2024-01-03'` becomes `Day("2024-01-03")`."""

    text: str


@dataclass(frozen=True, slots=True)
class Compare:
    """`column <comparison> value`. The result is unknown (not true) if the column is null."""

    column: str
    comparison: Comparison
    value: Literal


@dataclass(frozen=True, slots=True)
class IsNull:
    """The column is null. With `negated`, the column is not null."""

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
    """A SQL condition that was verified, but that pruning cannot use."""

    sql: str


Predicate = Compare | IsNull | And | Or | Opaque
Condition: TypeAlias = "Filter | str"
"""The condition of a statement. A statement without a condition is refused, and the error contains advice."""


MOST_NESTED = 200
"""The greatest nesting depth of a filter. A chain of `&`, or a chain of `|`, counts as one level."""
MOST_CLAUSES = 10_000
"""The maximum number of conditions in one chain, and the maximum number of values in one `isin`."""


_SHORT_DIGITS = 18
_SHORT_SCALE = 9


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter that is written as a Python expression.

    Build a filter with `col` or `from_sql`, and combine filters with `&`, `|` and `~`.

    Raises:
        InvalidInput: The constructor raises this error if the filter is nested deeper than `MOST_NESTED`, or chains
            more than `MOST_CLAUSES` conditions.
    """

    predicate: Predicate
    parts: tuple[duckdb.Expression, ...]
    """The single expression of the filter, or the operands of a chain of AND or OR.

    If `expression` is a chain, `predicate` is also a chain.
    """
    depth: int = 1
    unchecked: tuple[str, ...] = ()
    """The SQL expressions in the filter that must be conditions.

    The types of these expressions are not known without a table.
    """

    def __post_init__(self) -> None:
        """Raise `InvalidInput` if the filter is too large."""
        if self.depth > MOST_NESTED:
            raise InvalidInput(
                f"the filter is nested more than {MOST_NESTED} deep. Chain conditions with only & or only |"
            )
        if len(self.parts) > MOST_CLAUSES:
            raise InvalidInput(f"the filter has more than {MOST_CLAUSES} conditions. Use isin for values of a column")

    @property
    def expression(self) -> duckdb.Expression:
        """The filter as a DuckDB expression.

        A chain becomes a balanced tree, because DuckDB parses nested levels recursively.
        """
        join = operator.and_ if isinstance(self.predicate, And) else operator.or_
        left = list(self.parts)
        while len(left) > 1:
            pairs = [join(one, two) for one, two in zip(left[::2], left[1::2], strict=False)]
            left = pairs + left[len(pairs) * 2 :]
        return left[0]

    def __and__(self, other: Filter) -> Filter:
        """Return a filter that is true where both filters are true."""
        return self._chained(And, other)

    def __or__(self, other: Filter) -> Filter:
        """Return a filter that is true if at least one of the two filters is true."""
        return self._chained(Or, other)

    def __invert__(self) -> Filter:
        """Return a filter that is true if this filter is false. An unknown (null) result stays unknown."""
        return Filter(negate(self.predicate), (~self.expression,), self.depth + 1, self.unchecked)

    def _chained(self, kind: type[And | Or], other: Filter) -> Filter:
        if not isinstance(other, Filter):
            raise _no_filter(other)
        (first, left, above), (second, right, below) = _links(self, kind), _links(other, kind)
        unchecked = tuple(dict.fromkeys((*self.unchecked, *other.unchecked)))
        return Filter(kind((*first, *second)), (*left, *right), 1 + max(above, below), unchecked)

    def __bool__(self) -> NoReturn:
        """Raise `InvalidInput`.

        Otherwise `and`, `or`, `not`, `if` and chained comparisons would silently drop conditions.
        """
        raise _no_truth_value()


def _links(given: Filter, kind: type[And | Or]) -> tuple[tuple[Predicate, ...], tuple[duckdb.Expression, ...], int]:
    """Return the filter as operands of a chain, and the depth of the deepest operand.

    If the filter is already a chain with this operator, the operands of this chain are returned. If the filter is not a
    chain with this operator, the function returns the filter as the only operand.
    """
    if isinstance(given.predicate, kind) and len(given.parts) > 1:
        return given.predicate.children, given.parts, given.depth - 1
    return (given.predicate,), (given.expression,), given.depth


class Column:
    """A column in a filter expression. Comparing a column with a value returns a `Filter`."""

    __hash__ = None  # type: ignore[assignment]  # == builds a filter, so a column cannot be a dictionary key

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        """Return the expression that creates this column."""
        return f"col({self._name!r})"

    def __bool__(self) -> NoReturn:
        """Raise `InvalidInput`, because a column has no truth value."""
        raise _no_truth_value()

    def __and__(self, *_: object) -> NoReturn:
        """Raise `InvalidInput`, because a column is not a filter."""
        raise _no_filter(self)

    __or__ = __invert__ = __and__

    def _compare(self, comparison: Comparison, value: Scalar) -> Filter:
        column, constant = _column(self._name), _constant(value)
        compare = getattr(operator, comparison.name.lower())
        return Filter(Compare(self._name, comparison, value), (compare(column, constant),))

    def __eq__(self, value: Scalar) -> Filter:  # type: ignore[override]  # expressions are not booleans
        """Return a filter for rows with a value equal to `value`."""
        return self._compare(Comparison.EQ, value)

    def __ne__(self, value: Scalar) -> Filter:  # type: ignore[override]  # expressions are not booleans
        """Return a filter for rows with another value than `value`."""
        return self._compare(Comparison.NE, value)

    def __lt__(self, value: Scalar) -> Filter:
        """Return a filter for rows with a value less than `value`."""
        return self._compare(Comparison.LT, value)

    def __le__(self, value: Scalar) -> Filter:
        """Return a filter for rows with a value less than or equal to `value`."""
        return self._compare(Comparison.LE, value)

    def __gt__(self, value: Scalar) -> Filter:
        """Return a filter for rows with a value greater than `value`."""
        return self._compare(Comparison.GT, value)

    def __ge__(self, value: Scalar) -> Filter:
        """Return a filter for rows with a value greater than or equal to `value`."""
        return self._compare(Comparison.GE, value)

    def isin(self, values: Iterable[Scalar]) -> Filter:
        """Return a filter for rows with a value in `values`. An empty list matches no row.

        Raises:
            InvalidInput: `values` is not a list, or has more than `MOST_CLAUSES` values.
        """
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise InvalidInput(f"the values of isin are {quoted(values)}. Give a list")
        column = _column(self._name)
        chosen = tuple(islice(values, MOST_CLAUSES + 1))
        if len(chosen) > MOST_CLAUSES:
            raise InvalidInput(
                f"isin has more than {MOST_CLAUSES} values. Filter in parts, or look up keys with get_many"
            )
        if not chosen:
            import duckdb

            return Filter(Or(()), (duckdb.SQLExpression("false"),))
        members = tuple(Compare(self._name, Comparison.EQ, value) for value in chosen)
        known = Or(members) if are_alike(chosen) else Opaque("IN")
        return Filter(known, (column.isin(*map(_constant, chosen)),))

    def is_null(self) -> Filter:
        """Return a filter for the rows where the column is null."""
        return Filter(IsNull(self._name), (_column(self._name).isnull(),))

    def is_not_null(self) -> Filter:
        """Return a filter for the rows where the column is not null."""
        return Filter(IsNull(self._name, negated=True), (_column(self._name).isnotnull(),))


def _no_truth_value() -> InvalidInput:
    return InvalidInput(
        "a filter cannot be used as true or false in Python. Write & for `and`, | for `or`, ~ for `not`, and isin "
        "for `in`. Put each comparison in parentheses, as in (col('n') > 1) & (col('n') < 9) for 1 < n < 9"
    )


def _no_filter(found: object) -> InvalidInput:
    shown = "a column" if isinstance(found, Column) else quoted(found)
    return InvalidInput(
        f"&, | and ~ need filters, but one operand is {shown}. Compare a column, as in col('done') == True"
    )


@cache
@check_free_resources("a filter")
def _load_duckdb() -> None:
    """Import DuckDB, and raise a Tidemark error if the import fails.

    A filter is often the first object that needs DuckDB.
    """
    import duckdb  # noqa: F401


def _column(name: str) -> duckdb.Expression:
    _load_duckdb()
    import duckdb

    return duckdb.ColumnExpression(name)


def _constant(value: Scalar) -> duckdb.Expression:
    return constant(value, "a column cannot be compared with")


@checked
def col(name: str) -> Column:
    """Return a column for a filter expression: `(col("status") >= 500) & (col("method") == "GET")`."""
    return Column(name)


def are_alike(values: Collection[object]) -> bool:
    """Return True if a comparison of a column with all values at once is equivalent to separate comparisons.

    DuckDB casts the column and all values of one condition to one common type. If one of the values is a float, DuckDB
    converts the integers and the column to floats. DuckDB does the same conversion if one of the values is a long
    decimal and others are integers.
    """
    kinds = {type(value) for value in values}
    if kinds <= {int, Decimal} and Decimal in kinds:
        return all(_is_short(value) for value in values if isinstance(value, int | Decimal))
    return len(kinds) <= 1


def _is_short(value: int | Decimal) -> bool:
    """Return True if DuckDB keeps a number as a decimal in a condition with short decimals and a `BIGINT`.

    A number that DuckDB keeps as a decimal has few digits.
    """
    exact = Decimal(value)
    exponent = exact.as_tuple().exponent
    return isinstance(exponent, int) and -exponent <= _SHORT_SCALE and exact.adjusted() < _SHORT_DIGITS


def renamed(predicate: Predicate, schema: pa.Schema) -> Predicate:
    """Return the predicate with the column names that the splits of the table use."""
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
    """Return the predicate that is true exactly where the given predicate is false.

    An unknown result remains unknown.
    """
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


def folded(name: str) -> str:
    """Return the name in a canonical form. Two names have the same form exactly if DuckDB treats them as equal.

    DuckDB ignores the case of ASCII letters only.
    """
    return name.encode(errors="surrogatepass").lower().decode(errors="surrogatepass")


def in_columns(predicate: Predicate | None, names: Iterable[str]) -> Predicate | None:
    """Return the predicate with the exact names of the table's columns.

    The names in the given predicate may differ from the column names in case.

    A condition becomes `Opaque` if no name or more than one name in `names` matches its column.
    """
    known = defaultdict[str, list[str]](list)
    for name in names:
        known[folded(name)].append(name)
    return None if predicate is None else _renamed_in(predicate, known)


def _renamed_in(predicate: Predicate, known: Mapping[str, list[str]]) -> Predicate:
    match predicate:
        case And(children):
            return And(tuple(_renamed_in(child, known) for child in children))
        case Or(children):
            return Or(tuple(_renamed_in(child, known) for child in children))
        case Compare(column) | IsNull(column):
            found = known.get(folded(column), [])
            return replace(predicate, column=found[0]) if len(found) == 1 else Opaque(column)
        case Opaque(_):
            return predicate
        case _:
            assert_never(predicate)
