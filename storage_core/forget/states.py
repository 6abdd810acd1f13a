"""States behind a commit that forgot rows: a table retains its newest ones however old they are."""

from __future__ import annotations

from collections.abc import Iterator

from storage_core.forget.metadata import Since, is_forgetting
from storage_core.forget.search import listed
from storage_core.formats.hint import CheckpointKind
from storage_core.formats.keys import KeyKind
from storage_core.log.advance import read_version
from storage_core.log.checkpoints.checkpointed import Checkpointed
from storage_core.log.checkpoints.root import read_state
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore


def are_clean_states(store: ObjectStore, head: Snapshot, wanted: int) -> bool:
    """Return whether the newest `wanted` states are of the version that forgot, or later ones, and list no dead split.

    One LIST per 1,000 objects, a GET per version file up to that commit, and one per state.
    """
    # That version itself names the splits that left, and what names the folder of a partition has to go.
    first = _forgetting_version(store, head) + bool(head.config.partition_by)
    newest = sorted(_checkpoints(store), key=lambda each: each.version)[-wanted:]
    return len(newest) == wanted and all(each.version >= first and _is_clean(store, each) for each in newest)


def _forgetting_version(store: ObjectStore, head: Snapshot) -> int:
    """The version that forgot last, or where its file is gone a later one."""
    version = first = (Since.of(head).version or 0) + 1
    while version <= head.version:
        if is_forgetting(read_version(store, version) or ()):
            return version
        version += 1
    return first


def _checkpoints(store: ObjectStore) -> Iterator[Checkpointed]:
    for each in listed(store).of_kind(KeyKind.STATE, KeyKind.JSON_CHECKPOINT):
        if (found := Checkpointed.at(each)) is not None:
            yield found


def _is_clean(store: ObjectStore, each: Checkpointed) -> bool:
    return each.kind is not CheckpointKind.AVRO_STATE or not read_state(store, each.version).tombstones
