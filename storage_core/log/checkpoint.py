"""Checkpoints: writing the Avro state of a version, and loading one (design page 02, "Checkpoints").

A state is derived: the same version gives the same bytes, so whoever wrote it first is right. Order of writing:
manifests, then the state that names them, then the hint; killed anywhere in between, opening falls back to what is
complete (lesson 47).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from storage_core.errors import Corrupt, NotFound
from storage_core.formats.avro_state import (
    ENTRIES_PER_MANIFEST,
    ManifestInfo,
    StateManifest,
    content_id,
    decode_entries,
    decode_state,
    encode_entries,
    encode_state,
)
from storage_core.formats.keys import LOG_PREFIX, KeyKind, manifest_key, parse, state_key, version_key
from storage_core.log.actions import Metadata
from storage_core.log.codec import decode_version, is_safe_path
from storage_core.log.hint import CheckpointHint, advance_hint
from storage_core.log.snapshot import Snapshot
from storage_core.log.state import entries_of, is_own, manifest_info, metadata_of, snapshot_of, state_of
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.create import create_derived

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CheckpointResult:
    """A checkpoint of `version` exists: live files in it, bytes of its state; `written` tells whether by this call."""

    version: int
    files: int
    bytes: int
    written: bool


def write_checkpoint(store: ObjectStore, snapshot: Snapshot, nonce: Callable[[], str]) -> CheckpointResult:
    """Make sure that a complete state of the snapshot's version exists and that the hint is at least as new.

    Idempotent: a second call writes nothing. One PUT per manifest of 50,000 entries, one for the state, and one GET and
    one PUT for the hint. Raises `CommitUnknown` or `Unavailable` when the store does not say; calling again is safe.
    """
    manifests = [_write_manifest(store, chunk, snapshot) for chunk in _chunks(entries_of(snapshot))]
    data = encode_state(state_of(snapshot, (info for info, _ in manifests)))
    written = _put(store, state_key(snapshot.version), data)
    size = len(data) + sum(each for _, each in manifests)
    if written:
        log.info("checkpoint of %s at version %d: %d files", store.uri, snapshot.version, len(snapshot.splits))
    hint = CheckpointHint(
        version=snapshot.version,
        actions=len(snapshot.splits) + len(snapshot.segments) + len(snapshot.txns),
        size_bytes=size,
        files=len(snapshot.splits),
        created_at_ms=snapshot.timestamp,
    )
    advance_hint(store, hint, nonce)
    return CheckpointResult(snapshot.version, len(snapshot.splits), size, written)


def load_checkpoint(store: ObjectStore, version: int) -> tuple[Snapshot, bool]:
    """Return the snapshot that the state of `version` holds, and whether Tidemark wrote it.

    One GET for the state and one per manifest. Raises `NotFound` without such a state, `Corrupt` when it or one of its
    manifests is damaged or missing.
    """
    state = read_state(store, version)
    where = state_key(version)
    metadata = metadata_of(state, where) or _metadata_elsewhere(store, version)
    entries = [entry for info in state.manifests for entry in _read_manifest(store, state, info)]
    return snapshot_of(state, entries, metadata, where), is_own(state)


def read_state(store: ObjectStore, version: int) -> StateManifest:
    """Return the root of the state of `version`. One GET. Raises `NotFound` and `Corrupt`."""
    key = state_key(version)
    state = decode_state(store.get(key).data, key)
    if state.state_version != version:
        raise Corrupt(f"{key}: expected the state of version {version}, found {state.state_version}", key=key)
    return state


def listed_states(store: ObjectStore) -> list[int]:
    """Return the versions that a listing shows a state of, in no order. One LIST per 1,000 keys of the log."""
    parsed = (parse(info.key) for info in store.list(LOG_PREFIX + "state-v"))
    return [each.version for each in parsed if each and each.kind is KeyKind.STATE and each.version is not None]


def manifest_keys(state: StateManifest) -> tuple[str, ...]:
    """Return the keys of the manifests that a state names, in its order: what the collector must keep for it."""
    return tuple(_manifest_key(state, info) for info in state.manifests)


def _chunks(entries: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    for start in range(0, len(entries), ENTRIES_PER_MANIFEST):
        yield entries[start : start + ENTRIES_PER_MANIFEST]


def _write_manifest(store: ObjectStore, entries: list[dict[str, Any]], snapshot: Snapshot) -> tuple[ManifestInfo, int]:
    data = encode_entries(entries)
    key = manifest_key(content_id(data))
    _put(store, key, data)
    return manifest_info(key.removeprefix(LOG_PREFIX), entries, snapshot.metadata.partitionColumns), len(data)


def _put(store: ObjectStore, key: str, data: bytes) -> bool:
    return create_derived(store, key, data, advice="write the checkpoint again")


def _read_manifest(store: ObjectStore, state: StateManifest, info: ManifestInfo) -> list[dict[str, Any]]:
    key = _manifest_key(state, info)
    try:
        data = store.get(key).data
    except NotFound as error:
        raise Corrupt(f"{key}: named by the state of version {state.state_version}, but missing", key=key) from error
    # Names written by others are not always content hashes, so only our own can be verified.
    if is_own(state) and manifest_key(content_id(data)) != key:
        raise Corrupt(f"{key}: the content hashes to {content_id(data)}; it is not what was written", key=key)
    entries = decode_entries(data, key)
    if is_own(state) and len(entries) != info.num_entries:
        raise Corrupt(f"{key}: expected {info.num_entries} entries, found {len(entries)}", key=key)
    return entries


def _manifest_key(state: StateManifest, info: ManifestInfo) -> str:
    """Resolve the three spellings: shared, with the state's directory, and bare (relative to the state)."""
    if not is_safe_path(info.path):
        raise Corrupt(f"{state_key(state.state_version)}: the manifest path {info.path!r} leaves the log")
    if info.path.startswith(("manifests/", "state-v")):
        return LOG_PREFIX + info.path
    return f"{LOG_PREFIX}state-v{state.state_version:020d}/{info.path}"


def _metadata_elsewhere(store: ObjectStore, version: int) -> Metadata:
    """Return the metadata for a state that holds none: from the newest older state that has it, else version 0."""
    for older in sorted(listed_states(store), reverse=True):
        if older < version:
            found = metadata_of(read_state(store, older), state_key(older))
            if found is not None:
                return found
    key = version_key(0)
    try:
        actions = decode_version(store.get(key).data, key)
    except NotFound as error:
        raise Corrupt(f"{state_key(version)}: the state holds no metadata, and {key} is gone", key=key) from error
    metadata = next((action for action in actions if isinstance(action, Metadata)), None)
    if metadata is None:
        raise Corrupt(f"{state_key(version)}: neither a state nor {key} holds metadata", key=key)
    return metadata
