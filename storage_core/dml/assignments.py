"""What an update sets: columns of a table to values, or to expressions over the row as it was.

An expression is one of SQL's, of known parts and nothing else (`engine.statement`), and is evaluated by DuckDB in a
process that can do nothing else. Every expression sees the old values, whatever the others set.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from storage_core.arguments import checked
from storage_core.engine.sandbox.query import Rows
from storage_core.engine.stability import require_repeatable
from storage_core.engine.statement import TABLE, parse
from storage_core.engine.tree import nodes_of, refused
from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.read.columns_read import columns_read
from storage_core.read.query_errors import query_errors
from storage_core.read.source import Source
from storage_core.read.sql_predicate import plain_select
from storage_core.rows.calendar import within_calendar
from storage_core.rows.incoming import table_of
from storage_core.rows.schema import conform
from storage_core.rows.vectors import require_sound
from storage_core.settings.query import QueryLimits

_ONE_ROW_FROM_ONE: Final = ("an expression says one value of one row: no other rows, and no list of columns",)
_BATCH_ROWS: Final = 65_536
_MORE_THAN_A_ROW: Final = frozenset({"STAR", "SUBQUERY", "WINDOW", "POSITIONAL_REFERENCE"})


@dataclass(frozen=True, slots=True)
class Expression:
    """A SQL expression over the columns of a row, as `expr` makes it."""

    sql: str


@checked
def expr(sql: str) -> Expression:
    """Return what `Table.update` sets a column to where it is a SQL expression: `{"seats": tm.expr("seats + 1")}`.

    Raises `InvalidInput` when the text is not one expression over columns of a row.
    """
    node = plain_select(f"SELECT {sql} FROM {TABLE}", "expression") or {}  # noqa: S608  # parsed, and checked below
    chosen = node.get("select_list") or []
    if len(chosen) != 1 or chosen[0].get("alias") or node.get("where_clause") is not None:
        raise InvalidInput(f"{quoted(sql)} is not one expression over columns of a row", expression=sql)
    for each in nodes_of(chosen[0]):
        if each.get("class") in _MORE_THAN_A_ROW or str(each.get("function_name", "")).lower() == "unnest":
            raise refused(sql, "expression", *_ONE_ROW_FROM_ONE)
    return Expression(sql)


@dataclass(frozen=True, slots=True)
class Assignments:
    """Values and expressions by the column that is set to them, checked against a table's schema."""

    values: Mapping[str, pa.Scalar]
    expressions: Mapping[str, Expression]

    @staticmethod
    def of(given: object, schema: pa.Schema) -> Assignments:
        """Return what is set. Raises `InvalidInput` for no column, an unknown one, and a value that does not fit.

        Nor may an expression have another value when it is evaluated again.
        """
        if not isinstance(given, Mapping) or not given:
            raise InvalidInput(f"an update sets columns to values, as in {{'seats': 4}}; found {quoted(given)}")
        unknown = [name for name in given if name not in schema.names]
        if unknown:
            raise InvalidInput(f"unknown columns {unknown}; the table has {schema.names}", columns=unknown)
        expressions = {name: value for name, value in given.items() if isinstance(value, Expression)}
        for each in expressions.values():
            require_repeatable(each.sql, schema.names, "expression")
        constants = {name: value for name, value in given.items() if name not in expressions}
        fields = pa.schema([each for each in schema if each.name in constants])
        row = conform(table_of([constants], fields), fields) if constants else pa.table({})
        return Assignments({name: row.column(name)[0] for name in row.column_names}, expressions)

    @property
    def columns(self) -> Sequence[str]:
        """The columns that are set."""
        return [*self.values, *self.expressions]

    def needed(self, names: Sequence[str]) -> Sequence[str]:
        """Return those of a table's columns whose values an update needs: they stay, or an expression reads them."""
        read = {*self._read(names)}
        return [name for name in names if name not in self.columns or name in read]

    def applied(self, rows: pa.Table, limits: QueryLimits, nonzero: Collection[str]) -> pa.Table:
        """Return the rows with what is set, in their order; `nonzero` as of `rows.vectors.require_sound`.

        Raises `InvalidInput` for an expression that cannot be evaluated or whose value does not fit its column,
        `Unavailable` where it passes a limit.
        """
        found = self._evaluated(rows, limits)
        columns = [
            repeated(self.values[each.name], rows.num_rows)
            if each.name in self.values
            else found.get(each.name, rows.column(each.name))
            for each in rows.schema
        ]
        changed = conform(pa.table(columns, names=rows.column_names), rows.schema)
        return require_sound(within_calendar(changed), nonzero)

    def _read(self, names: Sequence[str]) -> Sequence[str]:
        """Those of these columns that expressions read."""
        texts = [f"SELECT {each.sql} FROM {TABLE}" for each in self.expressions.values()]  # noqa: S608  # only parsed
        found = [columns_read(parse(text, "expression"), names, TABLE) for text in texts]
        return [name for name in names if any(each is None or name in each for each in found)]

    def _evaluated(self, rows: pa.Table, limits: QueryLimits) -> dict[str, pa.ChunkedArray]:
        if not self.expressions:
            return {}
        place = "place"
        while any(place in each.sql.lower() for each in self.expressions.values()) or place in map(
            str.lower, rows.column_names
        ):
            place += "_"
        numbered = rows.select(self._read(rows.column_names)).append_column(place, pa.array(np.arange(rows.num_rows)))
        chosen = ", ".join(f"({each.sql})" for each in self.expressions.values())  # an alias could be read by the next
        text = f"SELECT {place}, {chosen} FROM {TABLE}"  # noqa: S608  # expressions were checked
        errors = query_errors("update", (), limits, columns=rows.column_names)
        given = Rows(numbered.schema, lambda: _batches(numbered))  # beside rows in memory a sandbox keeps no session
        with errors, Source(numbered.schema.empty_table(), fetched=given).answer(text, limits) as result:
            answer = pa.Table.from_batches([*result], result.schema)
        if answer.num_rows != rows.num_rows:
            raise InvalidInput(f"an update's expressions gave {answer.num_rows} values for {rows.num_rows} rows")
        ordered = answer.take(pa.array(np.argsort(answer.column(0).to_numpy(), kind="stable")))
        return {
            name: _typed(ordered.column(number), rows.schema.field(name).type)
            for number, name in enumerate(self.expressions, start=1)
        }


def _batches(rows: pa.Table) -> Generator[pa.RecordBatch]:
    """The rows in few batches, for each is a message."""
    yield from rows.combine_chunks().to_batches(max_chunksize=_BATCH_ROWS)


def _typed(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """The values; nulls of the column's type where there are only nulls, for DuckDB's NULL has another."""
    return pa.chunked_array([pa.nulls(len(column), type_)]) if column.null_count == len(column) else column


def repeated(value: pa.Scalar, rows: int) -> pa.Array:
    """Return the value so many times; Arrow repeats no list and no map zero times."""
    return pa.repeat(value, max(1, rows)).slice(0, rows)
