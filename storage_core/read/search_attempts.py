"""Searching until no object that is damaged or gone is in the way."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from storage_core.headroom import QUERY_BYTES, require_headroom
from storage_core.index.cache import SegmentCache, open_cache
from storage_core.index.coverage import Coverage, coverage
from storage_core.log.snapshot import Snapshot
from storage_core.read.search_kept import Kept
from storage_core.read.search_source import Unusable
from storage_core.settings.index import IndexDefinition

_logger = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")


def attempted(
    attempt: Callable[[Coverage, SegmentCache], _Answer],
    snapshot: Snapshot,
    definition: IndexDefinition,
    *,
    kept: Kept,
    cache_dir: Path | None,
) -> _Answer:
    """Return what the attempt returns, begun again without each segment or translation that it finds unusable.

    With a warning for each. Raises `Unavailable` when the machine lacks disk or memory.
    """

    def by_one(covered: Sequence[Coverage], cached: SegmentCache) -> _Answer:
        return attempt(covered[0], cached)

    return attempted_by_several(by_one, snapshot, [definition], kept=kept, cache_dir=cache_dir)


def attempted_by_several(
    attempt: Callable[[Sequence[Coverage], SegmentCache], _Answer],
    snapshot: Snapshot,
    definitions: Sequence[IndexDefinition],
    *,
    kept: Kept,
    cache_dir: Path | None,
) -> _Answer:
    """Return what `attempted` does of an attempt that asks several indexes, and is given what each covers."""
    covered, unusable = [kept.coverage(snapshot, each) for each in definitions], set[str]()
    names = ", ".join(repr(each.name) for each in definitions)
    with (
        require_headroom(f"search of index {names}", size=QUERY_BYTES),
        open_cache(cache_dir) as cached,
    ):
        while True:
            try:
                return attempt(covered, cached)
            except Unusable as gone:
                _logger.warning("%s is not usable, reading splits instead: %s", gone.path, gone)
                unusable.add(gone.path)
                covered = [coverage(snapshot, each, without=unusable) for each in definitions]
