"""States that are there: the snapshot that one holds, and its manifests when somebody looks at them."""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from storage_core.cache.pieces import NOT_CACHED, CachedPieces, Data, Piece
from storage_core.errors import Corrupt, NotFound
from storage_core.formats.avro_state import ManifestInfo, StateManifest, content_id, decode_entries
from storage_core.formats.keys import manifest_key, state_key
from storage_core.log.checkpoints.recovery import NOWHERE, Recovery
from storage_core.log.checkpoints.root import read_state
from storage_core.log.checkpoints.state import is_own, snapshot_of
from storage_core.log.checkpoints.transactions_objects import listed_part
from storage_core.log.files.columns import conform
from storage_core.log.files.listed import ListedFiles, Part
from storage_core.log.interop.manifest_paths import key_of_manifest
from storage_core.log.interop.older_metadata import MetadataSearch, metadata_of
from storage_core.log.listed_transactions import ListedTransactions
from storage_core.log.snapshot import Snapshot
from storage_core.log.transactions import Transactions
from storage_core.objectstore.contract import ObjectStore


def load_checkpoint(
    store: ObjectStore,
    version: int,
    recovery: Recovery = NOWHERE,
    search: MetadataSearch | None = None,
    *,
    cached: CachedPieces = NOT_CACHED,
) -> Snapshot:
    """Return the snapshot that the state of `version` holds.

    One GET for the state, and those of `search` where it holds no metadata. Its manifests are read when somebody looks
    at them, and its transactions, by a GET each unless they are cached; what cannot be read `recovery` gives. Raises
    `NotFound` without such a state, `Corrupt` when it is damaged.
    """
    state = read_state(store, version)
    where, own = state_key(version), is_own(state)
    metadata = metadata_of(state, where) or (search or MetadataSearch(store)).before(version)
    read = partial(_read_manifest, store, state, cached=cached)
    listed = ListedFiles(
        version,
        tuple(Part(each, partial(read, each), typed_bounds=own) for each in state.manifests),
        frozenset(state.tombstones),
        state.num_files,
        state.total_bytes,
        closed=own,
        recover=recovery.splits,
    )
    parts = tuple(listed_part(store, each, where, cached=cached) for each in state.progress)
    txns = ListedTransactions(parts, recovery.transactions) if parts else None
    return snapshot_of(state, listed, Transactions(txns), metadata=metadata, where=where)


def _read_manifest(store: ObjectStore, state: StateManifest, info: ManifestInfo, *, cached: CachedPieces) -> pa.Table:
    key = key_of_manifest(info.path, state.state_version)
    try:
        # The next process asks for it before all else: it counts as used, so that no scan takes its place.
        piece, fetch = Piece(0, None, key, _named_by), partial(_object, store, key)
        data = cached.made(store.uri, key, key, piece, fetch=fetch, used=True)
    except NotFound as error:
        raise Corrupt(f"{key}: named by the state of version {state.state_version}, but missing", key=key) from error
    # Names written by others are not always content hashes: only our own can be verified, and such are not cached.
    if is_own(state) and _named_by(data) != key:
        raise Corrupt(f"{key}: the content hashes to {content_id(data)}; it is not what was written", key=key)
    entries = conform(decode_entries(data, key), key)
    if is_own(state) and entries.num_rows != info.num_entries:
        raise Corrupt(f"{key}: expected {info.num_entries} entries, found {entries.num_rows}", key=key)
    return entries


def _object(store: ObjectStore, key: str) -> bytes:
    return store.get(key).data


def _named_by(data: Data) -> str:
    """The key of the manifest that has this content."""
    return manifest_key(content_id(bytes(data)))
