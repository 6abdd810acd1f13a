"""Sorted runs of key hashes over rows that keep coming: which rows may have a key, without looking at all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from storage_core.formats.key_hash import Hashes, key_hashes, within
from storage_core.rows.keys import Positions


@dataclass(slots=True)
class KeyRuns:
    """The positions of all rows that were added, counted from 0, by the hash of their key.

    A run that is not longer than the one added after it is joined with it, as a binary counter carries: so there are
    about log2 of so many runs as additions, and each row is sorted about as often.
    """

    _runs: list[tuple[Hashes, Positions]] = field(default_factory=list)
    _rows: int = 0

    def add(self, rows: pa.Table, key: Sequence[str]) -> None:
        """Add rows behind those that are there."""
        hashes = key_hashes(rows, key)
        positions = np.arange(self._rows, self._rows + len(hashes), dtype=np.int64)
        self._rows += len(hashes)
        while self._runs and len(self._runs[-1][0]) <= len(hashes):
            older, older_positions = self._runs.pop()
            hashes, positions = np.concatenate([older, hashes]), np.concatenate([older_positions, positions])
        order = np.argsort(hashes, kind="stable")
        self._runs.append((hashes[order], positions[order]))

    def find(self, wanted: pa.Table, key: Sequence[str]) -> Positions:
        """Return the positions of all rows whose key hashes like a wanted one, ascending; rarely of others too."""
        hashes = np.unique(key_hashes(wanted, key))
        parts = [positions[within(hashes, run)] for run, positions in self._runs]
        return np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.int64)
