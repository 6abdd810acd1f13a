"""A state of as few manifests as its splits need and of no tombstone, made when somebody asks for it.

By themselves states are rewritten only when it pays (`state_layout`). A state is immutable, so where the newest version
has one already, a version that changes nothing follows it, and that has the compact one.
"""

from __future__ import annotations

from storage_core.formats.hint import CheckpointKind
from storage_core.log.actions import Txn
from storage_core.log.checkpoints.write import CheckpointResult, write_checkpoint
from storage_core.log.commit import CommitLabel, Committer
from storage_core.log.conflicts.requirements import COMPACT_STATE, next_recorded_version
from storage_core.log.conflicts.settle import Plan, require_writable, validated
from storage_core.log.log import TransactionLog
from storage_core.log.replay import based_on_newest_state, recovery
from storage_core.log.snapshot import Snapshot

OPERATION = "COMPACT STATE"


def has_compact_state(snapshot: Snapshot) -> bool:
    """Return whether the version has a state that a compaction would not make smaller. A JSON checkpoint is one."""
    if snapshot.checkpoint is None or snapshot.checkpoint_version != snapshot.version:
        return False
    listed = snapshot.splits.listed
    if snapshot.checkpoint.kind is not CheckpointKind.AVRO_STATE or listed is None:
        return True
    fewest = -(-len(snapshot.splits) // snapshot.config.manifest_entries)
    return not listed.tombstones and len(listed.parts) <= fewest


def compact_state(
    log: TransactionLog, snapshot: Snapshot, *, job_run_id: str | None = None, another: bool = False
) -> CheckpointResult:
    """Make sure that this version, or one after it that changes nothing, has a compact state; the hint leads there.

    Idempotent: of a compact state nothing is written, unless `another` one is wanted. One GET per manifest that is not
    read yet, one PUT per manifest and for the state, those of the hint; where the version has a state, those of a
    commit before. Raises what a commit and `write_checkpoint` raise.
    """
    require_writable(snapshot)
    if has_compact_state(snapshot) and not another:
        return CheckpointResult(snapshot.version, len(snapshot.splits), 0, written=False, snapshot=snapshot)
    if snapshot.checkpoint_version == snapshot.version:
        # Not through the log's own commit, which may write a state of its own for the version.
        label = CommitLabel(commit_id=log.ids.uuid(), operation=OPERATION, metrics={}, job_run_id=job_run_id)
        nothing = validated([Txn(appId=COMPACT_STATE, version=next_recorded_version(COMPACT_STATE, snapshot))])
        snapshot = Committer(log.store, log.clock, log.ids).commit(Plan(snapshot, nothing), label, None).snapshot
    based = based_on_newest_state(log.store, snapshot)
    return write_checkpoint(log.store, based, log.ids.uuid, compact=True, recovery=recovery(log.store, based.version))
