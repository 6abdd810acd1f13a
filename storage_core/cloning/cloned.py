"""What a clone tells of what it did."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cloned:
    """A clone at its version 0: what it holds, and of which version of the source.

    `copied_bytes` are those of a deep clone. `tag` keeps the version in the source of a shallow one, as long as it is
    there. `unmerged` records of a keyed source were not in the version, so they are not in the clone; None of an older
    version, of which nobody can tell. Without a `commit_id` the clone was there, and nothing was done.
    """

    uri: str
    source_version: int
    rows: int
    splits: int
    copied_bytes: int = 0
    tag: str | None = None
    unmerged: int | None = 0
    commit_id: str = ""
