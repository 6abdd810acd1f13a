"""Live splits as columns: one Arrow row per split, with the names and types of the file entries in the Avro state.

Each table has the schema `FILES_SCHEMA`. The rows of the Arrow table may come from manifests or from actions. Code that
checks every split, for example data skipping, reads these columns instead of `Add` records. Only selected rows become
`Add` records.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from storage_core.base.errors import Corrupt
from storage_core.log import deletion_vector
from storage_core.log.actions import Add
from storage_core.log.deletion_vector import MACHINERY, MAX_LENGTH, PLAIN_PATH, is_data_path

_TEXTS = pa.map_(pa.string(), pa.string())
_COUNTS = pa.map_(pa.string(), pa.int64())

# The columns are in the order of the fields in an encoded entry. All columns are nullable, because an action of another
# writer may lack any field.
FILES_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("partitionValues", _TEXTS),
        ("size", pa.int64()),
        ("modificationTime", pa.int64()),
        ("dataChange", pa.bool_()),
        ("stats", pa.string()),
        ("minValues", _TEXTS),
        ("maxValues", _TEXTS),
        ("numRecords", pa.int64()),
        ("footerStartOffset", pa.int64()),
        ("footerEndOffset", pa.int64()),
        ("hasFooterOffsets", pa.bool_()),
        ("splitTags", pa.list_(pa.string())),
        ("numMergeOps", pa.int32()),
        ("docMappingRef", pa.string()),
        ("uncompressedSizeBytes", pa.int64()),
        ("addedAtVersion", pa.int64()),
        ("addedAtTimestamp", pa.int64()),
        ("windowStart", pa.int64()),
        ("windowSeconds", pa.int64()),
        ("sortSchema", pa.string()),
        ("sourceId", pa.string()),
        ("partitionId", pa.string()),
        ("minRowKey", pa.string()),
        ("maxRowKey", pa.string()),
        ("nullCounts", _COUNTS),
        ("xxh3", pa.string()),
        ("deletionVector", pa.string()),
        ("docMappingJson", pa.string()),
        ("columnRegexes", _TEXTS),
        ("footerXxh3", pa.string()),
    ]
)

_ADD_FIELDS = tuple(each.name for each in fields(Add))
_REQUIRED = ("path", "size", "modificationTime")
_WHEN_NULL: Mapping[str, Callable[[], object]] = {
    "partitionValues": dict,
    "dataChange": lambda: True,
    "hasFooterOffsets": lambda: False,
}
_REFUSALS = (TypeError, ValueError, OverflowError, AttributeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestBounds:
    """Bounds of the splits in a manifest. The root of a state contains the bounds, so a reader can skip the manifest.

    Attributes:
        partitions: The smallest and largest text of each partition column for which every split has a value. None
            stands for an unknown bound.
        in_order_of_type: True if the bounds in `partitions` are in the order of the column's type (see `bounds_of`).
            Other writers may have compared texts or UTF-16, and may have ignored nulls. So the bounds of another writer
            are useful only if both bounds are equal, and even equal bounds do not exclude nulls.
        windows: The smallest and largest window start of the splits with a window, in seconds.
        window_seconds: The longest window, in seconds.
        has_null_window: True if the manifest may contain a split without a window, which may contain any time.
    """

    partitions: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)
    in_order_of_type: bool = False
    windows: tuple[int, int] | None = None
    window_seconds: int | None = None
    has_null_window: bool = True


def table_of(adds: Sequence[Add], added_at: Sequence[tuple[int, int]] | None = None) -> pa.Table:
    """Return the splits as a table of `FILES_SCHEMA`, with one row per split in the given order.

    Args:
        added_at: The version that added each split, and its time in ms. Without `added_at`, both columns are null.

    Raises:
        Corrupt: An action has an invalid value. The error contains the split.
    """
    versions: Sequence[int | None] = [None] * len(adds) if added_at is None else [version for version, _ in added_at]
    times: Sequence[int | None] = [None] * len(adds) if added_at is None else [time for _, time in added_at]
    arrays = []
    for each in FILES_SCHEMA:
        match each.name:
            case "addedAtVersion":
                arrays.append(pa.array(versions, each.type))
            case "addedAtTimestamp":
                arrays.append(pa.array(times, each.type))
            case _:
                arrays.append(_column(adds, each))
    return pa.Table.from_arrays(arrays, schema=FILES_SCHEMA)


def adds_of(files: pa.Table) -> tuple[Add, ...]:
    """Return the actions of the rows, in row order. The function reverses `table_of`, except for `added_at`.

    A missing column counts as null. If the table comes from bytes of another writer, the caller must check that the
    paths are safe.

    Raises:
        Corrupt: A row has no path, size or modification time.
        Exception: Any error of `deletion_vector.from_json`.
    """
    columns = {name: _values(files, name) for name in _ADD_FIELDS if name in files.column_names}
    for name in _REQUIRED:
        if name not in columns or None in columns[name]:
            raise Corrupt(f"the entry of a split has no {name!r}", field=name)
    if "deletionVector" in columns:
        texts = zip(columns["deletionVector"], columns["path"], strict=True)
        columns["deletionVector"] = [
            None if text is None else deletion_vector.from_json(text, where) for text, where in texts
        ]
    names = tuple(columns)
    return tuple(Add(**dict(zip(names, row, strict=True))) for row in zip(*columns.values(), strict=True))


def entries_of(files: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield each row of a table of `FILES_SCHEMA` as a file entry of a manifest, in order."""
    columns = {name: _values(files, name) for name in FILES_SCHEMA.names}
    columns["splitTags"] = [None if tags is None else list(tags) for tags in columns["splitTags"]]
    for row in zip(*columns.values(), strict=True):
        yield dict(zip(columns, row, strict=True))


def paths_of(files: pa.Table) -> list[str]:
    """Return the paths of the rows, in row order."""
    paths: list[str] = files.column("path").to_pylist()
    return paths


def rows_at(files: pa.Table, places: npt.NDArray[np.int64]) -> pa.Table:
    """Return the rows at these positions, in that order.

    `Table.take` would first copy every column that consists of several chunks.
    """
    parts = files.to_batches()
    stops = np.cumsum([len(part) for part in parts], dtype=np.int64)
    part_of = np.searchsorted(stops, places, side="right")
    order = np.argsort(part_of, kind="stable")
    found = [files.slice(0, 0)]
    for number in np.unique(part_of).tolist():
        inside = places[part_of == number] - (stops[number] - len(parts[number]))
        found.append(pa.Table.from_batches([parts[number].take(pa.array(inside))]))
    return pa.concat_tables(found).take(pa.array(np.argsort(order, kind="stable")))


def without_paths(files: pa.Table, paths: Collection[str]) -> pa.Table:
    """Return the rows with a path that is not in `paths`."""
    if not paths:
        return files
    import pyarrow.compute as pc

    return files.filter(pc.invert(pc.is_in(files.column("path"), value_set=pa.array(sorted(paths), pa.string()))))


def conform(table: pa.Table, where: str) -> pa.Table:
    """Return entries as columns of `FILES_SCHEMA`. Raises `Corrupt`.

    A missing column becomes null, and an unknown column is dropped.
    """
    columns = []
    for wanted in FILES_SCHEMA:
        if wanted.name not in table.column_names:
            columns.append(pa.nulls(table.num_rows, wanted.type))
            continue
        try:
            columns.append(table.column(wanted.name).cast(wanted.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise Corrupt(f"{where}: the field {wanted.name!r} is not {wanted.type}: {error}", key=where) from error
    found = pa.Table.from_arrays(columns, schema=FILES_SCHEMA)
    _require_safe_paths(found.column("path"), where)
    return found


def _require_safe_paths(paths: pa.ChunkedArray, where: str) -> None:
    """Raise `Corrupt` if a path is missing, or if a path points to a location outside the table.

    Only paths with unusual characters are checked individually.
    """
    import pyarrow.compute as pc

    plain = pc.and_(
        pc.match_substring_regex(paths, f"^(?:{PLAIN_PATH})$"), pc.less_equal(pc.binary_length(paths), MAX_LENGTH)
    )
    plain = pc.and_(plain, pc.invert(pc.match_substring_regex(paths, f"^(?:{'|'.join(sorted(MACHINERY))})")))
    for path in paths.filter(pc.invert(pc.fill_null(plain, fill_value=False))).to_pylist():
        if path is None or not is_data_path(path):
            raise Corrupt(f"{where}: the path {path!r} leads out of the table or its data", key=where)


def _column(adds: Sequence[Add], wanted: pa.Field) -> pa.Array:
    values = [getattr(add, wanted.name) for add in adds]
    try:
        return pa.array(_as_stored(wanted.name, values), wanted.type)
    except _REFUSALS as error:
        raise _misfit(adds, wanted) from error


def _as_stored(name: str, values: list[Any]) -> list[Any]:
    if name != "deletionVector":
        return values
    return [None if value is None else deletion_vector.to_json(value) for value in values]


def _misfit(adds: Sequence[Add], wanted: pa.Field) -> Corrupt:
    """Return an error for the first split with an invalid value. Called only after a whole column has failed."""
    for add in adds:
        value = getattr(add, wanted.name)
        try:
            pa.array(_as_stored(wanted.name, [value]), wanted.type)
        except _REFUSALS as error:
            message = f"{add.path}: add.{wanted.name} is {value!r}. Expected {wanted.type}: {error}"
            return Corrupt(message, key=add.path, field=wanted.name)
    raise AssertionError(f"the column {wanted.name!r} fails as a whole though each of its values fits")


def _values(files: pa.Table, name: str) -> list[Any]:
    """Return the values of one column in the Python types that the fields of `Add` have."""
    column, kind = files.column(name), files.schema.field(name).type
    values = [value for chunk in column.chunks for value in _python(chunk)]
    if pa.types.is_list(kind):
        values = [None if value is None else tuple(value) for value in values]
    default = _WHEN_NULL.get(name)
    if default is None or not column.null_count:
        return values
    return [default() if value is None else value for value in values]


def _python(array: pa.Array) -> list[Any]:
    """Return the values of an array.

    `to_pylist` would be too slow for maps and texts, because it first creates one scalar per value.
    """
    if pa.types.is_map(array.type):
        return _mappings(array)
    if pa.types.is_string(array.type) or (array.null_count == 0 and pa.types.is_integer(array.type)):
        return list(array.to_numpy(zero_copy_only=False).tolist())
    return list(array.to_pylist())


def _mappings(array: pa.MapArray) -> list[dict[str, Any] | None]:
    offsets = array.offsets.to_pylist()
    first, last = offsets[0], offsets[-1]
    keys, values = (_python(side.slice(first, last - first)) for side in (array.keys, array.items))
    found: list[dict[str, Any] | None] = [
        dict(zip(keys[start - first : end - first], values[start - first : end - first], strict=True))
        for start, end in pairwise(offsets)
    ]
    if array.null_count:
        valid = array.is_valid().to_pylist()
        return [each if known else None for each, known in zip(found, valid, strict=True)]
    return found
