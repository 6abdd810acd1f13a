"""What an import tells of what it did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import brought: the version with its rows, how many, of how many files, in how many new splits.

    Without a `commit_id` it committed nothing: the source, or Arrow data of this name, was imported before, or
    `by_another` while this import read it. A keyed table was then given the same rows twice, which by key is once.
    """

    version: int
    commit_id: str = ""
    rows: int = 0
    files: int = 0
    splits_added: int = 0
    by_another: bool = False

    @property
    def status(self) -> Literal["committed", "nothing_to_do", "done_by_another"]:
        """What the command calls it."""
        if self.by_another:
            return "done_by_another"
        return "committed" if self.commit_id else "nothing_to_do"
