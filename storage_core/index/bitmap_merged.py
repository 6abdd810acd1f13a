"""Several bitmap segments as one: rows are permuted, no row is read (decision 0122)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from storage_core.index import bitmap
from storage_core.index.covering import Renumbered
from storage_core.index.damage import damaged
from storage_core.rows.keys import Positions
from storage_core.rows.positions import positions
from storage_core.settings.index import IndexDefinition


def merge(parts: Sequence[Renumbered], count: int, definition: IndexDefinition, schema: pa.Schema) -> dict[str, bytes]:
    """Return the files of one segment of `count` rows, given the new number of each row of several, negative for none.

    Each of the `count` rows comes from a part. The same bytes as of a segment that is built over these rows. One Python
    step per distinct value of a part. Memory: 12 bytes per row, and the values of one column as Arrow has them. Raises
    `Corrupt` for bitmaps that name a row twice, or one that the part has not.
    """
    columns = {column: _column(parts, count, definition, schema.field(column)) for column in definition.columns}
    return bitmap.build(pa.table(columns), definition)


def _column(parts: Sequence[Renumbered], count: int, definition: IndexDefinition, field: pa.Field) -> pa.Array:
    """The values of a column by the rows of the merged segment."""
    values, codes, first = list[pa.Array](), np.full(count, -1), 0
    for files, rows in parts:
        own, of_row = _decoded(files, len(rows), definition, field.name)
        kept = (rows >= 0) & (of_row >= 0)
        codes[rows[kept]] = of_row[kept] + first
        values.append(own.cast(field.type))
        first += len(own)
    every = pa.chunked_array(values).combine_chunks()
    return every.take(pa.array(codes, mask=codes < 0))


def _decoded(
    files: Mapping[str, bytes | memoryview], rows: int, definition: IndexDefinition, column: str
) -> tuple[pa.Array, Positions]:
    """The distinct values of a part, and which of them each row has, -1 for null."""
    where = f"a bitmap segment of index {definition.name!r}"
    values_file, bitmaps_file = bitmap.column_files(definition, column)
    with bitmap.damage(where):
        values = bitmap.value_table(pa.BufferReader(files[values_file])).column("value").combine_chunks()
    known = bitmap.column_values(files[values_file], size=len(files[bitmaps_file]), where=where)
    held = bitmap.bitmaps_within(known, files[bitmaps_file], where=where)
    codes, named = np.full(rows, -1), 0
    for place, data in enumerate(held.read(np.arange(len(values) - values.null_count))):
        with bitmap.damage(where):
            found = positions(BitMap.deserialize(bytes(data)))
        if len(found) and int(found[-1]) >= rows:
            raise damaged(where, f"names row {found[-1]} of {rows}")
        codes[found] = place
        named += len(found)
    if named != int((codes >= 0).sum()):
        raise damaged(where, "has a row under two values")
    return values, codes
