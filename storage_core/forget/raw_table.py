"""Where rows of a table come from, besides its own place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from storage_core.objectstore.contract import ObjectStore
from storage_core.raw_log.stores import Place, RawStore, opened


@dataclass(frozen=True, slots=True)
class RawTable:
    """A raw log by all of its stores, and what its records call the table."""

    table: str
    stores: Sequence[Place | RawStore]

    def opened(self) -> list[ObjectStore]:
        """Return the stores. No request."""
        return [store for store, _ in opened(self.stores)]
