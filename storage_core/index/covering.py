"""What a segment that is written is over: splits, or parts of them."""

from __future__ import annotations

from dataclasses import dataclass

from pyroaring import BitMap


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
