"""The columns of a table as Spark has them: the log keeps them as a schema of Spark's (`rows.schema`)."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from storage_core.errors import InvalidInput
from storage_core.rows.change_columns import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from storage_core.rows.schema import to_schema_string


def spark_schema(schema: pa.Schema, columns: Sequence[str] | None = None) -> StructType:
    """Return the columns, or these of them, in order; vectors are arrays of floats."""
    chosen = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    described = json.loads(to_schema_string(chosen))
    return StructType.fromJson({**described, "fields": [{**each, "metadata": {}} for each in described["fields"]]})


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the types of the Arrow data in which Spark hands over rows with these columns.

    Raises `InvalidInput` naming a column whose type Arrow data does not have, such as an interval of months.
    """
    fields = []
    for each in schema.fields:
        try:
            fields += to_arrow_schema(StructType([each]), timezone="UTC")
        except PySparkTypeError as error:
            raise InvalidInput(
                f"column {each.name!r} has the type {each.dataType.simpleString()} of Spark, which tables do not hold. "
                "Cast it first, for example to string.",
                column=each.name,
            ) from error
    return pa.schema(fields)


def change_schema(columns: StructType) -> StructType:
    """Return the columns of changes to rows with these columns: see `read.changes`."""
    return StructType(
        [
            *columns.fields,
            StructField(CHANGE_TYPE, StringType(), nullable=False),
            StructField(COMMIT_VERSION, LongType(), nullable=False),
            StructField(COMMIT_TIMESTAMP, TimestampType(), nullable=False),
        ]
    )


def require_schema(given: StructType, expected: StructType) -> None:
    """Return when Spark was given the columns of the table. Raises `InvalidInput` for others."""
    if given != expected:
        raise InvalidInput(
            f"Spark expects the columns {given.simpleString()}, and the table has {expected.simpleString()}: leave "
            "schema(…) out and choose by the option columns; where the table was altered meanwhile, load it again"
        )
