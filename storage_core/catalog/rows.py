"""Splits as rows of a catalogue: columns of the log's files to columns of the database, and back.

Bounds, null counts and expressions are JSON objects by the position of the column in the table's schema, which never
goes to another column: its id once columns changed, and until then where it stands, from 1. Numbers and booleans are
JSON's own, spelled as the log spells them, everything else is text; so nothing is lost on the way back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.log import deletion_vector
from storage_core.log.actions import Metadata
from storage_core.log.files.columns import FILES_SCHEMA
from storage_core.rows.bound_text import decode_column
from storage_core.rows.columns import column_id, numbered, stored_name
from storage_core.rows.dropped_columns import dropped_columns
from storage_core.rows.schema import from_schema_string
from storage_core.rows.sort_order import nameless
from storage_core.settings.table import TableConfig

_NUMBER: Final = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$"
_NOT_PLAIN: Final = "[\\x00-\\x1f\\x7f]"
_US: Final = 1_000_000
_FURTHEST_S: Final = 2**62 // _US
"""Windows beyond have no time in microseconds."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that a table has or had, by the names that splits have for them: position and type."""

    positions: Mapping[str, int]
    types: Mapping[str, pa.DataType]
    described: str
    time_column: str | None

    @staticmethod
    def of(metadata: Metadata, config: TableConfig) -> Columns:
        """Return the columns of a table with this metadata. Raises `InvalidInput` for what cannot be read."""
        schema = numbered(from_schema_string(metadata.schemaString))
        own = [(column_id(each) or 0, each.name, stored_name(each), each.type, False) for each in schema]
        own += [
            (number, each.name, each.name, each.type, True)
            for number, each in dropped_columns(metadata.configuration).items()
        ]
        names = ("position", "name", "stored_name", "type", "dropped")
        time = next((stored for _, name, stored, _, gone in own if name == config.time_column and not gone), None)
        return Columns(
            positions={stored: number for number, _, stored, _, _ in own},
            types={stored: kind for _, _, stored, kind, _ in own},
            described=json.dumps([dict(zip(names, (*each[:3], str(each[3]), each[4]), strict=True)) for each in own]),
            time_column=time,
        )

    @property
    def names(self) -> dict[str, str]:
        """The stored names by position, as JSON objects have it."""
        return {str(number): name for name, number in self.positions.items()}


def split_rows(files: pa.Table, columns: Columns, table_id: str) -> pa.Table:
    """Return rows of the table `splits` for live splits (`FILES_SCHEMA`), in their order, without `removed_version`."""
    files = files.combine_chunks()
    start, seconds = _array(files, "windowStart"), _array(files, "windowSeconds")
    least, greatest = _times(files, columns, start, seconds)
    made = {
        "table_id": pa.repeat(pa.scalar(table_id), len(files)),
        "split_id": _array(files, "path"),
        "added_version": _array(files, "addedAtVersion").fill_null(0),
        "added_at_ms": _array(files, "addedAtTimestamp"),
        "window_start": start,
        "window_seconds": seconds,
        "window_end": pc.add(start, seconds),
        "sort_schema": _nameless(_array(files, "sortSchema")),
        "source_id": _array(files, "sourceId").fill_null(""),
        "partition_id": _array(files, "partitionId").fill_null(""),
        "schema_ref": _array(files, "docMappingRef").fill_null(""),
        "partition_values": _objects(_array(files, "partitionValues"), None),
        "min_time_us": least,
        "max_time_us": greatest,
        "rows": _array(files, "numRecords"),
        "deleted_rows": _deleted(_array(files, "deletionVector")),
        "bytes": _array(files, "size"),
        "merge_ops": _array(files, "numMergeOps").cast(pa.int64()),
        "min_values": _objects(_array(files, "minValues"), columns),
        "max_values": _objects(_array(files, "maxValues"), columns),
        "null_counts": _objects(_array(files, "nullCounts"), columns, raw=True),
        "regexes": _objects(_array(files, "columnRegexes"), columns, raw=False),
        "xxh3": _array(files, "xxh3"),
    }
    return pa.table(made)


def files_of(rows: Sequence[Mapping[str, Any]], columns: Columns) -> pa.Table:
    """Return rows of `splits` as what pruning reads of live splits; what the catalogue does not know is null."""
    names = columns.names
    found: dict[str, list[Any]] = {
        "path": [row["split_id"] for row in rows],
        "size": [row["bytes"] for row in rows],
        "partitionValues": [list(texts_of(row["partition_values"]).items()) for row in rows],
        "minValues": [list(texts_of(row["min_values"], names).items()) for row in rows],
        "maxValues": [list(texts_of(row["max_values"], names).items()) for row in rows],
        "numRecords": [row["rows"] for row in rows],
        "windowStart": [row["window_start"] for row in rows],
        "windowSeconds": [row["window_seconds"] for row in rows],
        "nullCounts": [
            [(name, int(text)) for name, text in texts_of(row["null_counts"], names).items()] for row in rows
        ],
        "columnRegexes": [list(texts_of(row["regexes"], names).items()) for row in rows],
    }
    arrays = [
        pa.array(found[each.name], each.type) if each.name in found else pa.nulls(len(rows), each.type)
        for each in FILES_SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=FILES_SCHEMA)


def texts_of(text: str | None, names: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the values of a JSON object as the texts that the log has, by name where `names` of positions are given.

    Positions without a name are left out.
    """
    if text is None:
        return {}
    found = json.loads(text, parse_int=str, parse_float=str)
    spelled = {key: str(value).lower() if isinstance(value, bool) else value for key, value in found.items()}
    return spelled if names is None else {names[key]: value for key, value in spelled.items() if key in names}


def pieces(rows: pa.Table, most: int) -> Iterator[pa.Table]:
    """Yield a table in parts of at most so many rows."""
    for start in range(0, len(rows), most):
        yield rows.slice(start, most)


def _array(files: pa.Table, name: str) -> pa.Array:
    column = files.column(name)
    return pa.concat_arrays([pa.array([], column.type), *column.chunks])


def _nameless(texts: pa.Array) -> pa.Array:
    coded = texts.dictionary_encode()
    known = pa.array([nameless(text) for text in coded.dictionary.to_pylist()], pa.string())
    return known.take(coded.indices)


def _deleted(vectors: pa.Array) -> pa.Array:
    """Only splits with a vector are looked at."""
    counts = np.zeros(len(vectors), np.int64)
    for row in np.flatnonzero(vectors.is_valid().to_numpy(zero_copy_only=False)).tolist():
        counts[row] = deletion_vector.from_json(vectors[row].as_py(), "a split").cardinality
    return pa.array(counts)


def _times(files: pa.Table, columns: Columns, start: pa.Array, seconds: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Bounds of the time column in microseconds; of a split without them those of its window, else null."""
    within = pc.and_(pc.less_equal(start, _FURTHEST_S), pc.greater_equal(start, -_FURTHEST_S))
    known = pc.if_else(within, start, pa.scalar(None, pa.int64()))
    first = pc.multiply(known, _US)
    last = pc.subtract(pc.multiply(pc.add(known, seconds), _US), 1)
    kind = columns.types.get(columns.time_column or "")
    if columns.time_column is None or kind is None or not pa.types.is_timestamp(kind):
        return first, last
    least, greatest = (_bound(_array(files, name), columns.time_column, kind) for name in ("minValues", "maxValues"))
    both = pc.and_(least.is_valid(), greatest.is_valid())
    return pc.if_else(both, least, first), pc.if_else(both, greatest, last)


def _bound(maps: pa.MapArray, name: str, kind: pa.DataType) -> pa.Array:
    texts = pc.map_lookup(maps, pa.scalar(name), "first")
    return decode_column(texts, kind).cast(pa.timestamp("us")).cast(pa.int64())


def _objects(maps: pa.MapArray, columns: Columns | None, *, raw: bool | None = None) -> pa.Array:
    """Each map as a JSON object by position, or without `columns` by its own keys; null for null.

    Values are `raw` JSON or texts; where it is not said, by the type of the column.
    """
    first, stop = (maps.offsets[0].as_py(), maps.offsets[-1].as_py()) if len(maps) else (0, 0)
    keys, items = maps.keys.slice(first, stop - first), maps.items.slice(first, stop - first)
    coded = keys.dictionary_encode()
    names: list[str] = coded.dictionary.to_pylist()
    wanted = names if columns is None else [columns.positions.get(name) for name in names]
    shown = pa.array([None if each is None else f"{json.dumps(str(each))}:" for each in wanted], pa.string())
    values = _values(items.cast(pa.string()), coded, None if columns is None else columns.types, raw=raw)
    entries = pc.binary_join_element_wise(shown.take(coded.indices), values, "")
    kept = entries.is_valid().to_numpy(zero_copy_only=False)
    ends = np.concatenate([[0], np.cumsum(kept)])[np.asarray(maps.offsets) - first]
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(ends, pa.int32()), entries.drop_null()), ",")
    objects = pc.binary_join_element_wise("{", joined, "}", "")
    return pc.if_else(maps.is_valid(), objects, pa.scalar(None, pa.string()))


def _values(
    texts: pa.Array, coded: pa.DictionaryArray, types: Mapping[str, pa.DataType] | None, *, raw: bool | None
) -> pa.Array:
    if raw is True:
        return texts
    quoted = _quoted(texts)
    if raw is False or types is None:
        return quoted
    kinds = [types.get(name, pa.string()) for name in coded.dictionary.to_pylist()]
    numeric = pa.array([_is_number(kind) for kind in kinds], pa.bool_()).take(coded.indices)
    logical = pa.array([pa.types.is_boolean(kind) for kind in kinds], pa.bool_()).take(coded.indices)
    as_it_is = pc.or_(
        pc.and_(numeric, pc.match_substring_regex(texts, _NUMBER)),
        pc.and_(logical, pc.is_in(texts, pa.array(["true", "false"]))),
    )
    return pc.if_else(as_it_is, texts, quoted)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _quoted(texts: pa.Array) -> pa.Array:
    """Texts as JSON; those with control characters one by one."""
    escaped = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    odd = pc.fill_null(pc.match_substring_regex(texts, _NOT_PLAIN), fill_value=False)
    quoted = pc.binary_join_element_wise('"', escaped, '"', "")
    if not pc.any(odd).as_py():
        return quoted
    spelled = pa.array([json.dumps(text) for text in texts.filter(odd).to_pylist()], pa.string())
    return pc.replace_with_mask(quoted, odd, spelled)
