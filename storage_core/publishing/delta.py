"""The Delta mirror: a `_delta_log` beside the table that names the same splits (decision 0155).

One commit per version of the table that changes what Delta shows. All state is in the log that is written: the newest
commit says which version it shows, so whatever ends a mirror, the next one goes on from there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from storage_core.formats.delta_log import ENCODING, OWN, Json, MirrorCommit, Shown, encode
from storage_core.formats.keys import delta_commit_key
from storage_core.log.log import TransactionLog
from storage_core.log.published_delta import ADVICE, NewestCommit, newest_commit, state_at
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.create import create_numbered
from storage_core.publishing.delta_checkpoint import EVERY, transaction, write_checkpoint
from storage_core.publishing.delta_files import DeltaFiles, ShownFile, descriptor, removal
from storage_core.publishing.delta_schema import MirrorSchema, delta_schema, types_of, widened
from storage_core.publishing.hindrance import hindrance, narrower
from storage_core.publishing.mirrored import Mirrored
from storage_core.publishing.walk import FORGETTING, Touched, publish, require_own
from storage_core.rows.columns import has_changed

_WAITS = "for which `vectors: none` waits"

_LAST_OF_ONE_ESCAPE = "\uffff"

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

    def mirror(newest: NewestCommit | None, head: Snapshot) -> _DeltaMirror:
        return _DeltaMirror(log, newest, head, shows_vectors=shows_vectors)

    return publish(log, "delta", partial(newest_commit, log.store), mirror)


class _DeltaMirror:
    """What the newest commit, the Delta version `shown_as`, says, and how the next one is made."""

    def __init__(
        self, log: TransactionLog, newest: NewestCommit | None, head: Snapshot, *, shows_vectors: bool
    ) -> None:
        self._log, self._store, self._newest = log, log.store, newest
        self._shows_vectors = shows_vectors
        self._shown = None if newest is None else _own(newest.commit, head)
        self._at, self._hinted = (-1, -1) if newest is None else (newest.commit.version, newest.hinted)
        self._files: ShownFiles = lambda _: {}
        self._types: dict[str, str] = {}
        self._widened = frozenset(() if self._shown is None else self._shown.widened)
        self._has_wider = False  # than what is shown
        self.waits_for: str | None = None
        self.commits = 0

    @property
    def shown(self) -> int | None:
        return None if self._shown is None else self._shown.version

    @property
    def shown_as(self) -> int | None:
        return None if self._shown is None else self._at

    @property
    def location(self) -> str | None:
        return None if self._shown is None else self._store.uri

    @property
    def is_outdated(self) -> bool:
        return self._shown is not None and self._shown.encoding != ENCODING

    def begin(self, head: Snapshot) -> None:
        self._has_wider = has_changed(head.schema)
        self._widened = frozenset(types_of(head.metadata.schemaString)) if self._has_wider else frozenset()

    def go_on(self, base: Snapshot) -> None:
        self._files, self._types = partial(_shown_files, self._store, base), types_of(base.metadata.schemaString)

    def go_on_without_base(self, _: Snapshot) -> Collection[str]:
        if self._newest is None:
            return ()
        state = state_at(self._store, self._newest.commit)
        self._files = lambda keys: {key: ShownFile(state.files[key]) for key in keys if key in state.files}
        self._types = types_of(state.schema)
        return state.files

    def passes(self, snapshot: Snapshot) -> None:
        types = types_of(snapshot.metadata.schemaString)
        found = widened(self._types, types)
        self._widened |= found
        self._has_wider |= bool(found)
        self._types |= types

    def show(self, snapshot: Snapshot, touched: Touched) -> bool:
        vectors_wait = None if self._shows_vectors else _WAITS
        self.waits_for = hindrance(snapshot, vectors_wait=vectors_wait) or self._narrower(snapshot, touched)
        if self.waits_for is not None:
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

    def _narrower(self, snapshot: Snapshot, touched: Touched) -> str | None:
        """Whether a split is narrower than its table: any, or of the new ones where what is shown was as wide."""
        if not self._widened:
            return None
        adds = [*(snapshot.splits if self._has_wider else snapshot.splits.among(touched.keys)).values()]
        return narrower(self._store, adds, self._widened, snapshot.schema)

    def _actions(self, snapshot: Snapshot, touched: Touched) -> tuple[list[Json], list[Json]]:
        """What leaves and what comes: a file whose vector changed does both.

        A file whose statistics an earlier release escaped comes once more: the newest action of a file counts.
        """
        keys = touched.keys | set(snapshot.splits) if self.is_outdated else touched.keys
        before, after = self._files(keys), snapshot.splits.among(keys)
        files = DeltaFiles(self._store, snapshot.schema)
        adds = {key: files.add(after[key], data_change=touched.data_change) for key in sorted(after)}
        same = {key for key in adds if key in before and adds[key].get("deletionVector") == before[key].vector}
        removes = [
            removal(key, before[key], at_ms=snapshot.timestamp, data_change=touched.data_change)
            for key in sorted(before.keys() - same)
        ]
        escaped = {key for key in same if self.is_outdated and max(adds[key]["stats"]) > _LAST_OF_ONE_ESCAPE}
        again = [{**adds[key], "dataChange": False} for key in sorted(escaped)]
        return removes, [*(each for key, each in adds.items() if key not in same), *again]

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
            encoding=ENCODING,
        )
        is_again = self.shown == snapshot.version
        at_ms = snapshot.timestamp + 1 if is_again else snapshot.timestamp  # times of a Delta log must grow
        info = {
            "timestamp": at_ms,
            "inCommitTimestamp": at_ms,
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
        if at - max(self._hinted, 0) >= EVERY or (at and operation in FORGETTING):  # so that older commits can go
            write_checkpoint(self._store, at, snapshot, schema)
            self._hinted = at
        return True


def _shown_files(store: ObjectStore, snapshot: Snapshot, keys: Collection[str]) -> Mapping[str, ShownFile]:
    return {key: ShownFile(descriptor(store, add), add.size) for key, add in snapshot.splits.among(keys).items()}


def _own(newest: MirrorCommit, head: Snapshot) -> Shown | None:
    """What the newest commit shows, which is of this table."""
    shown = newest.shown
    require_own(
        delta_commit_key(newest.version),
        None if shown is None else (shown.table_id, shown.version),
        head,
        advice=ADVICE,
    )
    return shown
