"""What a publication did."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirrored:
    """What a mirror shows now, and what was done for it.

    `version` is the version of the table whose rows it shows, None for none yet; `shown_as` the version of the other
    format that does: of Iceberg the snapshot. `location` is what readers are given: the table, or the newest metadata.
    `commits` are those that this call made. `waits_for` says why it shows no newer version.
    """

    format: str
    version: int | None = None
    shown_as: int | None = None
    location: str | None = None
    commits: int = 0
    waits_for: str | None = None
