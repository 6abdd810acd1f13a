"""Older versions: their objects, the tags that keep them, and restores.

docs/architecture/transaction-log.md describes the history of a table in the section "History".

A restore is a new commit, which is written as the version after the head. A restore makes the splits of an older
version live again, and restores the schema and the configuration. A restore never lowers the progress of the table: it
keeps the newest transactions, fences and merged generations. A file or record that was ingested or merged once is
therefore not applied again.

A split contains the version number of its plan. A repair can reduce the number of versions, and the number in the split
would then mean another version. A repair therefore stores the highest old number (`renumbered_up_to`).
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from storage_core.base.errors import CommitConflict, InvalidInput, NotFound, SnapshotExpired
from storage_core.data.formats.documents import Tag
from storage_core.data.formats.keys import validate_tag_name
from storage_core.data.rows.columns import (
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
from storage_core.data.rows.schema import DROPPED, dropped_columns, to_schema_string, with_dropped
from storage_core.data.settings.layout import HAND_REGIONS_KEY, REGIONS_KEY
from storage_core.log.actions import Action, Add, Fence, IndexSegment, Metadata, RemoveIndexSegment, Translation
from storage_core.log.checkpoint import named_keys
from storage_core.log.codec import registry, with_registry
from storage_core.log.commit import CommitResult
from storage_core.log.conflicts import RESTORES, AtVersion, require_writable
from storage_core.log.coverage import by_input, reaches
from storage_core.log.deletion_vector import DeletionVector, inline
from storage_core.log.log import TransactionLog, read_tags, replace_tag
from storage_core.log.snapshot import Snapshot
from storage_core.log.split_columns import adds_of, paths_of, without_paths
from storage_core.maintain.collect import planned_for_deletion
from storage_core.maintain.roots import existing_forms
from storage_core.maintain.table_objects import references_of
from storage_core.split.deletion_vectors import removal
from storage_core.store.contract import ObjectStore, missing

RENUMBERED_UP_TO = "tidemark.renumberedUpTo"


_logger = logging.getLogger(__name__)


def renumbered_up_to(configuration: Mapping[str, str]) -> int:
    """Return the highest version number that splits contain from the time before a repair. Return -1 without a valid
    record.
    """
    text = configuration.get(RENUMBERED_UP_TO, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1


def with_renumbered(configuration: Mapping[str, str], version: int) -> dict[str, str]:
    """Return the configuration with the higher of `version` and the recorded version.

    If `version` is -1, the configuration is returned unchanged.
    """
    newest = max(version, renumbered_up_to(configuration))
    return dict(configuration) if newest < 0 else {**configuration, RENUMBERED_UP_TO: str(newest)}


def replaced(mine: Snapshot, other: Snapshot) -> tuple[Add, ...]:
    """Return the splits of `mine` that `other` does not have, ordered by path.

    The function compares columns of paths, and creates `Add` records only for the returned splits.
    """
    files = mine.splits.table()
    return adds_of(without_paths(files, paths_of(other.splits.table())).sort_by("path"))


def objects_of(adds: Sequence[Add]) -> list[str]:
    """Return the keys of the objects that a reader of these splits needs."""
    return [each.key for add in adds for each in references_of(add)]


def require_kept(store: ObjectStore, keys: Collection[str], *, version: int) -> None:
    """Raise `SnapshotExpired` unless every object exists and the collector does not plan to delete it.

    Cost:
        One GET of the plan, and then the requests of `missing`. Because of this order, an object that a collector
        deletes in between is in the plan or missing.
    """
    if not keys:
        return
    lost = sorted(planned_for_deletion(store, keys)) or missing(store, keys)
    if lost:
        shown = ", ".join(lost[:3]) + (" …" if len(lost) > 3 else "")
        raise SnapshotExpired(
            f"version {version} of {store.uri} is no longer retained: {len(lost)} of its objects are collected or "
            f"planned for collection ({shown}). Nothing was changed. Choose a newer version",
            version=version,
            keys=lost,
        )


def set_tag(
    log: TransactionLog,
    name: str,
    target: Snapshot,
    *,
    expires_at_ms: int | None = None,
    lasts: dt.timedelta | None = None,
) -> Tag:
    """Set a tag to the version of `target`. After the call, no object of this version can be collected.

    If a tag of this name exists, the tag is moved to this version. The objects are checked before and after the write
    of the tag. The collector sees the tag before it deletes an object, or the second check finds the deletion. In the
    second case, the tag is removed again.

    Args:
        log: Transaction log of the table.
        name: Name of the tag.
        target: Version to keep.
        expires_at_ms: Time in ms at which the tag expires. If None, `lasts` is used.
        lasts: Time from now after which the tag expires. If both are None, the tag does not expire.

    Returns:
        The tag.

    Raises:
        SnapshotExpired: Objects of the version are deleted or planned for deletion.
        InvalidInput: The name is invalid, or the time has passed.
        CommitConflict: Another process set the same name concurrently.
        CommitUnknown: The store did not report the outcome. Set the tag again.

    Cost:
        The requests for the head, for a checkpoint of the version unless it has a checkpoint, and one PUT. Also, twice:
        one GET of the plan, and one HEAD per object that is no longer live.
    """
    require_writable(target)
    now_ms = log.clock.now_ms()
    validate_tag_name(name)
    if lasts is not None:
        expires_at_ms = now_ms + lasts // dt.timedelta(milliseconds=1)
    if expires_at_ms is not None and expires_at_ms <= now_ms:
        raise InvalidInput(
            f"the tag {name!r} would expire at {expires_at_ms} ms, which has passed. Give a later time", tag=name
        )
    needed = _needed(log, target)
    tag = Tag(name=name, version=target.version, created_at_ms=now_ms, expires_at_ms=expires_at_ms, id=log.ids.uuid())
    before = read_tags(log.store).by_name.get(name)
    replace_tag(log, name, before, tag)
    try:
        require_kept(log.store, needed, version=target.version)
    except SnapshotExpired:
        replace_tag(log, name, tag, before)
        raise
    _logger.info("tag %s of %s: version %d", name, log.store.uri, target.version)
    return tag


def _needed(log: TransactionLog, target: Snapshot) -> list[str]:
    """Return the objects that `target` needs and that the head does not reference. All returned objects exist.

    A missing segment or translation is omitted, because `target` can be read without it.
    """
    head = log.snapshot()
    derived = (target.segments.keys() - head.segments.keys()) | (target.translations.keys() - head.translations.keys())
    files = objects_of(replaced(target, head)) + sorted(derived.difference(missing(log.store, sorted(derived))))
    require_kept(log.store, files, version=target.version)
    log.checkpoint(target)
    state = _checkpoint_keys(log.store, target.version)
    require_kept(log.store, state, version=target.version)
    return [*files, *state]


def _checkpoint_keys(store: ObjectStore, version: int) -> list[str]:
    """Return the keys of all checkpoint objects of the version.

    With these objects, a reader opens the version without a version file.
    """
    try:
        found = [key for each in existing_forms(store, version) for key in (each.key, *named_keys(store, each))]
    except NotFound:
        found = []
    if not found:
        raise SnapshotExpired(
            f"version {version} of {store.uri} is being collected. Choose a newer version", version=version
        )
    return found


OPERATION = "RESTORE"
MAX_PLANS = 10
_OF_REGIONS: Final = (REGIONS_KEY, HAND_REGIONS_KEY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The outcome of a restore: the newest version, `snapshot`, has the content of `restored_version`.

    `commit_id` is empty if the head already had this content or if this work was committed before.
    """

    snapshot: Snapshot
    restored_version: int
    commit_id: str
    splits_added: int
    splits_removed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """The changes from `head` to the older version.

    `dropped` and `segments` are index segments to remove and to add. `translations` are the translations to add.
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
        """Whether the head already has the content. Segments are derived, so they are not a reason for a commit."""
        return self.metadata is None and not self.removes and not self.adds

    def actions(self, now_ms: int) -> list[Action]:
        """Return the actions of the commit. The commit can only be the version right after `head`."""
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
    """Commit the content of `target` as the next version: its splits, schema and configuration.

    The commit must directly follow the head of the plan. If another commit comes first, the restore is planned again,
    at most 10 times. The call is idempotent. If the head already has the content, nothing is committed. A repeated call
    with the same `commit_id` finds its own commit.

    A concurrent collector is safe if its horizon is longer than the duration of the call. With a shorter horizon, the
    collector can delete objects that the restore needs. `fsck` then reports these objects.

    Raises:
        SnapshotExpired: Splits of `target` are deleted or about to be deleted. The error names them. Nothing is
            written.
        CommitConflict: Other writers committed first in every attempt. Nothing is written.
        CommitUnknown: The store did not report the outcome. Call again with the same `commit_id`.

    Cost:
        The requests for the head, one GET of the collector's plan, the requests of `missing` for restored splits, and
        the requests of a commit.
    """
    for _ in range(MAX_PLANS):
        plan = _plan(log.store, log.snapshot(), target)
        if plan.empty:
            return _restored(plan, target, plan.head, "")
        try:
            result = _commit(log, plan, target, commit_id)
        except CommitConflict:
            continue  # another commit came in between, and its changes must be undone as well
        return _restored(plan, target, result.snapshot, "" if result.already_committed else result.commit_id)
    raise CommitConflict(
        f"{log.store.uri}: version {target.version} was not restored, because other writers committed during each of "
        f"{MAX_PLANS} attempts. Nothing was written. Stop the writers and try again",
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
    """Return the paths of splits that both versions have, but with different deleted rows."""
    now, then = _vectors(head), _vectors(target)
    differing = [path for path in now.keys() | then.keys() if now.get(path) != then.get(path)]
    return sorted(path for path in differing if path in head.splits and path in target.splits)


def _vectors(snapshot: Snapshot) -> dict[str, DeletionVector]:
    """Return the deletion vectors, by split."""
    return {add.path: add.deleted_rows for add in snapshot.splits.marked() if add.deleted_rows is not None}


def _metadata(head: Snapshot, target: Snapshot) -> Metadata | None:
    """Return the metadata of `target`, and keep the registered schemas and the repair record of the head."""
    now = head.metadata.configuration
    configuration = with_registry(with_renumbered(target.metadata.configuration, renumbered_up_to(now)), registry(now))
    # Regions belong to the writers of the table, so a restore of the table's content does not change the regions. The
    # regions of an older spec stay closed.
    configuration = {name: value for name, value in configuration.items() if name not in _OF_REGIONS}
    configuration |= {name: now[name] for name in _OF_REGIONS if name in now}
    wanted = replace(target.metadata, configuration=configuration)
    if has_changed(head.schema):
        wanted = _with_columns(wanted, head, target)
    return None if wanted == head.metadata else wanted


def _with_columns(wanted: Metadata, head: Snapshot, target: Snapshot) -> Metadata:
    """Return the metadata with the columns of `target`, each with the widest type that the column ever had.

    Rows of versions other than `target` and unmerged records may contain values that need the wider types. Column ids
    and stored names stay assigned. A column that returns to a keyed table is nullable, because unmerged records do not
    have it.
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
    """Return the column. If the last known version of the column has a wider type or allows nulls, the returned column
    does the same.
    """
    if last is None:
        return field
    wide = field.with_type(last.type) if may_widen(field.type, last.type) else field
    return wide.with_nullable(field.nullable or last.nullable)


def _segments_back(store: ObjectStore, head: Snapshot, target: Snapshot) -> tuple[IndexSegment, ...]:
    """Return usable segments of the older version. An index catch-up builds missing segments."""
    alike = _indexes_alike(head, target)
    found = [each for path, each in target.segments.items() if path not in head.segments and each.index in alike]
    kept = _kept(store, [each.path for each in found])
    return tuple(sorted((each for each in found if each.path in kept), key=lambda each: each.path))


def _translations_back(store: ObjectStore, head: Snapshot, target: Snapshot) -> tuple[Translation, ...]:
    """Return the translations for segments of the older version. The head keeps its translations for the catch-up."""
    if not target.config.indexes:
        return ()
    found = [target.translations[path] for path in sorted(target.translations.keys() - head.translations.keys())]
    kept = _kept(store, [each.path for each in found])
    return tuple(each for each in found if each.path in kept)


def _kept(store: ObjectStore, paths: Sequence[str]) -> set[str]:
    """Return the objects that exist and that no collector plans to delete."""
    return {*paths} - {*planned_for_deletion(store, paths), *missing(store, paths)} if paths else set()


def _segments_deleted(
    head: Snapshot, target: Snapshot, back: Collection[IndexSegment], translations: Collection[Translation]
) -> tuple[IndexSegment, ...]:
    """Return two kinds of live segments.

    The first kind contains segments that cannot be used in the older version that is restored. The second kind contains
    segments that would cover the rows of a split a second time.
    """
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
    # An index may have been dropped or redefined after the older version was written. A column name may now belong to
    # another column than in the older version. If an index was redefined, the next catch-up builds its segments again.
    return frozenset(
        index.name
        for index in target.config.indexes
        if head.config.index(index.name) == index
        and stored_names(head.schema, index.columns) == stored_names(target.schema, index.columns)
    )


def _with_old_vector(add: Add) -> Add:
    """Return the entry of a live split from the older version.

    If no row was deleted, the entry has an empty deletion vector. An entry without a deletion vector would change
    nothing.
    """
    return replace(add, dataChange=True, deletionVector=add.deletionVector or inline(()))


def _restored(plan: _Plan, target: Snapshot, after: Snapshot, commit_id: str) -> Restored:
    return Restored(
        snapshot=after,
        restored_version=target.version,
        commit_id=commit_id,
        splits_added=len(plan.adds) if commit_id else 0,
        splits_removed=len(plan.removes) if commit_id else 0,
    )
