"""Requirements: conditions that the head of a commit must meet in addition to the conditions of its actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from storage_core.base.errors import CommitConflict, Fenced
from storage_core.log.actions import Action, Fence, RemoveTxn, Txn
from storage_core.log.snapshot import Snapshot

RESTORES = "tidemark:restore"
"""The fence whose token is the version of the last restore. A merge planned before the restore must not commit."""

PRUNING = "tidemark:prune"
"""The fence whose token is the version that last pruned transactions.

A commit that was planned before that version must not record transactions. Since the plan, another commit may have done
the same work, and the transaction that records this may have been pruned. The plan would then repeat the work.
"""

OF_VERSIONS = frozenset({PRUNING, RESTORES})
"""The fences whose tokens are versions. Such a token has no meaning in a log with a new numbering of versions."""


FORGOTTEN: Final = "tidemark:forgotten"
COMPACT_STATE: Final = "tidemark:compact-state"
VERSION_APPS = (FORGOTTEN, COMPACT_STATE)
"""The names of the log's own applications. Like the fences of `OF_VERSIONS`, their transactions contain versions.

A clone and a repaired table start a new numbering of versions, so these transactions are not copied to them.
"""


def records_a_version(action: Action) -> bool:
    """Return True if the action records or removes a version, which has no meaning in a log with a new numbering."""
    match action:
        case Fence(resource=name) | Txn(appId=name) | RemoveTxn(appId=name):
            return name in {*OF_VERSIONS, *VERSION_APPS}
        case _:
            return False


def next_recorded_version(app_id: str, planned: Snapshot) -> int:
    """Return the version to record for this application, in a commit that was planned on the snapshot.

    The result is higher than the recorded version. A clone that an earlier release made contains a recorded version of
    the source's log.
    """
    return max(planned.version, planned.txns.get(app_id, -1) + 1)


def pruning(planned: Snapshot) -> Fence:
    """Return the fence of a commit that prunes transactions and directly follows the snapshot of its plan."""
    return Fence(resource=PRUNING, token=planned.version + 1)


@dataclass(frozen=True, slots=True)
class MergeProgress:
    """The last merged generation of the region must be `after`, which is 0 if no generation was merged.

    The requirement ensures that no generation is merged twice or out of order. A commit that merges several generations
    of a region states the start of its range with this requirement. Without the requirement, the range of a commit is
    the one generation in its `mergedGenerations`.
    """

    region: str
    after: int

    def check(self, head: Snapshot) -> None:
        """Raise `CommitConflict` if another merge of the region has committed since the plan."""
        recorded = head.merged_generations.get(self.region, 0)
        if recorded != self.after:
            raise CommitConflict(
                f"region {self.region}: generations up to {recorded} are merged at version {head.version}, "
                f"this merge was planned after {self.after}. Plan again",
                region=self.region,
                expected=self.after,
                found=recorded,
            )


@dataclass(frozen=True, slots=True)
class SameMerges:
    """No region may have been merged since the plan. The requirement contains the last merged generations at the plan.

    Merges use this requirement in tables where several regions may contain the same key
    (docs/architecture/ingestion.md). Otherwise, two concurrent merges could both add a row with the same key.
    """

    merged: Mapping[str, int]

    def check(self, head: Snapshot) -> None:
        """Raise `CommitConflict`, which names the regions that another merge has advanced."""
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
    """The commit must directly follow `version`. Plans that depend on the whole table use this requirement."""

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
    """No commit for `resource` may have used `token` or a higher token, because a token is valid for one commit.

    The `fence` of a commit refuses lower tokens. This requirement also refuses an equal token. So only one of two
    holders can commit even if they got the same token because a lease object was lost.
    """

    resource: str
    token: int

    def check(self, head: Snapshot) -> None:
        """Raise `Fenced` if the recorded token is not lower."""
        recorded = head.fences.get(self.resource, 0)
        if recorded >= self.token:
            raise Fenced(
                f"{self.resource}: token {recorded} has committed, this one is {self.token}. Another process owns the "
                "resource. Stop",
                resource=self.resource,
                expected=recorded,
                found=self.token,
            )


@dataclass(frozen=True, slots=True)
class TxnProgress:
    """The last recorded version of `app_id` must be `after`, where the work of the commit starts. 0 means no version.

    A transaction alone prevents a second commit of equal work. This requirement also prevents overlapping work, that
    is, two commits whose plans have the same start and different ends.
    """

    app_id: str
    after: int

    def check(self, head: Snapshot) -> None:
        """Raise `CommitConflict` if the application has committed since the plan."""
        recorded = head.txns.get(self.app_id, 0)
        if recorded != self.after:
            raise CommitConflict(
                f"{self.app_id}: {recorded} is recorded at version {head.version}, this was planned after "
                f"{self.after}. Plan again",
                app_id=self.app_id,
                expected=self.after,
                found=recorded,
            )


@dataclass(frozen=True, slots=True)
class SameRetention:
    """The table's retention must still be `retention_ms`, with which the plan selected the objects to remove."""

    retention_ms: int | None

    def check(self, head: Snapshot) -> None:
        """Raise `CommitConflict` if the setting has changed since the plan."""
        if head.config.retention_ms != self.retention_ms:
            raise CommitConflict(
                f"the retention is {head.config.retention_ms} ms at version {head.version}, this was planned with "
                f"{self.retention_ms} ms. Plan again",
                expected=self.retention_ms,
                found=head.config.retention_ms,
            )


Requirement = MergeProgress | SameMerges | AtVersion | TokenUnused | TxnProgress | SameRetention
