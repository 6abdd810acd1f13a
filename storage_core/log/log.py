"""The transaction log of one table: its versions, its tags, the transactions of applications, and compact states.

The log is the only source of truth for the base of a table (docs/architecture/transaction-log.md). Start with
`TransactionLog`, which opens, commits and checkpoints.

A tag is a name that keeps a version readable, either permanently or until the tag expires. All tags of a table are in
one small object, `_tags.json`, which is replaced by compare-and-swap. The collector finds every tag with one GET of
`_tags.json`. The collector does not use a listing, because a listing may miss an object (lesson 49). This module reads
and removes tags. `maintain.history` sets tags.

An application can give its work a name and a number, for example `('nightly', 17)`. The log then commits the work once,
even if the application sends it several times.

A compact state has the minimum number of manifests for its splits, and no tombstones. `compact_state` writes a compact
state on request. Without a request, a state is rewritten only if that saves more work than it costs
(`checkpoint_writing`). States are immutable. If the newest version already has a state, `compact_state` therefore first
commits a new version without changes. Then `compact_state` writes the compact state of the new version.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from storage_core.base.clock import Clock, Ids, SystemClock, SystemIds
from storage_core.base.errors import CommitConflict, CommitUnknown, InvalidInput, NotFound, TidemarkError, typed
from storage_core.base.limits import CacheSettings
from storage_core.base.text import did_you_mean, names_of, quoted
from storage_core.data.formats.documents import CheckpointKind, Tag, Tags, decode_tags, encode_tags
from storage_core.data.formats.keys import probe_key, tags_key, version_key
from storage_core.data.rows.schema import from_schema_string
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Action, Metadata, Protocol, Txn
from storage_core.log.codec import commit_info, decode_version, encode_version
from storage_core.log.conflicts import COMPACT_STATE, Plan, next_recorded_version, require_writable, validated
from storage_core.log.listing import first_version, has_log
from storage_core.log.replay import based_on_newest_state, open_head, open_timestamp, open_version, recovery
from storage_core.log.sharing import open_table_store
from storage_core.log.snapshot import UNFINISHED_IMPORT, Snapshot, require_imported
from storage_core.log.versions import HistoryEntry, advance, entries, find_commit, read_version
from storage_core.store.contract import (
    ATTEMPTS,
    Committed,
    Conflict,
    IfAbsent,
    ObjectStore,
    OutcomeUnknown,
    PutResult,
    compare_and_swap,
    put_or_unknown,
    require_durable,
    unchanged,
)
from storage_core.store.meter import MeteredStore
from storage_core.store.pieces import NOT_CACHED, CachedPieces, cached_pieces

if TYPE_CHECKING:
    from storage_core.log.checkpoint_writing import CheckpointResult
    from storage_core.log.commit import CommitResult
    from storage_core.log.conflicts import Rebase, Requirement


_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TransactionLog:
    """The reader and writer of the log in `store`.

    An instance has no state of its own, so any number of instances may work on one table. The returned snapshots read
    their manifests through `cached`.
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
        """Create the table as version 0 and return its snapshot. If several creations run concurrently, one succeeds.

        Args:
            actions: Actions of version 0. If there are any, a checkpoint of version 0 is also written, if possible.
            protocol: A protocol. Its features are added to the protocol of version 0.

        Raises:
            InvalidInput: A table already exists here, or the schema or configuration is unreadable.
            CommitUnknown: The store did not report an outcome.

        Cost:
            One LIST and one PUT.
        """
        with typed("this process"):
            from storage_core.log.commit import CommitLabel
            from storage_core.log.sharing import first_version as beginning

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
        """Return whether a table exists here.

        The cost is one LIST. Version 0 may have been collected, so a check of a single key is not sufficient.
        """
        return has_log(self.store)

    def snapshot(
        self, *, version: int | None = None, timestamp_ms: int | None = None, unfinished: bool = False
    ) -> Snapshot:
        """Return the newest snapshot, the snapshot at `version`, or the newest snapshot at the time `timestamp_ms`.

        Args:
            unfinished: True to also return a table with an unfinished first import.

        Raises:
            NotFound: There is no table, the version does not exist, or all retained versions were committed after
                `timestamp_ms`.
            Corrupt: The log is damaged.
            Unsupported: The table has features that this release does not support.
            InvalidInput: The first import of the table has not ended, and `unfinished` is False.

        Cost:
            See `replay.open_head`.
        """
        found = self._at(version, timestamp_ms)
        if not unfinished and UNFINISHED_IMPORT in found.metadata.configuration:
            require_imported(self.store.uri, advance(self.store, found) or found)
        return found

    def _at(self, version: int | None, timestamp_ms: int | None) -> Snapshot:
        if version is not None and timestamp_ms is not None:
            raise InvalidInput("a version cannot be combined with a timestamp. Leave one of them out")
        if version is not None:
            if version < 0:
                raise InvalidInput(f"version {version} does not exist, because versions start at 0. Give 0 or more")
            return open_version(self.store, version, self.cached)
        if timestamp_ms is not None:
            return open_timestamp(self.store, timestamp_ms, self.cached)
        return open_head(self.store, self.cached)

    def refresh(self, snapshot: Snapshot) -> Snapshot:
        """Return the newest snapshot, found by probing forward from `snapshot`.

        If the versions after `snapshot` have been deleted, the method `snapshot` opens the newest version.

        Cost:
            The GETs of `advance`, then one GET of the collector's boundary. The collector moves the boundary before it
            deletes versions. The boundary therefore distinguishes a deleted version from a version that does not exist
            yet.
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
        """Commit `actions`, planned on `snapshot`, as the next version: all actions exactly once, or none.

        The commit follows a version that passes all checks for these actions (docs/architecture/transaction-log.md),
        and that meets every requirement. If all transactions in `actions` are already recorded, nothing is written. If
        an error other than `CommitUnknown` is raised, nothing is written either.

        Args:
            commit_id: Marks a possible retry. The history up to `snapshot` is searched for this id first.
            head: A later snapshot than `snapshot`. The commit first tries to follow `head`, so that known versions are
                not read again.
            rebase: A function that adapts the actions if other rows of the splits are deleted in the head than in the
                plan.

        Raises:
            InvalidInput: The actions are not valid.
            CommitConflict: Another commit invalidated the plan, or the commit lost ten attempts against others.
            Fenced: A higher fencing token has committed.
            Unsupported: This release may not write the table.
            CommitUnknown: Call `find_commit` with the error's `commit_id`, or commit again with the same id.

        Cost:
            Without contention: one HEAD and one PUT, and a checkpoint every `checkpoint_interval` versions. A failed
            checkpoint is only logged. With a `commit_id`: also one GET per retained version.
        """
        with typed("this process"):  # These imports load modules that readers do not need.
            from storage_core.log.commit import CommitLabel, CommitResult, Committer
            from storage_core.log.conflicts import Plan, validated

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
        """Return the durable version of a commit, or None if the commit has not taken effect so far.

        The commit is found even if many versions follow it. Raises `CommitUnknown` if the version exists and cannot be
        made durable.
        """
        found = find_commit(self.store, open_head(self.store).version, commit_id)
        if found is not None:
            self._require_durable(found)
        return found

    def history(self, newest: int | None = None) -> Iterator[HistoryEntry]:
        """Yield the retained versions in descending order, from `newest` or from the head. One GET per version.

        If `newest` is None, the head is opened to find the newest version.
        """
        yield from entries(self.store, open_head(self.store).version if newest is None else newest)

    def checkpoint(self, snapshot: Snapshot) -> CheckpointResult:
        """Ensure that the snapshot's version has a complete state, and that the hint does not point to an older state.

        A repeated call changes nothing. The amortized work is proportional to the changes since the newest state.
        """
        with typed("this process"):
            from storage_core.log.checkpoint_writing import write_checkpoint
            from storage_core.log.conflicts import require_writable

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

    def require_capable(self) -> None:
        """Raise an error unless the store fulfills its contract.

        On S3, the check runs once per process (`store.resolve`).
        """
        from storage_core.store import resolve

        resolve.require_capable(self.store, lambda: probe_key(self.ids.uuid()))

    def _require_durable(self, version: int) -> None:
        require_durable(self.store, version_key(version), advice="look for the commit again. Delete nothing")

    def _require_own_version_zero(self, commit_id: str, outcome: Conflict | OutcomeUnknown) -> None:
        actions = read_version(self.store, 0)
        if actions is None:
            why = outcome.reason if isinstance(outcome, OutcomeUnknown) else "the conflicting object does not exist"
            raise CommitUnknown(
                f"{self.store.uri}: the store did not say whether the table was created ({why}). Check whether the "
                "table exists, then try again",
                commit_id=commit_id,
                version=0,
            )
        info = commit_info(actions)
        if info is None or info.commitId != commit_id:
            raise _exists(self.store)
        self._require_durable(0)


def log_at(uri: str | Path) -> tuple[MeteredStore, TransactionLog]:
    """Return the store of the table at this location, and its log. The table may not exist yet. No request."""
    store = MeteredStore(open_table_store(uri))
    cached = cached_pieces(CacheSettings.of(os.environ))
    return store, TransactionLog(store, clock=SystemClock(), ids=SystemIds(), cached=cached)


def _is_due(snapshot: Snapshot) -> bool:
    interval = snapshot.config.checkpoint_interval
    return interval > 0 and snapshot.version % interval == 0


def _exists(store: ObjectStore) -> InvalidInput:
    return InvalidInput(
        f"{store.uri}: a table is here already. Open the table, or choose another location", uri=store.uri
    )


PLANNED_AT_MOST = 10

_Done = TypeVar("_Done")


def retry_on_conflict(log: TransactionLog, head: Snapshot, attempt: Callable[[Snapshot], _Done]) -> _Done:
    """Return the result of `attempt(head)`. After a `CommitConflict`, retry on the refreshed head, ten times at most.

    Raises the `CommitConflict` of the last attempt, and any other error of an attempt.

    Cost:
        The requests of each attempt, and those of `log.refresh` before each attempt but the first.
    """
    for _ in range(PLANNED_AT_MOST - 1):
        try:
            return attempt(head)
        except CommitConflict:
            head = log.refresh(head)
    return attempt(head)


Change = Callable[[Mapping[str, Tag]], Mapping[str, Tag]]


def read_tags(store: ObjectStore) -> Tags:
    """Return the table's tags. One GET.

    Raises:
        Corrupt: The tags cannot be parsed. No other record of the versions to retain exists.
        Unsupported: The tags have a newer format.
    """
    try:
        blob = store.get(tags_key())
    except NotFound:
        return Tags()
    return decode_tags(blob.data, etag=blob.etag)


def tagged(log: TransactionLog, name: str) -> Tag:
    """Return the live tag of this name. One GET. Raises `NotFound` with the existing tags."""
    tags, now_ms = read_tags(log.store), log.clock.now_ms()
    tag = tags.by_name.get(name)
    if tag is None or not tag.is_live(now_ms):
        raise _no_tag(log, name, tags, now_ms)
    return tag


def remove_tag(log: TransactionLog, name: str) -> Tag:
    """Remove the tag and return it.

    The removed tag no longer protects its version from collection. The cost is one GET and one PUT. Raises `NotFound`.
    """
    tags = read_tags(log.store)
    before = tags.by_name.get(name)
    if before is None:
        raise _no_tag(log, name, tags, log.clock.now_ms())
    replace_tag(log, name, before, None)
    _logger.info("tag %s of %s removed, which was version %d", name, log.store.uri, before.version)
    return before


def drop_expired(log: TransactionLog, *, now_ms: int) -> list[str]:
    """Remove the tags that have expired at `now_ms`, and return their names.

    The cost is one GET, and one PUT if a tag has expired.
    """
    deleted = sorted(tag.name for tag in read_tags(log.store).by_name.values() if not tag.is_live(now_ms))
    if deleted:
        _replace(log, lambda tags: {name: tag for name, tag in tags.items() if tag.is_live(now_ms)})
        _logger.info("expired tags of %s removed: %s", log.store.uri, ", ".join(deleted))
    return deleted


def replace_tag(log: TransactionLog, name: str, before: Tag | None, after: Tag | None) -> None:
    """Replace the tag of this name with `after`. The tag must equal `before`. None means a missing tag.

    Nothing is written if `after` is already stored. The cost is one GET and one PUT if no other process changes the
    tags at the same time.

    Raises:
        CommitConflict: Another process changed the tag, or was faster in every attempt.
        CommitUnknown: The store did not report an outcome.
    """
    _replace(log, partial(_replaced, name, before, after))


_VERSION = "Give a version number, a time such as 2015-05-17T10:00 or a tag"


def _no_tag(log: TransactionLog, name: str, tags: Tags, now_ms: int) -> NotFound:
    live = [each.name for each in tags.live(now_ms)]
    found = f"the tag {name!r} has expired" if name in tags.by_name else f"unknown tag {name!r}"
    known = f"the tags {names_of(live)}" if live else "no tags"
    advice = did_you_mean(name, live) or f". {_VERSION}"
    return NotFound(f"{found}. The table {log.store.uri} has {known}{advice}", tag=name)


def _replaced(name: str, before: Tag | None, after: Tag | None, tags: Mapping[str, Tag]) -> Mapping[str, Tag]:
    """Return the tags with `after` in place of `before`, or the same mapping if it already contains `after`."""
    if tags.get(name) == after:
        return tags
    if tags.get(name) != before:
        raise CommitConflict(f"the tag {name!r} was changed by another process. Read it again", tag=name)
    rest = {other: tag for other, tag in tags.items() if other != name}
    return rest if after is None else {**rest, name: after}


def _replace(log: TransactionLog, change: Change) -> None:
    """Replace the tags with the result of `change`.

    The cost is one GET and one PUT if no other process changes the tags at the same time.
    """

    def changed(current: Tags) -> Tags:
        wanted = change(current.by_name)
        return current if wanted == current.by_name else replace(current, by_name=wanted)

    key = tags_key()
    done = compare_and_swap(
        partial(read_tags, log.store),
        changed,
        partial(_put, log),
        store=log.store,
        key=key,
        clock=log.clock,
        ids=log.ids,
    )
    if done is None:
        raise CommitConflict(
            f"{key}: other processes changed the tags during each of {ATTEMPTS} attempts. Nothing was changed. "
            "Try again"
        )


def _put(log: TransactionLog, wanted: Tags) -> PutResult:
    return put_or_unknown(log.store, tags_key(), encode_tags(wanted, nonce=log.ids.uuid()), unchanged(wanted.etag))


_APP = "app:"


def once(log: TransactionLog, head: Snapshot, application: object) -> tuple[Txn | None, bool]:
    """Return the transaction for an application's work, and whether this or later work is already recorded.

    Args:
        application: A tuple of name and number, or None. For None the result is `(None, False)`.

    Raises:
        InvalidInput: `application` is not a name and a number.
    """
    if application is None:
        return None, False
    match application:
        case (str(name), int(version)) if name and not isinstance(version, bool) and 0 <= version < 2**63:
            txn = Txn(appId=_APP + name, version=version, lastUpdated=log.clock.now_ms())
        case _:
            given = application if isinstance(application, tuple) and len(application) == 2 else (application,)
            raise InvalidInput(
                f"the application is {' and '.join(map(quoted, given))}. Give a name and a number from 0 to 2**63 - "
                "1, as in ('nightly', 17)"
            )
    return txn, head.txns.get(txn.appId, -1) >= txn.version


OPERATION = "COMPACT STATE"


def has_compact_state(snapshot: Snapshot) -> bool:
    """Return True if the version has a JSON checkpoint, or a state that `compact_state` cannot make smaller."""
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
    """Ensure that the hint points to a compact state of this version. A later version without changes is also valid.

    Idempotent: if the state is already compact, nothing is written, unless `another` is True. Raises the errors of a
    commit and of `write_checkpoint`.

    Cost:
        One GET per manifest that is not yet read, one PUT per manifest, one PUT for the state, and one GET and one PUT
        for the hint. If the version already has a state, also the requests of a commit.
    """
    with typed("this process"):
        from storage_core.log.checkpoint_writing import CheckpointResult, write_checkpoint
        from storage_core.log.commit import CommitLabel, Committer

    require_writable(snapshot)
    if has_compact_state(snapshot) and not another:
        return CheckpointResult(snapshot.version, len(snapshot.splits), 0, written=False, snapshot=snapshot)
    if snapshot.checkpoint_version == snapshot.version:
        # This function does not call the `commit` method of `TransactionLog`. That commit may itself write a state for
        # the new version.
        label = CommitLabel(commit_id=log.ids.uuid(), operation=OPERATION, metrics={}, job_run_id=job_run_id)
        nothing = validated([Txn(appId=COMPACT_STATE, version=next_recorded_version(COMPACT_STATE, snapshot))])
        snapshot = Committer(log.store, log.clock, log.ids).commit(Plan(snapshot, nothing), label, None).snapshot
    based = based_on_newest_state(log.store, snapshot)
    return write_checkpoint(log.store, based, log.ids.uuid, compact=True, recovery=recovery(log.store, based.version))
