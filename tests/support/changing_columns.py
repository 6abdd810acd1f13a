"""A model, in plain Python, of a table whose columns change. Rows are keyed by the constant column ID."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from math import isnan
from typing import Any

import duckdb
import pyarrow as pa
from hypothesis import strategies as st

Row = dict[int, Any]

WIDER: Mapping[str, tuple[str, ...]] = {
    "byte": ("short", "integer", "long"),
    "short": ("integer", "long"),
    "integer": ("long",),
    "float": ("double",),
    "decimal(5,2)": ("decimal(9,2)", "decimal(30,2)"),
    "decimal(9,2)": ("decimal(30,2)",),
    "date": ("timestamp", "timestamp_ntz"),
}
"""The types to which a column of each type can be widened."""

DAYS = [dt.date(1969, 12, 31), dt.date(2000, 2, 29), dt.date(2026, 1, 1)]
VALUES: Mapping[str, Sequence[Any]] = {
    **dict.fromkeys(("byte", "short", "integer", "long"), (-128, -1, 0, 1, 127)),
    **{name: (-1.5, 0.0, 0.1, float("nan"), float("inf"), 7.25) for name in ("float", "double")},
    **{f"decimal({digits},2)": (Decimal("-999.99"), Decimal("0.10")) for digits in (5, 9, 30)},
    "date": DAYS,
    "timestamp": [dt.datetime(day.year, day.month, day.day, tzinfo=dt.UTC) for day in DAYS],
    "timestamp_ntz": [dt.datetime(day.year, day.month, day.day) for day in DAYS],  # noqa: DTZ001  # a time without zone
    "string": ["", "a", "it's", "é" * 40],
    "boolean": [True, False],
    "words": ["ebb", "flood tide", "ebb tide", "tide tide", ""],
    "place": [[0.0, 0.0], [1.0, 0.0], [0.0, -2.0], [3.0, 4.0]],
    "instant": [dt.datetime(2026, 1, 1, hour, 5 * hour, tzinfo=dt.UTC) for hour in range(4)],
}
"""Values of each type. A wider type also has the values of its narrower types. The last three types are not widened."""

BEYOND: Mapping[str, Any] = {"short": 30_000, "integer": 2**30, "long": 2**40, "double": 1e300}
"""One value for each type. The value is too large for the next narrower type."""

NAMES = ["a", "b", "c", "A~5", "it's"]


@dataclass(frozen=True)
class Column:
    """A column as of one version. `default` is None for null."""

    id: int
    name: str
    type: str
    default: Any = None
    required: bool = False

    def value(self, row: Row) -> Any:
        """Return the value of the column for a row. The row maps column IDs to the values at the time of its write."""
        found = row.get(self.id, self.default)
        return found if found is None else shown(found, self.type)


@dataclass
class Model:
    """The current columns of a table, and the number of all columns that it ever had."""

    columns: list[Column]
    last: int = field(default=0)
    dropped: dict[int, Column] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Count the columns."""
        self.last = max(each.id for each in self.columns)

    def free_names(self) -> list[str]:
        """Return names that no column has now."""
        taken = {each.name for each in self.columns}
        return [name for name in NAMES if name not in taken]

    def add(self, name: str, type_: str, default: Any) -> None:
        """Add a column."""
        self.last += 1
        self.columns = [*self.columns, Column(self.last, name, type_, default)]

    def change(self, column: Column, **changes: Any) -> None:
        """Change a column."""
        self.columns = [replace(each, **changes) if each == column else each for each in self.columns]

    def drop(self, column: Column) -> None:
        """Drop a column."""
        self.columns = [each for each in self.columns if each != column]
        self.dropped[column.id] = column

    def restore(self, columns: Sequence[Column], *, is_keyed: bool) -> None:
        """Restore the columns of an older version.

        Each column keeps the widest type that it had since that version, even if it was dropped.

        A required column that was dropped in the meantime becomes optional if records may have been written without it.
        """
        now = {each.id: each for each in self.columns}
        self.dropped |= now
        known = [_as_wide(each, self.dropped.get(each.id, each)) for each in columns]
        self.columns = [replace(each, required=each.required and (each.id in now or not is_keyed)) for each in known]


def _as_wide(column: Column, now: Column) -> Column:
    return replace(column, type=now.type, required=column.required and now.required)


def shown(value: Any, type_: str) -> Any:
    """Return `value` as a read returns the value from a column of this type. `value` may have a narrower type."""
    if type_.startswith("timestamp") and not isinstance(value, dt.datetime):
        zone = dt.UTC if type_ == "timestamp" else None
        return dt.datetime(value.year, value.month, value.day, tzinfo=zone)
    return value


def values(column: Column) -> st.SearchStrategy[Any]:
    """Return a strategy for the values of a column. Each float is equal in 32 and 64 bits."""
    known = [each for each in VALUES[column.type] if each != 0.1]
    found = st.sampled_from([*known, *([BEYOND[column.type]] if column.type in BEYOND else [])])
    return found if column.required else st.none() | found


def listed(rows: Sequence[Row], columns: Sequence[Column]) -> list[str]:
    """Return the rows as sorted texts, in which NaN equals itself."""
    return sorted(str({each.name: each.value(row) for each in columns}) for row in rows)


def read(rows: Any) -> list[str]:
    """Return the rows of an Arrow table in the form of `listed`."""
    return sorted(str({name: plain(value) for name, value in row.items()}) for row in rows.to_pylist())


def plain(value: Any) -> Any:
    """Return a value in the form in which the model stores it. All UTC times have the same time zone object."""
    is_zoned = isinstance(value, dt.datetime) and value.tzinfo is not None
    return value.astimezone(dt.UTC) if is_zoned else value


def matching(rows: pa.Table, condition: str) -> list[int]:
    """Return the positions of the rows that meet a condition, as DuckDB evaluates it on a plain table."""
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("rows", rows.append_column("~place", pa.array(range(len(rows)), pa.int64())))
    found = connection.execute(f'SELECT "~place" FROM rows WHERE {condition}').fetchall()  # a query of the test
    return [place for (place,) in found]


def conditions(columns: Sequence[Column]) -> st.SearchStrategy[str]:
    """Return conditions on columns whose values have an order."""
    leaves = st.sampled_from([each for each in columns if each.type != "place"]).flatmap(_leaves)
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds("({} and {})".format, inner, inner),
            st.builds("({} or {})".format, inner, inner),
            st.builds("not ({})".format, inner),
        ),
        max_leaves=4,
    )


def _leaves(column: Column) -> st.SearchStrategy[str]:
    name = '"' + column.name.replace('"', '""') + '"'
    literals = st.sampled_from([*VALUES[column.type], *([BEYOND[column.type]] if column.type in BEYOND else [])])
    compared = st.builds(f"{name} {{}} {{}}".format, st.sampled_from(["=", "<", ">=", "<>"]), literals.map(_literal))
    listed_ = st.lists(literals.map(_literal), min_size=1, max_size=3).map(", ".join).map(f"{name} in ({{}})".format)
    return st.one_of(compared, listed_, st.sampled_from([f"{name} is null", f"{name} is not null"]))


def _literal(value: Any) -> str:
    match value:
        case str():
            return "'" + value.replace("'", "''") + "'"
        case dt.datetime():
            return f"{'TIMESTAMP' if value.tzinfo is None else 'TIMESTAMPTZ'} '{value}'"
        case dt.date():
            return f"DATE '{value}'"
        case float():
            return f"'{value}'::double"
        case _:
            return str(value)


def key(value: Any) -> object:
    """Return a value that is equal for two rows if, and only if, an upsert treats their keys as equal."""
    return "nan" if isinstance(value, float) and isnan(value) else value
