"""Versions that a repair numbered anew: what splits from before say of their table's versions is about other ones.

A split names the version that it was planned on. Brought over into a repaired table that has fewer versions, it would
stand for versions that never were; so the repair records in the table's configuration up to where that is so.
"""

from __future__ import annotations

from collections.abc import Mapping

RENUMBERED_UP_TO = "tidemark.renumberedUpTo"


def renumbered_up_to(configuration: Mapping[str, str]) -> int:
    """Return the newest version that a split from before a repair may name; -1 without one, or for no number."""
    text = configuration.get(RENUMBERED_UP_TO, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1


def with_renumbered(configuration: Mapping[str, str], version: int) -> dict[str, str]:
    """Return the configuration recording this version, or the one that it has where that is newer; -1 records none."""
    newest = max(version, renumbered_up_to(configuration))
    return dict(configuration) if newest < 0 else {**configuration, RENUMBERED_UP_TO: str(newest)}
