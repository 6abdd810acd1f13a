"""What an index owes: rows without a segment, and what makes its segments slow or dull. All from the log."""

from __future__ import annotations

from dataclasses import dataclass

from storage_core.index import segment_merge_work, segments, vector
from storage_core.index.coverage import coverage, watermark_of
from storage_core.log.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexDebt:
    """The state of an index at a version, in numbers.

    `uncovered_rows` and `uncovered_bytes` are what searches index while they read, about: those of a split that is
    covered in part by its share of rows. `segments` answer for rows, `stale_segments` for none. `merges_due` of the
    segments are small and wait for a merge. `dead_share` of the rows of all segments are in no live split.
    `translation_depth` is how often rows moved since their segment was written, at most. Of vectors `imbalance` is that
    of the segment whose clusters are least alike; None of other kinds.
    """

    watermark: int
    segments: int
    stale_segments: int
    covered_splits: int
    uncovered_splits: int
    uncovered_rows: int
    uncovered_bytes: int
    index_bytes: int
    merges_due: int
    dead_share: float
    translation_depth: int
    imbalance: float | None = None


def debt(snapshot: Snapshot, index: str) -> IndexDebt:
    """Return what an index owes at a snapshot. No request but for manifests. Raises as `catch_up.plan` does."""
    definition = segments.definition_of(snapshot, index)
    covered = coverage(snapshot, definition)
    rows = sum(each.numRecords for each in covered.segments.values())
    trained = [vector.Training.of(each) for each in covered.segments.values()]
    missing, is_vector = covered.missing, definition.kind == "vector"
    return IndexDebt(
        watermark=watermark_of(snapshot, covered),
        segments=len(covered.segments),
        stale_segments=len(covered.stale),
        covered_splits=len(snapshot.splits) - len(missing),
        uncovered_splits=len(missing),
        uncovered_rows=round(sum(covered.missing_rows.values())),
        uncovered_bytes=round(
            sum(add.size * min(1.0, covered.missing_rows[add.path] / (add.numRecords or 1)) for add in missing)
        ),
        index_bytes=sum(each.size for each in covered.segments.values()),
        merges_due=sum(len(each.segments) for each in segment_merge_work.plan(snapshot, covered)),
        dead_share=max(0.0, 1 - sum(covered.live_rows.values()) / rows) if rows else 0.0,
        translation_depth=max(covered.moves.values(), default=0),
        imbalance=max((each.imbalance for each in trained if each), default=1.0) if is_vector else None,
    )
