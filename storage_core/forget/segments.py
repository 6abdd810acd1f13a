"""Index segments that hold words, values or vectors of rows that are to be forgotten (decision 0143).

A segment has the rows of the splits it was built over, also those that were deleted since, wherever its other rows have
moved. Of a split that is there a search says whether it had one. Of one that is gone nobody can say: the segment is
clean only where all of its rows are in live splits still.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from storage_core.forget.search import Found
from storage_core.formats.keys import REGIONS_PREFIX
from storage_core.index.coverage import Coverage, coverage
from storage_core.log.actions import IndexSegment
from storage_core.log.covered import members
from storage_core.log.snapshot import Snapshot

_NEARLY_ALL: Final = 1 - 1e-9  # of shares that were added up


def holding_segments(head: Snapshot, found: Found, *, strict: bool) -> dict[str, IndexSegment]:
    """Return the live segments that hold rows, by path. No request but for manifests.

    With `strict` also those of which it cannot be told: they are built over splits that are gone, and have rows that
    are in no live split.
    """
    covered = {each.name: coverage(head, each) for each in head.config.indexes}
    return {
        path: segment
        for path, segment in head.segments.items()
        if _holds(segment, covered.get(segment.index), found, strict=strict)
    }


def _holds(segment: IndexSegment, covered: Coverage | None, found: Found, *, strict: bool) -> bool:
    answers = {} if covered is None else covered.answers
    if any(segment.path in answers.get(split, ()) for split in found.splits):
        return True
    told = [*sources(segment, found)]
    if True in told:
        return True
    if None not in told or not strict:
        return False
    live = 0.0 if covered is None else covered.live_rows.get(segment.path, 0.0)
    return live < segment.numRecords * _NEARLY_ALL


def sources(segment: IndexSegment, found: Found) -> Iterator[bool | None]:
    """Yield of each split or generation the segment was built over whether it holds rows; None of one that is gone."""
    named = [each.split for each in members(segment)]
    if not named:
        yield None
    for path in named:
        yield _of_generation(path, found) if path.startswith(REGIONS_PREFIX) else _of_split(path, found)


def _of_split(path: str, found: Found) -> bool | None:
    return path in found.splits if found.has_split(path) and path not in found.unread else None


def _of_generation(path: str, found: Found) -> bool | None:
    region, directory, *rest = path.removeprefix(REGIONS_PREFIX).split("/")
    is_there = (region, directory) in found.generations
    return None if rest or not is_there else (region, directory) in found.directories
