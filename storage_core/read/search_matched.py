"""Rows that a query matches, as a filter of another search: named by where they are, for segments number them anew."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pyroaring import BitMap

from storage_core.formats.translation_map import Rows
from storage_core.index.fulltext import Hit
from storage_core.read.search_source import Source
from storage_core.rows.codes import Mask


class Matched:
    """The rows of some hits, by their splits and places there, or by their sources above the base."""

    def __init__(self, found: Sequence[Source], hits: Sequence[Hit]) -> None:
        """Hits of these sources. Requests: those of `Source.in_splits`."""
        rows: dict[int, list[int]] = {}
        for hit in hits:
            rows.setdefault(hit.source, []).append(hit.row)
        self._rows: dict[str | int, BitMap] = {}
        for source, own in rows.items():
            for where, _, there in _places(found, source, np.array(own, np.int64)):
                self._rows[where] = self._rows.get(where, BitMap()) | BitMap(there.astype(np.uint32))

    def mask(self, found: Sequence[Source], source: int, rows: Rows) -> Mask:
        """Return which of these rows of a source, of any index of the same search, are matched."""
        mask = np.zeros(len(rows), np.bool_)
        for where, own, there in _places(found, source, rows):
            matched = self._rows.get(where)
            if matched is not None:
                mask[own] = np.isin(there, np.array(matched.to_array(), np.int64))
        return mask


def _places(found: Sequence[Source], source: int, rows: Rows) -> Sequence[tuple[str | int, Rows, Rows]]:
    """By split; what is above the base is in the same sources for every index, which are told by their number there."""
    if found[source].splits:
        return [*found[source].in_splits(rows.tolist())]
    return [(sum(not each.splits for each in found[:source]), np.arange(len(rows)), rows)]
