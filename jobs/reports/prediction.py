"""What a run will cost and bring, as its plan says before it works (decision 0173)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

if TYPE_CHECKING:
    from storage_core.compaction.debt import NextRun
    from storage_core.log.snapshot import Snapshot

Unit = Literal["files", "generations", "splits", "versions", "rows", "bytes"]
"""What the benefit of a step is counted in: landed files that are in, generations that wait no longer, splits that are
fewer, versions that opening replays no longer, rows that an index covers, bytes that are free.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The `benefit` in its `unit`, the bytes, and the requests that it takes at least.

    `bytes_in` and `bytes_out` are what the report calls so after the run; None where storage does not say before.
    """

    benefit: int
    unit: Unit
    bytes_in: int | None = None
    bytes_out: int | None = None
    gets: int = 0
    puts: int = 0

    @classmethod
    def of_compaction(cls, run: NextRun) -> Self:
        """Return what a compaction is about to do, beside its commits."""
        return cls(
            benefit=run.splits - run.outputs,
            unit="splits",
            bytes_in=run.read_bytes,
            bytes_out=run.written_bytes,
            gets=run.splits,
            puts=run.outputs,
        )


def size_as_rows(snapshot: Snapshot, rows: int) -> int | None:
    """Return how many bytes so many rows take in splits, by those that the table has; None where it has none."""
    return round(snapshot.bytes / snapshot.rows * rows) if snapshot.rows else None
