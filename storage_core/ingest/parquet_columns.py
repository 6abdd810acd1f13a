"""The columns of a Parquet file as its logical types name them, and those that are read as dictionaries.

Arrow has no type for ENUM, and knows a UUID only where its own schema is stored in the file. JSON is text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

from storage_core.errors import Corrupt, unsound
from storage_core.foreign_text import quoted
from storage_core.ingest.parquet_pages import groups_of_rows
from storage_core.rows.leaves import Change, leaf_types, with_changed_leaves

_VARIANT = re.compile(r"group field_id=\S+ (.*) \(Variant\(")
_DICTIONARIES = {"PLAIN_DICTIONARY", "RLE_DICTIONARY"}


@dataclass(frozen=True, slots=True)
class LogicalTypes:
    """What makes values of a logical type out of what Arrow reads: one entry per leaf, None for most."""

    changes: Sequence[Change | None]

    @staticmethod
    def of(opened: pq.ParquetFile, table: pa.Schema | None = None) -> LogicalTypes:
        """Return what a file needs whose rows a table takes. Nothing is read.

        Raises `Corrupt` for a logical type that neither Arrow nor a table has.
        """
        if variant := _VARIANT.search(str(opened.schema)):
            raise _unheld(variant[1], "VARIANT")
        columns, found = iter(leaves(opened)), list[Change | None]()
        for column in opened.schema_arrow:
            inside = leaf_types(column.type)
            for leaf, wanted in zip(inside, _wanted(column.name, inside, table), strict=True):
                stored = leaf.storage_type if isinstance(leaf, pa.BaseExtensionType) else leaf
                first, *_ = [next(columns) for _ in leaf_types(stored)]
                if first.converted_type == "INTERVAL":
                    raise _unheld(first.path, "INTERVAL")
                found.append(_change(first.logical_type.type, leaf, wanted))
        return LogicalTypes(found)

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns with their logical types."""
        if not any(self.changes):
            return schema
        return pa.schema(list(self._changed(pa.nulls(0, pa.struct(list(schema)))).type))

    def batch(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows with their logical types, without a copy. Text is not validated."""
        return pa.RecordBatch.from_struct_array(self._changed(rows.to_struct_array())) if any(self.changes) else rows

    def _changed(self, rows: pa.StructArray) -> pa.StructArray:
        return with_changed_leaves(rows, iter(self.changes))


def leaves(opened: pq.ParquetFile) -> list[pq.ColumnSchema]:
    """Return the physical columns of a file."""
    return [opened.metadata.schema.column(index) for index in range(opened.metadata.num_columns)]


def dictionary_paths(opened: pq.ParquetFile) -> list[str]:
    """Return the columns of texts that Arrow can read as dictionaries. It cannot where a page has a delta encoding."""
    delta = {column.path_in_schema for column in _text_chunks(opened) if _is_delta(column)}
    return [each.path for each in leaves(opened) if each.physical_type == "BYTE_ARRAY" and each.path not in delta]


def repeats_texts(opened: pq.ParquetFile, dictionaries: Sequence[str]) -> bool:
    """Return whether a text that a page has once may be many values of a column that is not read as a dictionary."""
    known = {*dictionaries}
    return any(
        "DELTA_BYTE_ARRAY" in column.encodings
        or (column.path_in_schema not in known and not _DICTIONARIES.isdisjoint(column.encodings))
        for column in _text_chunks(opened)
    )


def _text_chunks(opened: pq.ParquetFile) -> list[pq.ColumnChunkMetaData]:
    chunks = [
        group.column(index)
        for group in map(opened.metadata.row_group, groups_of_rows(opened.metadata))
        for index in range(group.num_columns)
    ]
    return [each for each in chunks if each.physical_type in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")]


def _is_delta(column: pq.ColumnChunkMetaData) -> bool:
    return any(each.startswith("DELTA_") for each in column.encodings)


def _unheld(column: str, logical: str) -> Corrupt:
    return unsound(
        f"column {quoted(column)} has the logical type {logical}, which tables do not hold. Import a query of DuckDB "
        "that casts the column",
        column=column,
        logical_type=logical,
    )


def _wanted(name: str, inside: Sequence[pa.DataType], table: pa.Schema | None) -> Sequence[pa.DataType | None]:
    """The types of the leaves of a column in a table, None where they are not known."""
    place = -1 if table is None else table.get_field_index(name)
    wanted = [] if table is None or place < 0 else leaf_types(table.field(place).type)
    return wanted if len(wanted) == len(inside) else [None] * len(inside)


def _change(logical: str, leaf: pa.DataType, wanted: pa.DataType | None) -> Change | None:
    if logical == "UUID" and pa.types.is_fixed_size_binary(leaf):
        return lambda values: pa.ExtensionArray.from_storage(pa.uuid(), values)
    held = leaf.value_type if pa.types.is_dictionary(leaf) else leaf
    if logical not in ("ENUM", "JSON") or held not in (pa.string(), pa.binary()):
        return None
    kind = wanted if wanted == pa.binary() else pa.string()
    return None if held == kind else partial(_viewed, kind=kind)


def _viewed(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_dictionary(values.type):
        return values.view(kind)
    return pa.DictionaryArray.from_arrays(values.indices, values.dictionary.view(kind))
