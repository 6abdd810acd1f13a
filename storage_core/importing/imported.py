"""What an import tells of what it did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import brought: the version with its rows, how many, of how many files, in how many new splits.

    Without a `commit_id` it committed nothing: the source, or Arrow data of this name, was imported before, or
    `by_another` while this import read it. A keyed table was then given the same rows twice, which by key is once.
    `not_read` files of the folder were left out; `not_read_names` has the first names, each with the reason.
    """

    version: int
    commit_id: str = ""
    rows: int = 0
    files: int = 0
    splits_added: int = 0
    by_another: bool = False
    not_read: int = 0
    not_read_names: Mapping[str, str] = field(default_factory=dict)

    @property
    def status(self) -> Literal["committed", "nothing_to_do", "done_by_another"]:
        """What the command calls it."""
        if self.by_another:
            return "done_by_another"
        return "committed" if self.commit_id else "nothing_to_do"
