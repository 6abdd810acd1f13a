"""Which rows a segment numbers: those of one split, or of several one after the other (decision 0122)."""

from __future__ import annotations

from dataclasses import dataclass

from storage_core.log.actions import IndexSegment

GONE = "gone"
"""Ends the name of what is no split: rows of a merged segment that were in none any more when it was written."""


@dataclass(frozen=True, slots=True)
class Member:
    """A split in a segment: `rows` of its rows, the first of them row `start` of the segment.

    All rows of its file, or with `origins` a part: those that came from these other splits; `file` of the segment says
    which.
    """

    split: str
    start: int
    rows: int
    origins: tuple[str, ...] | None = None
    file: str = ""


def members(segment: IndexSegment) -> tuple[Member, ...]:
    """Return the splits of a segment, by its rows. None of one that does not say how many rows each of several has."""
    if segment.coveredRows is None:
        if len(segment.covers) != 1:
            return ()
        (split,) = segment.covers
        return (Member(split, 0, segment.numRecords, segment.origins, rows_file() if segment.origins else ""),)
    found, start = list[Member](), 0
    for number, (split, rows) in enumerate(zip(segment.covers, segment.coveredRows, strict=True)):
        origins = segment.coveredOrigins[number] if segment.coveredOrigins else ()
        found.append(Member(split, start, rows, origins or None, rows_file(number) if origins else ""))
        start += rows
    return tuple(found)


def origins_in(segment: IndexSegment, split: str) -> tuple[str, ...] | None:
    """Return where the rows of a split came from that the segment is over; None when it is over all of them."""
    return next((each.origins for each in members(segment) if each.split == split), None)


def is_over_one_split(segment: IndexSegment) -> bool:
    """Tell whether the rows of the segment are those of one split's file, each at its place."""
    return segment.coveredRows is None and segment.origins is None and len(segment.covers) == 1


def rows_file(member: int | None = None) -> str:
    """Return the name of the file with the rows of a part of a split: a portable Roaring bitmap."""
    return "rows.bin" if member is None else f"rows-{member}.bin"
