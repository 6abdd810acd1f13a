"""What a search looks at, and how it begins: what is not merged, the sources of each index, the filter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from storage_core.index.cache import SegmentCache
from storage_core.index.coverage import Coverage
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.read.overlay import Overlay, take_apart
from storage_core.read.row_filter import RowFilter
from storage_core.search.attempts import attempted
from storage_core.search.kept import Kept
from storage_core.search.source import Source
from storage_core.search.sources import sources
from storage_core.settings.index import IndexDefinition

if TYPE_CHECKING:
    from storage_core.read.plan import RawPart
    from storage_core.read.predicate import Filter
    from storage_core.region.unmerged import Unmerged
    from storage_core.settings.query import QueryLimits

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """What is searched: the rows of a snapshot and of what is not merged into it that meet a filter, within limits.

    Unpacked segments stay in `cache_dir`; None keeps them for one search only. What `kept` has of earlier searches is
    neither fetched, opened nor decoded again. Some of what is not merged is in `raw` logs.
    """

    store: ObjectStore
    snapshot: Snapshot
    unmerged: Sequence[Unmerged] = ()
    raw: tuple[RawPart, ...] = ()
    filter: Filter | None = None
    limits: QueryLimits | None = None
    cache_dir: Path | None = None
    kept: Kept = field(default_factory=Kept)

    def overlay(self) -> Overlay:
        """Return what is not merged, taken apart; logs are divided as for earlier searches. See `take_apart`."""
        kept = self.kept
        return take_apart(self.store, self.snapshot, self.unmerged, footers=kept.verified.footers, runs=kept.runs)

    def sources(self, covered: Sequence[Coverage], overlay: Overlay, cached: SegmentCache) -> list[list[Source]]:
        """Return the sources of each index, of which it is known what it covers. See `sources.sources`."""
        return sources(self.store, self.snapshot, covered, overlay=overlay, cache=cached, kept=self.kept)

    def row_filter(self, *, is_run: bool = True) -> RowFilter | None:
        """Return the filter, None for none; what it says of rows is kept. See `RowFilter`."""
        if self.filter is None:
            return None
        parts, values = self.kept.verified.bitmaps, self.kept.values
        return RowFilter(
            self.store, self.snapshot, self.filter, limits=self.limits, parts=parts, values=values, is_run=is_run
        )

    def attempted(
        self,
        attempt: Callable[[Sequence[Coverage], SegmentCache], _Answer],
        definitions: Sequence[IndexDefinition],
    ) -> _Answer:
        """Return what the attempt returns for what each index covers. See `attempts.attempted`."""
        return attempted(attempt, self.snapshot, definitions, kept=self.kept, cache_dir=self.cache_dir)
