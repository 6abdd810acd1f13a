"""The columns of a table in Iceberg, and the manifests of its snapshots.

Iceberg uses the column ids of the table. Splits written since the first change of the schema contain these ids. For
older splits, and for fields inside columns, Iceberg's name mapping contains the id of each name. A name in splits
always belongs to the same column, so the mapping only grows.

The next snapshot uses all unchanged manifests of the last snapshot. A manifest has a limited number of files, and small
manifests are merged. The cost of a commit therefore does not grow with the table. pyiceberg reads and writes the bytes
of manifests. Each manifest is an object in the table's store with a unique name.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Context, Decimal
from itertools import chain, islice
from typing import Any, Final

import pyarrow as pa
from pyiceberg import types
from pyiceberg.conversions import to_bytes
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    read_manifest_list,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot
from pyiceberg.typedef import Record
from pyiceberg.types import IcebergType, NestedField, PrimitiveType

from storage_core.base.clock import Ids
from storage_core.base.errors import Corrupt, NotFound, Unsupported
from storage_core.data.formats.keys import iceberg_list_key, iceberg_manifest_key
from storage_core.data.formats.mirrors import iceberg_key
from storage_core.data.rows.bound_text import bound_of_text, has_bounds
from storage_core.data.rows.columns import column_id, numbered, stored_name
from storage_core.data.rows.schema import dropped_columns, inner_ids, inside
from storage_core.data.rows.statistics import TRUNCATE_AT
from storage_core.data.settings.setting import json_text
from storage_core.log.actions import Add
from storage_core.log.mirror_metadata import ICEBERG_ADVICE
from storage_core.log.snapshot import Snapshot
from storage_core.store.contract import ObjectStore, create_derived

MAPPING: Final = "schema.name-mapping.default"

_PRIMITIVES: Mapping[pa.DataType, PrimitiveType] = {
    pa.bool_(): types.BooleanType(),
    pa.int8(): types.IntegerType(),
    pa.int16(): types.IntegerType(),
    pa.int32(): types.IntegerType(),
    pa.int64(): types.LongType(),
    pa.float32(): types.FloatType(),
    pa.float64(): types.DoubleType(),
    pa.string(): types.StringType(),
    pa.binary(): types.BinaryType(),
    pa.date32(): types.DateType(),
}


def iceberg_schema(snapshot: Snapshot, schemas: Iterable[Schema]) -> Schema:
    """Return the schema for Iceberg: one of `schemas` with equal columns, else a new schema with the next id."""
    fields = [
        NestedField(_number(each), each.name, _type(each.type, inner_ids(_number(each))), required=not each.nullable)
        for each in numbered(snapshot.schema)
    ]
    known = [*schemas]
    found = Schema(*fields, schema_id=max((each.schema_id for each in known), default=-1) + 1)
    return next((each for each in known if each.fields == found.fields), found)


def name_mapping(snapshot: Snapshot, before: str | None) -> str:
    """Return the value of `MAPPING`: column ids by the names in splits, including the ids of dropped columns.

    `before` is the current mapping. Readers refuse a split that contains a name without an id.
    """
    known: dict[str, Any] = {each["names"][0]: each for each in json.loads(before or "[]")}
    dropped = dropped_columns(snapshot.metadata.configuration)
    for number, field in [*dropped.items(), *((_number(each), each) for each in numbered(snapshot.schema))]:
        known[stored_name(field)] = _mapped(stored_name(field), number, field.type, inner_ids(number))
    return json_text([*known.values()])


def primitive(type_: pa.DataType) -> PrimitiveType | None:
    """Return the Iceberg type of a value, or None for a list, a structure or a map."""
    kinds = pa.types
    if kinds.is_decimal(type_):
        return types.DecimalType(type_.precision, type_.scale)
    if kinds.is_timestamp(type_):
        return types.TimestampType() if type_.tz is None else types.TimestamptzType()
    return _PRIMITIVES.get(type_)


def _number(field: pa.Field) -> int:
    return column_id(field) or 0


def _type(type_: pa.DataType, ids: Iterator[int]) -> IcebergType:
    """Return the Iceberg type. All inner fields get an id, in the order of `_mapped`."""
    found = primitive(type_)
    if found is not None:
        return found
    inner = [(next(ids), _type(each.type, ids), each.name) for each in inside(type_)]
    if pa.types.is_struct(type_):
        return types.StructType(
            *(types.NestedField(number, name, each, required=False) for number, each, name in inner)
        )
    if pa.types.is_map(type_):
        (key_id, key, _), (value_id, value, _) = inner
        return types.MapType(key_id=key_id, key_type=key, value_id=value_id, value_type=value, value_required=False)
    ((element_id, element, _),) = inner
    return types.ListType(element_id=element_id, element=element, element_required=False)


def _mapped(name: str, number: int, type_: pa.DataType, ids: Iterator[int]) -> dict[str, Any]:
    found: dict[str, Any] = {"field-id": number, "names": [name]}
    inner = [_mapped(each.name, next(ids), each.type, ids) for each in inside(type_)]
    return {**found, "fields": inner} if inner else found


# Splits as data files of an Iceberg table, with the statistics of the log.


_EXACT = Context(prec=100)


class IcebergFiles:
    """Creates the data files of a table with these columns, below a location."""

    def __init__(self, schema: pa.Schema, root: str) -> None:
        self._root = root
        columns = [(stored_name(each), column_id(each) or 0, each.type) for each in numbered(schema)]
        self._columns: list[tuple[str, int, pa.DataType, PrimitiveType]] = [
            (name, number, type_, found) for name, number, type_ in columns if (found := primitive(type_)) is not None
        ]

    def file(self, add: Add) -> DataFile:
        """Return the data file entry of a split that has no deleted rows.

        The data file contains only exact statistics, because readers compute counts from them.
        """
        rows, nulls = add.numRecords or 0, add.nullCounts or {}
        known = [(number, nulls[name]) for name, number, *_ in self._columns if name in nulls]
        bounds = [*self._bounds(add)]
        return DataFile.from_args(
            _table_format_version=2,
            content=DataFileContent.DATA,
            file_path=f"{self._root}/{add.path}",
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=rows,
            file_size_in_bytes=add.size,
            column_sizes=None,
            value_counts={number: rows for number, _ in known},
            null_value_counts=dict(known),
            nan_value_counts={number: 0 for number, type_, _, _ in bounds if pa.types.is_floating(type_)},
            lower_bounds={number: least for number, _, least, _ in bounds},
            upper_bounds={number: greatest for number, _, _, greatest in bounds},
            key_metadata=None,
            split_offsets=None,
            equality_ids=None,
            sort_order_id=None,
            spec_id=0,
        )

    def _bounds(self, add: Add) -> Iterator[tuple[int, pa.DataType, bytes, bytes]]:
        """Yield the smallest and the greatest value of each column for which both values are known.

        Shortened values and NaN are omitted.
        """
        least, greatest = add.minValues or {}, add.maxValues or {}
        for name, number, type_, iceberg_type in self._columns:
            if name not in least or name not in greatest or not has_bounds(type_):
                continue
            texts = least[name], greatest[name]
            if pa.types.is_string(type_) and max(map(len, texts)) >= TRUNCATE_AT:
                continue
            low, high = _value(texts[0], type_, -1), _value(texts[1], type_, 1)
            if low == low and high == high:  # noqa: PLR0124  # excludes NaN
                yield number, type_, to_bytes(iceberg_type, low), to_bytes(iceberg_type, high)


def _value(text: str, type_: pa.DataType, sign: int) -> Any:
    """Return a bound for Iceberg. Decimals have the scale of their type.

    A zero becomes -0.0 as the smallest value and 0.0 as the greatest value.
    """
    found = bound_of_text(text, type_)
    if isinstance(found, Decimal):
        return found.quantize(Decimal(1).scaleb(-type_.scale), context=_EXACT)
    return math.copysign(found, sign) if isinstance(found, float) and found == 0 else found


def without_statistics(file: DataFile) -> DataFile:
    """Return the manifest entry of a removed file, and leave out its column statistics."""
    named = ("content", "file_path", "file_format", "partition", "record_count", "file_size_in_bytes")
    return DataFile.from_args(
        _table_format_version=2, **{name: getattr(file, name) for name in named}, spec_id=file.spec_id
    )


MOST_FILES: Final = 1000
"""The largest number of files in one manifest."""

MERGED: Final = 16
"""Minimum number of manifests for a merge of manifests. Only manifests that are at most half full are merged."""

Entry = tuple[ManifestEntryStatus, ManifestEntry]


class Manifests:
    """The manifests of the published snapshot. Empty at first. `root` is the location of the table."""

    def __init__(self, store: ObjectStore, root: str, ids: Ids) -> None:
        self._store, self._root, self._ids = store, root, ids
        self._io = _StoreIO(store, root)
        self._files: list[ManifestFile] = []

    def read(self, list_key: str) -> None:
        """Read the manifests in a manifest list. One GET."""
        self._files = [*read_manifest_list(self._io.new_input(f"{self._root}/{list_key}"))]

    def keys(self) -> set[str]:
        """Return the keys of the splits in the manifests. One GET per manifest."""
        return {self._key(each) for manifest in self._files for each in self._entries(manifest)}

    def change(
        self,
        added: Iterable[DataFile],
        removed: Collection[str],
        snapshot: IcebergSnapshot,
        schema: Schema,
        *,
        forget: bool,
    ) -> None:
        """Add and remove these files, so that the manifests describe the new snapshot. Raises `Corrupt`.

        Args:
            added: Data files to add.
            removed: Keys of the files to remove.
            snapshot: New snapshot.
            schema: Schema of the new manifests.
            forget: True keeps and creates no manifest with names of removed files.

        Cost:
            One GET per manifest, newest first, until all removed files are found. One GET per merged manifest, and one
            PUT per new manifest.
        """
        kept, taken = self._without({*removed}, forget=forget)
        small = [each for each in kept if _live(each) <= MOST_FILES // 2]
        if len(small) >= MERGED:
            kept = [each for each in kept if each not in small]
            taken += [(ManifestEntryStatus.EXISTING, entry) for each in small for entry in self._entries(each)]
        new = ((ManifestEntryStatus.ADDED, _added(each)) for each in added)
        self._files = [*(self._written(each, snapshot, schema) for each in _chunks(chain(new, taken))), *kept]

    def write_list(self, id_: str, snapshot: IcebergSnapshot) -> None:
        """Write the manifest list of the snapshot to the location in the snapshot.

        `id_` is part of the key of the manifest list.

        One PUT.
        """
        output = _Output(snapshot.manifest_list)
        with write_manifest_list(
            2,
            output,
            snapshot.snapshot_id,
            snapshot.parent_snapshot_id,
            snapshot.sequence_number,
            "deflate",
        ) as writer:
            writer.add_manifests(self._files)
        create_derived(self._store, iceberg_list_key(snapshot.snapshot_id, id_), output.data, advice="publish again")

    def _without(self, wanted: set[str], *, forget: bool) -> tuple[list[ManifestFile], list[Entry]]:
        """Return the unchanged manifests, and the remaining entries of the other manifests."""
        kept: list[ManifestFile] = []
        taken: list[Entry] = []
        for manifest in sorted(filter(_live, self._files), key=lambda each: -each.sequence_number):
            speaks_of_gone = forget and bool(manifest.deleted_files_count)
            entries = self._entries(manifest) if wanted or speaks_of_gone else []
            gone = {key for each in entries if (key := self._key(each)) in wanted}
            if not gone and not speaks_of_gone:
                kept.append(manifest)
                continue
            wanted -= gone
            for entry in entries:
                if self._key(entry) not in gone:
                    taken.append((ManifestEntryStatus.EXISTING, entry))
                elif not forget:
                    entry.data_file = without_statistics(entry.data_file)
                    taken.append((ManifestEntryStatus.DELETED, entry))
        if wanted:
            raise Corrupt(
                f"{min(wanted)}: no manifest of the Iceberg mirror contains the file",
                advice=ICEBERG_ADVICE,
                key=min(wanted),
            )
        return kept, taken

    def _written(self, entries: Sequence[Entry], snapshot: IcebergSnapshot, schema: Schema) -> ManifestFile:
        key = iceberg_manifest_key(self._ids.uuid())
        output = _Output(f"{self._root}/{key}")
        with write_manifest(2, UNPARTITIONED_PARTITION_SPEC, schema, output, snapshot.snapshot_id, "deflate") as writer:
            adding = {
                ManifestEntryStatus.ADDED: writer.add,
                ManifestEntryStatus.EXISTING: writer.existing,
                ManifestEntryStatus.DELETED: writer.delete,
            }
            for status, entry in entries:
                adding[status](entry)
        create_derived(self._store, key, output.data, advice="publish again")
        made = writer.to_manifest_file()
        made.sequence_number = snapshot.sequence_number or 0
        if made.min_sequence_number < 0:  # no entry has a sequence number of its own
            made.min_sequence_number = made.sequence_number
        return made

    def _entries(self, manifest: ManifestFile) -> list[ManifestEntry]:
        return manifest.fetch_manifest_entry(self._io)

    def _key(self, entry: ManifestEntry) -> str:
        return iceberg_key(entry.data_file.file_path, self._root)


def _added(file: DataFile) -> ManifestEntry:
    return ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, sequence_number=None, data_file=file)


def _live(manifest: ManifestFile) -> int:
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)


def _chunks(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    rest = iter(entries)
    while chunk := [*islice(rest, MOST_FILES)]:
        yield chunk


class _Kept(io.BytesIO):
    """Bytes that remain after their stream is closed."""

    def close(self) -> None:
        pass


class _Output(OutputFile):
    """A file in memory that pyiceberg writes."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._stream = _Kept()

    @property
    def data(self) -> bytes:
        return self._stream.getvalue()

    def __len__(self) -> int:
        return len(self.data)

    def exists(self) -> bool:
        return False

    def to_input_file(self) -> InputFile:
        return _Input(self.location, self.data)

    def create(self, overwrite: bool = False) -> OutputStream:  # noqa: ARG002, FBT001, FBT002  # pyiceberg's signature
        return self._stream


class _Input(InputFile):
    """The bytes of an object that pyiceberg reads."""

    def __init__(self, location: str, data: bytes) -> None:
        super().__init__(location)
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def exists(self) -> bool:
        return True

    def open(self, seekable: bool = True) -> InputStream:  # noqa: ARG002, FBT001, FBT002  # pyiceberg's signature
        return io.BytesIO(self._data)


class _StoreIO(FileIO):
    """The objects of a table's store by location, for pyiceberg."""

    def __init__(self, store: ObjectStore, root: str) -> None:
        super().__init__()
        self._store, self._root = store, root

    def new_input(self, location: str) -> InputFile:
        """Return an object. One GET. Raises `Corrupt` if the object is missing."""
        key = iceberg_key(location, self._root)
        try:
            return _Input(location, self._store.get(key).data)
        except NotFound as error:
            raise Corrupt(
                f"{key}: the file is missing, but the Iceberg mirror refers to it", advice=ICEBERG_ADVICE, key=key
            ) from error

    def new_output(self, location: str) -> OutputFile:
        return _Output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        raise Unsupported(f"{location}: only the collector deletes objects")
