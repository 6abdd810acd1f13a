"""The Delta mirror: a `_delta_log` beside the table that names the same splits (decision 0155).

One commit per version of the table that changes what Delta shows. All state is in the log that is written: the newest
commit says which version it shows, so whatever ends a mirror, the next one goes on from there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from storage_core.errors import CommitConflict, Corrupt, NotFound, SnapshotExpired
from storage_core.formats.delta_log import OWN, Json, MirrorCommit, Shown, encode
from storage_core.formats.keys import delta_commit_key
from storage_core.log.actions import Action, Add, Remove
from storage_core.log.advance import read_version
from storage_core.log.encoding.codec import commit_info
from storage_core.log.history import UNRECORDED
from storage_core.log.log import TransactionLog
from storage_core.log.published import ADVICE, Newest, newest_commit, state_at
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.create import create_numbered
from storage_core.publishing.delta_checkpoint import EVERY, transaction, write_checkpoint
from storage_core.publishing.delta_files import DeltaFiles, ShownFile, descriptor, removal
from storage_core.publishing.delta_schema import MirrorSchema, delta_schema, types_of, widened
from storage_core.publishing.hindrance import hindrance, narrower, require_publishable
from storage_core.publishing.mirrored import Mirrored
from storage_core.rows.columns import has_changed

_ATTEMPTS = 10
_AT_ONCE = "PUBLISH"
_CHECKPOINTED = frozenset({"FORGET", _AT_ONCE})
"""After these a checkpoint is written at once, so that older commits, whose statistics have values of rows that are
gone, can be collected without waiting for ten more."""

_logger = logging.getLogger(__name__)

ShownFiles = Callable[[Collection[str]], Mapping[str, ShownFile]]
"""Returns which of these files are shown, and how."""


def publish_delta(log: TransactionLog, *, shows_vectors: bool) -> Mirrored:
    """Show in Delta every version up to the newest that it does not show yet, and return what it shows then.

    The first publication shows the newest version alone. Of a keyed table the base is shown: what is merged. Versions
    that change nothing that is shown have no commit, and those that Delta cannot show (`publishing.hindrance`) are
    passed over: the next one that it can show has their changes. Idempotent, and restartable wherever it was killed;
    of two mirrors at once each commit is made by one. Old versions are shown as long as they are retained.

    Raises `InvalidInput` for a table that is not published, `Corrupt` for a Delta log that others wrote,
    `CommitConflict` when another mirror was faster each time, `CommitUnknown` when the store did not say. Requests:
    those of opening the version that is shown and the newest, two GETs and one per commit since a checkpoint, one GET
    per version in between, a PUT per commit, and a GET per stored vector that came or went; every ten commits a PUT of
    a checkpoint, which lists all splits.
    """
    commits = 0
    done: Mirrored | None = None
    for _ in range(_ATTEMPTS):
        newest = newest_commit(log.store)  # before the head, which is then no older than what is shown
        head = log.snapshot()
        require_publishable(head)
        walk = _Walk(log, head, newest, shows_vectors=shows_vectors)
        is_whole = walk.go()
        commits += walk.commits
        done = walk.result(commits) if is_whole else done
        # What is shown last was the newest version at some moment of this call: so nothing of it was collected yet.
        if is_whole and (not walk.commits or log.refresh(head).version == head.version):
            break
    if done is None:
        raise CommitConflict(
            f"{log.store.uri}: other mirrors published during each of {_ATTEMPTS} attempts; publish again later",
            uri=log.store.uri,
        )
    return done


@dataclass(slots=True)
class _Touched:
    """What versions changed that are not shown yet."""

    keys: set[str] = field(default_factory=set)
    data_change: bool = False
    operation: str = UNRECORDED

    def take(self, actions: Sequence[Action]) -> None:
        """Take up the changes of one version."""
        files = [each for each in actions if isinstance(each, Add | Remove)]
        self.keys.update(each.path for each in files)
        self.data_change |= any(each.dataChange for each in files)
        info = commit_info(actions)
        if info is not None and self.operation not in _CHECKPOINTED:
            self.operation = info.operation


class _Walk:
    """From what is shown to the head: `shown` is what the newest commit, the Delta version `at`, says."""

    def __init__(self, log: TransactionLog, head: Snapshot, newest: Newest | None, *, shows_vectors: bool) -> None:
        self._log, self._store, self._head, self._newest = log, log.store, head, newest
        self._shows_vectors = shows_vectors
        self._files: ShownFiles = lambda _: {}
        self._types: dict[str, str] = {}
        self._widened: frozenset[str] = frozenset()
        self._has_wider = False  # than what is shown
        self._shown: Shown | None = None
        self._at = self._hinted = -1
        self._waits_for: str | None = None
        self.commits = 0

    def go(self) -> bool:
        """Publish what can be; False when another mirror was faster."""
        newest = self._newest
        if newest is None:
            self._has_wider = has_changed(self._head.schema)
            self._widened = frozenset(types_of(self._head.metadata.schemaString)) if self._has_wider else frozenset()
            return self._show(self._head, _everything(self._head.splits))
        self._at, self._hinted = newest.commit.version, newest.hinted
        self._shown = _own(newest.commit, self._head)
        self._widened = frozenset(self._shown.widened)
        base = self._opened(self._shown.version)
        found = None if base is None else self._step_by_step(base)
        return self._at_once(newest.commit) if found is None else found

    def result(self, commits: int) -> Mirrored:
        """Return what is shown: also the head, where all since changed nothing that is."""
        is_behind = self._waits_for is not None or self._shown is None
        version = self._head.version if not is_behind else None if self._shown is None else self._shown.version
        return Mirrored(
            format="delta",
            version=version,
            shown_as=None if self._shown is None else self._at,
            commits=commits,
            waits_for=self._waits_for,
        )

    def _opened(self, version: int) -> Snapshot | None:
        try:
            return self._head if version == self._head.version else self._log.snapshot(version=version)
        except (NotFound, Corrupt, SnapshotExpired):  # older than what is retained
            return None

    def _step_by_step(self, base: Snapshot) -> bool | None:
        """Show version after version; None, with nothing done, where they are no longer there, else False."""
        self._files, self._types = partial(_shown_files, self._store, base), types_of(base.metadata.schemaString)
        oldest_ms = self._log.clock.now_ms() - self._head.config.version_retention_ms
        touched = _Touched()
        for version in range(base.version + 1, self._head.version + 1):
            actions = read_version(self._store, version)
            if actions is None:
                return False if self.commits else None
            touched.take(actions)
            base = Snapshot.apply(base, version, actions)
            self._note_types(base)
            if base.timestamp < oldest_ms and version < self._head.version:
                continue  # files of it may be collected
            if not self._show(base, touched):
                return False
            if self._waits_for is None:
                touched = _Touched()
        return True

    def _at_once(self, newest: MirrorCommit) -> bool:
        """Show the head in one commit, by what the Delta log itself says that it holds."""
        state = state_at(self._store, newest)
        self._files = lambda keys: {key: ShownFile(state.files[key]) for key in keys if key in state.files}
        self._types = types_of(state.schema)
        self._note_types(self._head)
        return self._show(self._head, _everything([*state.files, *self._head.splits]))

    def _note_types(self, snapshot: Snapshot) -> None:
        types = types_of(snapshot.metadata.schemaString)
        found = widened(self._types, types)
        self._widened |= found
        self._has_wider |= bool(found)
        self._types |= types

    def _show(self, snapshot: Snapshot, touched: _Touched) -> bool:
        """Commit the version, if it can be shown and is not shown as it is; False when another mirror was faster."""
        self._waits_for = hindrance(snapshot, shows_vectors=self._shows_vectors) or self._narrower(snapshot, touched)
        if self._waits_for is not None:
            return True
        removes, adds = self._actions(snapshot, touched)
        shown = self._shown
        schema = delta_schema(
            snapshot,
            features=() if shown is None else shown.features,
            has_vectors=any("deletionVector" in each for each in adds),
        )
        is_new = shown is None or schema.checksum != shown.metadata
        declared = [{"protocol": schema.protocol}, {"metaData": schema.metadata}] if is_new else []
        actions = [*declared, *({"remove": each} for each in removes), *({"add": each} for each in adds)]
        if actions and not self._commit(snapshot, schema, touched.operation, actions):
            return False
        self._files = partial(_shown_files, self._store, snapshot)
        self._has_wider = False
        return True

    def _narrower(self, snapshot: Snapshot, touched: _Touched) -> str | None:
        """Whether a split is narrower than its table: any, or of the new ones where what is shown was as wide."""
        if not self._widened:
            return None
        adds = [*(snapshot.splits if self._has_wider else snapshot.splits.among(touched.keys)).values()]
        return narrower(self._store, adds, self._widened, snapshot.schema)

    def _actions(self, snapshot: Snapshot, touched: _Touched) -> tuple[list[Json], list[Json]]:
        """What leaves and what comes: a file whose vector changed does both."""
        before, after = self._files(touched.keys), snapshot.splits.among(touched.keys)
        files = DeltaFiles(self._store, snapshot.schema)
        adds = {key: files.add(after[key], data_change=touched.data_change) for key in sorted(after)}
        same = {key for key in adds if key in before and adds[key].get("deletionVector") == before[key].vector}
        removes = [
            removal(key, before[key], at_ms=snapshot.timestamp, data_change=touched.data_change)
            for key in sorted(before.keys() - same)
        ]
        return removes, [each for key, each in adds.items() if key not in same]

    def _commit(self, snapshot: Snapshot, schema: MirrorSchema, operation: str, actions: Sequence[Json]) -> bool:
        shown = Shown(
            table_id=snapshot.table_id,
            version=snapshot.version,
            after=None if self._shown is None else self._shown.version,
            published_at_ms=self._log.clock.now_ms(),
            id=self._log.ids.uuid(),
            features=schema.features,
            metadata=schema.checksum,
            widened=tuple(sorted(self._widened)),
        )
        info = {
            "timestamp": snapshot.timestamp,
            "inCommitTimestamp": snapshot.timestamp,
            "operation": operation,
            "operationParameters": {},
            "engineInfo": OWN,
            OWN: shown.to_json(),
        }
        data = encode([{"commitInfo": info}, {"txn": transaction(snapshot)}, *actions])
        at = self._at + 1
        if not create_numbered(self._store, delta_commit_key(at), data, clock=self._log.clock):
            return False
        _logger.info("published version %d of %s as Delta version %d", snapshot.version, self._store.uri, at)
        self._shown, self._at = shown, at
        self.commits += 1
        if at - max(self._hinted, 0) >= EVERY or (at and operation in _CHECKPOINTED):
            write_checkpoint(self._store, at, snapshot, schema)
            self._hinted = at
        return True


def _everything(keys: Iterable[str]) -> _Touched:
    return _Touched(set(keys), data_change=True, operation=_AT_ONCE)


def _shown_files(store: ObjectStore, snapshot: Snapshot, keys: Collection[str]) -> Mapping[str, ShownFile]:
    return {key: ShownFile(descriptor(store, add), add.size) for key, add in snapshot.splits.among(keys).items()}


def _own(newest: MirrorCommit, head: Snapshot) -> Shown:
    """What the newest commit shows. Raises `Corrupt` unless that is a version of this table."""
    where = delta_commit_key(newest.version)
    if newest.shown is None:
        raise Corrupt(
            f"{where}: written by somebody else; the log of the mirror is the mirror's alone",
            advice=ADVICE,
            key=where,
        )
    if newest.shown.table_id != head.table_id or newest.shown.version > head.version:
        raise Corrupt(
            f"{where}: shows version {newest.shown.version} of the table {newest.shown.table_id}, found the table "
            f"{head.table_id} at version {head.version}",
            advice=ADVICE,
            key=where,
        )
    return newest.shown
