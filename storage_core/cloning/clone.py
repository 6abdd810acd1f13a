"""Clones: a version of a table as a table of its own, with copies of its objects or sharing them (decision 0146)."""

from __future__ import annotations

import datetime as dt
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from storage_core import creation
from storage_core.cloning.cloned import Cloned
from storage_core.cloning.copying import copy_objects, wanted_of
from storage_core.errors import InvalidInput, NotFound
from storage_core.formats import clone_source
from storage_core.formats.keys import source_key
from storage_core.formats.short_hash import short_hash
from storage_core.history.renumbered import renumbered_up_to, with_renumbered
from storage_core.history.tagging import set_tag
from storage_core.log.actions import Action, Metadata, Txn
from storage_core.log.apart import require_apart
from storage_core.log.conflicts.requirements import VERSION_APPS
from storage_core.log.conflicts.settle import require_writable
from storage_core.log.log import TransactionLog
from storage_core.log.sharing import SOURCE, require_same_service
from storage_core.log.snapshot import Snapshot
from storage_core.log.tags import remove_tag
from storage_core.objectstore.create import create_once
from storage_core.objectstore.reading import exists
from storage_core.objectstore.resolve import scheme_of
from storage_core.settings.raw_logs import RAW_LOGS_KEY

OPERATION = "CLONE"
_APP = "clone:"
COPY_LASTS = dt.timedelta(days=7)
"""How long the source keeps a version for a deep clone that was killed while it copied."""

_logger = logging.getLogger(__name__)


def clone(source: TransactionLog, snapshot: Snapshot, target: TransactionLog, *, deep: bool) -> Cloned:
    """Make a table of the snapshot at an empty place; it is a table when this returns, and not before.

    A tag keeps the version in the source: while a deep clone copies, and for ever of a shallow one. Then one put of
    version 0 makes the clone, with all settings but `raw_logs`, splits, segments and transactions of the snapshot, and
    with its table id, so that files are what they say. Regions begin anew, and no raw log feeds the clone. A clone that
    was killed is made again by the same call, with what it copied; one that is there already is left as it is.

    Raises `InvalidInput` for a place that holds, or lies in, another table, or has other bytes, `SnapshotExpired` for a
    version that is being collected, `Corrupt` for an object that is not what the log says. Requests: those of
    `set_tag`; of a deep clone a GET and a PUT per object; two PUTs; and a checkpoint.
    """
    require_writable(snapshot)
    record = f"{_APP}{short_hash(source.store.uri)}@{snapshot.version}:{'deep' if deep else 'shallow'}"
    done = Cloned(target.store.uri, snapshot.version, snapshot.rows, len(snapshot.splits))
    if target.exists():
        return replace(done, tag=_existing(target, record))
    require_apart(target.store)
    if deep and exists(target.store, source_key()):
        raise _left_over(target)
    if not deep and scheme_of(source.store.uri) == "memory" and scheme_of(target.store.uri) != "memory":
        raise InvalidInput(
            f"{source.store.uri}: is of this process only, and {target.store.uri} would share files with it: clone "
            "deep",
            uri=source.store.uri,
        )
    if not deep:
        require_same_service(target.store.uri, source.store.uri)
    creation.require_capable(target)
    tag = f"{'copy' if deep else 'clone'}-{short_hash(target.store.uri)[:16]}-{snapshot.version}"
    set_tag(source, tag, snapshot, lasts=COPY_LASTS if deep else None)
    if deep:
        found = copy_objects(source.store, target.store, wanted_of(snapshot))
        commit_id = _make(target, snapshot, record, missing=found.missing)
        with suppress(NotFound):  # where two copied to one place
            remove_tag(source, tag)
        return replace(done, copied_bytes=found.bytes, commit_id=commit_id)
    _point_to(source, target)
    commit_id = _make(
        target, snapshot, record, shared={"uri": source.store.uri, "version": snapshot.version, "tag": tag}
    )
    return replace(done, tag=tag, commit_id=commit_id)


def record_of(snapshot: Snapshot) -> Txn | None:
    """Return the transaction that made the table, None of one that is not a clone. It tells clones of a table apart.

    No request of a table whose versions were never numbered anew, else those of its transactions.
    """
    if renumbered_up_to(snapshot.metadata.configuration) < 0:
        return None
    return next(iter(snapshot.txns.every(_APP.removesuffix(":")).values()), None)


def _existing(target: TransactionLog, record: str) -> str | None:
    """The tag of the clone that is there, if it is this one."""
    found = target.snapshot()
    if found.txns.find(record) is None:
        raise InvalidInput(
            f"{target.store.uri}: there is another table already; clone to an empty place", uri=target.store.uri
        )
    text = found.metadata.configuration.get(SOURCE)
    return None if text is None else str(json.loads(text)["tag"])


def _point_to(source: TransactionLog, target: TransactionLog) -> None:
    body = clone_source.encode(source.store.uri)
    if not create_once(target.store, source_key(), body, advice="clone again"):
        raise _left_over(target)


def _left_over(target: TransactionLog) -> InvalidInput:
    return InvalidInput(
        f"{target.store.uri}: holds {source_key()}, which another clone left that was killed; clone to an empty place",
        uri=target.store.uri,
    )


def _make(
    target: TransactionLog,
    snapshot: Snapshot,
    record: str,
    *,
    missing: Sequence[str] = (),
    shared: Mapping[str, object] | None = None,
) -> str:
    """Put version 0, and return the id of its commit."""
    configuration = with_renumbered(snapshot.metadata.configuration, snapshot.version)
    for name in (SOURCE, RAW_LOGS_KEY):  # rows that wait in a raw log are for the source
        configuration.pop(name, None)
    if shared is not None:
        configuration[SOURCE] = json.dumps(dict(shared), sort_keys=True, separators=(",", ":"))
    metadata: Metadata = replace(snapshot.metadata, configuration=configuration, createdTime=None)
    actions = [*_held(snapshot, missing), Txn(appId=record, version=1, lastUpdated=target.clock.now_ms())]
    commit_id = target.ids.uuid()
    target.create(metadata, operation=OPERATION, actions=actions, protocol=snapshot.protocol, commit_id=commit_id)
    _logger.info("cloned version %d into %s", snapshot.version, target.store.uri)
    return commit_id


def _held(snapshot: Snapshot, missing: Sequence[str]) -> Iterator[Action]:
    """What the table holds at the snapshot, less segments and translations that are gone: it is read without them."""
    gone = {*missing}
    yield from snapshot.splits.values()
    yield from (each for each in snapshot.segments.values() if each.path not in gone)
    yield from (each for each in snapshot.translations.values() if each.path not in gone)
    left = (_APP, *VERSION_APPS)  # what they record is of the source's versions and regions
    yield from (txn for txn in snapshot.txns.every().values() if not txn.appId.startswith(left))
