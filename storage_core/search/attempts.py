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
from storage_core.search.kept import Kept
from storage_core.search.source import Unusable
from storage_core.settings.index import IndexDefinition

_logger = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")


def attempted(
    attempt: Callable[[Sequence[Coverage], SegmentCache], _Answer],
    snapshot: Snapshot,
    definitions: Sequence[IndexDefinition],
    *,
    kept: Kept,
    cache_dir: Path | None,
) -> _Answer:
    """Return what the attempt returns, begun again without each segment or translation that it finds unusable.

    It is given what each index covers. With a warning for each that is unusable. Raises `Unavailable` when the machine
    lacks disk or memory.
    """
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
