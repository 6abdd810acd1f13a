"""Rows that a query matches, as a filter of another search: segments number rows anew, so they have other names."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pyroaring import BitMap

from storage_core.index.fulltext import Hit
from storage_core.rows.codes import Mask
from storage_core.rows.keys import Positions, key_codes
from storage_core.rows.positions import bitmap_of, positions
from storage_core.search.source import Source, by_source


class TextFilter:
    """The rows of some hits: by their splits and places there, and above the base by their keys."""

    def __init__(self, found: Sequence[Source], hits: Sequence[Hit], key: Sequence[str]) -> None:
        """Hits of these sources of a table with this key. Requests: those of `Source.in_splits`."""
        rows = {source: [hit.row for hit in own] for source, own in by_source(hits).items()}
        self._key = key
        self._splits: dict[str, BitMap] = {}
        self._unmerged = [found[each].take(own, key) for each, own in rows.items() if not found[each].splits]
        for source, own in rows.items():
            for split, _, there in found[source].in_splits(own):
                self._splits[split] = self._splits.get(split, BitMap()) | bitmap_of(there)

    def mask(self, source: Source, rows: Positions) -> Mask:
        """Return which of these rows of a source, of any index of the same search, are matched."""
        mask = np.zeros(len(rows), np.bool_)
        if source.splits:
            for split, own, there in source.in_splits(rows.tolist()):
                mask[own] = among(there, self._splits.get(split, BitMap()))
        elif self._unmerged:
            *matched, own = key_codes([*self._unmerged, source.take(rows.tolist(), self._key)], self._key)
            mask = np.isin(own, np.concatenate(matched))
        return mask


def among(rows: Positions, bitmap: BitMap) -> Mask:
    """Return which of the rows the bitmap has."""
    common = bitmap_of(rows) & bitmap if bitmap else bitmap
    found: Mask = np.isin(rows, positions(common)) if common else np.zeros(len(rows), np.bool_)
    return found
