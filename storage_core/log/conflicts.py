"""The conflict rules. The rules decide whether actions may be committed on a head.

Every attempt of a commit checks its actions against the head that the commit would follow
(docs/architecture/transaction-log.md). Put-if-absent of the next version succeeds only if that head is still the newest
version. So the checks are still valid at the time of the commit. The rules depend only on the actions, not on the name
of the operation. Start with `Plan` and `settle`.

**Splits.** A commit can remove a split only if the split is live in the head. The deletion vector of the split must be
unchanged since the plan. If the plan was rebased, the deletion vector must be unchanged since the rebase. So a
compaction never restores rows that were deleted concurrently (lesson 26). An add may change the deletion vector of a
live split only if the split has not changed since the plan. An add whose path is not live adds a new file.

The commit does not look up a new file among all live splits. On a table of a million files, that check would read every
manifest for every commit. The check is not necessary: each split has its own UUID and is written by put-if-absent. A
path can therefore already be live only if the same file was committed before. The log recognizes a repeated commit by
its commit id or its `txn`. If a commit has no id and no `txn`, it is checked against the newest commits. This check
needs no request. `fsck` reports a path that is live twice.

**Settings.** New splits depend on the settings that determine their rows and their order. A split of an earlier schema
is still valid if all later changes only widened the schema. A merge depends on the exact schema. The records of the
merge may have columns that the plan did not include. A commit of `metaData` depends on the complete metadata. An index
segment depends on the definition of its index. No other action depends on settings.

**Segments and translations.** The commit omits new index segments and translations that no search can use any more. The
commit also removes existing translations that no segment needs any more.

**Requirements** are conditions that a commit sets in addition to the conditions of its actions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from storage_core.base.errors import CommitConflict, Corrupt, Fenced, InvalidInput, Unsupported
from storage_core.data.rows.columns import follows
from storage_core.data.rows.schema import from_schema_string
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import (
    FEATURES,
    MAX_TIME_MS,
    OWN_FEATURE,
    WRITER_VERSION,
    Action,
    Add,
    CommitInfo,
    Fence,
    IndexSegment,
    MergedGenerations,
    Metadata,
    Protocol,
    Remove,
    RemoveIndexSegment,
    RemoveTranslation,
    RemoveTxn,
    Translation,
    Txn,
    is_ours,
)
from storage_core.log.codec import decode_version, encode_version
from storage_core.log.coverage import by_input, leads_to, origins_in, reaches, worthless
from storage_core.log.deletion_vector import VectorStorage, rows_of
from storage_core.log.sharing import with_features
from storage_core.log.snapshot import Snapshot

RESTORES = "tidemark:restore"
"""The name of the fence for restores.

The token of this fence is the version of the last restore. A merge that was planned before the restore must not commit.
"""

PRUNING = "tidemark:prune"
"""The name of the fence for pruned transactions. The token of this fence is the last version that pruned transactions.

A commit that was planned before this version must not record transactions. Another commit may have done the same work
after the plan. The transaction of this commit may already be pruned. The planned commit would then repeat the work.
"""

OF_VERSIONS = frozenset({PRUNING, RESTORES})
"""The fences that use versions as tokens. These tokens have no meaning in a log with a new numbering of versions."""


FORGOTTEN: Final = "tidemark:forgotten"
COMPACT_STATE: Final = "tidemark:compact-state"
VERSION_APPS = (FORGOTTEN, COMPACT_STATE)
"""The ids of Tidemark's own applications. A transaction with an id of Tidemark contains a version of the log.

A clone and a repaired table start a new numbering of versions. So these transactions are not copied to a clone or a
repaired table.
"""


def records_a_version(action: Action) -> bool:
    """Return True if the action adds or removes a recorded version.

    A log with a new numbering of versions cannot use an action with a version of the old numbering.
    """
    match action:
        case Fence(resource=name) | Txn(appId=name) | RemoveTxn(appId=name):
            return name in {*OF_VERSIONS, *VERSION_APPS}
        case _:
            return False


def next_recorded_version(app_id: str, planned: Snapshot) -> int:
    """Return the version to record for this application, in a commit that was planned on the snapshot.

    The result is higher than the recorded version. In a clone that an earlier release made, the recorded version comes
    from the source's log.
    """
    return max(planned.version, planned.txns.get(app_id, -1) + 1)


def pruning(planned: Snapshot) -> Fence:
    """Return the fence of a commit that prunes transactions. The commit must directly follow the snapshot `planned`."""
    return Fence(resource=PRUNING, token=planned.version + 1)


@dataclass(frozen=True, slots=True)
class MergeProgress:
    """The requirement that `after` is the last merged generation of the region. 0 means that no generation was merged.

    The requirement ensures that no generation is merged twice or out of order. A commit can merge a range of several
    generations of a region. `MergeProgress` then ensures that this range starts after the generation `after`. Without
    `MergeProgress`, the commit merges only the generation in its `mergedGenerations`.
    """

    region: str
    after: int

    def check(self, head: Snapshot) -> None:
        """Raise `CommitConflict` if another merge of the region has committed since the plan."""
        recorded = head.merged_generations.get(self.region, 0)
        if recorded != self.after:
            raise CommitConflict(
                f"region {self.region}: generations up to {recorded} are merged at version {head.version}, but this "
                f"merge was planned after generation {self.after}. Plan again",
                region=self.region,
                expected=self.after,
                found=recorded,
            )


@dataclass(frozen=True, slots=True)
class SameMerges:
    """The requirement that no region has been merged since the plan.

    `SameMerges` contains the last merged generations at the time of the plan.

    Merges use this requirement in tables where several regions may contain the same key
    (docs/architecture/ingestion.md). Otherwise, two concurrent merges could both add a row with the same key.
    """

    merged: Mapping[str, int]

    def check(self, head: Snapshot) -> None:
        """Raise `CommitConflict` if another merge has advanced a region. The error contains these regions."""
        found = head.merged_generations
        changed = sorted(each for each in {*self.merged, *found} if self.merged.get(each) != found.get(each))
        if changed:
            raise CommitConflict(
                f"region {', '.join(changed)}: merged by version {head.version} after this merge was planned. "
                "Tables with manual regions run one merge at a time. Plan again",
                regions=changed,
            )


@dataclass(frozen=True, slots=True)
class AtVersion:
    """The requirement that the commit directly follows `version`.

    Plans that depend on the whole table use this requirement.
    """

    version: int

    def check(self, head: Snapshot) -> None:
        """Raise `CommitConflict` if another commit has taken effect since the plan."""
        if head.version != self.version:
            raise CommitConflict(
                f"planned on version {self.version}, but the newest is {head.version}. Plan again",
                expected=self.version,
                found=head.version,
            )


@dataclass(frozen=True, slots=True)
class TokenUnused:
    """The requirement that no commit for `resource` has used `token` or a token above it.

    A token is valid for one commit.

    The `fence` of a commit refuses lower tokens. This requirement also refuses a token that is equal to the recorded
    token. Two holders may get the same token if a lease object was lost. Even then, only one of the two holders can
    commit.
    """

    resource: str
    token: int

    def check(self, head: Snapshot) -> None:
        """Raise `Fenced` if the recorded token is not lower."""
        recorded = head.fences.get(self.resource, 0)
        if recorded >= self.token:
            raise Fenced(
                f"{self.resource}: another process owns the resource. The other process committed with token "
                f"{recorded}, and this "
                f"process has token {self.token}. Stop this process",
                resource=self.resource,
                expected=recorded,
                found=self.token,
            )


@dataclass(frozen=True, slots=True)
class TxnProgress:
    """The requirement that the last recorded version of `app_id` is `after`.

    The commit contains the work that comes after this version of `app_id`. 0 means no version.

    A transaction alone prevents a second commit of equal work. This requirement also prevents overlapping work. Two
    commits with the same start and different ends overlap.
    """

    app_id: str
    after: int

    def check(self, head: Snapshot) -> None:
        """Raise `CommitConflict` if the application has committed since the plan."""
        recorded = head.txns.get(self.app_id, 0)
        if recorded != self.after:
            raise CommitConflict(
                f"{self.app_id}: version {head.version} records {recorded}, but this commit was planned after "
                f"{self.after}. "
                "Plan again",
                app_id=self.app_id,
                expected=self.after,
                found=recorded,
            )


@dataclass(frozen=True, slots=True)
class SameRetention:
    """The requirement that the table's retention is still `retention_ms`.

    The plan used the retention to select the objects to remove.
    """

    retention_ms: int | None

    def check(self, head: Snapshot) -> None:
        """Raise `CommitConflict` if the setting has changed since the plan."""
        if head.config.retention_ms != self.retention_ms:
            raise CommitConflict(
                f"the retention is {head.config.retention_ms} ms at version {head.version}, but this was planned "
                f"with {self.retention_ms} ms. Plan again",
                expected=self.retention_ms,
                found=head.config.retention_ms,
            )


Requirement = MergeProgress | SameMerges | AtVersion | TokenUnused | TxnProgress | SameRetention


def without_idle(actions: Sequence[Action], planned: Snapshot, head: Snapshot) -> tuple[Action, ...]:
    """Return the actions, but omit actions on segments and translations that are useless on this head.

    These actions are omitted:

    - A segment whose rows are in no live split, even after all translations. No search could use the
      segment.
    - An action on an index that was dropped or redefined since the plan. The work on other indexes is kept.
    - A `Translation` of moved rows, if the table at the head has no indexes.
    - A `RemoveTranslation`, if an earlier commit removed the translation, or if a segment that was added after the plan
      needs the translation.

    Raises `CommitConflict` if no action is left.
    """
    if not any(isinstance(action, IndexSegment | Translation | RemoveTranslation) for action in actions):
        return tuple(actions)
    kept = _without_stale(_without_dropped(actions, planned, head), head)
    needed = _needed_since(planned, head)
    kept = [
        action
        for action in kept
        if not (isinstance(action, Translation) and not head.config.indexes)
        and not (
            isinstance(action, RemoveTranslation) and (action.path not in head.translations or action.path in needed)
        )
    ]
    if not kept:
        raise CommitConflict(f"all splits of the new segments are removed at version {head.version}. Plan again")
    return tuple(kept)


def without_worthless(actions: tuple[Action, ...], head: Snapshot) -> tuple[Action, ...]:
    """Return the actions, and remove useless translations.

    If the actions make a translation of the head useless, the result also contains the removal of the translation.

    An index that is never caught up would otherwise accumulate translations with every compaction.
    """
    added = {action.path for action in actions if isinstance(action, Add)}
    removed = {action.path for action in actions if isinstance(action, Remove)} - added
    if not removed or not head.translations:
        return actions
    own = {action.path: action for action in actions if isinstance(action, Translation)}
    leaving = {each.path for each in actions if isinstance(each, RemoveTranslation | RemoveIndexSegment)}
    segments = [each for path, each in head.segments.items() if path not in leaving]
    segments += [each for each in actions if isinstance(each, IndexSegment)]
    found = worthless(
        removed,
        lambda split: split in added or (split not in removed and split in head.splits),
        [*{**head.translations, **own}.values()],
        segments,
    )
    gone = sorted(found - own.keys() - leaving)
    return (*actions, *(RemoveTranslation(path=path) for path in gone))


def _without_dropped(actions: Sequence[Action], planned: Snapshot, head: Snapshot) -> list[Action]:
    """Return the actions, but omit actions on indexes that changed since the plan.

    The omitted actions add segments to a changed index, or remove segments that were already removed with their index.
    """
    others = {each.index for each in actions if isinstance(each, IndexSegment | RemoveIndexSegment)}
    others = {name for name in others if head.config.index(name) != planned.config.index(name)}
    kept = [
        action
        for action in actions
        if not (isinstance(action, IndexSegment) and action.index in others)
        and not (isinstance(action, RemoveIndexSegment) and action.index in others and action.path not in head.segments)
    ]
    if not kept:
        raise CommitConflict(
            f"index {min(others)!r} was dropped or redefined by version {head.version}. Plan again", index=min(others)
        )
    return kept


def _without_stale(actions: Sequence[Action], head: Snapshot) -> list[Action]:
    added = {action.path for action in actions if isinstance(action, Add)}
    own = [action for action in actions if isinstance(action, Translation)]
    moved = by_input([*head.translations.values(), *own])
    segments = [action for action in actions if isinstance(action, IndexSegment)]
    stale = {
        each.path
        for each in segments
        if each.covers and not reaches(each, added, moved) and not reaches(each, head.splits, moved)
    }
    return [action for action in actions if not (isinstance(action, IndexSegment) and action.path in stale)]


def _needed_since(planned: Snapshot, head: Snapshot) -> frozenset[str]:
    """Return the translations for the segments that were added since the plan."""
    joined = [each for path, each in head.segments.items() if path not in planned.segments]
    moved = by_input(head.translations.values()) if joined else {}
    return leads_to([split for each in joined for split in each.covers], (), moved)[1]


def check_segments(actions: Sequence[Action], planned: Snapshot, head: Snapshot) -> None:
    """Raise `CommitConflict` if the segment actions conflict with the commits between `planned` and `head`.

    A conflict is one of these:

    - A segment to remove is no longer live.
    - An index, or a column of an index, was changed or dropped.
    - Another segment of the index now covers the same rows of a split.
    - The commit drops an index but does not remove a new segment of the index.
    """
    removed = {action.path for action in actions if isinstance(action, RemoveIndexSegment)}
    deleted = sorted(removed - head.segments.keys())
    if deleted:
        raise CommitConflict(
            f"{deleted[0]}: the segment is not live at version {head.version}. Plan again", path=deleted[0]
        )
    added = [action for action in actions if isinstance(action, IndexSegment)]
    for segment in added:
        _check_segment(segment, planned, head)
    _check_coverage(added, removed, head)
    for action in actions:
        if isinstance(action, Metadata):
            _check_dropped(action, removed, planned, head)


def _check_segment(segment: IndexSegment, planned: Snapshot, head: Snapshot) -> None:
    definition = head.config.index(segment.index)
    if definition is None or definition != planned.config.index(segment.index):
        raise CommitConflict(
            f"index {segment.index!r} was dropped or redefined by version {head.version}. Plan again",
            index=segment.index,
        )
    if _fields(head.schema, definition.columns) != _fields(planned.schema, definition.columns):
        raise CommitConflict(
            f"index {segment.index!r}: its columns changed between version {planned.version} and {head.version}. "
            "Plan again",
            index=segment.index,
        )
    if segment.path in head.segments:
        raise CommitConflict(
            f"{segment.path}: the segment is already live at version {head.version}", path=segment.path
        )


def _check_coverage(added: Sequence[IndexSegment], removed: set[str], head: Snapshot) -> None:
    """Raise `CommitConflict` if an index covers a split twice.

    Partial segments of one split must have different origins.
    """
    wanted = {segment.index for segment in added}
    covered: dict[tuple[str, str], list[IndexSegment]] = {}
    for path, segment in head.segments.items():
        if segment.index in wanted and path not in removed:
            for split in segment.covers:
                covered.setdefault((segment.index, split), []).append(segment)
    for segment in added:
        for split in segment.covers:
            others = covered.setdefault((segment.index, split), [])
            for other in others:
                if _overlap(segment, other, split):
                    raise CommitConflict(
                        f"{split}: {other.path} of index {segment.index!r} already covers the split. Plan again"
                    )
            others.append(segment)


def _overlap(one: IndexSegment, other: IndexSegment, split: str) -> bool:
    own, others = origins_in(one, split), origins_in(other, split)
    return own is None or others is None or not set(own).isdisjoint(others)


def _check_dropped(mine: Metadata, removed: set[str], planned: Snapshot, head: Snapshot) -> None:
    """Raise `CommitConflict` if a new segment of a dropped index would stay.

    The object of this segment would never be deleted.
    """
    kept = {index.name for index in TableConfig.from_configuration(mine.configuration).indexes}
    dropped = {index.name for index in planned.config.indexes} - kept
    for path, segment in head.segments.items():
        if segment.index in dropped and path not in removed and path not in planned.segments:
            raise CommitConflict(
                f"{path}: another commit added this segment to index {segment.index!r} by version {head.version}, "
                "and this commit drops the index. Plan again",
                path=path,
            )


def _fields(schema: pa.Schema, columns: Sequence[str]) -> list[pa.Field]:
    return [schema.field(name) for name in columns if name in schema.names]


# All other settings may change while a writer works. Examples are the settings of maintenance and indexes, the landing
# location and the description.
_RELIED_ON: Mapping[str, Callable[[Snapshot], object]] = {
    "table id": lambda snapshot: snapshot.metadata.id,
    "schema": lambda snapshot: snapshot.schema,
    "partition columns": lambda snapshot: snapshot.metadata.partitionColumns,
    "time column": lambda snapshot: snapshot.config.time_column,
    "sort schema": lambda snapshot: snapshot.config.sort_schema,
    "window": lambda snapshot: snapshot.config.window_seconds,
    "primary key": lambda snapshot: snapshot.config.primary_key,
    # This setting determines which merges exclude one another.
    "regions by hand": lambda snapshot: snapshot.config.regions_by_hand,
}


def check_settings(actions: Iterable[Action], planned: Snapshot, head: Snapshot) -> None:
    """Raise `CommitConflict` if a setting on which the actions depend has changed since the plan."""
    if head.metadata == planned.metadata:
        return
    kinds = {type(action) for action in actions}
    if Metadata in kinds:
        raise _conflict("this commit replaces the schema or the configuration", planned, head)
    changed = [name for name, of in _RELIED_ON.items() if of(head) != of(planned)] if Add in kinds else []
    if "schema" in changed and MergedGenerations not in kinds and follows(head.schema, planned.schema):
        changed.remove("schema")
    if changed:
        raise _conflict(", ".join(changed), planned, head)


def _conflict(what: str, planned: Snapshot, head: Snapshot) -> CommitConflict:
    return CommitConflict(
        f"schema or configuration changed between version {planned.version} and {head.version} ({what}). "
        "Plan again from a fresh snapshot"
    )


def check_splits(actions: Sequence[Action], planned: Snapshot, head: Snapshot) -> None:
    """Raise an error if the adds and removes conflict with the commits between `planned` and `head`.

    Raises:
        CommitConflict: A split was rewritten or removed, or its deleted rows changed.
        InvalidInput: An add would change a field of a live split other than its deletion vector.
    """
    marked = [each.path for each in actions if isinstance(each, Add) and each.deletionVector is not None]
    named = [*marked, *(each.path for each in actions if isinstance(each, Remove))]
    live = head.splits.among(named)
    found = _Found(live, live if head.version == planned.version else planned.splits.among(named), planned, head)
    for action in actions:
        match action:
            case Remove():
                _check_remove(action, found)
            case Add(deletionVector=None):
                _check_new(action, head)
            case Add():
                _check_vector(action, found)
            case _:
                pass


@dataclass(frozen=True, slots=True)
class _Found:
    """The splits in the actions: `live` contains their state in the head, `seen` their state at the plan."""

    live: Mapping[str, Add]
    seen: Mapping[str, Add]
    planned: Snapshot
    head: Snapshot

    @property
    def between(self) -> str:
        """The two versions between which a change occurred, as text for messages."""
        return f"between version {self.planned.version} and {self.head.version}"


def _check_remove(action: Remove, found: _Found) -> None:
    live, seen = found.live.get(action.path), found.seen.get(action.path)
    if live is None:
        raise CommitConflict(
            f"{action.path}: no longer live at version {found.head.version}. Another commit removed the split. "
            "Plan again",
            path=action.path,
        )
    if live.deleted_rows != (None if seen is None else seen.deleted_rows):
        raise CommitConflict(
            f"{action.path}: rows of it were deleted or restored {found.between}. Plan again", path=action.path
        )


def _check_new(action: Add, head: Snapshot) -> None:
    if head.splits.recent(action.path) is not None:
        raise CommitConflict(
            f"{action.path}: live already since version {head.splits.added_at(action.path)[0]}. Plan again",
            path=action.path,
        )


def _check_vector(action: Add, found: _Found) -> None:
    live, seen = found.live.get(action.path), found.seen.get(action.path)
    if live is None and seen is None:
        return  # The path belongs to a new file, or to a file that a restore makes live again.
    if live != seen:
        change = "rewritten or removed" if live is None else "changed"
        raise CommitConflict(
            f"{action.path}: {change} {found.between}. Plan the deletion vector of the split again", path=action.path
        )
    if live is not None and replace(action, deletionVector=live.deletionVector, dataChange=live.dataChange) != live:
        raise InvalidInput(
            f"{action.path}: the split is already live. An add can change only its deletion vector", path=action.path
        )


Rebase = Callable[[Sequence[Action], Snapshot], Sequence[Action]]
"""A function that adapts the planned actions to a newer head.

The function compares the splits of the head and of the plan.

The function does not change the log. For the same head, the function always returns the same actions. The function
raises `CommitConflict` if a new plan is necessary.
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """The input of a commit.

    Attributes:
        planned: The snapshot on which the actions were planned.
        requirements: The further conditions that the head must fulfill.
        rebase: If set, the deletion vectors of removed splits may have changed since the plan. The function adapts the
            actions.
    """

    planned: Snapshot
    actions: tuple[Action, ...]
    requirements: tuple[Requirement, ...] = ()
    rebase: Rebase | None = None


def validated(actions: Sequence[Action]) -> tuple[Action, ...]:
    """Return the actions as readers will see them. To check the actions, the function encodes and decodes them.

    Raises `InvalidInput` for actions that no head could accept. These are actions that cannot be encoded or decoded,
    that contradict each other, or that are reserved for the log.
    """
    if not actions:
        raise InvalidInput("nothing to commit: the list of actions is empty")
    reserved = [action.NAME for action in actions if isinstance(action, CommitInfo | Protocol)]
    if reserved:
        raise InvalidInput(f"{', '.join(reserved)} is an action that only the log writes. Leave it out")
    try:
        written = tuple(decode_version(encode_version(actions), "this commit"))
        for action in written:
            if isinstance(action, Add):
                _require_vector(action)
            elif isinstance(action, Metadata):
                _require_openable(action)
    except Corrupt as error:
        raise InvalidInput(error.found) from error
    _refuse_repeats("path", [action.path for action in written if isinstance(action, Add | Remove)])
    _refuse_repeats("segment", [each.path for each in written if isinstance(each, IndexSegment | RemoveIndexSegment)])
    moves = [each.path for each in written if isinstance(each, Translation | RemoveTranslation)]
    _refuse_repeats("translation", moves)
    _refuse_repeats("txn of", [action.appId for action in written if isinstance(action, Txn | RemoveTxn)])
    _refuse_repeats("fence of", [action.resource for action in written if isinstance(action, Fence)])
    _refuse_repeats("progress of region", [each.region for each in written if isinstance(each, MergedGenerations)])
    _refuse_repeats("action", [action.NAME for action in written if isinstance(action, Metadata)])
    return written


def _require_openable(metadata: Metadata) -> None:
    """Raise `InvalidInput` for an unreadable schema or unreadable settings. The table could never be opened again."""
    from_schema_string(metadata.schemaString)
    TableConfig.from_configuration(metadata.configuration)


def settle(plan: Plan, head: Snapshot) -> tuple[Action, ...] | None:
    """Return the actions to write after `head`, or None if the head already contains this work.

    Index segments without a remaining row are omitted, and useless translations are removed. If the actions use a
    feature that the table's protocol lacks, the feature is added to the protocol. Releases without that feature then
    refuse the table.

    Raises:
        CommitConflict: Another commit invalidated the plan.
        Fenced: A higher token has committed.
        Unsupported: This release may not write the table.
    """
    require_writable(head)
    _ = head.schema, head.config  # Parsed once per snapshot. A commit must not follow a version that cannot be opened.
    if _is_recorded(plan.actions, head):
        return None
    # This check comes first: a process that lost its lease must stop, and must not plan again.
    _check_fences(plan, head)
    _check_transactions(plan, head)
    check_settings(plan.actions, plan.planned, head)
    _check_generations(plan, head)
    for requirement in plan.requirements:
        requirement.check(head)
    actions = _checked_splits(plan, head)  # This check comes last, because a rebase may send requests.
    kept = without_idle(actions, plan.planned, head)
    check_segments(kept, plan.planned, head)
    return with_features(without_worthless(kept, head), head.protocol)


def _checked_splits(plan: Plan, head: Snapshot) -> tuple[Action, ...]:
    if plan.rebase is None or head.version == plan.planned.version:
        check_splits(plan.actions, plan.planned, head)
        return plan.actions
    rebased = validated(plan.rebase(plan.actions, head))
    check_splits(rebased, head, head)
    return rebased


def require_writable(head: Snapshot) -> None:
    """Raise `Unsupported` unless Tidemark created the table and this release supports all its features.

    Raises `Corrupt` if the newest version has the maximum commit time. No version can follow, because commit times
    always increase.
    """
    protocol = head.protocol
    features = set(protocol.writerFeatures or ())
    if protocol.minWriterVersion > WRITER_VERSION or features - FEATURES:
        needed = [f"writer version {protocol.minWriterVersion}", *sorted(features - FEATURES)]
        raise Unsupported(f"the table needs {', '.join(needed)} to be written. Upgrade Tidemark", features=needed)
    if not is_ours(protocol):
        raise Unsupported(
            f"the table was not created by Tidemark (no writer feature {OWN_FEATURE!r}), so it is read-only. To "
            "write, import it into a new table"
        )
    if head.timestamp >= MAX_TIME_MS:
        raise Corrupt(
            f"version {head.version} has the largest possible commit time, {head.timestamp} ms. No later version can "
            "be written",
            version=head.version,
        )


def _is_recorded(actions: Iterable[Action], head: Snapshot) -> bool:
    txns = [action for action in actions if isinstance(action, Txn)]
    recorded = [txn for txn in txns if head.txns.get(txn.appId, txn.version - 1) >= txn.version]
    if recorded and len(recorded) < len(txns):
        raise CommitConflict(
            f"version {head.version} already records {len(recorded)} of {len(txns)} units of this commit, for "
            f"example {recorded[0].appId!r} at {head.txns[recorded[0].appId]}. Plan the other units again",
            recorded=[txn.appId for txn in recorded],
        )
    return bool(recorded)


def _check_fences(plan: Plan, head: Snapshot) -> None:
    for requirement in plan.requirements:
        if isinstance(requirement, TokenUnused):
            requirement.check(head)
    for action in plan.actions:
        # If the token equals the recorded token, the same holder commits again. Only a lower token belongs to a holder
        # that lost its lease.
        if isinstance(action, Fence) and action.token < head.fences.get(action.resource, action.token):
            raise Fenced(
                f"{action.resource}: another process owns the resource. The other process committed with token "
                f"{head.fences[action.resource]}, and this process has token {action.token}. Stop this process",
                resource=action.resource,
                expected=head.fences[action.resource],
                found=action.token,
            )


def _check_transactions(plan: Plan, head: Snapshot) -> None:
    """Raise an error if the transactions of a plan conflict with a pruning of transactions.

    A commit that was planned before a pruning must not record a transaction. A commit may prune only the transactions
    that its plan has seen.
    """
    if any(isinstance(action, RemoveTxn) for action in plan.actions):
        if pruning(plan.planned) not in plan.actions:
            raise InvalidInput(f"a commit that prunes transactions needs the fence {PRUNING!r} of the next version")
        AtVersion(plan.planned.version).check(head)
        for action in plan.actions:
            if isinstance(action, RemoveTxn) and action.appId not in head.txns:
                raise CommitConflict(f"{action.appId!r}: not recorded at version {head.version}. Plan again")
    pruned = head.fences.get(PRUNING, 0)
    if pruned > plan.planned.version and any(isinstance(action, Txn) for action in plan.actions):
        raise CommitConflict(
            f"version {pruned} pruned transactions after this commit was planned on version "
            f"{plan.planned.version}. Plan "
            "again",
            expected=plan.planned.version,
            found=pruned,
        )


def _check_generations(plan: Plan, head: Snapshot) -> None:
    starts = {each.region: each.after for each in plan.requirements if isinstance(each, MergeProgress)}
    restored = head.fences.get(RESTORES, 0)
    for action in plan.actions:
        if not isinstance(action, MergedGenerations):
            continue
        if restored > plan.planned.version:
            # The merge looked up its keys before the restore. Rows that were deleted at that time may be live again.
            # The merge would add these rows twice.
            raise CommitConflict(
                f"region {action.region}: version {restored} restored the table after this merge was planned on "
                f"version {plan.planned.version}. Plan again",
                region=action.region,
            )
        # The range must start directly after the recorded generation (lesson 25). If the commit states no start, the
        # range contains only `action.generation`.
        MergeProgress(action.region, starts.get(action.region, action.generation - 1)).check(head)
        recorded = head.merged_generations.get(action.region, 0)
        if action.generation <= recorded:
            raise CommitConflict(
                f"region {action.region}: generations up to {recorded} are merged at version {head.version}, but "
                f"this commit ends at generation {action.generation}. Plan again",
                region=action.region,
            )


def _require_vector(add: Add) -> None:
    """Raise `Corrupt` unless an inline deletion vector is readable and contains only rows that the split has."""
    vector = add.deletionVector
    if vector is None or vector.storage is not VectorStorage.INLINE:
        return
    rows = rows_of(vector, None, add.path)
    if rows and add.numRecords is not None and rows.max() >= add.numRecords:
        raise Corrupt(
            f"{add.path}: the deletion vector contains row {rows.max()}, but the split has {add.numRecords} rows",
            key=add.path,
        )


def _refuse_repeats(what: str, names: Iterable[Hashable]) -> None:
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        raise InvalidInput(f"the commit names the {what} {repeated[0]!r} more than once")
