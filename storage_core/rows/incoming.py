"""Rows as callers give them: objects of Python, Arrow data, data frames, or what gives a stream of Arrow data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeGuard, cast

import pyarrow as pa

from storage_core.errors import InvalidInput, TidemarkError
from storage_core.repeated import repeated
from storage_core.rows.exact import exact_array
from storage_core.rows.frames import collected, is_frame
from storage_core.rows.library_types import reject_lossy_columns
from storage_core.rows.validity import validated
from storage_core.rows.vectors import type_text
from storage_core.system_errors import of_the_system, unavailable

PIECE_BYTES = 64 * 2**20
"""How much of a stream is in memory at a time: batches up to so many bytes, or one that is larger."""


class ArrowStream(Protocol):
    """What speaks Arrow's PyCapsule interface: a reader of record batches, a relation of DuckDB, a Polars frame."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a capsule with a stream of record batches."""
        ...


InMemory: TypeAlias = Mapping[str, object] | Sequence[Mapping[str, object]] | pa.Table | pa.RecordBatch
Rows: TypeAlias = InMemory | ArrowStream


def table_of(rows: Rows, schema: pa.Schema) -> pa.Table:
    """Return the rows as an Arrow table; one mapping is one row.

    Mappings become columns of the table's types, in its order; columns that no row gives are left out, and a row that
    does not give a column has null. Arrow data stays as it is: `rows.schema.conform` checks its types. A stream is read
    to its end. Raises `InvalidInput` naming a column that the table does not have, whose values would not be kept
    exactly (`rows.exact`), or are not valid for their type (`rows.validity`), and for a stream that breaks off.
    """
    given = read_whole(rows)
    if isinstance(given, pa.Table | pa.RecordBatch):
        return given if is_stream(rows) else validated_rows(given)
    listed = [given] if isinstance(given, Mapping) else _listed(given)
    if not listed:
        return schema.empty_table()
    names: set[str] = set().union(*listed)
    unknown = sorted(names - set(schema.names))
    if unknown:
        raise InvalidInput(f"unknown columns {unknown}; the table has {schema.names}", columns=unknown)
    fields = [each for each in schema if each.name in names]
    columns = [_column(listed, each) for each in fields]
    return validated(pa.Table.from_arrays(columns, names=[each.name for each in fields]))


def validated_rows(given: pa.Table | pa.RecordBatch) -> pa.Table:
    """Return Arrow data as a table. Raises `InvalidInput` for a value that is not valid for its type."""
    return validated(pa.Table.from_batches([given]) if isinstance(given, pa.RecordBatch) else given)


def is_stream(rows: object) -> TypeGuard[ArrowStream]:
    """Return whether the rows come as a stream of batches, as those of every data frame do."""
    if isinstance(rows, Mapping | pa.Table | pa.RecordBatch):
        return False
    is_part = type(rows).__module__.partition(".")[0] == "pandas"  # such as a series, which is a column
    return is_frame(rows) or (hasattr(rows, "__arrow_c_stream__") and not is_part)


def read_whole(rows: Rows) -> InMemory:
    """Return a stream as a table, everything else as it is.

    Raises `InvalidInput` for a stream that breaks off, and for a value in it that is not valid for its type.
    """
    if not is_stream(rows):
        return cast("InMemory", rows)  # or what is no rows at all, which is said where they are read
    reader = reader_of(rows)
    return _joined(reader, _batches(reader))


def pieces_of(rows: ArrowStream) -> Iterator[pa.Table]:
    """Yield the stream as tables of about `PIECE_BYTES`, at least one. Raises `InvalidInput` where it breaks off."""
    reader = reader_of(rows)
    piece: list[pa.Table] = []
    size = 0
    for batch in _batches(reader):
        piece.append(batch)
        size += batch.nbytes
        if size >= PIECE_BYTES:
            yield _joined(reader, piece)
            piece, size = [], 0
    yield _joined(reader, piece)


def reader_of(rows: ArrowStream) -> pa.RecordBatchReader:
    """Return the stream as a reader of batches; nothing is read yet, but a lazy frame is collected.

    Raises `InvalidInput` where there is none, and for a column of DuckDB, Polars or pandas whose values Arrow data does
    not keep.
    """
    rows = _collected(rows)
    if isinstance(rows, pa.Table):
        return rows.to_reader()
    reject_lossy_columns(rows)
    # A reader itself, not as a stream, which would keep nothing but the text of what it raises.
    own = getattr(rows, "to_reader", None)  # of a scan
    try:
        given = rows if own is None else own()
        return given if isinstance(given, pa.RecordBatchReader) else pa.RecordBatchReader.from_stream(rows)
    except Exception as error:  # the library whose rows these are raises what it likes
        raise _broken(rows, error) from error


def _collected(rows: ArrowStream) -> Any:
    try:
        return collected(rows)
    except InvalidInput:
        raise
    except Exception as error:  # the library whose lazy frame it is raises what it likes
        raise _broken(rows, error) from error


def _batches(reader: pa.RecordBatchReader) -> Iterator[pa.Table]:
    """The batches. Rows are counted over all of them in the error about a value that is not valid."""
    first = 0
    while (batch := _next_batch(reader)) is not None:
        yield validated(pa.Table.from_batches([batch]), first)
        first += batch.num_rows


def _next_batch(reader: pa.RecordBatchReader) -> pa.RecordBatch | None:
    try:
        return next(reader, None)
    except Exception as error:  # and so does the generator behind its reader
        raise _broken(reader, error) from error


def _joined(reader: pa.RecordBatchReader, batches: Iterable[pa.Table]) -> pa.Table:
    return pa.concat_tables([reader.schema.empty_table(), *batches])


def _broken(rows: object, error: Exception) -> TidemarkError:
    """What a stream raised, where it is ours or was made of ours; else what the system refuses, or a broken stream."""
    what = f"the stream of Arrow data of a {type(rows).__name__}"
    chain: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in chain:
        chain.append(each)
        each = each.__cause__ or each.__context__
    for each in chain:
        if isinstance(each, TidemarkError):
            return each.reworded(each.found)  # a copy, which can be raised from what it is the cause of
    return unavailable(what, error) if of_the_system(error) else InvalidInput(f"{what} cannot be read: {error}")


def require_each_once(names: Sequence[str]) -> None:
    """Raise `InvalidInput` naming the columns that occur more than once, of which all but one would be lost."""
    if twice := sorted(repeated(names)):
        raise InvalidInput(f"the columns {twice} occur more than once; pass each column once", columns=twice)


def _listed(rows: object) -> list[Mapping[str, object]]:
    listed = list(rows) if isinstance(rows, Iterable) else []
    if isinstance(rows, Iterable) and all(isinstance(each, Mapping) for each in listed):
        return listed
    raise InvalidInput(
        f"rows are mappings of column to value, Arrow data or a data frame, found {type(rows).__name__}. Give one of "
        "these"
    )


def _column(rows: Sequence[Mapping[str, object]], field: pa.Field) -> pa.Array:
    values = [row.get(field.name) for row in rows]
    try:
        return exact_array(values, field.type, field.name)
    except (TypeError, ValueError, OverflowError) as error:
        row, found = _first_misfit(values, field) or (None, error)
        where = "" if row is None else f" (row {row})"
        raise InvalidInput(
            f"column {field.name!r}: a value does not fit the type {type_text(field.type)}: {found}{where}",
            column=field.name,
            row=row,
        ) from error


def _first_misfit(values: Sequence[object], field: pa.Field) -> tuple[int, Exception] | None:
    """The first value that does not fit even by itself, and why."""
    for row, each in enumerate(values):
        try:
            exact_array([each], field.type, field.name)
        except (TypeError, ValueError, OverflowError) as error:
            return row, error
    return None
