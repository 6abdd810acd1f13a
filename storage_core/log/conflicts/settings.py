"""Schema and configuration that a commit relies on, against the head it would follow.

New splits, of any writer, rely on what decided their rows and their order; but a split of an earlier schema is one of
the table still where that was widened only. A merge relies on the schema: the records that it read may have columns
that its plan did not know. A commit of `metaData` was derived from the whole of it. Nothing else relies on either,
except an index on its own definition (`conflicts.segments`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from storage_core.errors import CommitConflict
from storage_core.log.actions import Action, Add, MergedGenerations, Metadata
from storage_core.log.snapshot import Snapshot
from storage_core.rows.columns import follows

# What is not here may change under a writer: settings of the upkeep, indexes, landing place, description.
_RELIED_ON: Mapping[str, Callable[[Snapshot], object]] = {
    "table id": lambda snapshot: snapshot.metadata.id,
    "schema": lambda snapshot: snapshot.schema,
    "partition columns": lambda snapshot: snapshot.metadata.partitionColumns,
    "time column": lambda snapshot: snapshot.config.time_column,
    "sort schema": lambda snapshot: snapshot.config.sort_schema,
    "window": lambda snapshot: snapshot.config.window_seconds,
    "primary key": lambda snapshot: snapshot.config.primary_key,
    "regions by hand": lambda snapshot: snapshot.config.regions_by_hand,  # by which merges exclude one another
}


def check_settings(actions: Iterable[Action], planned: Snapshot, head: Snapshot) -> None:
    """Return when nothing that the actions rely on has changed since the plan; else raise `CommitConflict`."""
    if head.metadata == planned.metadata:
        return
    kinds = {type(action) for action in actions}
    if Metadata in kinds:
        raise _conflict("this commit replaces them", planned, head)
    changed = [name for name, of in _RELIED_ON.items() if of(head) != of(planned)] if Add in kinds else []
    if "schema" in changed and MergedGenerations not in kinds and follows(head.schema, planned.schema):
        changed.remove("schema")
    if changed:
        raise _conflict(", ".join(changed), planned, head)


def _conflict(what: str, planned: Snapshot, head: Snapshot) -> CommitConflict:
    return CommitConflict(
        f"schema or configuration changed between version {planned.version} and {head.version} ({what}); "
        "plan again from a fresh snapshot"
    )
