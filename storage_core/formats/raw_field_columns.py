"""Rows in columns as the JSON text of raw log records, without an object per row (docs/architecture/ingestion.md,
"Records").

Pure. `formats.raw_fields.encode_fields` says what a row's text is; this makes the same text column by column, and
takes from there the values of types that it has no faster way for.
"""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pyarrow.compute as pc

from storage_core.formats.raw_fields import encode_name, encode_value

ROWS_AT_ONCE = 65_536
"""So many rows' texts lie in memory twice."""

NOT_IN_PYTHON = (ValueError, ArithmeticError, LookupError, pa.ArrowException)
"""What Arrow raises where Python has no such value: a date too late, text that is no text, a zone that it lacks."""

_ESCAPED = r'["\\\x00-\x1f]'
_YEARS = (dt.datetime(2, 1, 1), dt.datetime(9998, 1, 1))  # noqa: DTZ001  # for columns with and without a zone
_SPACE = len("2024-01-01")
_SECONDS = len("2024-01-01T00:00:00")


def encode_rows(rows: pa.Table) -> list[str] | None:
    """Return what `encode_fields` returns for each row of `rows.to_pylist()`; None where it would refuse one.

    Nor is anything returned for rows without columns, and for two columns of one name.
    """
    names = rows.column_names
    if not names or len({*names}) < len(names):
        return None
    texts: list[str] = []
    try:
        for batch in rows.to_batches(max_chunksize=ROWS_AT_ONCE):
            texts += _rows(batch).to_pylist()
    except (TypeError, RecursionError, *NOT_IN_PYTHON):
        return None
    return texts


def _rows(batch: pa.RecordBatch) -> pa.StringArray:
    parts: list[pa.Array | str] = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        parts += [f"{',' if parts else '{'}{encode_name(name)}:", pc.fill_null(_values(column), "null")]
    return pc.binary_join_element_wise(*parts, "}", "")


def _values(column: pa.Array) -> pa.StringArray:
    """The values as JSON; null where there is none."""
    kinds, type_ = pa.types, column.type
    # All of 64 bits without a sign are more than a raw log takes.
    if kinds.is_boolean(type_) or (kinds.is_integer(type_) and type_ != pa.uint64()):
        return column.cast(pa.string())
    if kinds.is_string(type_) or kinds.is_large_string(type_) or kinds.is_string_view(type_):
        text = column.cast(pa.string())
        return _one_by_one(text) if _any(pc.match_substring_regex(text, _ESCAPED)) else _around('"', text, '"')
    if type_ in (pa.float32(), pa.float64()) and not _any(pc.invert(pc.is_finite(column))):
        return pa.array([None if each is None else repr(each) for each in column.to_pylist()], pa.string())
    if kinds.is_date32(type_) and _among_years(column):
        return _around('{"$date":"', column.cast(pa.string()), '"}')
    if kinds.is_timestamp(type_) and type_.unit != "ns" and _among_years(column):
        column.drop_null()[:1].to_pylist()  # raises for a zone that is refused one by one, too
        return _instants(column)
    return _one_by_one(column)


def _one_by_one(column: pa.Array) -> pa.StringArray:
    return pa.array([None if each is None else encode_value(each) for each in column.to_pylist()], pa.string())


def _instants(column: pa.Array) -> pa.StringArray:
    """As `isoformat` writes them: without a fraction when it is zero."""
    local = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).cast(pa.timestamp("us"))
    text = pc.utf8_replace_slice(local.cast(pa.string()), _SPACE, _SPACE + 1, "T")
    whole = pc.equal(local, pc.floor_temporal(local, unit="second"))
    text = pc.if_else(whole, pc.utf8_slice_codeunits(text, 0, _SECONDS), text)
    return (
        _around('{"$local":"', text, '"}') if column.type.tz is None else _around('{"$timestamp":"', text, '+00:00"}')
    )


def _among_years(column: pa.Array) -> bool:
    """Whether all of them are such that Python has them, in every zone."""
    first, last = (pa.scalar(each).cast(column.type) for each in _YEARS)
    return not _any(pc.or_(pc.less(column, first), pc.greater(column, last)))


def _around(before: str, text: pa.StringArray, after: str) -> pa.StringArray:
    return pc.binary_join_element_wise(before, text, after, "")


def _any(found: pa.BooleanArray) -> bool:
    return bool(pc.any(found).as_py())
