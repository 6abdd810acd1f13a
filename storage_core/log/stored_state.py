"""Checkpoints that are there: the root of a state, its manifests, and the snapshot that they hold."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pyarrow as pa

from storage_core.errors import Corrupt, NotFound
from storage_core.formats.avro_state import ManifestInfo, StateManifest, content_id, decode_entries, decode_state
from storage_core.formats.hint import CheckpointKind
from storage_core.formats.keys import LOG_PREFIX, manifest_key, state_key, version_key
from storage_core.log.actions import Metadata
from storage_core.log.checkpointed import Checkpointed
from storage_core.log.codec import decode_numbered
from storage_core.log.file_columns import conform
from storage_core.log.json_checkpoint import part_keys
from storage_core.log.listed_files import ListedFiles, Part, Recover
from storage_core.log.listing import listed_states
from storage_core.log.safe_path import is_safe_path
from storage_core.log.snapshot import Snapshot
from storage_core.log.state import is_own, metadata_of, snapshot_of
from storage_core.objectstore.contract import ObjectStore

_logger = logging.getLogger(__name__)


class MetadataSearch:
    """Finds the metadata of states that hold none: in the newest older state that has it, else in version 0.

    Others write such states. Remembers what it saw, so opening one of many states costs one GET per older state, also
    where several have to be tried. A damaged older state is passed over with a warning: its own splits do not count
    any more, and refusing the table for it would help nobody.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._seen: dict[int, Metadata | None] = {}
        self._listed: list[int] | None = None

    def before(self, version: int) -> Metadata:
        """Return the metadata that holds at the state of `version`. Raises `Corrupt` when there is none anywhere."""
        if self._listed is None:
            self._listed = sorted(listed_states(self._store), reverse=True)
        older = (self._in_state(each) for each in self._listed if each < version)
        found = next((metadata for metadata in older if metadata is not None), None)
        return found if found is not None else self._in_version_0(version)

    def _in_state(self, version: int) -> Metadata | None:
        if version not in self._seen:
            try:
                self._seen[version] = metadata_of(read_state(self._store, version), state_key(version))
            except (NotFound, Corrupt) as error:
                _logger.warning("looking for metadata in %s: passed over: %s", self._store.uri, error)
                self._seen[version] = None
        return self._seen[version]

    def _in_version_0(self, version: int) -> Metadata:
        key = version_key(0)
        try:
            actions = decode_numbered(self._store.get(key).data, 0)
        except NotFound as error:
            raise Corrupt(f"{state_key(version)}: the state holds no metadata, and {key} is gone", key=key) from error
        metadata = next((action for action in actions if isinstance(action, Metadata)), None)
        if metadata is None:
            raise Corrupt(f"{state_key(version)}: neither a state nor {key} holds metadata", key=key)
        return metadata


def load_checkpoint(
    store: ObjectStore, version: int, recover: Recover | None = None, search: MetadataSearch | None = None
) -> Snapshot:
    """Return the snapshot that the state of `version` holds.

    One GET for the state, and those of `search` where it holds no metadata. Its manifests are read when somebody looks
    at them, and when one cannot be, `recover` lists the splits instead. Raises `NotFound` without such a state,
    `Corrupt` when it is damaged.
    """
    state = read_state(store, version)
    where = state_key(version)
    metadata = metadata_of(state, where) or (search or MetadataSearch(store)).before(version)
    listed = ListedFiles(
        version,
        tuple(Part(info, _reader(store, state, info), typed_bounds=is_own(state)) for info in state.manifests),
        frozenset(state.tombstones),
        state.num_files,
        state.total_bytes,
        closed=is_own(state),
        recover=recover,
    )
    return snapshot_of(state, listed, metadata, where)


def read_state(store: ObjectStore, version: int) -> StateManifest:
    """Return the root of the state of `version`. One GET. Raises `NotFound` and `Corrupt`."""
    key = state_key(version)
    state = decode_state(store.get(key).data, key)
    if state.state_version != version:
        raise Corrupt(f"{key}: expected the state of version {version}, found {state.state_version}", key=key)
    return state


def named_keys(store: ObjectStore, checkpoint: Checkpointed) -> tuple[str, ...]:
    """Return the keys of the manifests or parts that a checkpoint consists of besides its root. One GET.

    Raises `NotFound` and `Corrupt`.
    """
    if checkpoint.kind is CheckpointKind.AVRO_STATE:
        return manifest_keys(read_state(store, checkpoint.version))
    return part_keys(store.get(checkpoint.key).data, checkpoint.key) or ()


def manifest_keys(state: StateManifest) -> tuple[str, ...]:
    """Return the keys of the manifests that a state names, in its order: what the collector must keep for it."""
    return tuple(_manifest_key(state, info) for info in state.manifests)


def _reader(store: ObjectStore, state: StateManifest, info: ManifestInfo) -> Callable[[], pa.Table]:
    return lambda: _read_manifest(store, state, info)


def _read_manifest(store: ObjectStore, state: StateManifest, info: ManifestInfo) -> pa.Table:
    key = _manifest_key(state, info)
    try:
        data = store.get(key).data
    except NotFound as error:
        raise Corrupt(f"{key}: named by the state of version {state.state_version}, but missing", key=key) from error
    # Names written by others are not always content hashes, so only our own can be verified.
    if is_own(state) and manifest_key(content_id(data)) != key:
        raise Corrupt(f"{key}: the content hashes to {content_id(data)}; it is not what was written", key=key)
    entries = conform(decode_entries(data, key), key)
    if is_own(state) and entries.num_rows != info.num_entries:
        raise Corrupt(f"{key}: expected {info.num_entries} entries, found {entries.num_rows}", key=key)
    return entries


def _manifest_key(state: StateManifest, info: ManifestInfo) -> str:
    """Resolve the three spellings: shared, with the state's directory, and bare (relative to the state)."""
    if not is_safe_path(info.path):
        raise Corrupt(f"{state_key(state.state_version)}: the manifest path {info.path!r} leaves the log")
    if info.path.startswith(("manifests/", "state-v")):
        return LOG_PREFIX + info.path
    return f"{LOG_PREFIX}state-v{state.state_version:020d}/{info.path}"
