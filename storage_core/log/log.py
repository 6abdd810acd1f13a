"""The transaction log of one table: the only truth about its base (docs/architecture/transaction-log.md)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from storage_core.cache.pieces import NOT_CACHED, CachedPieces
from storage_core.clock import Clock, SystemClock
from storage_core.errors import CommitUnknown, InvalidInput, TidemarkError
from storage_core.formats.keys import version_key
from storage_core.ids import Ids, SystemIds
from storage_core.log.actions import Action, Metadata, Protocol
from storage_core.log.advance import advance, read_version
from storage_core.log.boundary import first_version
from storage_core.log.encoding.codec import commit_info, decode_version, encode_version
from storage_core.log.history import HistoryEntry, entries, find_commit
from storage_core.log.listing import has_log
from storage_core.log.replay import based_on_newest_state, open_head, open_timestamp, open_version, recovery
from storage_core.log.snapshot import Snapshot
from storage_core.log.unfinished_import import UNFINISHED_IMPORT, require_imported
from storage_core.objectstore.contract import Committed, Conflict, IfAbsent, ObjectStore, OutcomeUnknown
from storage_core.objectstore.create import put_or_unknown, require_durable
from storage_core.rows.schema import from_schema_string
from storage_core.settings.table import TableConfig
from storage_core.system_errors import typed

if TYPE_CHECKING:
    from storage_core.log.checkpoints.write import CheckpointResult
    from storage_core.log.commit import CommitResult
    from storage_core.log.conflicts.requirements import Requirement
    from storage_core.log.conflicts.settle import Rebase

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TransactionLog:
    """Reads and extends the log under `store`. Holds no state of its own: any number of them may work on one table.

    The manifests of the snapshots that it returns are read through `cached`.
    """

    store: ObjectStore
    clock: Clock = field(default_factory=SystemClock, kw_only=True)
    ids: Ids = field(default_factory=SystemIds, kw_only=True)
    cached: CachedPieces = field(default=NOT_CACHED, kw_only=True, compare=False, repr=False)

    def create(
        self,
        metadata: Metadata,
        *,
        operation: str = "CREATE TABLE",
        actions: Sequence[Action] = (),
        protocol: Protocol | None = None,
        commit_id: str | None = None,
    ) -> Snapshot:
        """Create the table as version 0 and return it. One LIST and one PUT.

        `actions` are in the table from the first, which then has the features of the `protocol`, too, and a checkpoint
        if one can be written. Of several concurrent creations one succeeds. Raises `InvalidInput` when a table exists
        here already or the schema or configuration cannot be read, `CommitUnknown` when the store did not say.
        """
        with typed("this process"):
            from storage_core.log.commit import CommitLabel
            from storage_core.log.features import first_version as beginning

        from_schema_string(metadata.schemaString)
        TableConfig.from_configuration(metadata.configuration)
        if self.exists():
            self._require_durable(0)
            raise _exists(self.store)
        now = self.clock.now_ms()
        label = CommitLabel(commit_id=commit_id or self.ids.uuid(), operation=operation)
        dated = metadata if metadata.createdTime is not None else replace(metadata, createdTime=now)
        content = (label.info(0, now), *beginning(dated, actions, protocol))
        data = encode_version(content)
        outcome = put_or_unknown(self.store, version_key(0), data, IfAbsent())
        if not isinstance(outcome, Committed):
            self._require_own_version_zero(label.commit_id, outcome)
        _logger.info("created table %s at %s", metadata.id, self.store.uri)
        made = Snapshot.apply(None, 0, decode_version(data, version_key(0)))
        return self._checkpoint_if_possible(made) if actions else made

    def exists(self) -> bool:
        """Return whether there is a table here. One LIST: version 0 may have been collected, so no one key decides."""
        return has_log(self.store)

    def snapshot(
        self, *, version: int | None = None, timestamp_ms: int | None = None, unfinished: bool = False
    ) -> Snapshot:
        """Return the newest snapshot, or the one at `version`, or the newest committed at or before `timestamp_ms`.

        Raises `NotFound` when there is no table, no such version, or nothing that old is retained; `Corrupt` for a
        damaged log; `Unsupported` for features this release does not know; `InvalidInput` for a table whose first
        import has not ended, unless `unfinished`. Requests: see `replay.open_head`.
        """
        found = self._at(version, timestamp_ms)
        if not unfinished and UNFINISHED_IMPORT in found.metadata.configuration:
            require_imported(self.store.uri, advance(self.store, found) or found)
        return found

    def _at(self, version: int | None, timestamp_ms: int | None) -> Snapshot:
        if version is not None and timestamp_ms is not None:
            raise InvalidInput("name a version or a timestamp, not both")
        if version is not None:
            if version < 0:
                raise InvalidInput(f"version {version}: versions start at 0")
            return open_version(self.store, version, self.cached)
        if timestamp_ms is not None:
            return open_timestamp(self.store, timestamp_ms, self.cached)
        return open_head(self.store, self.cached)

    def refresh(self, snapshot: Snapshot) -> Snapshot:
        """Return the newest snapshot, found by probing forward from `snapshot`.

        The GETs of `advance`, then one of the collector's boundary: it moves before versions are deleted, so it
        tells a version that is gone from one that is not there yet. Behind versions that are gone the newest one is
        opened as `snapshot` does.
        """
        found = advance(self.store, snapshot) or snapshot
        return open_head(self.store, self.cached) if first_version(self.store) > found.version + 1 else found

    def commit(
        self,
        snapshot: Snapshot,
        actions: Sequence[Action],
        *,
        operation: str,
        requirements: Sequence[Requirement] = (),
        metrics: Mapping[str, Any] | None = None,
        commit_id: str | None = None,
        job_run_id: str | None = None,
        head: Snapshot | None = None,
        rebase: Rebase | None = None,
    ) -> CommitResult:
        """Make `actions`, planned on `snapshot`, the next version: all of them, exactly once, or none.

        Every check of docs/architecture/transaction-log.md that follows from the actions, and every requirement, holds
        on the version the commit follows. Actions whose transactions are all recorded write nothing. A given
        `commit_id` marks a possible retry: the history up to `snapshot` is searched for it first, one GET per retained
        version. Uncontended: one HEAD and one PUT, and every `checkpoint_interval` versions a checkpoint, whose failure
        is logged only. A `head` that follows `snapshot` is tried first, so that versions known already are not read
        again. `rebase` adapts the actions to a head whose splits have other deleted rows than the plan saw.

        Raises `InvalidInput`, `CommitConflict`, `Fenced`, `Unsupported`: nothing was written; `CommitUnknown`:
        call `find_commit` with its `commit_id`, or commit again with the same id.
        """
        with typed("this process"):  # which loads here what readers do not need
            from storage_core.log.commit import CommitLabel, CommitResult, Committer
            from storage_core.log.conflicts.settle import Plan, validated

        written = validated(actions)
        if commit_id is not None:
            found = find_commit(self.store, snapshot.version, commit_id)
            if found is not None:
                self._require_durable(found)
                return CommitResult(found, commit_id, snapshot, already_committed=True, attempts=0)
        label = CommitLabel(
            commit_id=commit_id or self.ids.uuid(), operation=operation, metrics=metrics or {}, job_run_id=job_run_id
        )
        plan = Plan(snapshot, written, tuple(requirements), rebase)
        result = Committer(self.store, self.clock, self.ids).commit(plan, label, head)
        if result.already_committed:
            self._require_durable(result.version)
            return result
        if not _is_due(result.snapshot):
            return result
        return replace(result, snapshot=self._checkpoint_if_possible(result.snapshot))

    def find_commit(self, commit_id: str) -> int | None:
        """Return the version that a commit became, however many have followed; None when it never landed so far.

        It is durable then. Raises `CommitUnknown` when it is there and cannot be made durable.
        """
        found = find_commit(self.store, open_head(self.store).version, commit_id)
        if found is not None:
            self._require_durable(found)
        return found

    def history(self, newest: int | None = None) -> Iterator[HistoryEntry]:
        """Yield the retained versions from `newest` down, without it from the head, which is opened. One GET each."""
        yield from entries(self.store, open_head(self.store).version if newest is None else newest)

    def checkpoint(self, snapshot: Snapshot) -> CheckpointResult:
        """Make sure that the snapshot's version has a complete state, and the hint is no older. Idempotent.

        Work is proportional to what is new since the newest state, amortized.
        """
        with typed("this process"):
            from storage_core.log.checkpoints.write import write_checkpoint
            from storage_core.log.conflicts.settle import require_writable

        require_writable(snapshot)
        based = based_on_newest_state(self.store, snapshot)
        behind = recovery(self.store, based.version)
        return write_checkpoint(self.store, based, self.ids.uuid, recovery=behind)

    def _checkpoint_if_possible(self, snapshot: Snapshot) -> Snapshot:
        try:
            return self.checkpoint(snapshot).snapshot
        except TidemarkError as error:
            _logger.warning(
                "version %d of %s is committed, its checkpoint failed: %s", snapshot.version, self.store.uri, error
            )
            return snapshot

    def _require_durable(self, version: int) -> None:
        require_durable(self.store, version_key(version), advice="look for it again; clean nothing up")

    def _require_own_version_zero(self, commit_id: str, outcome: Conflict | OutcomeUnknown) -> None:
        actions = read_version(self.store, 0)
        if actions is None:
            why = outcome.reason if isinstance(outcome, OutcomeUnknown) else "it named another, which is not there"
            raise CommitUnknown(
                f"{self.store.uri}: the store did not say whether the table was created ({why}); look again before "
                "retrying",
                commit_id=commit_id,
                version=0,
            )
        info = commit_info(actions)
        if info is None or info.commitId != commit_id:
            raise _exists(self.store)
        self._require_durable(0)


def _is_due(snapshot: Snapshot) -> bool:
    interval = snapshot.config.checkpoint_interval
    return interval > 0 and snapshot.version % interval == 0


def _exists(store: ObjectStore) -> InvalidInput:
    return InvalidInput(f"{store.uri}: a table exists here already; open it, or choose another location", uri=store.uri)
