"""Which rows of a table the partitions of an asset are: a condition of typed values, exactly theirs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING, Self, TypeAlias

import pyarrow as pa
from dagster import MultiPartitionKey, MultiPartitionsDefinition, PartitionsDefinition, TimeWindowPartitionsDefinition

from storage_core.errors import InvalidInput
from storage_core.read.given_values import between, one_of

if TYPE_CHECKING:
    from storage_core.read.predicate import Filter
    from storage_core.table import Table

Partitions: TypeAlias = "PartitionsDefinition[str]"
Columns: TypeAlias = "str | Mapping[str, str] | None"
"""What the metadata `partition_expr` says: the column of the one dimension, or of each by its name."""

_ALONE = ""
"""The dimension of an asset with one."""

_Span = tuple[dt.datetime, dt.datetime]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a condition has to know of a table, which may not exist yet: its place, columns and time."""

    uri: str
    schema: pa.Schema
    time_column: str | None

    @classmethod
    def of(cls, table: Table) -> Self:
        """Return that of a table at its version."""
        return cls(table.uri, table.schema, table.config.time_column)


def condition_of(table: Shape, definition: Partitions, keys: Sequence[str], columns: Columns) -> Filter:
    """Return the condition that the rows of these partitions meet, and no others; without keys no row meets it.

    A dimension of time is the table's time column, from the start of each window to its end, whatever the key looks
    like. Any other dimension is the column that `columns` names, or the one called as it; its keys are values of it.
    Raises `InvalidInput` where no column is known, for two dimensions of time, and for a key that is no value.
    """
    dimensions = _dimensions(definition)
    timed = [name for name, each in dimensions.items() if isinstance(each, TimeWindowPartitionsDefinition)]
    if len(timed) > 1:
        raise InvalidInput(f"a table has one time, and the partitions two: {timed}; make one of them a column of days")
    plain = [name for name in dimensions if name not in timed]
    fields = {name: table.schema.field(_column(table, name, columns, timed=name in timed)) for name in dimensions}
    parts = [_by_dimension(definition, key) for key in keys]
    if not parts:
        return one_of(next(iter(fields.values())), [])

    def of_time(moments: Iterable[str]) -> list[Filter]:
        return [
            reduce(or_, [between(fields[name], *span) for span in _spans(dimensions[name], moments)]) for name in timed
        ]

    def of_values(values: list[tuple[str, ...]]) -> list[Filter]:
        if len(plain) == 1:
            return [one_of(fields[plain[0]], [value for (value,) in values])]
        each = [[one_of(fields[name], [value]) for name, value in zip(plain, row, strict=True)] for row in values]
        return [reduce(or_, [reduce(and_, row) for row in each])] if plain else []

    grouped = _grouped(parts, plain, timed)
    return reduce(or_, [reduce(and_, [*of_values(values), *of_time(times)]) for times, values in grouped])


def _grouped(
    parts: Sequence[Mapping[str, str]], plain: Sequence[str], timed: Sequence[str]
) -> list[tuple[list[str], list[tuple[str, ...]]]]:
    """Keys of time with the values that all of them come with, so that a range of both is one condition."""
    by_values: dict[tuple[str, ...], list[str]] = {}
    for part in parts:
        times = by_values.setdefault(tuple(part[name] for name in plain), [])
        times += [part[name] for name in timed]
    by_times: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for values, times in by_values.items():
        by_times.setdefault(tuple(sorted(times)), []).append(values)
    return [(list(times), values) for times, values in by_times.items()]


def _dimensions(definition: Partitions) -> Mapping[str, Partitions]:
    if isinstance(definition, MultiPartitionsDefinition):
        return {each.name: each.partitions_def for each in definition.partitions_defs}
    return {_ALONE: definition}


def _by_dimension(definition: Partitions, key: str) -> Mapping[str, str]:
    if not isinstance(definition, MultiPartitionsDefinition):
        return {_ALONE: key}
    found = key if isinstance(key, MultiPartitionKey) else definition.get_partition_key_from_str(key)
    return found.keys_by_dimension


def _column(table: Shape, dimension: str, columns: Columns, *, timed: bool) -> str:
    named = columns.get(dimension) if isinstance(columns, Mapping) else columns if dimension == _ALONE else None
    name = named or (table.time_column if timed else None) or dimension
    if name not in table.schema.names:
        what = f"the dimension {dimension!r} of the partitions" if dimension else "the partition"
        example = "'country'" if dimension == _ALONE else f"{{{dimension!r}: 'country'}}"
        raise InvalidInput(
            f"{table.uri}: no column is known for {what}, found {name!r}; give the asset the metadata "
            f"'partition_expr', such as {example}, with a column of {table.schema.names}",
            column=name,
        )
    return name


def _spans(definition: Partitions, keys: Iterable[str]) -> list[_Span]:
    """The windows of the keys in order, neighbours as one."""
    assert isinstance(definition, TimeWindowPartitionsDefinition)  # noqa: S101  # as its caller found
    windows = [definition.time_window_for_partition_key(key) for key in keys]
    spans: list[_Span] = []
    for start, end in sorted(((each.start, each.end) for each in windows), key=lambda span: span[0].timestamp()):
        if spans and spans[-1][1].timestamp() == start.timestamp():
            spans[-1] = spans[-1][0], end
        else:
            spans.append((start, end))
    return spans
