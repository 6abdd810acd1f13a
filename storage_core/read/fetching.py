"""Rows of splits that are no local files: what is wanted of them, fetched side by side and verified, in their order."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from typing import Final

import pyarrow as pa
from pyroaring import BitMap

from storage_core.log.actions import Add
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.prefetch import prefetch
from storage_core.read.late_materialization import read_late
from storage_core.read.predicate import Predicate, renamed
from storage_core.read.row_group_pruning import groups_left, groups_with
from storage_core.rows.columns import stored_schema
from storage_core.split.conform import conform_split
from storage_core.split.opened import OpenSplit, Piece
from storage_core.split.ranges import Footers
from storage_core.split.read import open_split

SPLITS_AT_ONCE: Final = 16
PIECES_AT_ONCE: Final = 8
HELD_BYTES: Final = 128 * 2**20
"""What pieces that are under way or wait to be taken may need of memory, about; one piece may need more.

With a condition the columns that are fetched first may need a quarter of it beside.
"""


_RELEASE_BYTES: Final = 64 * 2**20
"""So much is handed on before Arrow is told to give back what it keeps of freed memory: several times what is held."""


def fetched(
    store: ObjectStore,
    splits: Sequence[Add],
    schema: pa.Schema,
    *,
    share: float,
    footers: Footers,
    deleted: Callable[[Add], BitMap] | None = None,
    predicate: Predicate | None = None,
    rows: Mapping[str, BitMap] | None = None,
    one_by_one: bool = False,
) -> Generator[pa.Table]:
    """Yield the visible rows in the order of the splits, as they come, with the columns of `schema`, which it types.

    Not visible are those that `deleted` returns, by default those that the split's deletion vector hides.

    Rows that cannot make `predicate` true may be left out: row groups by their bounds, those without one of the `rows`
    of their split where it has some, and where that spares much
    (`late_materialization`) the rest by the columns that it names, which are fetched first. A split that is small
    (`split.read.is_small`) for this `share` of its bytes, or of early 0.1, is one GET, and verified
    whole. Of another its footer is one, unless
    `footers` holds it, and each row group as many as its columns lie apart; both are verified before they are decoded.
    What `footers` have cached is none. Row groups are read side by side, unless `one_by_one`.
    Raises what `open_split` raises.
    """
    footers = footers.of_a_read()
    stored = stored_schema(schema)
    condition = None if predicate is None else renamed(predicate, schema)

    def opened(add: Add) -> OpenSplit:
        hidden = None if deleted is None else deleted(add)
        return open_split(store, add, whole=add.footerXxh3 is None, share=share, footers=footers, deleted=hidden)

    def pieces() -> Generator[Piece]:
        with closing(prefetch(opened, splits, SPLITS_AT_ONCE)) as found:
            for split in found:
                is_ours = split.add.footerXxh3 is not None
                groups = groups_left(split.footer, condition, stored) if is_ours else None
                if groups is not None and rows is not None and split.add.path in rows:
                    groups = groups_with(rows[split.add.path], split.footer, groups)
                yield from split.pieces(stored.names, groups)

    at_once = 1 if one_by_one else PIECES_AT_ONCE
    with (
        closing(pieces()) as wanted,
        closing(read_late(wanted, condition, stored, at_once=at_once, most=HELD_BYTES)) as read,
    ):
        handed_on = 0
        for table in read:
            handed_on += table.nbytes
            if handed_on > _RELEASE_BYTES:
                pa.default_memory_pool().release_unused()
                handed_on = 0
            yield conform_split(table, schema)
