"""Some rows of a split, opened so that nothing is fetched of its other row groups: what a part of a merge reads."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import xxhash
from pyroaring import BitMap

from storage_core.log.actions import Add
from storage_core.objectstore.contract import ObjectStore
from storage_core.scratch import scratch
from storage_core.split.failures import corrupt_on_failure
from storage_core.split.opened import OpenSplit
from storage_core.split.ranges import Footers, VerifiedChunks
from storage_core.split.read import is_small, open_split
from storage_core.split.row_groups import shown
from storage_core.split.vectors import deleted_rows

RowRange = tuple[int, int]
"""Rows of a file: the first, and the one after the last."""


def open_part(store: ObjectStore, add: Add, rows: RowRange, *, spool: Path) -> OpenSplit:
    """Open the rows of a split that lie in `rows` and are not deleted; the others are as if they were deleted.

    The row groups that hold one are fetched into a file in `spool`, each column chunk verified by its checksum, one row
    group in memory at a time; of files of early 0.1 and of small ones all. Ranged GETs of the footer and of
    chunks, one GET for a stored vector. Raises what `open_split` raises.
    """
    hidden = deleted_rows(store, add) | outside(add, rows)
    if add.footerXxh3 is None or is_small(add, 1):
        return open_split(store, add, as_dictionary=True, spool=spool, deleted=hidden)
    with corrupt_on_failure(add):
        footers = Footers()
        chunks = VerifiedChunks(store, add, footers.of(store, add))
        path = spool / xxhash.xxh3_128_hexdigest(add.path.encode())
        with scratch(f"a copy of {add.path}"), path.open("wb") as file:
            file.truncate(add.size)
            _copy(chunks, hidden, file)
    return open_split(store, add, whole=False, as_dictionary=True, file_path=path, footers=footers, deleted=hidden)


def outside(add: Add, rows: RowRange) -> BitMap:
    """Return the rows of the file of a split that do not lie in `rows`."""
    first, end = rows
    return BitMap(range(first)) | BitMap(range(end, add.numRecords or 0))


def _copy(chunks: VerifiedChunks, hidden: BitMap, file: BinaryIO) -> None:
    footer = chunks.footer
    for group in shown(footer, hidden) or [0]:  # a split without a visible row is read as one group without
        chunks.fetch(group, range(footer.num_columns))
        chunks.write_to(file)
