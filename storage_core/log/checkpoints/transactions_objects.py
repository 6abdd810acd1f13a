"""Objects of transactions: written for a state, and read of one that is there."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from storage_core.cache.pieces import CachedPieces, Data, Piece
from storage_core.errors import Corrupt, NotFound
from storage_core.formats.avro_progress import ProgressInfo, ProgressRow, decode_progress, encode_progress
from storage_core.formats.avro_state import content_id
from storage_core.formats.avro_writing import Compression
from storage_core.formats.keys import LOG_PREFIX, KeyKind, parse, progress_key
from storage_core.log.actions import Txn
from storage_core.log.listed_transactions import ANY_KIND, Recorded, TransactionsPart, kind_of
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.create import create_derived

MOST_KINDS = 16


def key_of_progress(path: str, where: str) -> str:
    """Return the key of an object of transactions as the state in `where` names it. Raises `Corrupt` for another."""
    parsed = parse(LOG_PREFIX + path)
    if parsed is None or parsed.kind is not KeyKind.PROGRESS:
        raise Corrupt(f"{where}: {path!r} is no object of transactions", key=where)
    return parsed.key


def write_part(
    store: ObjectStore,
    recorded: Recorded,
    compression: Compression,
    *,
    at_most_ms: int,
    in_order: bool,
) -> TransactionsPart:
    """Write an object of these transactions, sorted by appId, unless it is there. One PUT.

    `at_most_ms` is a time by which all of them were recorded: it stands for what nobody said.
    """
    rows: list[ProgressRow] = []
    for app_id, txn in sorted(recorded.items()):
        at = None if txn is None else txn.lastUpdated
        rows.append((app_id, None if txn is None else txn.version, at_most_ms if at is None else at))
    data = encode_progress(rows, compression)
    key = progress_key(content_id(data))
    create_derived(store, key, data, advice="write the checkpoint again")
    info = ProgressInfo(
        path=key.removeprefix(LOG_PREFIX),
        num_entries=len(rows),
        size_bytes=len(data),
        in_order=in_order,
        kinds=_kinds([app_id for app_id, _, _ in rows]),
    )
    return TransactionsPart.of(info, _recorded(rows))


def listed_part(store: ObjectStore, info: ProgressInfo, where: str, *, cached: CachedPieces) -> TransactionsPart:
    """Return the object that the state in `where` names as `info`, unread."""
    return TransactionsPart(info, partial(_read, store, info, where, cached))


def _read(store: ObjectStore, info: ProgressInfo, where: str, cached: CachedPieces) -> Recorded:
    key = key_of_progress(info.path, where)
    try:
        piece = Piece(0, None, key, _named_by)
        data = cached.made(store.uri, key, key, piece, fetch=lambda: store.get(key).data, used=True)
    except NotFound as error:
        raise Corrupt(f"{key}: named by {where}, but missing", key=key) from error
    if _named_by(data) != key:
        raise Corrupt(f"{key}: the content hashes to {_named_by(data)}; it is not what was written", key=key)
    rows = decode_progress(bytes(data), key)
    if len(rows) != info.num_entries:
        raise Corrupt(f"{key}: expected {info.num_entries} transactions, found {len(rows)}", key=key)
    return _recorded(rows)


def _named_by(data: Data) -> str:
    return progress_key(content_id(bytes(data)))


def _recorded(rows: list[ProgressRow]) -> Recorded:
    return {
        app_id: None if version is None else Txn(appId=app_id, version=version, lastUpdated=at)
        for app_id, version, at in rows
    }


def _kinds(app_ids: list[str]) -> Mapping[str, tuple[str, str]]:
    """The bounds of each kind of these sorted appIds, or of all together where the kinds are many."""
    found: dict[str, tuple[str, str]] = {}
    for app_id in app_ids:
        kind = kind_of(app_id)
        found[kind] = (found.get(kind, (app_id, app_id))[0], app_id)
        if len(found) > MOST_KINDS:
            return {ANY_KIND: (app_ids[0], app_ids[-1])}
    return found
