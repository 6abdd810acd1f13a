"""A snapshot as Avro state and back (docs/architecture/transaction-log.md, "Checkpoints").

Pure mapping: the state holds everything that a snapshot holds, and equal snapshots give equal records in equal order.
What the source's format has no field for (protocol, transactions, fences, merge progress, segments, skips,
translations) travels as action lines; splits travel as file entries, and transactions that are many in objects of
their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from storage_core.errors import Corrupt
from storage_core.formats.avro_progress import ProgressInfo
from storage_core.formats.avro_state import ManifestInfo, StateManifest
from storage_core.formats.hint import CheckpointKind
from storage_core.log.actions import (
    Action,
    Metadata,
    Protocol,
)
from storage_core.log.checkpoints.checkpointed import Checkpointed
from storage_core.log.encoding.codec import decode_line, encode_line
from storage_core.log.files.listed import ListedFiles
from storage_core.log.files.live import LiveFiles
from storage_core.log.progress import Progress
from storage_core.log.schema_registry import registry, with_registry
from storage_core.log.snapshot import Snapshot, require_readable
from storage_core.log.transactions import Transactions


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The splits of a state as its root tells them: manifests, dead paths in them, and the metrics of the live ones.

    `progress` are the objects of transactions; without any these are lines.
    """

    manifests: tuple[ManifestInfo, ...]
    tombstones: frozenset[str]
    files: int
    bytes: int
    progress: tuple[ProgressInfo, ...] = ()


def state_of(snapshot: Snapshot, listing: Listing) -> StateManifest:
    """Return the root record of the snapshot's state, whose splits are the listing's."""
    return StateManifest(
        state_version=snapshot.version,
        created_at=snapshot.timestamp,
        num_files=listing.files,
        total_bytes=listing.bytes,
        manifests=listing.manifests,
        tombstones=tuple(sorted(listing.tombstones)),
        schema_registry=registry(snapshot.metadata.configuration),
        metadata=encode_line(snapshot.metadata),
        actions=tuple(encode_line(action) for action in _lines_of(snapshot, listing)),
        progress=listing.progress,
    )


def is_own(state: StateManifest) -> bool:
    """Tell whether Tidemark wrote the state: such states are derived from version files, others may be commits."""
    return bool(state.actions)


def snapshot_of(
    state: StateManifest, listed: ListedFiles, txns: Transactions, *, metadata: Metadata, where: str
) -> Snapshot:
    """Return the snapshot that a state describes; its manifests are `listed`, and they and `txns` stay unread.

    Raises `Corrupt` when an action cannot be read, or when the manifests of one of ours do not add up to its files.
    """
    actions = [decode_line(line, f"{where}, action {number}") for number, line in enumerate(state.actions, start=1)]
    entries = sum(part.info.num_entries for part in listed.parts)
    if is_own(state) and entries - len(listed.tombstones) != state.num_files:
        raise Corrupt(
            f"{where}: expected {state.num_files} live files, its manifests list {entries} and "
            f"{len(listed.tombstones)} of them are dead",
            key=where,
        )
    protocol = next((action for action in actions if isinstance(action, Protocol)), Protocol())
    require_readable(protocol)
    progress = Progress(txns)
    for action in actions:
        progress.apply(action)
    return Snapshot(
        version=state.state_version,
        timestamp=state.created_at,
        protocol=protocol,
        metadata=_with_registry(metadata, state.schema_registry),
        splits=LiveFiles(listed),
        txns=progress.txns,
        fences=progress.fences,
        merged_generations=progress.merged_generations,
        segments=progress.segments,
        mergeskips=progress.mergeskips,
        translations=progress.translations,
        checkpoint=Checkpointed(state.state_version, CheckpointKind.AVRO_STATE),
    )


def _lines_of(snapshot: Snapshot, listing: Listing) -> Iterable[Action]:
    return [snapshot.protocol, *snapshot.progress.besides_txns()] if listing.progress else progress_of(snapshot)


def progress_of(snapshot: Snapshot) -> Iterable[Action]:
    """Yield what a snapshot holds besides metadata and splits, as actions in a fixed order."""
    yield snapshot.protocol
    yield from snapshot.progress.actions()


def _with_registry(metadata: Metadata, registered: Mapping[str, str]) -> Metadata:
    configuration = with_registry(metadata.configuration, registered)
    if configuration == metadata.configuration:
        return metadata
    return replace(metadata, configuration=configuration)
