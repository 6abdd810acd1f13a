"""Commits: put-if-absent of the next version, rebase and retry (lessons 01 to 13).

The version file is the commit. A commit becomes at most one version. After a failed attempt, the committer first reads
the log to find out which commit has this version. The committer then tries the next version. The committer therefore
resolves an unknown outcome by reading the log, and never undoes a write.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

from storage_core.base.clock import Clock, Ids, random_pause_ms
from storage_core.base.errors import CommitConflict, CommitUnknown, Corrupt, Fenced, NotFound, NotWritten, Unavailable
from storage_core.data.formats.keys import version_key
from storage_core.log.actions import Action, CommitInfo
from storage_core.log.codec import commit_info, encode_version
from storage_core.log.conflicts import Plan, settle
from storage_core.log.listing import first_version
from storage_core.log.replay import open_head
from storage_core.log.snapshot import Snapshot
from storage_core.log.versions import advance, read_version
from storage_core.store.contract import Committed, Conflict, IfAbsent, ObjectStore, OutcomeUnknown, put_or_unknown

MAX_ATTEMPTS = 10
BASE_DELAY_MS = 100
MAX_DELAY_MS = 5_000
_BELIEVED_MS = 5_000
CLOCK_TOLERANCE_MS = 60_000
"""A commit logs a warning if a version's timestamp is ahead of this machine's clock by more than this time."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The result of a durable commit.

    Attributes:
        version: The version of the commit. If `already_committed` is True, the version of the earlier commit, or the
            head if only the recorded transactions show that the work was committed.
        snapshot: The table at that version.
        already_committed: True if the work was already in the table. This call then wrote nothing.
        attempts: The number of PUTs.
    """

    version: int
    commit_id: str
    snapshot: Snapshot
    already_committed: bool
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitLabel:
    """The content of a version file's first line, except its time."""

    commit_id: str
    operation: str
    metrics: Mapping[str, Any] = field(default_factory=dict)
    job_run_id: str | None = None

    def info(self, version: int, timestamp_ms: int) -> CommitInfo:
        """Return the first line of the version file, for an attempt to commit `version` at `timestamp_ms`."""
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
    """The outcome of one attempt to put a version file.

    Attributes:
        head: The newest known snapshot.
        open: True if the put may still take effect as the version after `head`.
        reason: The reason why the outcome is unknown.
        read_back: True if the outcome was determined by reading the log.
    """

    landed: bool
    head: Snapshot
    open: bool = False
    reason: str = ""
    read_back: bool = False


@dataclass(frozen=True, slots=True)
class Committer:
    """The writer of commits to one log. Without contention, a commit costs one HEAD and one PUT.

    A further attempt that finds n new versions costs n + 1 additional GETs.
    """

    store: ObjectStore
    clock: Clock
    ids: Ids

    def commit(self, plan: Plan, label: CommitLabel, head: Snapshot | None = None) -> CommitResult:
        """Commit the plan as the next version, exactly once, or raise an error.

        The first attempt tries the version after `head`, which is by default the snapshot of the plan. All checks
        compare the head with the plan.

        Raises:
            CommitConflict: See `log.conflicts`. Also raised after 10 attempts that lost against other commits. Nothing
                was written.
            Fenced: See `log.conflicts`. Nothing was written.
            NotWritten: The store accepts no write. Nothing was written.
            CommitUnknown: The store never reported the outcome of the last attempt. The error's context has the
                `commit_id` and the only `version` that the commit may have become.
        """
        began_ms = self.clock.now_ms()
        last = _Attempt(landed=False, head=self._still_on_the_log(head or plan.planned))
        for attempt in range(1, MAX_ATTEMPTS + 1):
            if attempt > 1:
                self.clock.sleep_ms(self._delay_ms(attempt - 1))
                began_ms = self.clock.now_ms()
                if (last := self._read_back(last.head, label.commit_id, last.reason)).landed:
                    # The head must be read after the pause. If the attempt used a head from before the pause, other
                    # writers could win every attempt.
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
        """Raise `CommitUnknown` unless the new version is certainly above the collector's boundary.

        The boundary is the first version that may exist. The collector moves the boundary before it deletes versions.
        The number of the new version was free when the attempt began. A used number can become free again only if its
        version became older than the retention and was collected.

        If the store answers the put within 5 s, no check and no request are needed. The check could fail only if
        somebody shortens the retention and collects twice within these 5 s, or sets the clock of this machine back.
        After a slow or lost answer, the version is compared with the boundary (one GET). A version below the boundary
        is not part of the log, or was collected just now.
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
            raise self._not_counted(label, version, f"versions below {first} were collected in the meantime")

    def _not_counted(self, label: CommitLabel, version: int, why: str) -> CommitUnknown:
        return CommitUnknown(
            f"{version_key(version)}: commit {label.commit_id} took so long that its outcome is unknown ({why}). "
            "First look for the changes of this commit in the newest version. Do not delete the files of this commit",
            commit_id=label.commit_id,
            version=version,
        )

    def _warn_of_clocks(self, committed: Snapshot) -> None:
        """Log a warning if the version's time is in the future.

        Commit times always increase. So the cause is an earlier version with a time in the future.
        """
        ahead_ms = committed.timestamp - self.clock.now_ms()
        if ahead_ms > CLOCK_TOLERANCE_MS:
            _logger.warning(
                "version %d of %s is %d s ahead of the clock of this machine, like an earlier version. One of the "
                "clocks is wrong. Until this time, read older versions by number, not by time",
                committed.version, self.store.uri, ahead_ms // 1000,
            )  # fmt: skip

    def _settled(self, plan: Plan, head: Snapshot) -> tuple[Snapshot, tuple[Action, ...] | None]:
        """Return the snapshot after which to commit, and the actions to commit on this snapshot.

        A conflict is reported only if the plan also fails on the newest version.
        """
        try:
            return head, settle(plan, head)
        except (CommitConflict, Fenced):
            newest = advance(self.store, head)
            if newest is None or newest is head:
                raise
            return newest, settle(plan, newest)

    def _attempt(self, head: Snapshot, actions: tuple[Action, ...], label: CommitLabel, last: _Attempt) -> _Attempt:
        """Try to commit the version after `head`. `last` is the outcome of the previous attempt."""
        version = head.version + 1
        # Commit times order the versions. The new time is therefore later than the previous time, regardless of the
        # clock.
        content = (label.info(version, max(self.clock.now_ms(), head.timestamp + 1)), *actions)
        try:
            result = put_or_unknown(self.store, version_key(version), encode_version(content), IfAbsent())
        except NotWritten as error:
            if not last.open:
                raise
            result = OutcomeUnknown(last.reason or str(error))  # The outcome of the previous attempt is still unknown.
        match result:
            case Committed():
                return _Attempt(landed=True, head=Snapshot.apply(head, version, content))
            case Conflict() | OutcomeUnknown() as outcome:
                # A conflict may also come from our own put if its reply was lost. Only the stored bytes show whether
                # our own put succeeded.
                _logger.info("version %d of %s: %s, reading back", version, self.store.uri, type(outcome).__name__)
                reason = outcome.reason if isinstance(outcome, OutcomeUnknown) else last.reason
                return self._read_back(head, label.commit_id, reason)
            case unreachable:
                assert_never(unreachable)

    def _read_back(self, head: Snapshot, commit_id: str, reason: str) -> _Attempt:
        """Read the log after `head` up to our commit or up to its end. If our commit is in the log, make its version
        file durable.
        """
        start = head.version
        while True:
            try:
                actions = read_version(self.store, head.version + 1)
                following = None if actions is None else Snapshot.apply(head, head.version + 1, actions)
                if actions is not None and _is_of(actions, commit_id):
                    self.store.make_durable(version_key(head.version + 1))
            except (Unavailable, Corrupt) as error:
                # The put was sent, so an unreadable version may be ours.
                _logger.warning("version %d of %s could not be read back: %s", head.version + 1, self.store.uri, error)
                actions = following = None
                reason = reason or str(error)
            if actions is None or following is None:
                # If the version after `start` exists, another process wrote it. So our put can never take effect.
                return _Attempt(landed=False, head=head, open=head.version == start, reason=reason)
            head = following
            if _is_of(actions, commit_id):
                return _Attempt(landed=True, head=head, read_back=True)

    def _still_on_the_log(self, known: Snapshot) -> Snapshot:
        """Return `known` if its version file still exists, else the newest snapshot. One HEAD.

        If a snapshot is older than the retention, the next version may have been collected. A commit with that number
        would then reuse the number of a deleted version, and would be lost. If the file of `known` still exists, the
        next version was never deleted.
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
                f"({last.reason}). First search the history for this commit. Do not delete its files",
                commit_id=label.commit_id,
                version=head.version + 1,
            )
        return CommitConflict(
            f"{self.store.uri}: other writers committed first during each of {MAX_ATTEMPTS} attempts. The newest "
            f"version is {head.version}. Nothing was written. Plan again",
            version=head.version,
        )


def _is_of(actions: Sequence[Action], commit_id: str) -> bool:
    info = commit_info(actions)
    return info is not None and info.commitId == commit_id
