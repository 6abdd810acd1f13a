"""What a commit demands of the head it lands on, beyond what follows from its own actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from storage_core.errors import CommitConflict, Fenced
from storage_core.log.actions import Action, Fence, RemoveTxn, Txn
from storage_core.log.snapshot import Snapshot

RESTORES = "tidemark:restore"
"""The fence whose token is the version of the last restore: a merge that was planned before it must not commit."""

PRUNING = "tidemark:prune"
"""The fence whose token is the version that last pruned transactions: what was planned before must not record any.

Such a plan has seen work as done, or not begun, of which nothing tells any more that it was done since.
"""

OF_VERSIONS = frozenset({PRUNING, RESTORES})
"""The fences whose tokens are versions, which say nothing in a log that numbers its versions anew."""


FORGOTTEN: Final = "tidemark:forgotten"
COMPACT_STATE: Final = "tidemark:compact-state"
VERSION_APPS = (FORGOTTEN, COMPACT_STATE)
"""The applications of the log itself, whose transactions hold versions, as the fences of `OF_VERSIONS` do.

A clone and a repaired table number their versions anew and do not take them over.
"""


def records_a_version(action: Action) -> bool:
    """Return whether an action records or removes a version, which says nothing in a log that numbers them anew."""
    match action:
        case Fence(resource=name) | Txn(appId=name) | RemoveTxn(appId=name):
            return name in {*OF_VERSIONS, *VERSION_APPS}
        case _:
            return False


def next_recorded_version(app_id: str, planned: Snapshot) -> int:
    """Return the version to record for such an application in a commit that was planned on the snapshot.

    It is above the recorded one, which clones of earlier releases have of another log.
    """
    return max(planned.version, planned.txns.get(app_id, -1) + 1)


def pruning(planned: Snapshot) -> Fence:
    """Return the fence of a commit that prunes transactions and directly follows the snapshot of its plan."""
    return Fence(resource=PRUNING, token=planned.version + 1)


@dataclass(frozen=True, slots=True)
class MergeProgress:
    """The region's last merged generation must be `after` (0: none yet), so that no generation lands twice or late.

    A commit that merges several generations of a region states with it where its range starts; without it the range is
    the one generation that its `mergedGenerations` names.
    """

    region: str
    after: int

    def check(self, head: Snapshot) -> None:
        """Raise `CommitConflict` when another merge of the region has committed since the plan."""
        recorded = head.merged_generations.get(self.region, 0)
        if recorded != self.after:
            raise CommitConflict(
                f"region {self.region}: generations up to {recorded} are merged at version {head.version}, "
                f"this merge was planned after {self.after}; plan again",
                region=self.region,
                expected=self.after,
                found=recorded,
            )


@dataclass(frozen=True, slots=True)
class SameMerges:
    """No region may have been merged since the plan, which saw these last merged generations.

    For a merge beside regions whose keys nothing keeps apart (decision 0150): two that know nothing of one another
    could both add a row of a key.
    """

    merged: Mapping[str, int]

    def check(self, head: Snapshot) -> None:
        """Raise `CommitConflict` naming the regions that another merge has advanced."""
        found = head.merged_generations
        changed = sorted(each for each in {*self.merged, *found} if self.merged.get(each) != found.get(each))
        if changed:
            raise CommitConflict(
                f"region {', '.join(changed)}: merged by version {head.version} after this merge was planned, of a "
                "table with regions made by hand, whose merges follow one another; plan again",
                regions=changed,
            )


@dataclass(frozen=True, slots=True)
class AtVersion:
    """The commit must directly follow `version`: a plan about the whole table holds on no other head."""

    version: int

    def check(self, head: Snapshot) -> None:
        """Raise `CommitConflict` when any commit has landed since the plan."""
        if head.version != self.version:
            raise CommitConflict(
                f"planned on version {self.version}, the newest is {head.version}; plan again",
                expected=self.version,
                found=head.version,
            )


@dataclass(frozen=True, slots=True)
class TokenUnused:
    """Nobody has committed for `resource` under `token` or a higher one: a lease is good for one commit.

    The `fence` of a commit refuses lower tokens. This refuses an equal one, too, so that at most one of two holders
    commits even where a lost lease object gave both the same number.
    """

    resource: str
    token: int

    def check(self, head: Snapshot) -> None:
        """Raise `Fenced` when the recorded token is not lower."""
        recorded = head.fences.get(self.resource, 0)
        if recorded >= self.token:
            raise Fenced(
                f"{self.resource}: token {recorded} has committed, this one is {self.token}; another process owns the "
                "resource, stop",
                resource=self.resource,
                expected=recorded,
                found=self.token,
            )


@dataclass(frozen=True, slots=True)
class TxnProgress:
    """The last recorded version of `app_id` must be `after` (0: none yet): what the commit carries begins there.

    A transaction alone keeps equal work from landing twice. This keeps work apart that overlaps: two plans from one
    place to different ends.
    """

    app_id: str
    after: int

    def check(self, head: Snapshot) -> None:
        """Raise `CommitConflict` when the application has committed since the plan."""
        recorded = head.txns.get(self.app_id, 0)
        if recorded != self.after:
            raise CommitConflict(
                f"{self.app_id}: {recorded} is recorded at version {head.version}, this was planned after "
                f"{self.after}; plan again",
                app_id=self.app_id,
                expected=self.after,
                found=recorded,
            )


@dataclass(frozen=True, slots=True)
class SameRetention:
    """The table's retention must be `retention_ms` still: by it was chosen what leaves."""

    retention_ms: int | None

    def check(self, head: Snapshot) -> None:
        """Raise `CommitConflict` when the setting has changed since the plan."""
        if head.config.retention_ms != self.retention_ms:
            raise CommitConflict(
                f"the retention is {head.config.retention_ms} ms at version {head.version}, this was planned with "
                f"{self.retention_ms} ms; plan again",
                expected=self.retention_ms,
                found=head.config.retention_ms,
            )


Requirement = MergeProgress | SameMerges | AtVersion | TokenUnused | TxnProgress | SameRetention
