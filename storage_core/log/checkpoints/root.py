"""The root of a checkpoint: read, and what it names beside itself."""

from __future__ import annotations

from storage_core.errors import Corrupt
from storage_core.formats.avro_state import StateManifest, decode_state
from storage_core.formats.hint import CheckpointKind
from storage_core.formats.keys import state_key
from storage_core.log.checkpoints.checkpointed import Checkpointed
from storage_core.log.checkpoints.transactions_objects import key_of_progress
from storage_core.log.interop.manifest_paths import key_of_manifest
from storage_core.objectstore.contract import ObjectStore


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
    from storage_core.log.interop.json_checkpoint import part_keys  # which few tables need

    return part_keys(store.get(checkpoint.key).data, checkpoint.key) or ()


def manifest_keys(state: StateManifest) -> tuple[str, ...]:
    """Return the keys of the manifests and objects of transactions that a state names: what the collector must keep."""
    manifests = (key_of_manifest(info.path, state.state_version) for info in state.manifests)
    where = state_key(state.state_version)
    return (*manifests, *(key_of_progress(info.path, where) for info in state.progress))
