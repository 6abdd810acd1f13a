"""What a segment that is written is over: splits, or parts of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyroaring import BitMap

from storage_core.rows.keys import Positions

Renumbered = tuple[Mapping[str, bytes | memoryview], Positions]
"""The files of a segment, and of each of its rows the number in the one that it is merged into."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of a split, ascending, and the splits that they came from, for which no segment answers."""

    rows: BitMap
    origins: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Covered:
    """A split of `rows` rows that a merged segment is over, or the rows of a part of it."""

    split: str
    rows: int
    part: Part | None = None

    @property
    def count(self) -> int:
        """The rows of the segment that are in the split."""
        return self.rows if self.part is None else len(self.part.rows)

    @property
    def rows_in_split(self) -> list[int] | None:
        """The rows of the split's file; None for all of them."""
        return None if self.part is None else [*self.part.rows]
