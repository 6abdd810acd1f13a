"""What each commit wrote, counted from its version file (docs/architecture/transaction-log.md, "History")."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from storage_core.log.actions import Action, Add, IndexSegment, Remove
from storage_core.log.advance import read_version
from storage_core.log.encoding.codec import commit_info
from storage_core.log.history import UNRECORDED
from storage_core.log.snapshot import commit_timestamp
from storage_core.objectstore.contract import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One commit: what it added and removed. Times in ms, sizes in bytes; `brings_rows` unless it only moved rows.

    `metrics` are those that it recorded itself.
    """

    version: int
    timestamp: int
    operation: str
    job_run_id: str | None
    splits_added: int
    bytes_added: int
    splits_removed: int
    bytes_removed: int
    segments_added: int
    segment_bytes: int
    brings_rows: bool
    metrics: Mapping[str, Any] = field(default_factory=dict)


def written(store: ObjectStore, newest: int) -> Iterator[Written]:
    """Yield what the retained versions wrote, from `newest` down, one GET each; ends at the first that is gone."""
    for version in range(newest, -1, -1):
        actions = read_version(store, version)
        if actions is None:
            return
        yield _counted(version, actions)


def brings_rows(action: Action) -> bool:
    """Return whether the action adds a split with rows that were not there.

    A split that only moved rows does not; nor does an entry of a live split with the vector of a delete.
    """
    return isinstance(action, Add) and action.dataChange and action.deletionVector is None


def _counted(version: int, actions: list[Action]) -> Written:
    info = commit_info(actions)
    # One with a vector that changes data is the entry of a live split, which gets that vector.
    adds = [each for each in actions if isinstance(each, Add) and (not each.dataChange or each.deletionVector is None)]
    removes = [each for each in actions if isinstance(each, Remove)]
    segments = [each for each in actions if isinstance(each, IndexSegment)]
    return Written(
        version=version,
        timestamp=commit_timestamp(actions, 0),
        operation=info.operation if info else UNRECORDED,
        job_run_id=info.jobRunId if info else None,
        splits_added=len(adds),
        bytes_added=sum(each.size for each in adds),
        splits_removed=len(removes),
        bytes_removed=sum(each.size or 0 for each in removes),
        segments_added=len(segments),
        segment_bytes=sum(each.size for each in segments),
        brings_rows=any(map(brings_rows, actions)),
        metrics=info.metrics if info else {},
    )
