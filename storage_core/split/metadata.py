"""The metadata of a split in the file of the split, and the size of the row groups.

All metadata is text in the Parquet key-value metadata, under keys that start with `tidemark.`. If a value is missing,
for example because there is no window, its key is missing. The rest of the metadata, including native statistics,
belongs to Parquet. See docs/architecture/compaction.md, "Split files".

The metadata contains a copy of the action, so that the file can be compared with the log. The metadata also contains
the table and the origin of the file (`FileOrigin`). Therefore the log can be rebuilt from the files if the log is lost.

The module also determines the number of rows in a row group (decision 0017). The module finds the row groups with
visible rows, and the row groups that may contain a key.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, cast, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash
from pyroaring import BitMap

from storage_core.base.errors import Corrupt, raise_refused
from storage_core.data.rows import statistics
from storage_core.data.rows.codes import bound_keys
from storage_core.data.rows.keys import with_room
from storage_core.data.rows.sort_order import nulls_of
from storage_core.log.actions import Add
from storage_core.log.codec import schema_hash

PREFIX: Final = "tidemark."
FORMAT: Final = "1"
FORMAT_KEY: Final = PREFIX + "format"

CHECKSUM: Final = PREFIX + "seal"

# These keys are not part of the action, so their values cannot be compared with the log.
NOT_IN_THE_LOG: Final = frozenset(
    PREFIX + name
    for name in (
        "table_id",
        "schema_hash",
        "table_schema",
        "configuration",
        "planned_version",
        "operation",
        "operation_id",
        "replaces",
        "merged",
        "encodings",
        "row_groups",
        "chunk_checksums",
        "vector_pages",
        "seal",
    )
)


def describe(add: Add, *, table_id: str, schema_string: str) -> dict[str, str]:
    """Return the key-value metadata of the file of `add`.

    The metadata cannot contain the size and checksum of the file.

    Args:
        schema_string: The schema of the columns in the file, as Spark JSON. The file records its registry hash
            (docs/architecture/transaction-log.md, "Schema registry").
    """
    entries: dict[str, str | None] = {
        "format": FORMAT,
        "table_id": table_id,
        "path": add.path,
        "schema_hash": schema_hash(schema_string),
        "sort_schema": add.sortSchema,
        "nulls": nulls_of(add.sortSchema),
        "window_start": _number(add.windowStart),
        "window_seconds": _number(add.windowSeconds),
        "source_id": add.sourceId,
        "partition_id": add.partitionId,
        "partition_values": _json(add.partitionValues or None),
        "schema_ref": add.docMappingRef,
        "num_merge_ops": _number(add.numMergeOps),
        "num_records": _number(add.numRecords),
        "min_row_key": add.minRowKey,
        "max_row_key": add.maxRowKey,
        "min_values": _json(add.minValues),
        "max_values": _json(add.maxValues),
        "null_counts": _json(add.nullCounts),
        "column_regexes": _json(add.columnRegexes),
    }
    return {PREFIX + name: value for name, value in entries.items() if value is not None}


def differences(metadata: Mapping[str, str], add: Add) -> list[str]:
    """Return one sentence for each field that differs between the file's own metadata and the action.

    Keys that are not part of the action are not compared.
    """
    expected = describe(add, table_id="", schema_string="")
    return [
        f"{name}: the log has {expected.get(name)!r}, the file has {metadata.get(name)!r}"
        for name in sorted({*expected, *(key for key in metadata if key.startswith(PREFIX))} - NOT_IN_THE_LOG)
        if expected.get(name) != metadata.get(name)
    ]


def add_of(metadata: Mapping[str, str], path: str, *, size: int, modification_ms: int) -> Add:
    """Return the add action of a split from the metadata that `describe` wrote.

    The action lacks the values that depend on the bytes of the whole file.

    `split.writer.with_file_metrics` adds these values, which are the checksum and the position of the footer. Raises
    `Corrupt` if the metadata does not belong to a split at `path`. The file was found at this path.
    """
    if metadata.get(PREFIX + "format") != FORMAT or metadata.get(PREFIX + "path") != path:
        raise Corrupt(f"{path}: the metadata of the file is not that of this split", key=path)
    text = {name: metadata.get(PREFIX + name) for name in ("sort_schema", "source_id", "partition_id", "schema_ref")}
    try:
        return Add(
            path=path,
            size=size,
            modificationTime=modification_ms,
            numMergeOps=_integer(metadata, "num_merge_ops"),
            numRecords=_integer(metadata, "num_records"),
            windowStart=_integer(metadata, "window_start"),
            windowSeconds=_integer(metadata, "window_seconds"),
            minRowKey=metadata.get(PREFIX + "min_row_key"),
            maxRowKey=metadata.get(PREFIX + "max_row_key"),
            minValues=json_object(metadata, "min_values"),
            maxValues=json_object(metadata, "max_values"),
            nullCounts=json_object(metadata, "null_counts"),
            columnRegexes=json_object(metadata, "column_regexes"),
            sortSchema=text["sort_schema"],
            sourceId=text["source_id"],
            partitionId=text["partition_id"],
            partitionValues=json_object(metadata, "partition_values") or {},
            docMappingRef=text["schema_ref"],
        )
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{path}: the metadata of the file cannot be read: {error}", key=path) from error


def json_object(metadata: Mapping[str, str], name: str) -> dict[str, Any] | None:
    """Return the JSON object under a key, or None if the key is missing.

    Raises `ValueError` if the value is not a JSON object.
    """
    text = metadata.get(PREFIX + name)
    if text is None:
        return None
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"{PREFIX + name} is not a JSON object")  # noqa: TRY004  # the one error of text that does not read
    return cast("dict[str, Any]", value)


def _integer(metadata: Mapping[str, str], name: str) -> int | None:
    text = metadata.get(PREFIX + name)
    return None if text is None else int(text)


def with_checksum(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata, plus a checksum of all entries. A Parquet footer itself has no checksum."""
    return {**metadata, CHECKSUM: _digest(metadata)}


def require_checksum(metadata: Mapping[str, str], path: str) -> None:
    """Raise `Corrupt` if the metadata does not match its checksum. The error contains the text `path`."""
    found = _digest(metadata)
    if metadata.get(CHECKSUM) != found:
        raise Corrupt(f"{path}: the metadata of the file has the checksum {found}, not {metadata.get(CHECKSUM)}")


def _digest(metadata: Mapping[str, str]) -> str:
    own = {key: value for key, value in metadata.items() if key.startswith(PREFIX) and key != CHECKSUM}
    return xxhash.xxh3_64_hexdigest(json.dumps(own, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode())


def _json(values: Mapping[str, str] | Mapping[str, int] | None) -> str | None:
    if values is None:
        return None
    return json.dumps(dict(values), sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _number(value: int | None) -> str | None:
    return None if value is None else str(value)


# The origin of a split in the metadata of its file. The origin of a split contains the table and the older splits that
# were replaced by this split.
#
# The log decides which splits are live. If the log is lost, the files alone do not distinguish the output of a
# compaction from its inputs. The inputs stay in storage for weeks. Therefore every file of a rewrite contains the names
# and row counts of the splits that it replaces. The file also contains the id of the operation, which is the same for
# all outputs.


Operation = Literal["append", "compact", "merge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedRange:
    """The generations of `region` that a merge applied: from `after` + 1 up to `generation`."""

    region: str
    after: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The operation that created a split.

    Attributes:
        operation_id: The id of the operation. All outputs of one operation have the same id and were committed
            together.
        replaces: The splits that this split replaces, with their row counts (-1 if unknown). Each output of a
            compaction names all inputs of the compaction. Each output of a merge names only its own inputs. The
            operation replaces all splits that its outputs name.
    """

    operation: Operation = "append"
    operation_id: str | None = None
    replaces: Mapping[str, int] = field(default_factory=dict)
    merged: MergedRange | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOrigin:
    """The table of a file, according to the file's own metadata.

    A version after `planned_version` added the file. The exact version is not known when the file is written.

    Attributes:
        table_schema: The table's schema as Spark JSON.
        configuration: The table's settings.
        planned_version: The version on which the operation was planned.
    """

    table_id: str
    table_schema: str
    configuration: Mapping[str, str]
    planned_version: int
    lineage: Lineage


APPENDED = Lineage()


def write_origin(origin: FileOrigin) -> dict[str, str]:
    """Return the origin as key-value metadata. `read_origin` converts the metadata back to an origin."""
    lineage = origin.lineage
    merged = lineage.merged
    entries: dict[str, str | None] = {
        "table_id": origin.table_id,
        "table_schema": origin.table_schema,
        "configuration": _compact(dict(origin.configuration)),
        "planned_version": str(origin.planned_version),
        "operation": lineage.operation,
        "operation_id": lineage.operation_id,
        "replaces": _compact(dict(lineage.replaces)) if lineage.replaces else None,
        "merged": None if merged is None else _compact(asdict(merged)),
    }
    return {PREFIX + name: value for name, value in entries.items() if value is not None}


def read_origin(metadata: Mapping[str, str], where: str) -> FileOrigin | None:
    """Return the origin in a file's metadata, or None if the release that wrote the file did not record an origin.

    Raises `Corrupt` with the name `where` if the record cannot be read.
    """
    if PREFIX + "table_schema" not in metadata:
        return None
    try:
        return FileOrigin(
            table_id=metadata[PREFIX + "table_id"],
            table_schema=metadata[PREFIX + "table_schema"],
            configuration=_texts(json_object(metadata, "configuration") or {}),
            planned_version=int(metadata[PREFIX + "planned_version"]),
            lineage=_lineage(metadata),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Corrupt(f"{where}: the origin of the split cannot be read: {error!r}", key=where) from error


def _lineage(metadata: Mapping[str, str]) -> Lineage:
    operation = metadata.get(PREFIX + "operation", "append")
    if operation not in get_args(Operation):
        raise ValueError(f"unknown operation {operation!r}")
    merged = json_object(metadata, "merged")
    return Lineage(
        operation=cast("Operation", operation),
        operation_id=metadata.get(PREFIX + "operation_id"),
        replaces={path: int(rows) for path, rows in (json_object(metadata, "replaces") or {}).items()},
        merged=None
        if merged is None
        else MergedRange(
            region=str(merged["region"]), after=int(merged["after"]), generation=int(merged["generation"])
        ),
    )


def _texts(values: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items()}


def _compact(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


ROWS_PER_GROUP: Final = 65_536
"""The maximum number of rows in a row group.

A lookup decodes whole column chunks of the row group that contains its key.
"""

GROUP_BYTES: Final = 32 * 2**20
"""The approximate maximum size of a row group in decoded bytes. A single larger row is its own row group.

The limit is necessary because a reader may hold several row groups in memory.
"""


def rows_per_group(rows: int, taken: int) -> int:
    """Return the number of rows per row group.

    The number is computed from a sample. The sample has `rows` rows, which take `taken` bytes when they are decoded.
    """
    return min(ROWS_PER_GROUP, max(1, rows * GROUP_BYTES // max(1, taken)))


def divided(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows of a row group in parts. A part that is far larger than `GROUP_BYTES` is divided into halves."""
    if rows.num_rows < 2 or decoded_bytes(rows) <= 2 * GROUP_BYTES:
        yield rows
        return
    half = rows.num_rows // 2
    yield from divided(rows.slice(0, half))
    yield from divided(rows.slice(half))


def groups_about(rows: int, size_bytes: int) -> int:
    """Return the approximate minimum number of row groups of a split.

    The actual number can be larger, because the size limit applies to decoded rows, which take at least as many bytes
    as encoded rows.
    """
    return max(1, -(-rows // ROWS_PER_GROUP), -(-size_bytes // GROUP_BYTES))


def decoded_bytes(rows: pa.Table) -> int:
    """Return the memory for the rows in bytes. Dictionary columns count with their decoded size."""
    return sum(_decoded_bytes(column) for column in rows.columns)


def _decoded_bytes(column: pa.ChunkedArray) -> int:
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    lengths = [pc.binary_length(chunk.dictionary).take(chunk.indices) for chunk in column.chunks]
    return sum(each.nbytes + (pc.sum(each).as_py() or 0) for each in lengths)


def visible_row_groups(footer: pq.FileMetaData, deleted: BitMap) -> list[int]:
    """Return the row groups of a file with at least one row that is not deleted."""
    found, first = list[int](), 0
    for group in range(footer.num_row_groups):
        end = first + footer.row_group(group).num_rows
        if not deleted or deleted.range_cardinality(first, end) < end - first:
            found.append(group)
        first = end
    return found


def consecutive_groups(groups: Sequence[int]) -> list[list[int]]:
    """Divide ascending row groups into runs of consecutive numbers."""
    found: list[list[int]] = []
    for each in groups:
        if found and found[-1][-1] + 1 == each:
            found[-1].append(each)
        else:
            found.append([each])
    return found


# Search for the row groups of a split that may contain a key. The search uses bounds in the file's own metadata, which
# has a checksum.
#
# Parquet's statistics in the footer contain the same bounds. But splits that early releases of version 0.1 wrote have
# no footer checksum. So the reader cannot trust the statistics of these splits. Damaged statistics would hide a row, or
# make Arrow abort the process. Lookups use the bounds in the metadata for every split (decision 0025).


_ENTRY: Final = "row_groups"


class Bounds:
    """The bounds of one column in each row group of a file during its writing. Empty if `column` is None."""

    __slots__ = ("_column", "_found")

    def __init__(self, column: str | None) -> None:
        self._column = column
        self._found: list[statistics.Statistics] = []

    def add(self, group: pa.Table) -> None:
        """Add the rows of the next row group."""
        if self._column in group.column_names:
            self._found.append(statistics.compute(group.select([self._column])))

    def metadata(self) -> dict[str, str]:
        """Return the metadata for `admitting`. The result is empty for a single row group, or if `column` is None."""
        if self._column is None or len(self._found) <= 1:
            return {}
        entry = {
            "column": self._column,
            "min": [each.min_values.get(self._column) for each in self._found],
            "max": [each.max_values.get(self._column) for each in self._found],
        }
        return {PREFIX + _ENTRY: json.dumps(entry, sort_keys=True, ensure_ascii=False, separators=(",", ":"))}


Recorded = tuple[str, pa.Array, pa.Array]


def recorded_row_groups(metadata: Mapping[str, str], path: str, groups: int) -> Recorded | None:
    """Return the column with recorded bounds per row group in the file, and these bounds as texts.

    Return None if the file has no bounds, or bounds for another number of row groups. Raises `Corrupt` if the bounds
    are damaged.
    """
    if PREFIX + _ENTRY not in metadata:
        return None
    require_checksum(metadata, path)
    try:
        entry = json_object(metadata, _ENTRY) or {}
        name, low, high = entry["column"], *(pa.array(entry[end], pa.string()) for end in ("min", "max"))
    except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise_refused(path, error)
        raise Corrupt(f"{path}: the bounds of its row groups cannot be read: {error}", key=path) from error
    return (name, low, high) if {len(low), len(high)} == {groups} else None


def admitting(bounds: Recorded | None, groups: int, wanted: pa.Table) -> Sequence[int]:
    """Return the row groups, ascending, that may contain one of the keys in `wanted`.

    If the column of `bounds` (see `recorded_row_groups`) is not in `wanted`, the function returns all row groups.
    """
    if bounds is None or bounds[0] not in wanted.column_names:
        return range(groups)
    name, *texts = bounds
    low, high = (bound_keys(each, wanted.schema.field(name).type) for each in texts)
    found: list[int] = np.flatnonzero(with_room([(low, high)], wanted.select([name]))).tolist()
    return found
