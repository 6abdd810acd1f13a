"""What may commit on which head: the conflict table of design page 02 as checks derived from the actions themselves.

Every attempt of a commit runs all checks against the head it would follow. They hold at the moment of the commit,
because put-if-absent of the next version succeeds only while that head is still the newest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from storage_core.errors import CommitConflict, Corrupt, Fenced, InvalidInput, Unsupported
from storage_core.log.actions import (
    FEATURES,
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
    Txn,
)
from storage_core.log.codec import decode_version, encode_version, is_safe_path
from storage_core.log.requirements import Requirement
from storage_core.log.snapshot import Snapshot

OWN_FEATURE = "tidemark"


@dataclass(frozen=True, slots=True)
class Plan:
    """What somebody wants to commit: the snapshot it was planned on, the actions, and what the head must fulfil."""

    planned: Snapshot
    actions: tuple[Action, ...]
    requirements: tuple[Requirement, ...] = ()


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
    paths = [action.path for action in actions if isinstance(action, Add | Remove)]
    segments = [action.path for action in actions if isinstance(action, IndexSegment | RemoveIndexSegment)]
    _refuse_repeats("path", paths)
    _refuse_repeats("segment", segments)
    _refuse_repeats("txn of", [action.appId for action in actions if isinstance(action, Txn)])
    unsafe = [path for path in (*paths, *segments) if not is_safe_path(path)]
    if unsafe:
        raise InvalidInput(f"the path {unsafe[0]!r} leaves the table; the log stores table-relative keys only")
    try:
        return tuple(decode_version(encode_version(actions), "this commit"))
    except Corrupt as error:
        raise InvalidInput(str(error)) from error


def settle(plan: Plan, head: Snapshot) -> tuple[Action, ...] | None:
    """Return the actions to write after `head`, or None when the head already holds this work.

    Index segments whose splits are all gone are left out. Raises `CommitConflict` when another commit invalidated the
    plan, `Fenced` when a higher token has committed, `Unsupported` when this release may not write the table.
    """
    require_writable(head)
    if _is_recorded(plan.actions, head):
        return None
    _check_splits(plan.actions, head)
    _check_metadata(plan, head)
    _check_fences(plan.actions, head)
    _check_generations(plan.actions, head)
    for requirement in plan.requirements:
        requirement.check(head)
    kept = _without_stale_segments(plan.actions, head)
    _check_segments(plan, kept, head)
    return kept


def require_writable(head: Snapshot) -> None:
    """Raise `Unsupported` unless this release may write the table: known features, and one of ours."""
    protocol = head.protocol
    features = set(protocol.writerFeatures or ())
    if protocol.minWriterVersion > WRITER_VERSION or features - FEATURES:
        needed = [f"writer version {protocol.minWriterVersion}", *sorted(features - FEATURES)]
        raise Unsupported(f"the table needs {', '.join(needed)} to be written; upgrade")
    if OWN_FEATURE not in features:
        raise Unsupported(
            f"the table was not created by Tidemark (no writer feature {OWN_FEATURE!r}): it can be read, not written"
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


def _check_splits(actions: Iterable[Action], head: Snapshot) -> None:
    for action in actions:
        match action:
            case Remove() if action.path not in head.splits:
                raise CommitConflict(
                    f"{action.path}: no longer live at version {head.version}; another commit removed it, plan again",
                    path=action.path,
                )
            case Add() if action.path in head.splits:
                raise CommitConflict(
                    f"{action.path}: live already since version {head.added_at[action.path][0]}; plan again",
                    path=action.path,
                )
            case _:
                pass


def _check_metadata(plan: Plan, head: Snapshot) -> None:
    relies_on_it = any(isinstance(action, Add | Metadata) for action in plan.actions)
    if relies_on_it and head.metadata != plan.planned.metadata:
        raise CommitConflict(
            f"schema or configuration changed between version {plan.planned.version} and {head.version}; "
            "plan again from a fresh snapshot"
        )


def _check_fences(actions: Iterable[Action], head: Snapshot) -> None:
    for action in actions:
        # An equal token is its own holder committing once more; only a lower one belongs to a zombie.
        if isinstance(action, Fence) and action.token < head.fences.get(action.resource, action.token):
            raise Fenced(
                f"{action.resource}: token {head.fences[action.resource]} has committed, this one is {action.token}; "
                "another process owns the resource, stop",
                resource=action.resource,
                expected=head.fences[action.resource],
                found=action.token,
            )


def _check_generations(actions: Iterable[Action], head: Snapshot) -> None:
    for action in actions:
        if not isinstance(action, MergedGenerations):
            continue
        recorded = head.merged_generations.get(action.region, 0)
        if action.generation <= recorded:
            raise CommitConflict(
                f"region {action.region}: generations up to {recorded} are merged at version {head.version}, "
                f"this commit ends at {action.generation}; plan again",
                region=action.region,
            )


def _without_stale_segments(actions: Sequence[Action], head: Snapshot) -> tuple[Action, ...]:
    live = head.splits.keys() | {action.path for action in actions if isinstance(action, Add)}
    kept = tuple(
        action
        for action in actions
        if not (isinstance(action, IndexSegment) and action.covers and live.isdisjoint(action.covers))
    )
    if not kept:
        raise CommitConflict(f"every split that the new segments cover is gone at version {head.version}; plan again")
    return kept


def _check_segments(plan: Plan, actions: Sequence[Action], head: Snapshot) -> None:
    removed = {action.path for action in actions if isinstance(action, RemoveIndexSegment)}
    gone = sorted(removed - head.segments.keys())
    if gone:
        raise CommitConflict(f"{gone[0]}: no live segment at version {head.version}; plan again", path=gone[0])
    added = [action for action in actions if isinstance(action, IndexSegment)]
    if not added:
        return
    covered = {
        (segment.index, split): path
        for path, segment in head.segments.items()
        if path not in removed
        for split in segment.covers
    }
    for segment in added:
        _check_segment(plan, segment, head)
        for split in segment.covers:
            other = covered.setdefault((segment.index, split), segment.path)
            if other != segment.path:
                raise CommitConflict(f"{split}: covered by {other} of index {segment.index!r} already; plan again")


def _check_segment(plan: Plan, segment: IndexSegment, head: Snapshot) -> None:
    definition = head.config.index(segment.index)
    if definition is None or definition != plan.planned.config.index(segment.index):
        raise CommitConflict(
            f"index {segment.index!r} was dropped or redefined by version {head.version}; plan again",
            index=segment.index,
        )
    if segment.path in head.segments:
        raise CommitConflict(f"{segment.path}: live already at version {head.version}", path=segment.path)


def _refuse_repeats(what: str, names: Iterable[str]) -> None:
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        raise InvalidInput(f"the commit names the {what} {repeated[0]!r} more than once")
