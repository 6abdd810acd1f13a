"""What an open table keeps from one search for the next."""

from __future__ import annotations

from dataclasses import dataclass, field

from storage_core.index.coverage import Coverage, coverage
from storage_core.index.searchers import Searchers
from storage_core.log.snapshot import Snapshot
from storage_core.read.log_runs import LogRuns
from storage_core.read.verified import Verified
from storage_core.settings.index import IndexDefinition
from storage_core.split.kept_values import KeptValues

READER_BYTES = 2**30
"""Of open segments of vectors, per table: their files, and their codes decoded."""


@dataclass(slots=True)
class Kept:
    """Open searchers and vector segments, decoded pages, what filters said, and where runs of logs end.

    All bounded, of immutable things, and named by path and checksum, so later versions share it. Safe for threads.
    """

    verified: Verified = field(default_factory=Verified)
    searchers: Searchers = field(default_factory=Searchers)
    values: KeptValues = field(default_factory=KeptValues)
    readers: KeptValues = field(default_factory=lambda: KeptValues(READER_BYTES))
    runs: LogRuns = field(default_factory=LogRuns)
    _covered: tuple[Snapshot, dict[str, Coverage]] | None = None

    def coverage(self, snapshot: Snapshot, definition: IndexDefinition) -> Coverage:
        """Return what the index covers of the snapshot; made once as long as neither is another. No request."""
        covered = self._covered
        if covered is None or covered[0] is not snapshot:
            covered = self._covered = snapshot, {}
        found = covered[1].get(definition.name)
        if found is None or found.definition != definition:
            found = covered[1][definition.name] = coverage(snapshot, definition)
        return found
