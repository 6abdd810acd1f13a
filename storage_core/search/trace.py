"""What a search looked at, for `explain_search`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from storage_core.read.row_filter import RowFilter
from storage_core.search.live import Live


@dataclass(slots=True)
class Trace:
    """The rows of each index by its name, and the filter: those of the last attempt, which met no damage."""

    lives: Mapping[str, Live] = field(default_factory=dict)
    filter: RowFilter | None = None

    def begin(self, lives: Mapping[str, Live], wanted: RowFilter | None) -> None:
        """Take note of an attempt, instead of one before."""
        self.lives, self.filter = lives, wanted
