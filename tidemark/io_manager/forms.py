"""The types in which rows come out of a table and go into one: each known by its name, none imported to be known."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias, assert_never

import pyarrow as pa

from storage_core.errors import InvalidInput
from storage_core.foreign_text import shortened
from storage_core.rows.frames import collected
from storage_core.rows.incoming import is_stream, reader_of
from tidemark.io_manager import pandas_frames, spark_frames

if TYPE_CHECKING:
    from storage_core.read.scan import Scan


Data: TypeAlias = pa.Table | pa.RecordBatchReader
"""Its columns are known before a row is read."""


class Form(StrEnum):
    """A type of rows, by the name that a setting gives it."""

    ARROW = "arrow"
    READER = "reader"
    PANDAS = "pandas"
    POLARS = "polars"
    POLARS_LAZY = "polars_lazy"
    DUCKDB = "duckdb"
    SPARK = "spark"


# By the package that a class comes from, and its name: where in the package it is defined, its maintainers change.
_FORMS: Mapping[tuple[str, str], Form] = {
    ("pyarrow", "Table"): Form.ARROW,
    ("pyarrow", "RecordBatchReader"): Form.READER,
    ("pandas", "DataFrame"): Form.PANDAS,
    ("polars", "DataFrame"): Form.POLARS,
    ("polars", "LazyFrame"): Form.POLARS_LAZY,
    ("duckdb", "DuckDBPyRelation"): Form.DUCKDB,
    ("_duckdb", "DuckDBPyRelation"): Form.DUCKDB,
    ("pyspark", "DataFrame"): Form.SPARK,
}
_NOT_ROWS = "pyspark.pandas"

TYPES = (
    "pyarrow.Table, pyarrow.RecordBatchReader, pandas.DataFrame, polars.DataFrame, polars.LazyFrame, "
    "duckdb.DuckDBPyRelation or pyspark.sql.DataFrame"
)


def form_of(kind: object) -> Form | None:
    """Return the form that a class is, exactly; None for any other class, and for what is no class."""
    if not isinstance(kind, type) or kind.__module__.startswith(_NOT_ROWS):
        return None
    return _FORMS.get((kind.__module__.partition(".")[0], kind.__name__))


def rows_in(scan: Scan, form: Form) -> object:
    """Return the rows of a scan in a form. Raises `Unavailable` naming the extra, where its library is not installed.

    All rows are in memory at once, but for `READER`.
    """
    match form:
        case Form.ARROW:
            return scan.to_arrow()
        case Form.READER:
            return scan.to_reader()
        case Form.PANDAS:
            return pandas_frames.frame_of(scan.to_arrow())
        case Form.POLARS:
            return scan.to_polars()
        case Form.POLARS_LAZY:
            return scan.to_polars().lazy()
        case Form.DUCKDB:
            return scan.to_duckdb()
        case Form.SPARK:
            return spark_frames.frame_of(scan.to_arrow())
        case _:
            assert_never(form)


def data_of(value: object) -> Data:
    """Return what an asset gives, of one of the types or a class derived from one, as Arrow data.

    A reader, a relation of DuckDB and a frame of Polars are streams, so that memory stays bounded; the rows of Spark
    come into this process whole. Raises `InvalidInput` for any other type.
    """
    form = next(filter(None, map(form_of, type(value).__mro__)), None)
    if form is None:
        raise InvalidInput(f"a table takes {TYPES}; the asset returned a {shortened(_name(type(value)))}: return one")
    rows = spark_frames.rows_of(value) if form is Form.SPARK else collected(value)  # type: ignore[arg-type]  # by its form
    return reader_of(rows) if is_stream(rows) else rows


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def required_form(kind: object) -> Form:
    """Return the form that an annotation asks for. Raises `InvalidInput` where it is none."""
    form = form_of(kind)
    if form is None:
        shown = _name(kind) if isinstance(kind, type) else str(kind)
        raise InvalidInput(f"a table is loaded as {TYPES}; found the annotation {shortened(shown)}: write one of these")
    return form
