"""What an import tells of what it did."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import brought: the version with its rows, how many, of how many files, in how many new splits.

    Without a `commit_id` nothing was done: the source, or Arrow data of this name, was imported before.
    """

    version: int
    commit_id: str = ""
    rows: int = 0
    files: int = 0
    splits_added: int = 0
