"""Restoring an older version: one commit after the head that makes its splits live again
(docs/architecture/transaction-log.md, "History").

What the commit undoes is what the table holds: splits, schema and configuration. What it never takes back is progress:
transactions, fences and merged generations only grow, so nothing that was ingested or merged once is applied again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from storage_core.errors import CommitConflict
from storage_core.gc.protection import planned_for_deletion
from storage_core.history.kept import objects_of, replaced, require_kept
from storage_core.history.renumbered import renumbered_up_to, with_renumbered
from storage_core.log.actions import (
    Action,
    Add,
    Fence,
    IndexSegment,
    Metadata,
    RemoveIndexSegment,
    Translation,
)
from storage_core.log.commit import CommitResult
from storage_core.log.conflicts.requirements import RESTORES, AtVersion
from storage_core.log.deletion_vector import DeletionVector, inline
from storage_core.log.log import TransactionLog
from storage_core.log.moves import by_input, reaches
from storage_core.log.schema_registry import registry, with_registry
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.reading import missing
from storage_core.rows.columns import (
    FORMER_NAMES,
    LAST_COLUMN_ID,
    column_id,
    former_names,
    former_setting,
    has_changed,
    may_widen,
    numbered,
    stored_names,
    with_former,
)
from storage_core.rows.dropped_columns import DROPPED, dropped_columns, with_dropped
from storage_core.rows.schema import to_schema_string
from storage_core.settings.region_fields import HAND_REGIONS_KEY, REGIONS_KEY
from storage_core.split.hidden import removal

OPERATION = "RESTORE"
MAX_PLANS = 10
_OF_REGIONS: Final = (REGIONS_KEY, HAND_REGIONS_KEY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The newest version, `snapshot`, has the content of `restored_version`.

    Without a `commit_id` the head was so already, or this work was committed before, and nothing was done now.
    """

    snapshot: Snapshot
    restored_version: int
    commit_id: str
    splits_added: int
    splits_removed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What turns `head` into the older version; `dropped` and `segments` are index segments.

    `translations` are those of the older version that the head lacks.
    """

    head: Snapshot
    metadata: Metadata | None
    removes: tuple[Add, ...]
    adds: tuple[Add, ...]
    dropped: tuple[IndexSegment, ...]
    segments: tuple[IndexSegment, ...]
    translations: tuple[Translation, ...]

    @property
    def empty(self) -> bool:
        """Whether the head is the older version already. Segments alone are no reason to commit: they are derived."""
        return self.metadata is None and not self.removes and not self.adds

    def actions(self, now_ms: int) -> list[Action]:
        """Return the actions of the commit, which can only be the version right after `head`."""
        return [
            *([] if self.metadata is None else [self.metadata]),
            *(removal(add, now_ms) for add in self.removes),
            *self.adds,
            *(RemoveIndexSegment(index=each.index, path=each.path) for each in self.dropped),
            *self.segments,
            *self.translations,
            Fence(resource=RESTORES, token=self.head.version + 1),
        ]

    def metrics(self, version: int) -> dict[str, int]:
        """Return the metrics that the commit records."""
        return {
            "restored_version": version,
            "rows_in": sum(add.visible_rows for add in self.removes),
            "rows_out": sum(add.visible_rows for add in self.adds),
            "splits_in": len(self.removes),
            "splits_out": len(self.adds),
        }


def restore(log: TransactionLog, target: Snapshot, *, commit_id: str | None = None) -> Restored:
    """Commit the content of `target` as the next version: exactly its splits, schema and configuration.

    Planned on a head and committed right after it or not at all: when another commit lands in between it is planned
    again, at most 10 times. Idempotent: a head that has the content already is left alone, and a call repeated with its
    `commit_id` finds its own commit. Safe beside a collector whose horizon is longer than the call takes; one that
    notes and deletes within the call takes what it brings back, and `fsck` names that.

    Raises `SnapshotExpired` when splits of `target` are gone, or about to go, naming them; `CommitConflict` when other
    writers were faster every time; both with nothing written. `CommitUnknown`: call again. Requests: the head, one GET
    of the collector's plan, those of `missing` for the splits that come back, and a commit.
    """
    for _ in range(MAX_PLANS):
        plan = _plan(log.store, log.snapshot(), target)
        if plan.empty:
            return _restored(plan, target, plan.head, "")
        try:
            result = _commit(log, plan, target, commit_id)
        except CommitConflict:
            continue  # somebody committed meanwhile: what they changed has to be undone as well
        return _restored(plan, target, result.snapshot, "" if result.already_committed else result.commit_id)
    raise CommitConflict(
        f"{log.store.uri}: version {target.version} was not restored, other writers committed during each of "
        f"{MAX_PLANS} attempts; nothing was written, end the writers and try again",
        version=target.version,
    )


def _commit(log: TransactionLog, plan: _Plan, target: Snapshot, commit_id: str | None) -> CommitResult:
    return log.commit(
        plan.head,
        plan.actions(log.clock.now_ms()),
        operation=OPERATION,
        requirements=(AtVersion(plan.head.version),),
        metrics=plan.metrics(target.version),
        commit_id=commit_id,
    )


def _plan(store: ObjectStore, head: Snapshot, target: Snapshot) -> _Plan:
    adds = (
        *(replace(add, dataChange=True) for add in replaced(target, head)),
        *(_with_old_vector(target.splits[path]) for path in _differently_marked(head, target)),
    )
    require_kept(store, objects_of(adds), version=target.version)
    segments = _segments_back(store, head, target)
    translations = _translations_back(store, head, target)
    return _Plan(
        head=head,
        metadata=_metadata(head, target),
        removes=replaced(head, target),
        adds=adds,
        dropped=_segments_deleted(head, target, segments, translations),
        segments=segments,
        translations=translations,
    )


def _differently_marked(head: Snapshot, target: Snapshot) -> list[str]:
    """The splits that both have, and of which they say different rows to be deleted."""
    now, then = _vectors(head), _vectors(target)
    differing = [path for path in now.keys() | then.keys() if now.get(path) != then.get(path)]
    return sorted(path for path in differing if path in head.splits and path in target.splits)


def _vectors(snapshot: Snapshot) -> dict[str, DeletionVector]:
    """What is deleted, by split."""
    return {add.path: add.deleted_rows for add in snapshot.splits.marked() if add.deleted_rows is not None}


def _metadata(head: Snapshot, target: Snapshot) -> Metadata | None:
    """The older metadata, with every registered schema of now, and what a repair recorded: those only grow."""
    now = head.metadata.configuration
    configuration = with_registry(with_renumbered(target.metadata.configuration, renumbered_up_to(now)), registry(now))
    # Regions are where writers are, not what the table holds: those of an older spec are closed for good.
    configuration = {name: value for name, value in configuration.items() if name not in _OF_REGIONS}
    configuration |= {name: now[name] for name in _OF_REGIONS if name in now}
    wanted = replace(target.metadata, configuration=configuration)
    if has_changed(head.schema):
        wanted = _with_columns(wanted, head, target)
    return None if wanted == head.metadata else wanted


def _with_columns(wanted: Metadata, head: Snapshot, target: Snapshot) -> Metadata:
    """The older columns, as wide as they ever were: rows of other versions and unmerged records may be so wide.

    Ids and stored names that were given away stay so. A column that comes back to a keyed table is nullable: records
    that are not merged were written without it.
    """
    settings = head.metadata.configuration
    schema, now = numbered(target.schema), {column_id(field): field for field in head.schema}
    known = dropped_columns(settings) | now
    wide = pa.schema([_as_wide(field, known.get(column_id(field))) for field in schema])
    if target.config.kind == "keyed":
        wide = pa.schema([each if column_id(each) in now else each.with_nullable(nullable=True) for each in wide])
    former = with_former(former_names(settings), head.schema, schema)
    configuration = {name: value for name, value in wanted.configuration.items() if name not in (FORMER_NAMES, DROPPED)}
    configuration |= {LAST_COLUMN_ID: settings[LAST_COLUMN_ID], **former_setting(former)}
    lost = {DROPPED: settings[DROPPED]} if DROPPED in settings else {}
    configuration = with_dropped({**configuration, **lost}, head.schema, wide)
    return replace(wanted, schemaString=to_schema_string(wide), configuration=configuration)


def _as_wide(field: pa.Field, last: pa.Field | None) -> pa.Field:
    """The column, or the same as it was last where that is wider."""
    if last is None:
        return field
    wide = field.with_type(last.type) if may_widen(field.type, last.type) else field
    return wide.with_nullable(field.nullable or last.nullable)


def _segments_back(store: ObjectStore, head: Snapshot, target: Snapshot) -> tuple[IndexSegment, ...]:
    """Segments of the older version that can answer again; a missing one costs a catch-up, never an answer."""
    alike = _indexes_alike(head, target)
    found = [each for path, each in target.segments.items() if path not in head.segments and each.index in alike]
    kept = _kept(store, [each.path for each in found])
    return tuple(sorted((each for each in found if each.path in kept), key=lambda each: each.path))


def _translations_back(store: ObjectStore, head: Snapshot, target: Snapshot) -> tuple[Translation, ...]:
    """Translations of the older version that can lead its segments again; those of the head stay for a catch-up."""
    if not target.config.indexes:
        return ()
    found = [target.translations[path] for path in sorted(target.translations.keys() - head.translations.keys())]
    kept = _kept(store, [each.path for each in found])
    return tuple(each for each in found if each.path in kept)


def _kept(store: ObjectStore, paths: Sequence[str]) -> set[str]:
    """Those of the objects that are there and that no collection is about to take."""
    return {*paths} - {*planned_for_deletion(store, paths), *missing(store, paths)} if paths else set()


def _segments_deleted(
    head: Snapshot, target: Snapshot, back: Collection[IndexSegment], translations: Collection[Translation]
) -> tuple[IndexSegment, ...]:
    """Live segments that the older version has no use for, or that would cover a split a second time."""
    alike = _indexes_alike(head, target)
    answered = {(each.index, split) for each in back for split in each.covers}
    moved = by_input([*head.translations.values(), *translations])
    return tuple(
        segment
        for path, segment in sorted(head.segments.items())
        if segment.index not in alike
        or not reaches(segment, target.splits, moved)
        or any((segment.index, split) in answered for split in segment.covers)
    )


def _indexes_alike(head: Snapshot, target: Snapshot) -> frozenset[str]:
    # A segment of an index that was dropped or defined otherwise in between is built again by the next catch-up. So is
    # one of a column that is another now.
    return frozenset(
        index.name
        for index in target.config.indexes
        if head.config.index(index.name) == index
        and stored_names(head.schema, index.columns) == stored_names(target.schema, index.columns)
    )


def _with_old_vector(add: Add) -> Add:
    """The entry of a live split as it was. That no row is deleted has to be said: an absent vector changes nothing."""
    return replace(add, dataChange=True, deletionVector=add.deletionVector or inline(()))


def _restored(plan: _Plan, target: Snapshot, after: Snapshot, commit_id: str) -> Restored:
    return Restored(
        snapshot=after,
        restored_version=target.version,
        commit_id=commit_id,
        splits_added=len(plan.adds) if commit_id else 0,
        splits_removed=len(plan.removes) if commit_id else 0,
    )
