"""The entry of a table in the catalog (its row in `tables`), and the conversion of splits to rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy import Connection

from storage_core.base.errors import InvalidInput, NotFound
from storage_core.catalog.schema import TABLES
from storage_core.data.formats.keys import short_hash
from storage_core.data.rows.bound_text import decode_column
from storage_core.data.rows.columns import column_id, numbered, stored_name
from storage_core.data.rows.schema import dropped_columns, from_schema_string
from storage_core.data.rows.sort_order import bind, nameless
from storage_core.data.settings.table import TableConfig
from storage_core.log import deletion_vector
from storage_core.log.actions import Metadata, Protocol, is_ours, to_json_object
from storage_core.log.snapshot import Snapshot
from storage_core.log.split_columns import FILES_SCHEMA
from storage_core.maintain.clone import record_of

# Conversion of splits between columns of the log and columns of the database.
#
# Bounds, null counts and expressions are JSON objects. The keys of the objects are column positions. If the table has
# changed its columns, the position of a column is the id of this column. Otherwise the position is the place of the
# column in the schema, counted from 1. A position never belongs to another column later. Numbers and booleans are JSON
# values, spelled as in the log. All other values are text. A round trip loses no information.


_NUMBER: Final = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$"
_NOT_PLAIN: Final = "[\\x00-\\x1f\\x7f]"
_US: Final = 1_000_000
_FURTHEST_S: Final = 2**62 // _US
"""The limit for window times in seconds. If a window time is above this limit, its time in microseconds is unknown."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The current and former columns of a table. Each column name in the splits has a position and a type."""

    positions: Mapping[str, int]
    types: Mapping[str, pa.DataType]
    described: str
    time_column: str | None

    @staticmethod
    def of(metadata: Metadata, config: TableConfig) -> Columns:
        """Return the columns of a table with this metadata. Raises `InvalidInput` if the metadata cannot be read."""
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
        """The stored column names by position. The JSON objects use these positions."""
        return {str(number): name for name, number in self.positions.items()}


def split_rows(files: pa.Table, columns: Columns, table_id: str) -> pa.Table:
    """Return the rows of the database table `splits` for these live splits (`FILES_SCHEMA`).

    The rows keep the order of the splits and have no `removed_version`.
    """
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
    """Return rows of the database table `splits` as live splits for pruning.

    A value that the catalog does not store is null.
    """
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
    """Return the values of a JSON object as strings, as in the log. `names` maps positions to column names.

    A position without a name is omitted.
    """
    if text is None:
        return {}
    found = json.loads(text, parse_int=str, parse_float=str)
    spelled = {key: str(value).lower() if isinstance(value, bool) else value for key, value in found.items()}
    return spelled if names is None else {names[key]: value for key, value in spelled.items() if key in names}


def pieces(rows: pa.Table, most: int) -> Iterator[pa.Table]:
    """Yield a table in parts of at most `most` rows."""
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
    """Return the number of deleted rows of each split. Reads only splits that have a deletion vector."""
    counts = np.zeros(len(vectors), np.int64)
    for row in np.flatnonzero(vectors.is_valid().to_numpy(zero_copy_only=False)).tolist():
        counts[row] = deletion_vector.from_json(vectors[row].as_py(), "a split").cardinality
    return pa.array(counts)


def _times(files: pa.Table, columns: Columns, start: pa.Array, seconds: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the bounds of the time column in microseconds.

    If there are no bounds, return the bounds of the window. Without a window, return null.
    """
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
    """Return each map as a JSON object. With `columns`, the keys of the object are column positions.

    Without `columns`, the object has the keys of the map. Null stays null. Values are JSON if `raw` is True, and text
    if `raw` is False. If `raw` is None, the type of the column decides.
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
    """Return texts as JSON strings. Texts with control characters are converted one by one."""
    escaped = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    odd = pc.fill_null(pc.match_substring_regex(texts, _NOT_PLAIN), fill_value=False)
    quoted = pc.binary_join_element_wise('"', escaped, '"', "")
    if not pc.any(odd).as_py():
        return quoted
    spelled = pa.array([json.dumps(text) for text in texts.filter(odd).to_pylist()], pa.string())
    return pc.replace_with_mask(quoted, odd, spelled)


_SETTINGS = ("protocol", "schema_string", "configuration")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEntry:
    """The entry of a table in the catalog, at the version of its content.

    `head_commit_id` and `head_timestamp_ms` distinguish the version from another version with the same number.
    `table_id` distinguishes the table from another table at the same location. The catalog contains the changes of the
    versions since `first_version`. `protocol`, `schema_string` and `configuration` come from the log.
    """

    table_id: str
    name: str
    uri: str
    head_version: int
    head_commit_id: str
    head_timestamp_ms: int
    first_version: int
    protocol: str
    schema_string: str
    configuration: str

    @staticmethod
    def of(snapshot: Snapshot, *, name: str, uri: str, commit_id: str) -> TableEntry:
        """Return the entry for a snapshot."""
        return TableEntry(
            table_id=catalog_id(snapshot),
            name=name,
            uri=uri,
            head_version=snapshot.version,
            head_commit_id=commit_id,
            head_timestamp_ms=snapshot.timestamp,
            first_version=snapshot.version,
            protocol=canonical_json(to_json_object(snapshot.protocol)[Protocol.NAME]),
            schema_string=snapshot.metadata.schemaString,
            configuration=canonical_json(dict(snapshot.metadata.configuration)),
        )

    @property
    def metadata(self) -> Metadata:
        """The metadata of the table: its id in the catalog, and the schema and the configuration from the log."""
        return Metadata(id=self.table_id, schemaString=self.schema_string, configuration=json.loads(self.configuration))

    @property
    def config(self) -> TableConfig:
        """The settings of the table."""
        return TableConfig.from_configuration(json.loads(self.configuration))

    @property
    def columns(self) -> Columns:
        """The current and former columns of the table."""
        return Columns.of(self.metadata, self.config)

    @property
    def sort_schema(self) -> str:
        """The sort schema of new splits, without the name of the sort schema."""
        return nameless(bind(self.config, from_schema_string(self.schema_string)).text)

    @property
    def is_ours(self) -> bool:
        """Whether every version has a file. A refresh then reads only the version files after the head."""
        features = json.loads(self.protocol).get("writerFeatures")
        return is_ours(Protocol(writerFeatures=None if features is None else tuple(features)))

    def is_of(self, snapshot: Snapshot) -> bool:
        """Return whether the snapshot belongs to this table.

        For a clone, earlier releases used the id of the source.
        """
        return self.table_id in (catalog_id(snapshot), snapshot.table_id)

    def same_settings(self, other: TableEntry) -> bool:
        """Return whether both entries have the same protocol, schema and configuration."""
        return all(getattr(self, name) == getattr(other, name) for name in _SETTINGS)

    def row(self) -> dict[str, Any]:
        """Return values for the columns of `tables` that every version sets."""
        return {name: value for name, value in asdict(self).items() if name not in _SETTINGS}

    def settings(self) -> dict[str, Any]:
        """Return the values of a row in `tables` that depend on protocol, schema and configuration."""
        config = self.config
        return {
            **{name: getattr(self, name) for name in _SETTINGS},
            "columns": self.columns.described,
            "kind": config.kind,
            "time_column": config.time_column,
            "sort_schema": self.sort_schema,
            "window_seconds": config.window_seconds,
            "retention_ms": config.retention_ms,
        }


def catalog_id(snapshot: Snapshot) -> str:
    """Return the id by which the catalog identifies a table.

    The log of a clone contains the table id of its source. The catalog therefore adds a hash of the transaction that
    created the clone.
    """
    made = record_of(snapshot)
    if made is None:
        return snapshot.table_id
    return f"{snapshot.table_id}.{short_hash(f'{made.appId} {made.lastUpdated}')[:16]}"


def another_table(known: TableEntry, found_id: str, place: str) -> InvalidInput:
    """Return the error for a URI where the catalog expects one table but another table exists."""
    return InvalidInput(
        f"{known.uri}: the catalog {place} has the table {known.table_id} at this location, but the table there is "
        f"{found_id}. If the table was replaced on purpose, run: tidemark catalog rebuild {known.uri} --url …",
        uri=known.uri,
    )


def canonical_json(value: object) -> str:
    """Return the value as JSON text. Equal values give equal texts."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def every_known(connection: Connection, *conditions: sa.ColumnElement[bool]) -> list[TableEntry]:
    """Return the entries of the tables that match the conditions, ordered by name and URI."""
    names = [each.name for each in fields(TableEntry)]
    found = connection.execute(
        sa.select(*(TABLES.c[name] for name in names)).where(*conditions).order_by(TABLES.c.name, TABLES.c.uri)
    )
    return [TableEntry(**dict(zip(names, row, strict=True))) for row in found]


def known_by(connection: Connection, text: str, place: str) -> TableEntry:
    """Return the table with this id, URI or name. Raises `NotFound`, or `InvalidInput` if several tables match."""
    called = sa.or_(TABLES.c.table_id == text, TABLES.c.uri == text, TABLES.c.name == text)
    found = every_known(connection, called)
    if len(found) == 1:
        return found[0]
    if not found:
        names = ", ".join(each.name for each in every_known(connection)) or "none"
        raise NotFound(
            f"{text!r} is not a table of the catalog {place}, which has: {names}. Add it with: tidemark catalog "
            "refresh --url …",
            table=text,
        )
    places = ", ".join(each.uri for each in found)
    raise InvalidInput(
        f"{text!r} is the name of several tables of the catalog {place}: {places}. Give the URI", table=text
    )
