"""Committing: put-if-absent of the next version, rebase and retry (lessons 01 to 13).

The version file is the commit. It lands at one version at most, because an attempt moves on to the next version only
after it has read who won the one before. So an unknown outcome is resolved by reading back, and nothing is ever undone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

from storage_core.clock import Clock
from storage_core.errors import CommitConflict, CommitUnknown, Corrupt, Fenced, NotFound, NotWritten, Unavailable
from storage_core.formats.keys import version_key
from storage_core.ids import Ids, random_pause_ms
from storage_core.log.actions import Action, CommitInfo
from storage_core.log.advance import advance, read_version
from storage_core.log.boundary import first_version
from storage_core.log.conflicts.settle import Plan, settle
from storage_core.log.encoding.codec import commit_info, encode_version
from storage_core.log.replay import open_head
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import Committed, Conflict, IfAbsent, ObjectStore, OutcomeUnknown
from storage_core.objectstore.create import put_or_unknown

MAX_ATTEMPTS = 10
BASE_DELAY_MS = 100
MAX_DELAY_MS = 5_000
_BELIEVED_MS = 5_000
CLOCK_TOLERANCE_MS = 60_000
"""How far a version may be ahead of this machine's clock before a commit says so."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The commit is durable. `version` is where, `snapshot` the table right after, `attempts` the puts it took.

    `already_committed` tells that the work was in the table before this call and nothing was written; `version` is
    then the version found, or the head when only the recorded transactions tell.
    """

    version: int
    commit_id: str
    snapshot: Snapshot
    already_committed: bool
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitLabel:
    """What the first line of the version file says about a commit, besides its time."""

    commit_id: str
    operation: str
    metrics: Mapping[str, Any] = field(default_factory=dict)
    job_run_id: str | None = None

    def info(self, version: int, timestamp_ms: int) -> CommitInfo:
        """Return that first line for an attempt to become `version` at `timestamp_ms`."""
        return CommitInfo(
            commitId=self.commit_id,
            operation=self.operation,
            timestamp=timestamp_ms,
            version=version,
            jobRunId=self.job_run_id,
            metrics=self.metrics,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """What became of one put: `head` is the newest snapshot known, `open` says that its next version may be ours.

    `reason` is why nobody knows whether it is; `read_back`, that the store had to be asked what became of it.
    """

    landed: bool
    head: Snapshot
    open: bool = False
    reason: str = ""
    read_back: bool = False


@dataclass(frozen=True, slots=True)
class Committer:
    """Commits to one log. Without contention: one HEAD, and one PUT; each further attempt a GET more than it finds."""

    store: ObjectStore
    clock: Clock
    ids: Ids

    def commit(self, plan: Plan, label: CommitLabel, head: Snapshot | None = None) -> CommitResult:
        """Make the plan the next version, exactly once, or raise with nothing written.

        The first attempt follows `head`, by default the snapshot that was planned on; all checks are against the plan.
        Raises `CommitConflict` and `Fenced` as `conflicts.settle` does, `CommitConflict` after 10 lost races,
        `NotWritten` when the store takes no write, and `CommitUnknown` when it never said what became of the last
        attempt: its context holds `commit_id` and the one `version` that the commit may have become.
        """
        began_ms = self.clock.now_ms()
        last = _Attempt(landed=False, head=self._still_on_the_log(head or plan.planned))
        for attempt in range(1, MAX_ATTEMPTS + 1):
            if attempt > 1:
                self.clock.sleep_ms(self._delay_ms(attempt - 1))
                began_ms = self.clock.now_ms()
                if (last := self._read_back(last.head, label.commit_id, last.reason)).landed:
                    # On a head from before the pause every attempt is lost to one who commits faster than we pause.
                    self._require_counted(last, label, began_ms)
                    return CommitResult(
                        last.head.version, label.commit_id, last.head, already_committed=False, attempts=attempt - 1
                    )
            head, actions = self._settled(plan, last.head)
            if actions is None:
                return CommitResult(head.version, label.commit_id, head, already_committed=True, attempts=attempt - 1)
            last = self._attempt(head, actions, label, last)
            if last.landed:
                self._require_counted(last, label, began_ms)
                _logger.info(
                    "committed version %d of %s: %s, %d actions, attempt %d",
                    last.head.version, self.store.uri, label.operation, len(actions), attempt,
                )  # fmt: skip
                self._warn_of_clocks(last.head)
                return CommitResult(
                    last.head.version, label.commit_id, last.head, already_committed=False, attempts=attempt
                )
        raise self._gave_up(last, label)

    def _require_counted(self, landed: _Attempt, label: CommitLabel, began_ms: int) -> None:
        """Return when the version that we made is one that counts. No request for a put that was answered in time.

        Its number was free when the attempt began. It is free once more only after another's commit of that number has
        outlived the retention, which takes as long, and the collector says so in its boundary before it deletes. An
        answer within 5 s is believed: for it to be wrong somebody would have had to shorten the retention and collect
        twice meanwhile, or to set this clock back by as much. One that was slower, or lost, is compared with the
        boundary. Below it a version is ours and dead, or ours and was collected just now.
        """
        config = landed.head.config
        enough_ms = min(_BELIEVED_MS, config.version_retention_ms)
        if not landed.read_back and 0 <= self.clock.now_ms() - began_ms < enough_ms:
            return
        version = landed.head.version
        try:
            first = first_version(self.store)
        except (Unavailable, Corrupt) as error:
            raise self._not_counted(
                label, version, f"the collector's boundary cannot be read: {error.found}"
            ) from error
        if version < first:
            raise self._not_counted(label, version, f"versions below {first} were collected meanwhile")

    def _not_counted(self, label: CommitLabel, version: int, why: str) -> CommitUnknown:
        return CommitUnknown(
            f"{version_key(version)}: commit {label.commit_id} took so long that nobody knows whether it counts "
            f"({why}); look for what it did in the newest version before doing anything else, and clean nothing up",
            commit_id=label.commit_id,
            version=version,
        )

    def _warn_of_clocks(self, committed: Snapshot) -> None:
        """Say that a version is of the future: one before it was, and times order versions."""
        ahead_ms = committed.timestamp - self.clock.now_ms()
        if ahead_ms > CLOCK_TOLERANCE_MS:
            _logger.warning(
                "version %d of %s is %d s ahead of this machine's clock, for a version before it is: one of the clocks "
                "is wrong; until then read older versions by number, not by time",
                committed.version, self.store.uri, ahead_ms // 1000,
            )  # fmt: skip

    def _settled(self, plan: Plan, head: Snapshot) -> tuple[Snapshot, tuple[Action, ...] | None]:
        """Settle the plan on `head`; what fails there is judged on the newest version before it is a conflict."""
        try:
            return head, settle(plan, head)
        except (CommitConflict, Fenced):
            newest = advance(self.store, head)
            if newest is None or newest is head:
                raise
            return newest, settle(plan, newest)

    def _attempt(self, head: Snapshot, actions: tuple[Action, ...], label: CommitLabel, last: _Attempt) -> _Attempt:
        """Try to become the version after `head`; `last` is what became of the attempt before."""
        version = head.version + 1
        # Never at or before the previous commit, whatever the clock does: times order versions.
        content = (label.info(version, max(self.clock.now_ms(), head.timestamp + 1)), *actions)
        try:
            result = put_or_unknown(self.store, version_key(version), encode_version(content), IfAbsent())
        except NotWritten as error:
            if not last.open:
                raise
            result = OutcomeUnknown(last.reason or str(error))  # of the attempt before nobody knows
        match result:
            case Committed():
                return _Attempt(landed=True, head=Snapshot.apply(head, version, content))
            case Conflict() | OutcomeUnknown() as outcome:
                # Also a conflict may be our own put whose reply was lost: only the stored bytes tell.
                _logger.info("version %d of %s: %s, reading back", version, self.store.uri, type(outcome).__name__)
                reason = outcome.reason if isinstance(outcome, OutcomeUnknown) else last.reason
                return self._read_back(head, label.commit_id, reason)
            case unreachable:
                assert_never(unreachable)

    def _read_back(self, head: Snapshot, commit_id: str, reason: str) -> _Attempt:
        """Follow the log past `head` to our commit, which is durable then, or to its end."""
        start = head.version
        while True:
            try:
                actions = read_version(self.store, head.version + 1)
                following = None if actions is None else Snapshot.apply(head, head.version + 1, actions)
                if actions is not None and _is_of(actions, commit_id):
                    self.store.make_durable(version_key(head.version + 1))
            except (Unavailable, Corrupt) as error:
                # The put was sent: whatever cannot be read now may be ours.
                _logger.warning("version %d of %s could not be read back: %s", head.version + 1, self.store.uri, error)
                actions = following = None
                reason = reason or str(error)
            if actions is None or following is None:
                # Past `start` somebody else holds the version that our put was for: it can never land.
                return _Attempt(landed=False, head=head, open=head.version == start, reason=reason)
            head = following
            if _is_of(actions, commit_id):
                return _Attempt(landed=True, head=head, read_back=True)

    def _still_on_the_log(self, known: Snapshot) -> Snapshot:
        """Return `known` when its version file exists, else the newest snapshot. One HEAD.

        Behind a snapshot older than retention the next version may have been collected: creating it anew would
        resurrect a dead number and lose the commit. While its own file exists, its successor was never deleted.
        """
        try:
            self.store.head(version_key(known.version))
        except NotFound:
            return open_head(self.store)
        return known

    def _delay_ms(self, failures: int) -> float:
        return random_pause_ms(self.ids, failures, first_ms=BASE_DELAY_MS, longest_ms=MAX_DELAY_MS)

    def _gave_up(self, last: _Attempt, label: CommitLabel) -> CommitConflict | CommitUnknown:
        head = last.head
        if last.open:
            return CommitUnknown(
                f"{version_key(head.version + 1)}: the store did not say whether commit {label.commit_id} landed "
                f"({last.reason}); "
                "search the history for it before doing anything else, and clean nothing up",
                commit_id=label.commit_id,
                version=head.version + 1,
            )
        return CommitConflict(
            f"{self.store.uri}: {MAX_ATTEMPTS} attempts to commit lost against other writers, the newest version is "
            f"{head.version}; nothing was written, plan again",
            version=head.version,
        )


def _is_of(actions: Sequence[Action], commit_id: str) -> bool:
    info = commit_info(actions)
    return info is not None and info.commitId == commit_id
