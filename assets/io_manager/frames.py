"""The types of rows that assets return and load: Arrow, pandas, Polars, DuckDB and Spark.

The module recognizes a type by its name. Recognizing a type therefore imports no library such as pandas or Polars. Data
frames of pandas keep their Arrow types. Data frames of Spark use the Spark session of this process.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias, assert_never

import pyarrow as pa

from storage_core.base.errors import PIPELINE, InvalidInput, Unavailable, needs
from storage_core.base.text import shortened
from storage_core.data.rows.incoming import collected, is_stream, reader_of

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

    from storage_core.read.scan import Scan


# Data frames of pandas and Spark.


def pandas_frame_of(rows: pa.Table) -> pd.DataFrame:
    """Return the rows as a pandas data frame. The columns keep their Arrow types (`pandas.ArrowDtype`).

    With Arrow types, a column of integers can contain nulls, and NaN is different from null. Lists, structs and maps
    keep their values. NumPy's types support neither nulls in integer columns nor lists, structs and maps. Raises
    `Unavailable` if pandas is not installed.
    """
    with needs(PIPELINE, "a data frame of pandas"):
        import pandas as pd
    return rows.to_pandas(types_mapper=pd.ArrowDtype)


def spark_frame_of(rows: pa.Table) -> DataFrame:
    """Return the rows as a data frame of the active Spark session.

    If no session is active, Spark creates one from its own settings.

    Raises:
        Unavailable: PySpark is not installed, or Spark does not start.
    """
    with needs(PIPELINE, "a data frame of Spark"):
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    try:
        session = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
        return session.createDataFrame(rows)
    except (PySparkException, OSError) as error:
        raise _failed(error) from error


def rows_of(frame: DataFrame) -> pa.Table:
    """Load all rows of a data frame into this process and return the rows. Raises `Unavailable` if Spark fails."""
    from pyspark.errors import PySparkException

    try:
        return frame.toArrow()
    except (PySparkException, OSError) as error:
        raise _failed(error) from error


def _failed(error: Exception) -> Unavailable:
    return Unavailable(f"Spark did not give the rows: {str(error).partition('JVM stacktrace:')[0].strip()}")


# Types of rows.


Data: TypeAlias = pa.Table | pa.RecordBatchReader
"""Arrow data with columns that are known before the first row is read."""


class Form(StrEnum):
    """A type of Python object that contains rows. The value of each member is the name of the type in settings."""

    ARROW = "arrow"
    READER = "reader"
    PANDAS = "pandas"
    POLARS = "polars"
    POLARS_LAZY = "polars_lazy"
    DUCKDB = "duckdb"
    SPARK = "spark"


# The keys are the top-level package and the class name, because libraries move classes between their modules.
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
    """Return the `Form` of a class in `_FORMS`. For objects that are not in `_FORMS`, return None."""
    if not isinstance(kind, type) or kind.__module__.startswith(_NOT_ROWS):
        return None
    return _FORMS.get((kind.__module__.partition(".")[0], kind.__name__))


def rows_in(scan: Scan, form: Form) -> object:
    """Return the rows of a scan in the given form. Every form except `READER` loads all rows into memory at once.

    Raises:
        Unavailable: The library is not installed. The message contains the extra.
    """
    match form:
        case Form.ARROW:
            return scan.to_arrow()
        case Form.READER:
            return scan.to_reader()
        case Form.PANDAS:
            return pandas_frame_of(scan.to_arrow())
        case Form.POLARS:
            return scan.to_polars()
        case Form.POLARS_LAZY:
            return scan.to_polars().lazy()
        case Form.DUCKDB:
            return scan.to_duckdb()
        case Form.SPARK:
            return spark_frame_of(scan.to_arrow())
        case _:
            assert_never(form)


def data_of(value: object) -> Data:
    """Return the value of an asset as Arrow data. The class of the value can also be a subclass of a known class.

    A reader, a DuckDB relation and a Polars data frame are read as streams, so memory stays bounded. The rows of a
    Spark data frame are loaded into this process at once. Raises `InvalidInput` for any other type.
    """
    form = next(filter(None, map(form_of, type(value).__mro__)), None)
    if form is None:
        raise InvalidInput(
            f"the asset returned a {shortened(_name(type(value)))}, which a table cannot store. Return {TYPES}."
        )
    rows = rows_of(value) if form is Form.SPARK else collected(value)  # type: ignore[arg-type]  # by its form
    return reader_of(rows) if is_stream(rows) else rows


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def required_form(kind: object) -> Form:
    """Return the `Form` for an input's type annotation. Raises `InvalidInput` for an unknown annotation."""
    form = form_of(kind)
    if form is None:
        shown = _name(kind) if isinstance(kind, type) else str(kind)
        raise InvalidInput(f"a table cannot be loaded as the annotation {shortened(shown)}. Write {TYPES}.")
    return form
