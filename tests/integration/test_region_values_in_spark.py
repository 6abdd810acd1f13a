"""Region values are equal for Spark columns and Arrow batches, and Spark's native functions give the same buckets."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from jobs.spark.spark import Spark
from storage_core.data.settings.layout import RegionField
from storage_core.write.region.spec import canonical, declared_fields, field_values
from tests.integration.region_columns import SEED_ZERO, region_column

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

DAYS = [dt.date(1970, 1, 2), dt.date(2024, 2, 29), dt.date(1969, 12, 31), dt.date(1, 1, 1), dt.date(9999, 12, 31), None]
TIMES = [
    *map(dt.datetime.fromisoformat, ("1970-01-01T00:00:01", "2024-02-29", "1969-12-31")),
    *map(dt.datetime.fromisoformat, ("1969-12-31T23:59:59.999999", "9999-12-31T23:59:59.999999")),
    None,
]
COLUMNS: dict[str, tuple[pa.DataType, list[object]]] = {
    "bool": (pa.bool_(), [True, False, None, True, False, True]),
    "byte": (pa.int8(), [1, 5, 123, -1, -128, None]),
    "int": (pa.int32(), [1, 5, 123, -1, -(2**31), None]),
    "long": (pa.int64(), [1, 5, 123, -1, -(2**63), None]),
    "float": (pa.float32(), [1.25, -0.0, float("nan"), 2.5, float("-inf"), None]),
    "double": (pa.float64(), [1.25, -0.0, float("nan"), 2.5, 1e300, None]),
    "text": (pa.string(), ["a", "b", "hello!", "", "éàxyz𝄞", None]),
    "blob": (pa.binary(), [b"a", b"", b"\xff\x80\x01", b"abcd", b"abcdefg", None]),
    "day": (pa.date32(), list(DAYS)),
    "local": (pa.timestamp("us"), list(TIMES)),
    "at": (pa.timestamp("us", tz="UTC"), [each and each.replace(tzinfo=dt.UTC) for each in TIMES]),
    "price": (pa.decimal128(10, 2), [Decimal("1.50"), Decimal("-0.01"), Decimal(0), Decimal(7), Decimal(99), None]),
    "huge": (
        pa.decimal128(38, 2),
        [Decimal("1.50"), Decimal(10**30), Decimal(-(10**30)), Decimal(0), Decimal(1), None],
    ),
}
ROWS = pa.table({name: pa.array(values, type_) for name, (type_, values) in COLUMNS.items()})
DECLARED: list[Mapping[str, object]] = [
    *({"transform": "identity", "source": name} for name in COLUMNS),
    *({"transform": "bucket", "source": name, "n": 8} for name in COLUMNS),
    *({"transform": part, "source": name} for part in ("year", "month", "day") for name in ("day", "local", "at")),
    *({"transform": "hour", "source": name} for name in ("local", "at")),
    *({"transform": "truncate", "source": name, "width": 3} for name in ("byte", "int", "long", "text")),
    {"transform": "multi_bucket", "sources": ["long", "text", "at", "float"], "n": 1000},
    {"transform": "multi_bucket", "sources": ["huge", "text"], "n": 1000},
    {"field": "sum", "expression": "coalesce(col0, 0) + length(coalesce(col1, ''))", "sources": ["int", "text"]},
    {"field": "when", "expression": "date_trunc('month', col0)::DATE", "source": "at"},
]
GOLDEN = {"long": [4, 7, 2, 0], "text": [1, 5, 7], "bool": [2, 6], "double": [0, 4, 5, 4], "day": [2, 4, 0],
          "at": [6, 6, 7]}  # fmt: skip


@pytest.fixture(scope="module")
def session(spark: Spark) -> SparkSession:
    return spark.session()


def fields() -> tuple[RegionField, ...]:
    return declared_fields(DECLARED, ROWS.schema)


def test_a_spark_column_holds_what_an_arrow_batch_holds(session: SparkSession) -> None:
    from pyspark.sql.types import TimestampNTZType

    # Without a schema Spark reads a time without a zone as an instant in the session's zone.
    spark_schema = session.createDataFrame(ROWS.slice(0, 0)).schema
    spark_schema["local"].dataType = TimestampNTZType()
    frame = session.createDataFrame(ROWS, schema=spark_schema)
    chosen = fields()
    for zone in ("UTC", "Pacific/Apia"):
        session.conf.set("spark.sql.session.timeZone", zone)
        columns = [region_column(each, ROWS.schema).alias(f"c{at}") for at, each in enumerate(chosen)]
        answer = frame.select(*columns).toArrow()
        for at, field in enumerate(chosen):
            expected = field_values(field, ROWS)
            found = answer.column(at).combine_chunks().cast(expected.type)
            assert canonical(found) == canonical(expected), (zone, field)
    session.conf.set("spark.sql.session.timeZone", "UTC")


def test_buckets_of_the_protocol_come_natively(session: SparkSession) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    frame = session.createDataFrame(ROWS)
    native = {name: F.hash(F.lit(SEED_ZERO), F.col(name)).bitwiseAND(F.lit(2147483647)) % 8 for name in GOLDEN}
    answer = frame.select(*(column.alias(name) for name, column in native.items())).toArrow()
    for name, expected in GOLDEN.items():
        assert answer.column(name).to_pylist()[: len(expected)] == expected
