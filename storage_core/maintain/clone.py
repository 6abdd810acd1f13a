"""Clones: a new table from a version of a table, with copied or shared objects (decision 0033).

A deep clone copies all objects. A shallow clone shares the objects with the source, and a tag in the source keeps these
objects.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice

import xxhash

from storage_core.base.errors import Corrupt, InvalidInput, NotFound, SnapshotExpired
from storage_core.data.formats.keys import parse, short_hash, source_key
from storage_core.data.settings.table import RAW_LOGS_KEY
from storage_core.log.actions import Action, Metadata, Txn
from storage_core.log.conflicts import VERSION_APPS, require_writable
from storage_core.log.listing import reject_nested_table
from storage_core.log.log import TransactionLog, remove_tag
from storage_core.log.sharing import SOURCE, Cloned, encode_source, require_same_service
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.history import renumbered_up_to, set_tag, with_renumbered
from storage_core.maintain.table_objects import Reference, references
from storage_core.store.contract import PAGE_KEYS, ObjectStore, create_once, exists
from storage_core.store.meter import prefetch
from storage_core.store.resolve import scheme_of

AT_ONCE = 8
MOST_BYTES = 256 * 2**20

OPERATION = "CLONE"
_APP = "clone:"
COPY_LASTS = dt.timedelta(days=7)
"""The lifetime of the tag in the source table. The tag keeps the source version during a deep clone.

The tag needs a limit, because it remains if the process is killed during the copy.
"""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Copied:
    """The number of copied bytes, and the keys of derived objects that were missing."""

    bytes: int
    missing: Sequence[str]


def copy_objects(source: ObjectStore, target: ObjectStore, wanted: Iterable[Reference]) -> Copied:
    """Copy objects. An object that already exists with the same bytes is kept.

    Raises:
        Corrupt: An object differs from its log entry.
        SnapshotExpired: An object that is not derived is missing.
        InvalidInput: The target has other bytes at the key.

    Cost:
        One GET and one PUT per object, eight at a time. Memory: 256 MiB, or one object if it is larger.
    """
    size, missing = 0, list[str]()
    copying = prefetch(
        lambda each: _copy(source, target, each), wanted, AT_ONCE, weight=lambda each: each.size, most=MOST_BYTES
    )
    for key, found in copying:
        size += found or 0
        if found is None:
            missing.append(key)
    return Copied(size, missing)


def _copy(source: ObjectStore, target: ObjectStore, wanted: Reference) -> tuple[str, int | None]:
    key = wanted.key
    try:
        data = source.get(key).data
    except NotFound as error:
        if wanted.is_derived:
            return key, None
        raise SnapshotExpired(f"{key}: was removed from {source.uri} during the copy. Clone a newer version") from error
    found = xxhash.xxh3_64_hexdigest(data)
    if len(data) != wanted.size or wanted.xxh3 not in (None, found):
        raise Corrupt(
            f"{source.uri}/{key}: expected {wanted.size} bytes with the xxh3-64 {wanted.xxh3}, found {len(data)} with "
            f"{found}",
            key=key,
        )
    if not create_once(target, key, data, advice="clone again"):
        raise InvalidInput(f"{key}: {target.uri} has other content at this key. Clone to an empty location", key=key)
    return key, len(data)


def clone(source: TransactionLog, snapshot: Snapshot, target: TransactionLog, *, deep: bool) -> Cloned:
    """Create a table with the content of the snapshot at an empty location.

    A tag keeps the version in the source. For a deep clone, the tag exists during the copy. For a shallow clone, the
    tag does not expire. A single PUT of version 0 then creates the clone. Before this PUT, the clone is not a table.
    The clone has the splits, segments, transactions and settings of the snapshot, except the setting `raw_logs`. The
    files stay valid because the clone has the same table id. The regions of the clone start empty, and the clone gets
    no rows from a raw log.

    If the process is killed, the same call continues and reuses the copied objects. If the clone exists, the call
    changes nothing.

    Raises:
        InvalidInput: The location contains another table or another object, or is inside another table.
        SnapshotExpired: The version is being collected.
        Corrupt: An object differs from its log entry.

    Cost:
        One LIST, the requests of `set_tag`, two PUTs and a checkpoint. For a deep clone also one GET and one PUT per
        object.
    """
    require_writable(snapshot)
    record = f"{_APP}{short_hash(source.store.uri)}@{snapshot.version}:{'deep' if deep else 'shallow'}"
    done = Cloned(target.store.uri, snapshot.version, snapshot.rows, len(snapshot.splits))
    if target.exists():
        return replace(done, tag=_existing(target, record))
    reject_nested_table(target.store)
    _require_empty(target)
    if deep and exists(target.store, source_key()):
        raise _left_over(target)
    if not deep and scheme_of(source.store.uri) == "memory" and scheme_of(target.store.uri) != "memory":
        raise InvalidInput(
            f"{source.store.uri}: the table exists only in this process, so a shallow clone at {target.store.uri} "
            "cannot share the files of the table. Clone the table with --deep",
            uri=source.store.uri,
        )
    if not deep:
        require_same_service(target.store.uri, source.store.uri)
    target.require_capable()
    tag = f"{'copy' if deep else 'clone'}-{short_hash(target.store.uri)[:16]}-{snapshot.version}"
    set_tag(source, tag, snapshot, lasts=COPY_LASTS if deep else None)
    if deep:
        found = copy_objects(source.store, target.store, references(snapshot))
        commit_id = _make(target, snapshot, record, missing=found.missing)
        with suppress(NotFound):  # if two clones to the same location run concurrently
            remove_tag(source, tag)
        return replace(done, copied_bytes=found.bytes, commit_id=commit_id)
    _point_to(source, target)
    commit_id = _make(
        target, snapshot, record, shared={"uri": source.store.uri, "version": snapshot.version, "tag": tag}
    )
    return replace(done, tag=tag, commit_id=commit_id)


def record_of(snapshot: Snapshot) -> Txn | None:
    """Return the transaction that created the clone, or None if the table is not a clone.

    The transaction distinguishes the clones of one table. Makes no request if the versions of the table were never
    renumbered. Otherwise makes the requests for the transactions of the table.
    """
    if renumbered_up_to(snapshot.metadata.configuration) < 0:
        return None
    return next(iter(snapshot.txns.every(_APP.removesuffix(":")).values()), None)


def _existing(target: TransactionLog, record: str) -> str | None:
    """Return the tag of the existing clone. Raises `InvalidInput` if the existing table is not this clone."""
    found = target.snapshot()
    if found.txns.find(record) is None:
        raise InvalidInput(
            f"{target.store.uri}: a table is here already. Choose another location", uri=target.store.uri
        )
    text = found.metadata.configuration.get(SOURCE)
    return None if text is None else str(json.loads(text)["tag"])


def _point_to(source: TransactionLog, target: TransactionLog) -> None:
    body = encode_source(source.store.uri)
    if not create_once(target.store, source_key(), body, advice="clone again"):
        raise _left_over(target)


def _require_empty(target: TransactionLog) -> None:
    """Raise `InvalidInput` if one of the first 1,000 objects of the location is not an object of a table.

    An interrupted clone may have copied objects of the table. The next call reuses these objects.
    """
    other = next((each.key for each in islice(target.store.list(""), PAGE_KEYS) if parse(each.key) is None), None)
    if other is not None:
        raise InvalidInput(
            f"{target.store.uri}: contains {other}. Clone to an empty location", uri=target.store.uri, key=other
        )


def _left_over(target: TransactionLog) -> InvalidInput:
    return InvalidInput(
        f"{target.store.uri}: contains {source_key()}, which an interrupted clone left. Clone to an empty location",
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
    """Put version 0 and return the id of its commit."""
    configuration = with_renumbered(snapshot.metadata.configuration, snapshot.version)
    for name in (SOURCE, RAW_LOGS_KEY):  # rows that wait in a raw log belong to the source
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
    """Yield the content of the snapshot, without segments and translations that are missing.

    A reader can work without segments and translations.
    """
    gone = {*missing}
    yield from snapshot.splits.values()
    yield from (each for each in snapshot.segments.values() if each.path not in gone)
    yield from (each for each in snapshot.translations.values() if each.path not in gone)
    left = (_APP, *VERSION_APPS)  # These actions describe versions and regions of the source.
    yield from (txn for txn in snapshot.txns.every().values() if not txn.appId.startswith(left))
