"""Splits to rows: the rows that were written and not deleted since, or an error; never others.

Three nets (lessons 60 and 61): the size and xxh3-64 of the log against the whole file, checksums of the footer and of
column chunks where a part is read (of files of early 0.1 those of pages), and the path that the file claims.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from pyroaring import BitMap

from storage_core.cache.pieces import CachedPieces
from storage_core.errors import Corrupt, SnapshotExpired, Unsupported
from storage_core.log.actions import Add
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.reading import ObjectFile
from storage_core.scratch import scratch
from storage_core.split.failures import corrupt_on_failure
from storage_core.split.opened import OpenSplit, parquet_file
from storage_core.split.packed_metadata import entries_of
from storage_core.split.ranges import Footers, VerifiedChunks, whole_split
from storage_core.split.vectors import deleted_rows
from storage_core.split.verification import columns_of, require_itself, require_known_format
from storage_core.system_errors import typed

WHOLE_SPLIT_BYTES = 8 * 2**20
"""A reader of a part of the rows fetches a split up to this size by one GET, and a larger one by ranges."""

SMALL_SPLIT_BYTES = 2**20
"""A split up to this size is read whole where nearly all is wanted of it: a request takes about as long."""

NEEDLESS_BYTES = 2**16
"""What is read in vain of a split that is read whole, at most, about."""

AHEAD_BYTES = 2**20
"""What a ranged GET of a split of early 0.1 asks for at least."""

_WIDE = 8

UNREADABLE = (Corrupt, SnapshotExpired, Unsupported)
"""What reading a split raises when its rows cannot be had."""

_DICTIONARY = frozenset({"RLE_DICTIONARY", "PLAIN_DICTIONARY"})


def is_small(add: Add, share: float = 1) -> bool:
    """Return whether a split is read whole where such a share of its bytes is wanted (`share_of`)."""
    return add.size <= SMALL_SPLIT_BYTES and add.size * (1 - share) <= NEEDLESS_BYTES


def share_of(names: Collection[str], schema: pa.Schema) -> float:
    """Return about which share of the bytes of a split these columns have; texts and lists count as much as 8 others.

    Columns that are not in `schema` have none.
    """
    taken = {field.name: 1 if _is_narrow(field.type) else _WIDE for field in schema}
    return sum(taken.get(name, 0) for name in {*names}) / max(1, sum(taken.values()))


def _is_narrow(kind: pa.DataType) -> bool:
    try:
        return int(kind.bit_width) <= 128
    except ValueError:  # its values have lengths of their own
        return False


def open_split(
    store: ObjectStore,
    add: Add,
    *,
    whole: bool = True,
    share: float = 1,
    as_dictionary: bool = False,
    spool: Path | None = None,
    file_path: Path | None = None,
    footers: Footers | None = None,
    deleted: BitMap | None = None,
) -> OpenSplit:
    """Open a split for reading; `as_dictionary` returns strings stored by dictionary as such, never decoding them.

    `whole`: one GET, size and xxh3-64 compared with the log before a byte is interpreted; the encoded file stays in
    memory while the result lives, or with a `spool` mapped from a file, the store's own or one in that folder.
    Else ranged GETs as columns are read (the footer first, unless `footers` holds it), each part by its checksum, but
    one GET of a split that is small (`is_small`) for the `share` of its bytes that will be read; of files of earlier
    releases each page by its own. Of what `footers` have cached none. With `file_path` the split is that file, known to
    be sound as a whole, and mapped. One GET more for a deletion vector that is stored and not cached; none where the
    `deleted` rows are given, which hide instead.
    Raises `Corrupt` for bytes that are not what was written, `SnapshotExpired` for a vanished file.
    """
    footers = footers or Footers()
    deleted = deleted_rows(store, add, footers.cached) if deleted is None else deleted
    has_checksums = add.footerXxh3 is not None
    whole = whole or (has_checksums and file_path is None and is_small(add, share))
    footer = None
    with corrupt_on_failure(add):
        # No thread of Arrow may be the last to hold a Python object: where Python has ended it aborts the process. So
        # threads read what Arrow itself holds, and ranges are read in the calling thread, nothing of them ahead.
        if file_path is not None:
            footer, source = footers.held(add), mapped(add, file_path)
        elif whole:
            source = _source(store, add, spool, footers.cached)
        elif has_checksums:
            footer = footers.of(store, add)
            source = VerifiedChunks(store, add, footer, footers.cached)
        else:
            source = ObjectFile(store, add.path, add.size, ahead=AHEAD_BYTES)
        file = parquet_file(source, None if footer is None else footer.file)
        entries = entries_of(file.metadata, add.path)
        schema = columns_of(add, file.schema_arrow, entries)
        if as_dictionary:
            file = parquet_file(source, file.metadata, _stored_by_dictionary(schema, file.metadata))
        if whole or footer is not None:  # only then a checksum vouches for what the footer says
            require_known_format(add, entries)
        require_itself(add, entries, schema, file.metadata)
        if deleted and deleted.max() >= file.metadata.num_rows:
            raise Corrupt(
                f"{add.path}: its deletion vector names row {deleted.max()} of {file.metadata.num_rows}",
                key=add.path,
            )
    return OpenSplit(add, schema, schema, entries, deleted, file.metadata.num_row_groups, file, whole, source)


def read_split(
    store: ObjectStore,
    add: Add,
    columns: Collection[str] | None = None,
    *,
    verify: bool = False,
    as_dictionary: bool = False,
) -> pa.Table:
    """Return the visible rows of a split in their stored order, checked against the log.

    With all columns, or with `verify`, the file is read by one GET and its checksum compared; with some columns only
    their ranges are read. Columns that the split does not have are not added (`conform_split` does). Raises what
    `open_split` raises.
    """
    whole = verify or columns is None
    return open_split(store, add, whole=whole, as_dictionary=as_dictionary).read(columns)


def _source(store: ObjectStore, add: Add, spool: Path | None, cached: CachedPieces) -> pa.NativeFile:
    data = whole_split(store, add, cached)
    if spool is None:
        held = pa.allocate_buffer(len(data))
        memoryview(held).cast("B")[:] = data
        return pa.BufferReader(held)
    path = store.local_path(add.path)
    if path is None:
        path = spool / xxhash.xxh3_128_hexdigest(add.path.encode())
        with scratch(f"a copy of {add.path}"):
            path.write_bytes(data)
    return mapped(add, path)


def mapped(add: Add, path: Path) -> pa.NativeFile:
    """Return the file of a split, mapped. Raises what the system refuses as `Unavailable`."""
    with typed(add.path):
        return pa.memory_map(str(path))


def _stored_by_dictionary(schema: pa.Schema, footer: pq.FileMetaData) -> list[str]:
    """The strings of which every row group has a dictionary. Arrow cannot read the delta encodings as one."""
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    columns = [group.column(index) for group in groups for index in range(group.num_columns)]
    without = {each.path_in_schema for each in columns if not _DICTIONARY.intersection(each.encodings)}
    return [field.name for field in schema if pa.types.is_string(field.type) and field.name not in without]
