"""Vectors of a split that is read by ranges: of the pages that hold the wanted rows, each verified by itself."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from storage_core.cache.pieces import CachedPieces
from storage_core.errors import Corrupt
from storage_core.log.actions import Add
from storage_core.objectstore.contract import ObjectStore
from storage_core.rows.keys import Positions
from storage_core.rows.vectors import Floats, column_of
from storage_core.split.kept_values import KeptValues
from storage_core.split.pieces import Pieces
from storage_core.split.ranges import Footer, identity
from storage_core.split.vector_pages import Pages, leaves, numbers, recorded

GAP_BYTES: Final = 32 * 2**10
"""Half a page. Ranges are fetched side by side, so a gap costs bandwidth that the other pages need."""

_AT_ONCE: Final = 48


class RangedVectors:
    """The vectors of a split that is read by ranges. What was read last stays in `kept`, and on disk in `cached`."""

    def __init__(self, store: ObjectStore, add: Add, footer: Footer, *, kept: KeptValues, cached: CachedPieces) -> None:
        """Look at nothing yet."""
        self._add, self._footer, self._kept = add, footer, kept
        fetch = functools.partial(store.get_range, add.path)
        self._pieces = Pieces(store.uri, add.path, identity(add), cached, fetch)
        self._name = (add.path, add.footerXxh3, "vector pages")

    def take(self, name: str, schema: pa.Schema, places: Positions) -> pa.Array | None:
        """Return the vectors of a column at these places of the file; None where the footer does not tell its pages.

        Ranged GETs side by side of the pages that are not kept, one for those that lie near each other. Raises
        `NotFound`, and `Corrupt` for a page that is not what was written.
        """
        leaf, kind = leaves(self._footer.file, schema).get(name), schema.field(name).type
        if leaf is None:
            return None
        pages = self._kept.made(self._name, dict, self._recorded, _size)
        groups, inside = self._apart(places)
        if any((leaf, group) not in pages for group in np.unique(groups).tolist()):
            return None
        found = np.empty((len(places), kind.list_size), np.float32)
        wanted = [(group, pages[leaf, group], inside[groups == group]) for group in np.unique(groups).tolist()]
        needed = {(leaf, group): np.unique(own.of(rows)) for group, own, rows in wanted}
        held = self._held(pages, needed, kind.list_size)
        for group, own, rows in wanted:
            numbers_of = own.of(rows)
            part = np.empty((len(rows), kind.list_size), np.float32)
            for number in needed[leaf, group].tolist():
                mine = numbers_of == number
                part[mine] = held[leaf, group, number][rows[mine] - own.rows[number]]
            found[groups == group] = part
        return column_of(found)

    def _recorded(self) -> dict[tuple[int, int], Pages]:
        return dict(recorded(self._footer.entries, self._footer.file, self._add.path))

    def _apart(self, places: Positions) -> tuple[Positions, Positions]:
        """The row group of each place, and the place in it."""
        file = self._footer.file
        ends = np.cumsum([file.row_group(group).num_rows for group in range(file.num_row_groups)])
        groups = np.searchsorted(ends, places, side="right")
        return groups, places - np.append(0, ends)[groups]

    def _held(
        self, pages: Mapping[tuple[int, int], Pages], needed: Mapping[tuple[int, int], Positions], size: int
    ) -> dict[tuple[int, int, int], Floats]:
        """The numbers of the pages, rows by dimensions: those that are kept, and the others."""
        names = [(*chunk, number) for chunk, numbers in needed.items() for number in numbers.tolist()]
        found = {each: value for each in names if isinstance(value := self._kept.get((*self._name, *each)), np.ndarray)}
        missing = [each for each in names if each not in found]
        pieces = [pages[leaf, group].piece(number) for leaf, group, number in missing]
        read = self._pieces.read(pieces, gap_bytes=GAP_BYTES, at_once=_AT_ONCE)
        for each, data in zip(missing, read, strict=True):
            leaf, group, number = each
            codec = self._footer.file.row_group(group).column(leaf).compression
            values, rows = numbers(memoryview(data), 0, codec), int(np.diff(pages[leaf, group].rows)[number])
            if values is None or len(values) != rows * size:
                path = self._add.path
                raise Corrupt(f"{path}: a page of vectors does not hold {rows} of {size} numbers", key=path)
            found[each] = values.reshape(rows, size)
            self._kept.keep((*self._name, *each), found[each], len(data))
        return found


def _size(pages: Mapping[tuple[int, int], Pages]) -> int:
    return 64 + 32 * sum(len(each.ends) for each in pages.values())
