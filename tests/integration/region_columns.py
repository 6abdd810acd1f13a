"""Region values computed with Spark's own functions, as a reference for `storage_core.write.region.spec`.

Two kinds of values have no function in Spark. Spark cannot evaluate DuckDB's SQL expressions, and has no function for
Tidemark's hash of decimals with a precision above 18. For both kinds, the Spark workers run Tidemark's code on Arrow
batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, assert_never

import pyarrow as pa

from storage_core.data.settings.layout import RegionField
from storage_core.write.region.expressions import Transform, TransformKind, parse_transform
from storage_core.write.region.spec import field_values

if TYPE_CHECKING:
    from pyspark.sql import Column

SEED_ZERO = -1693959553
"""The integer whose hash under Spark's seed 42 is 0. The next argument of `hash` is then hashed with seed 0."""
_HASH_MASK = 0x7FFFFFFF
_HOUR_US = 3_600_000_000
_DAY_US = 24 * _HOUR_US
_LEAST = -(2**63)
_MOST_NATIVE_PRECISION = 18


def region_column(field: RegionField, schema: pa.Schema) -> Column:
    """Return a Spark column with the value of a region field. The column is for a DataFrame with the table's columns.

    Needs a running session. The result does not depend on the session's time zone.
    """
    types = [schema.field(name).type for name in field.source_ids]
    if field.transform is None or any(_is_wide_decimal(each) for each in types):
        return _by_arrow(field)
    sources = [_Source(name, type_) for name, type_ in zip(field.source_ids, types, strict=True)]
    return _natively(parse_transform(field.transform), sources)


class _Source:
    """A source column with its name, its Arrow type, and its conversions to the types that transforms need."""

    def __init__(self, name: str, type_: pa.DataType) -> None:
        from pyspark.sql import functions as F  # noqa: N812  # the name that PySpark's users know

        self.type = type_
        self.column = F.col(f"`{name.replace('`', '``')}`")

    @property
    def wide(self) -> Column:
        """Return the value in the form of `region.expressions.widened`: 64 bits, and -0.0 becomes 0.0."""
        if pa.types.is_integer(self.type):
            return self.column.cast("long")
        return self.column.cast("double") + 0.0 if pa.types.is_floating(self.type) else self.column

    @property
    def micros(self) -> Column:
        """Return an instant in microseconds. A time without a zone counts as UTC."""
        from pyspark.sql import functions as F  # noqa: N812

        if self.type.tz is not None:
            return F.unix_micros(self.column)
        seconds = F.unix_date(F.to_date(self.column)).cast("long") * 86_400
        clock = F.hour(self.column) * 3600 + F.minute(self.column) * 60
        return (seconds + clock) * 1_000_000  # no transform uses seconds or smaller units

    @property
    def date(self) -> Column:
        """Return the calendar date in UTC."""
        from pyspark.sql import functions as F  # noqa: N812

        if pa.types.is_date32(self.type):
            return self.column
        day = F.lit(_DAY_US)
        # A float represents every multiple of a day exactly. So only the division can cause a rounding error, which
        # `round` removes.
        days = F.round((self.micros - F.pmod(self.micros, day)) / day)
        return F.date_from_unix_date(days.cast("int"))


def _natively(transform: Transform, sources: list[_Source]) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    source = sources[0]
    match transform.kind:
        case TransformKind.IDENTITY:
            return source.wide
        case TransformKind.YEAR:
            return F.year(source.date)
        case TransformKind.MONTH:
            return F.month(source.date)
        case TransformKind.DAY:
            return F.dayofmonth(source.date)
        case TransformKind.HOUR:
            return F.floor(F.pmod(source.micros, F.lit(_DAY_US)) / F.lit(_HOUR_US)).cast("int")
        case TransformKind.BUCKET | TransformKind.MULTI_BUCKET:
            hashed = F.hash(F.lit(SEED_ZERO), *(each.wide for each in sources))
            return hashed.bitwiseAND(F.lit(_HASH_MASK)) % F.lit(transform.parameter)
        case TransformKind.TRUNCATE:
            return _truncated(source, transform.parameter)
        case _:
            assert_never(transform.kind)


def _truncated(source: _Source, width: int) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    if not pa.types.is_integer(source.type):
        return F.substring(source.column, 1, width)
    least, remainder = F.lit(_LEAST).cast("long"), F.pmod(source.wide, F.lit(width).cast("long"))
    return F.when(source.wide < least + remainder, least).otherwise(source.wide - remainder)


def _by_arrow(field: RegionField) -> Column:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.pandas.functions import arrow_udf

    compute = arrow_udf(_computing(field), field.result_type)  # type: ignore[call-overload]  # its hints say the kind
    answer: Column = compute(*(F.col(f"`{name.replace('`', '``')}`") for name in field.source_ids))
    return answer


def _computing(field: RegionField) -> Callable[..., pa.Array]:
    def compute(*columns: pa.Array) -> pa.Array:
        return field_values(field, pa.table(list(columns), names=list(field.source_ids)))

    return compute


def _is_wide_decimal(type_: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(type_)) and type_.precision > _MOST_NATIVE_PRECISION
