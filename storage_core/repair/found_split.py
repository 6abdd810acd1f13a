"""Splits without a log: what a file says about itself, believed only as far as its rows and checksums bear it out."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from storage_core.errors import Corrupt, InvalidInput
from storage_core.formats.parquet_footer import require_sound_chunks
from storage_core.fsck.inventory import Inventory
from storage_core.log.actions import Add
from storage_core.objectstore.contract import ObjectStore
from storage_core.rows import column_regex, statistics
from storage_core.rows.schema import from_schema_string
from storage_core.settings.table import TableConfig
from storage_core.split import chunk_checksums, vector_pages
from storage_core.split.conform import conform_split
from storage_core.split.lineage import Lineage, Origin, read_origin
from storage_core.split.metadata import add_of, require_checksum
from storage_core.split.packed_metadata import entries_of
from storage_core.split.read import open_split
from storage_core.split.writer import with_file_metrics
from storage_core.system_errors import raise_refused


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSplit:
    """A sound split that no readable part of the log speaks of: the action that it would have, and where it is from."""

    add: Add
    origin: Origin

    @property
    def path(self) -> str:
        """Its key."""
        return self.add.path

    @property
    def lineage(self) -> Lineage:
        """What made it."""
        return self.origin.lineage


def read_found(store: ObjectStore, inventory: Inventory, path: str) -> FoundSplit:
    """Return the split at `path` as it describes itself. Two GETs of the whole file, which is in memory meanwhile.

    The checksums of every page, of every column chunk and of the metadata are verified; rows and statistics must agree,
    and columns have the types that they have in the table. Raises `Corrupt` naming the path when they do not, or for a
    file of early 0.1, whose splits do not describe their table yet; `Unavailable` where memory is lacking.
    """
    data = pa.py_buffer(store.get(path).data)
    try:
        footer = pq.read_metadata(pa.BufferReader(data))
        require_sound_chunks(footer, data.size)
        metadata = entries_of(footer, path)
    except (pa.ArrowException, MemoryError, OSError, UnicodeDecodeError) as error:
        raise_refused(path, error)
        raise Corrupt(f"{path}: not a readable Parquet file: {error}", key=path) from error
    require_checksum(metadata, path)
    if chunk_checksums.KEY in metadata and chunk_checksums.entry(data, footer).items() - metadata.items():
        raise Corrupt(f"{path}: its column chunks do not have the checksums that it records", key=path)
    vector_pages.recorded(metadata, footer, path)
    origin = read_origin(metadata, path)
    if origin is None:
        raise Corrupt(f"{path}: of early 0.1, whose splits do not describe their table", key=path)
    modified_ms = inventory.objects[path].last_modified_ms
    add = with_file_metrics(add_of(metadata, path, size=data.size, modification_ms=modified_ms), data)
    rows = open_split(store, add).read()
    try:
        conform_split(rows, from_schema_string(origin.table_schema))
    except InvalidInput as error:
        raise Corrupt(f"{path}: {error}", key=path) from error
    metrics = statistics.compute(rows, TableConfig.from_configuration(origin.configuration).string_cut)
    if (add.minValues, add.maxValues, add.nullCounts) != (metrics.min_values, metrics.max_values, metrics.null_counts):
        raise Corrupt(f"{path}: its rows are not those that it describes", key=path)
    if wrong := column_regex.mismatches(rows, add.columnRegexes or {}):
        raise Corrupt(f"{path}: {wrong[0]}", key=path)
    return FoundSplit(add=add, origin=origin)
