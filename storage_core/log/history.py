"""The commits of a table, newest first, and the search for one commit among them (docs/architecture/transaction-log.md,
"History").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from storage_core.log.advance import read_version
from storage_core.log.encoding.codec import commit_info
from storage_core.log.snapshot import commit_timestamp
from storage_core.objectstore.contract import ObjectStore

UNRECORDED = "unrecorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """One version: commit time in ms, what it did, its id, and the metrics that it recorded.

    Versions written by others carry no commit information: their operation is `unrecorded` and their id empty.
    """

    version: int
    timestamp: int
    operation: str
    commit_id: str
    metrics: Mapping[str, Any] = field(default_factory=dict)
    job_run_id: str | None = None


def entries(store: ObjectStore, newest: int) -> Iterator[HistoryEntry]:
    """Yield the retained versions from `newest` down, one GET each; ends at the first that is no longer there."""
    for version in range(newest, -1, -1):
        actions = read_version(store, version)
        if actions is None:
            return
        info = commit_info(actions)
        yield HistoryEntry(
            version=version,
            timestamp=commit_timestamp(actions, 0),
            operation=info.operation if info else UNRECORDED,
            commit_id=info.commitId if info else "",
            metrics=info.metrics if info else {},
            job_run_id=info.jobRunId if info else None,
        )


def find_commit(store: ObjectStore, newest: int, commit_id: str) -> int | None:
    """Return the version that `commit_id` became, searching from `newest` down however many commits have followed.

    None means that no retained version up to `newest` is this commit. One GET per version looked at.
    """
    return next((entry.version for entry in entries(store, newest) if entry.commit_id == commit_id), None)
