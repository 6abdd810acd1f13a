"""What may commit on which head: a conflict table (docs/architecture/transaction-log.md) as checks of actions.

Every attempt of a commit runs all checks against the head it would follow. They hold at the moment of the commit,
because put-if-absent of the next version succeeds only while that head is still the newest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from storage_core.errors import CommitConflict, Corrupt, Fenced, InvalidInput, Unsupported
from storage_core.log.actions import (
    FEATURES,
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
from storage_core.log.conflicts.requirements import (
    PRUNING,
    RESTORES,
    AtVersion,
    MergeProgress,
    Requirement,
    TokenUnused,
    pruning,
)
from storage_core.log.conflicts.segments import check_segments, without_idle
from storage_core.log.conflicts.settings import check_settings
from storage_core.log.conflicts.splits import check_splits
from storage_core.log.deletion_vector import VectorStorage, rows_of
from storage_core.log.encoding.codec import decode_version, encode_version
from storage_core.log.encoding.fields import MAX_TIME_MS
from storage_core.log.features import with_features
from storage_core.log.snapshot import Snapshot
from storage_core.rows.schema import from_schema_string
from storage_core.settings.table import TableConfig

Rebase = Callable[[Sequence[Action], Snapshot], Sequence[Action]]
"""Returns the planned actions as they have to be on a newer head, whose splits it has compared with those of the plan.

Pure towards the log, and repeatable: on one head it returns the same. Raises `CommitConflict` to have it planned again.
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """What somebody wants to commit: the snapshot it was planned on, the actions, and what the head must fulfil.

    With `rebase` the deletion vectors of removed splits may have changed since: it answers for them.
    """

    planned: Snapshot
    actions: tuple[Action, ...]
    requirements: tuple[Requirement, ...] = ()
    rebase: Rebase | None = None


def validated(actions: Sequence[Action]) -> tuple[Action, ...]:
    """Return the actions exactly as readers will see them: written and read back before anything is committed.

    Raises `InvalidInput` for actions that no head could accept: they cannot be written or read, contradict themselves,
    or are the log's own.
    """
    if not actions:
        raise InvalidInput("nothing to commit: the list of actions is empty")
    reserved = [action.NAME for action in actions if isinstance(action, CommitInfo | Protocol)]
    if reserved:
        raise InvalidInput(f"{', '.join(reserved)} is written by the log itself; leave it out of the actions")
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
    """Raise `InvalidInput` for a schema or settings that nobody could read: the table would never open again."""
    from_schema_string(metadata.schemaString)
    TableConfig.from_configuration(metadata.configuration)


def settle(plan: Plan, head: Snapshot) -> tuple[Action, ...] | None:
    """Return the actions to write after `head`, or None when the head already holds this work.

    Index segments whose rows are all gone are left out; what a table has for the first time brings the feature that
    keeps releases without it away. Raises `CommitConflict` when another commit invalidated the plan, `Fenced` when a
    higher token has committed, `Unsupported` when this release may not write the table.
    """
    require_writable(head)
    _ = head.schema, head.config  # read once per snapshot: nothing lands on a table that could not be opened after it
    if _is_recorded(plan.actions, head):
        return None
    _check_fences(plan, head)  # before all else: a zombie must stop, not be told to plan again
    _check_transactions(plan, head)
    check_settings(plan.actions, plan.planned, head)
    _check_generations(plan, head)
    for requirement in plan.requirements:
        requirement.check(head)
    actions = _checked_splits(plan, head)  # last: to rebase takes requests
    kept = without_idle(actions, plan.planned, head)
    check_segments(kept, plan.planned, head)
    return with_features(kept, head.protocol)


def _checked_splits(plan: Plan, head: Snapshot) -> tuple[Action, ...]:
    if plan.rebase is None or head.version == plan.planned.version:
        check_splits(plan.actions, plan.planned, head)
        return plan.actions
    rebased = validated(plan.rebase(plan.actions, head))
    check_splits(rebased, head, head)
    return rebased


def require_writable(head: Snapshot) -> None:
    """Raise `Unsupported` unless this release may write the table: known features, and one of ours.

    Raises `Corrupt` when no version can follow: times of commits only grow, and this one is the last there is.
    """
    protocol = head.protocol
    features = set(protocol.writerFeatures or ())
    if protocol.minWriterVersion > WRITER_VERSION or features - FEATURES:
        needed = [f"writer version {protocol.minWriterVersion}", *sorted(features - FEATURES)]
        raise Unsupported(f"the table needs {', '.join(needed)} to be written; upgrade", features=needed)
    if not is_ours(protocol):
        raise Unsupported(
            f"the table was not created by Tidemark (no writer feature {OWN_FEATURE!r}): it can be read, not written"
        )
    if head.timestamp >= MAX_TIME_MS:
        raise Corrupt(
            f"version {head.version} says that it was committed at {head.timestamp} ms: no later time can be written",
            version=head.version,
        )


def _is_recorded(actions: Iterable[Action], head: Snapshot) -> bool:
    txns = [action for action in actions if isinstance(action, Txn)]
    recorded = [txn for txn in txns if head.txns.get(txn.appId, txn.version - 1) >= txn.version]
    if recorded and len(recorded) < len(txns):
        raise CommitConflict(
            f"{len(recorded)} of {len(txns)} units of this commit are recorded at version {head.version} already, "
            f"for example {recorded[0].appId!r} at {head.txns[recorded[0].appId]}; plan the others again",
            recorded=[txn.appId for txn in recorded],
        )
    return bool(recorded)


def _check_fences(plan: Plan, head: Snapshot) -> None:
    for requirement in plan.requirements:
        if isinstance(requirement, TokenUnused):
            requirement.check(head)
    for action in plan.actions:
        # An equal token is its own holder committing once more; only a lower one belongs to a zombie.
        if isinstance(action, Fence) and action.token < head.fences.get(action.resource, action.token):
            raise Fenced(
                f"{action.resource}: token {head.fences[action.resource]} has committed, this one is {action.token}; "
                "another process owns the resource, stop",
                resource=action.resource,
                expected=head.fences[action.resource],
                found=action.token,
            )


def _check_transactions(plan: Plan, head: Snapshot) -> None:
    """Nothing is recorded by a plan from before transactions were pruned, and nothing pruned but what it saw."""
    if any(isinstance(action, RemoveTxn) for action in plan.actions):
        if pruning(plan.planned) not in plan.actions:
            raise InvalidInput(f"a commit that prunes transactions needs the fence {PRUNING!r} of the next version")
        AtVersion(plan.planned.version).check(head)
        for action in plan.actions:
            if isinstance(action, RemoveTxn) and action.appId not in head.txns:
                raise CommitConflict(f"{action.appId!r}: not recorded at version {head.version}; plan again")
    pruned = head.fences.get(PRUNING, 0)
    if pruned > plan.planned.version and any(isinstance(action, Txn) for action in plan.actions):
        raise CommitConflict(
            f"version {pruned} pruned transactions after this was planned on version {plan.planned.version}; plan "
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
            # Rows that were gone when the merge looked for its keys may be live again: it would add them twice.
            raise CommitConflict(
                f"region {action.region}: version {restored} restored the table after this merge was planned on "
                f"version {plan.planned.version}; plan again",
                region=action.region,
            )
        # The range starts right after what is recorded (lesson 25); without a stated start it is this one generation.
        MergeProgress(action.region, starts.get(action.region, action.generation - 1)).check(head)
        recorded = head.merged_generations.get(action.region, 0)
        if action.generation <= recorded:
            raise CommitConflict(
                f"region {action.region}: generations up to {recorded} are merged at version {head.version}, "
                f"this commit ends at {action.generation}; plan again",
                region=action.region,
            )


def _require_vector(add: Add) -> None:
    """What is committed is what it says: the bytes of an inline vector, and rows that the split has."""
    vector = add.deletionVector
    if vector is None or vector.storage is not VectorStorage.INLINE:
        return
    rows = rows_of(vector, None, add.path)
    if rows and add.numRecords is not None and rows.max() >= add.numRecords:
        raise Corrupt(f"{add.path}: the deletion vector names row {rows.max()} of {add.numRecords}", key=add.path)


def _refuse_repeats(what: str, names: Iterable[Hashable]) -> None:
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        raise InvalidInput(f"the commit names the {what} {repeated[0]!r} more than once")
