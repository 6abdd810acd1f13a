"""What a publication did."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirrored:
    """What a mirror shows now, and what was done for it.

    `version` is the version of the table whose rows it shows, None for none yet; `shown_as` the version of the other
    format that does, `commits` are those of it that this call made. `waits_for` says why it shows no newer one.
    """

    format: str
    version: int | None = None
    shown_as: int | None = None
    commits: int = 0
    waits_for: str | None = None
