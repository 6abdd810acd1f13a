"""What a statement committed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A statement's commit: the version it made, and what it did to the table.

    `rows` of the table met its condition and were deleted, updated or replaced; they lay in `splits` splits.
    `rows_added` joined the table in `splits_added` new splits. Where there was nothing to do nothing was committed:
    `commit_id` is empty, and `version` is the one that was looked at.
    """

    version: int
    commit_id: str = ""
    rows: int = 0
    splits: int = 0
    rows_added: int = 0
    splits_added: int = 0
