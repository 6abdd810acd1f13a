"""Checkpoints: writing the state of a version, Avro or JSON (docs/architecture/transaction-log.md, "Checkpoints").

A state is derived: it says again what the version files say, so the first one written is right. Order of writing:
manifests, then the state that names them, then the hint; killed anywhere in between, opening falls back to what is
complete (lesson 47). A new state shares the manifests of the one before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import Corrupt
from storage_core.formats.avro_state import content_id, encode_entries, encode_state
from storage_core.formats.avro_writing import Compression
from storage_core.formats.hint import CheckpointHint, CheckpointKind
from storage_core.formats.keys import LOG_PREFIX, manifest_key, state_key
from storage_core.log.checkpoints.checkpointed import Checkpointed
from storage_core.log.checkpoints.hint import advance_hint
from storage_core.log.checkpoints.load import load_checkpoint
from storage_core.log.checkpoints.manifest_info import manifest_info, partition_schema
from storage_core.log.checkpoints.recovery import NOWHERE, Recovery
from storage_core.log.checkpoints.state import Listing, state_of
from storage_core.log.checkpoints.state_layout import Layout, layout
from storage_core.log.checkpoints.transactions_layout import TransactionsLayout, transactions_layout
from storage_core.log.checkpoints.transactions_objects import write_part
from storage_core.log.files.columns import entries_of
from storage_core.log.files.listed import ListedFiles, Part
from storage_core.log.files.live import LiveFiles
from storage_core.log.interop.json_checkpoint import write_json_checkpoint
from storage_core.log.listed_transactions import ListedTransactions, TransactionsPart
from storage_core.log.schema_registry import renames, renormalized
from storage_core.log.snapshot import Snapshot
from storage_core.log.transactions import Transactions
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.create import create_derived, require_durable
from storage_core.objectstore.reading import missing

_ADVICE = "write the checkpoint again"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CheckpointResult:
    """A checkpoint of `version` exists: its live files, the bytes that this call wrote, whether it wrote the state.

    `snapshot` is the version again, now with the manifests of that state behind it.
    """

    version: int
    files: int
    bytes: int
    written: bool
    snapshot: Snapshot


def write_checkpoint(
    store: ObjectStore,
    snapshot: Snapshot,
    nonce: Callable[[], str],
    *,
    compact: bool = False,
    recovery: Recovery = NOWHERE,
) -> CheckpointResult:
    """Make sure that a complete state of the snapshot's version exists and that the hint is at least as new.

    Idempotent: a second call writes nothing. Only what is new since the state that the snapshot was loaded from goes
    into new manifests, unless the layout joins old ones or `compact` asks for all; the caller makes sure that the state
    is still there. One PUT per new manifest or object of transactions, one for the state, one HEAD per such object that
    is shared, and one GET and one PUT for the hint. `recovery` is what the returned snapshot falls back to. Raises
    `CommitUnknown` or `Unavailable` when the store does not say; calling again is safe.
    """
    wanted = Checkpointed.in_format(snapshot.version, snapshot.config.checkpoint_format)
    if snapshot.checkpoint is not None and snapshot.checkpoint_version == snapshot.version:
        require_durable(store, snapshot.checkpoint.key, advice=_ADVICE)
        result = CheckpointResult(snapshot.version, len(snapshot.splits), 0, written=False, snapshot=snapshot)
    elif wanted.kind is CheckpointKind.AVRO_STATE:
        result = _write_state(store, snapshot, compact=compact, recovery=recovery)
    else:
        result = _write_json(store, snapshot, wanted)
    hint = CheckpointHint(
        version=snapshot.version,
        kind=wanted.kind,
        actions=result.files + len(snapshot.segments) + result.snapshot.txns.entries,
        size_bytes=result.bytes,
        files=result.files,
        created_at_ms=snapshot.timestamp,
    )
    advance_hint(store, hint, nonce)
    return result


def _planned(snapshot: Snapshot, *, compact: bool) -> Layout:
    by, entries = partition_schema(snapshot), snapshot.config.manifest_entries
    try:
        return layout(snapshot.splits, by, manifest_entries=entries, compact=compact)
    except Corrupt as error:
        _logger.warning("a manifest that was to be rewritten is damaged, all are written anew: %s", error)
        return layout(snapshot.splits, by, manifest_entries=entries, compact=True)


def _write_json(store: ObjectStore, snapshot: Snapshot, wanted: Checkpointed) -> CheckpointResult:
    in_parts = wanted.kind is CheckpointKind.JSON_MULTIPART
    size, written = write_json_checkpoint(store, snapshot, in_parts=in_parts)
    after = replace(snapshot, checkpoint=wanted)
    return CheckpointResult(snapshot.version, len(snapshot.splits), size if written else 0, written, after)


def _write_state(store: ObjectStore, snapshot: Snapshot, *, compact: bool, recovery: Recovery) -> CheckpointResult:
    compression = Compression(snapshot.config.checkpoint_compression)
    renamed = renames(snapshot.metadata.configuration)
    txns = _planned_transactions(store, snapshot, compact=compact)
    compact = compact or bool(renamed) or not _is_complete(store, snapshot.splits.listed)
    planned = _planned(snapshot, compact=compact)
    if renamed:
        metadata = replace(snapshot.metadata, configuration=renormalized(snapshot.metadata.configuration))
        snapshot = replace(snapshot, metadata=metadata)
        planned = replace(planned, entries=_with_references(planned.entries, renamed))
    written = [_write_manifest(store, chunk, snapshot, compression) for chunk in planned.chunks()]
    parts = (*planned.kept, *(part for part, _ in written))
    files = sum(part.info.num_entries for part in parts) - len(planned.tombstones)
    own = _write_transactions(store, txns, snapshot, compression)
    listing = Listing(
        manifests=tuple(part.info for part in parts),
        tombstones=planned.tombstones,
        files=files,
        bytes=_live_bytes(snapshot.splits, planned),
        progress=tuple(part.info for part in own),
    )
    data = encode_state(state_of(snapshot, listing), compression)
    before = () if snapshot.txns.listed is None else snapshot.txns.listed.parts
    size = (
        len(data) + sum(each for _, each in written) + sum(part.info.size_bytes for part in own if part not in before)
    )
    if not _put(store, state_key(snapshot.version), data):
        return _already_there(store, snapshot)
    _logger.info("checkpoint of %s at version %d: %d files, %d bytes", store.uri, snapshot.version, files, size)
    listed = ListedFiles(snapshot.version, parts, planned.tombstones, files, listing.bytes, recover=recovery.splits)
    behind = Checkpointed(snapshot.version, CheckpointKind.AVRO_STATE)
    as_columns = ListedTransactions(own, recovery.transactions) if own else None
    known = Transactions(as_columns, None if own else snapshot.txns.every())
    after = replace(snapshot, splits=LiveFiles(listed), txns=known, checkpoint=behind)
    return CheckpointResult(snapshot.version, files, size, written=True, snapshot=after)


def _planned_transactions(store: ObjectStore, snapshot: Snapshot, *, compact: bool) -> TransactionsLayout:
    listed = snapshot.txns.listed
    keys = [] if listed is None else [LOG_PREFIX + part.info.path for part in listed.parts]
    try:
        return transactions_layout(snapshot.txns, compact=compact or bool(keys and missing(store, keys)))
    except Corrupt as error:
        _logger.warning("transactions that were to be rewritten are damaged, all are written anew: %s", error)
        return transactions_layout(snapshot.txns, compact=True)


def _write_transactions(
    store: ObjectStore, planned: TransactionsLayout, snapshot: Snapshot, compression: Compression
) -> tuple[TransactionsPart, ...]:
    """Write the new objects; return all of the state, the sorted ones first and the newest last."""
    write = partial(write_part, store, compression=compression, at_most_ms=snapshot.timestamp)
    in_order = [part for part in planned.kept if part.info.in_order]
    in_order += [write(each, in_order=True) for each in planned.in_order]
    small = [part for part in planned.kept if not part.info.in_order]
    small += [write(planned.newest, in_order=False)] if planned.newest else []
    return (*sorted(in_order, key=lambda part: part.info.least), *small)


def _with_references(entries: pa.Table, renamed: Mapping[str, str]) -> pa.Table:
    """The entries with every `docMappingRef` that is a key of `renamed` replaced by its value."""
    found = entries.column("docMappingRef")
    position = pc.index_in(found, value_set=pa.array(list(renamed)))
    column = pc.coalesce(pa.array(list(renamed.values())).take(position.combine_chunks()), found.combine_chunks())
    return entries.set_column(entries.schema.get_field_index("docMappingRef"), "docMappingRef", column)


def _is_complete(store: ObjectStore, listed: ListedFiles | None) -> bool:
    """Return whether every manifest that could be shared exists: a lost one is not passed on from state to state."""
    if listed is None or not listed.closed:
        return True
    return not missing(store, [LOG_PREFIX + part.info.path for part in listed.parts])


def _already_there(store: ObjectStore, snapshot: Snapshot) -> CheckpointResult:
    """The state of somebody else, with its own manifests: those are kept, what this call has put is garbage."""
    try:
        snapshot = load_checkpoint(store, snapshot.version)
    except Corrupt as error:
        _logger.warning("version %d of %s has a damaged state already: %s", snapshot.version, store.uri, error)
    return CheckpointResult(snapshot.version, len(snapshot.splits), 0, written=False, snapshot=snapshot)


def _live_bytes(files: LiveFiles, planned: Layout) -> int:
    """The size of all live splits, looked at no further than what changed."""
    written = pc.sum(planned.entries.column("size")).as_py() or 0
    if not planned.kept:
        return int(written)
    listed = files.listed
    if listed is None:
        raise AssertionError("parts are kept only of a list")
    kept = set(planned.kept)
    deleted = [part for part in listed.parts if part not in kept]
    before = sum(pc.sum(table.column("size")).as_py() or 0 for table in listed.only(deleted))
    removed = sum(_size(listed, path) for path in planned.tombstones - listed.tombstones)
    return int(listed.bytes - before - removed + written)


def _size(listed: ListedFiles, path: str) -> int:
    found = listed.find(path)
    return 0 if found is None else int(found.column("size")[0].as_py())


def _write_manifest(
    store: ObjectStore, table: pa.Table, snapshot: Snapshot, compression: Compression
) -> tuple[Part, int]:
    data = encode_entries(entries_of(table), compression)
    key = manifest_key(content_id(data))
    _put(store, key, data)
    info = manifest_info(key.removeprefix(LOG_PREFIX), table, snapshot)
    return Part.of(info, table), len(data)


def _put(store: ObjectStore, key: str, data: bytes) -> bool:
    return create_derived(store, key, data, advice=_ADVICE)
