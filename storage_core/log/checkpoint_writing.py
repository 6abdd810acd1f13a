"""Writing of checkpoints: the layout of the next state, and its objects.

See docs/architecture/transaction-log.md, "Checkpoints". A state is derived from the version files. If several writers
write a state of the same version, the first written state is therefore valid. The manifests are written first, then the
state that references the manifests, then the hint. After a crash at any point, a reader uses the newest complete state
(lesson 47).

A new state shares manifests with the previous state. `layout` determines the manifests to keep, to rewrite and to add.
`transactions_layout` determines the objects of transactions to keep, to rewrite and to add. If a table has few
transactions, the transactions are lines of the state's root instead. `layout` and `transactions_layout` read the
objects that they decide to rewrite, and send no other requests.

The amortized work is proportional to the changes. An entry is written once when it is new. The entry is written again
only in two cases. In the first case, the entry is in a small manifest that is joined with other manifests. In the
second case, more than a tenth of all entries are dead. New transactions are written as one small object. If there are
many small objects, they are merged into the sorted objects that contain the same ranges of appIds. Sorted objects with
other ranges of appIds stay unchanged. Most sorted objects stay unchanged, because the names of landed files usually
contain the time in ascending order.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, pairwise

import pyarrow as pa
import pyarrow.compute as pc

from storage_core.base.errors import Corrupt
from storage_core.data.formats.avro import Compression
from storage_core.data.formats.avro_state import ManifestInfo, content_id, encode_entries, encode_state
from storage_core.data.formats.documents import CheckpointHint, CheckpointKind
from storage_core.data.formats.keys import LOG_PREFIX, manifest_key, state_key
from storage_core.data.rows.codes import bound_keys
from storage_core.data.rows.keys import map_column
from storage_core.data.rows.windows import value_schema
from storage_core.log.actions import Txn
from storage_core.log.checkpoint import (
    NOWHERE,
    Listing,
    Recovery,
    load_checkpoint,
    state_of,
    write_json_checkpoint,
    write_part,
)
from storage_core.log.codec import renames, renormalized
from storage_core.log.listing import Checkpointed, advance_hint
from storage_core.log.live_splits import ListedFiles, LiveFiles, Part
from storage_core.log.snapshot import Snapshot
from storage_core.log.split_columns import FILES_SCHEMA, ManifestBounds, entries_of, without_paths
from storage_core.log.transactions import ListedTransactions, Recorded, Transactions, TransactionsPart
from storage_core.store.contract import ObjectStore, create_derived, missing, require_durable


def manifest_info(path: str, table: pa.Table, snapshot: Snapshot) -> ManifestInfo:
    """Return the root's entry for a manifest.

    The entry has the ranges of versions, windows and partitions of the manifest's splits.
    """
    versions = pc.min_max(table.column("addedAtVersion"))
    schema = partition_schema(snapshot)
    is_exact = bool(snapshot.config.partition_by)
    bounds = bounds_of(table, schema=schema, partition_columns=schema.names, is_exact=is_exact)
    return ManifestInfo(
        path=path,
        num_entries=table.num_rows,
        min_added_at_version=versions["min"].as_py(),
        max_added_at_version=versions["max"].as_py(),
        partition_bounds=bounds.partitions or None,
        windows=bounds.windows,
        window_seconds=bounds.window_seconds,
        without_window=table.column("windowStart").null_count,
    )


def partition_schema(snapshot: Snapshot) -> pa.Schema:
    """Return the partition fields, or the partition columns of a table of other software, with their types."""
    fields, schema = snapshot.config.partition_fields, snapshot.schema
    if fields:
        return value_schema(fields, schema)
    return pa.schema([schema.field(name) for name in snapshot.metadata.partitionColumns if name in schema.names])


def bounds_of(
    files: pa.Table, *, schema: pa.Schema, partition_columns: Iterable[str], is_exact: bool = False
) -> ManifestBounds:
    """Return the bounds of the splits in `files`, which are the entries of one manifest.

    Args:
        schema: The schema that contains the types of the partition values.
        is_exact: False if an empty string may stand for a null partition value.
    """
    typed = [schema.field(name) for name in partition_columns if name in schema.names]
    partitions = {each.name: _partition_bounds(files, each, is_exact=is_exact) for each in typed}
    windowed = files.select(["windowStart", "windowSeconds"]).filter(files.column("windowStart").is_valid())
    start, seconds = (pc.min_max(windowed.column(name)) for name in ("windowStart", "windowSeconds"))
    return ManifestBounds(
        partitions={name: bounds for name, bounds in partitions.items() if bounds is not None},
        in_order_of_type=True,
        windows=(start["min"].as_py(), start["max"].as_py()) if windowed.num_rows else None,
        window_seconds=None if windowed.column("windowSeconds").null_count else seconds["max"].as_py(),
        has_null_window=windowed.num_rows < files.num_rows,
    )


def _partition_bounds(files: pa.Table, column: pa.Field, *, is_exact: bool) -> tuple[str, str] | None:
    """Return the smallest and largest value as texts.

    Return None if the value of a split is missing or has another type.
    """
    chunks = [map_column(chunk).lookup(column.name) for chunk in files.column("partitionValues").chunks]
    texts = pa.concat_arrays([pa.array([], pa.string()), *chunks]).unique()
    keys = bound_keys(texts, column.type)
    if keys.null_count or not len(keys) or (not is_exact and "" in texts.to_pylist()):
        return None
    order = pc.sort_indices(keys)
    return texts[order[0].as_py()].as_py(), texts[order[-1].as_py()].as_py()


MAX_DEAD_FRACTION = 0.1
MAX_SMALL_MANIFESTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The planned manifests of the next state.

    Attributes:
        kept: The parts that stay unchanged.
        tombstones: The paths in `kept` that are dead.
        entries: The entries to write. They are in order.
        manifest_entries: The maximum number of entries per manifest.
    """

    kept: tuple[Part, ...]
    tombstones: frozenset[str]
    entries: pa.Table
    manifest_entries: int

    def chunks(self) -> list[pa.Table]:
        """Return the entries in chunks of nearly equal size. Each chunk becomes a manifest."""
        count = -(-self.entries.num_rows // self.manifest_entries)
        edges = [self.entries.num_rows * number // count for number in range(count + 1)] if count else []
        return [self.entries.slice(start, end - start) for start, end in pairwise(edges)]


def layout(files: LiveFiles, partitions: pa.Schema, *, manifest_entries: int, compact: bool = False) -> Layout:
    """Return the plan for the manifests of the next state: the manifests that are kept, and the entries to write.

    The layout starts from the manifests of the current state. If no current state exists or `compact` is True, all
    entries are written again. If a path was removed and added again, the manifests that list the path are rewritten.
    The path must be live in exactly one manifest, and must not be dead in any other manifest.

    Args:
        partitions: The names and types of the partition values. The entries are sorted by these values.
        manifest_entries: The maximum number of entries per manifest. A manifest with the default number of entries
            takes about 30 ms to open.
    """
    listed = files.listed
    if listed is None or compact or not listed.closed or not listed.is_intact:
        return _anew(files, partitions, manifest_entries)
    dead, returned = _dead(files, listed)
    rewritten = [part for part in listed.parts if not returned.isdisjoint(part.rows)] if returned else []
    rewritten += _small(listed.parts, rewritten, manifest_entries)
    buried = {path for path in dead if any(path in part.rows for part in rewritten)} if rewritten else set()
    entries = sum(part.info.num_entries for part in listed.parts)
    if len(dead - buried) > MAX_DEAD_FRACTION * entries:
        return _anew(files, partitions, manifest_entries)
    # Only the tombstones of rewritten parts are dropped. A tombstone hides a dead entry of a manifest part. The
    # tombstones for parts that are kept must stay (lesson 31).
    old = [without_paths(part.table, buried) for part in rewritten]
    return Layout(
        kept=tuple(part for part in listed.parts if part not in rewritten),
        tombstones=frozenset(dead - buried),
        entries=_sorted(pa.concat_tables([*old, files.added_table()]), partitions),
        manifest_entries=manifest_entries,
    )


def _anew(files: LiveFiles, partitions: pa.Schema, manifest_entries: int) -> Layout:
    entries = _sorted(files.table(), partitions)
    return Layout(kept=(), tombstones=frozenset(), entries=entries, manifest_entries=manifest_entries)


def _dead(files: LiveFiles, listed: ListedFiles) -> tuple[set[str], set[str]]:
    """Return two sets of paths.

    The first set contains all listed paths with dead entries. The second set contains the dead paths that were added
    again later.
    """
    replaced = {path for path in files.replacing if listed.find(path) is not None}
    removed = files.removed if files.certain else {path for path in files.removed if listed.find(path) is not None}
    dead = listed.tombstones | removed | replaced
    return set(dead), set(dead & files.added.keys())


def _small(parts: tuple[Part, ...], rewritten: list[Part], manifest_entries: int) -> list[Part]:
    small = [part for part in parts if part.info.num_entries < manifest_entries // 2 and part not in rewritten]
    return small if len(small) >= MAX_SMALL_MANIFESTS else []


def _sorted(table: pa.Table, partitions: pa.Schema) -> pa.Table:
    """Sort by partition value, window and path, so that a query reads few manifests.

    Partition values are ordered as values of their column's type, and not as text.
    """
    texts = ((pc.map_lookup(table.column("partitionValues"), each.name, "first"), each.type) for each in partitions)
    keys = [bound_keys(pa.concat_arrays([pa.array([], pa.string()), *found.chunks]), type_) for found, type_ in texts]
    keys += [table.column("windowStart"), table.column("path")]
    names = [f"key{number}" for number in range(len(keys))]
    order = pc.sort_indices(pa.table(keys, names=names), [(name, "ascending") for name in names])
    return table.take(order) if table.num_rows else FILES_SCHEMA.empty_table()


MOST_LINES = 32
"""The maximum number of transactions that a state stores as lines in its root object.

Every release can read these lines. Up to this number of lines, reading the lines takes almost no time.
"""

ENTRIES_PER_OBJECT = 50_000
MAX_SMALL_OBJECTS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionsLayout:
    """The planned transactions of the next state. If there are no objects, the transactions are lines of the root.

    Attributes:
        kept: The objects that stay unchanged, the sorted ones first.
        in_order: The sorted objects to write.
        newest: The transactions of the newest object to write. This object is not one of the sorted objects.
    """

    kept: tuple[TransactionsPart, ...] = ()
    in_order: list[Recorded] = field(default_factory=list)
    newest: Recorded = field(default_factory=dict)


def transactions_layout(txns: Transactions, *, compact: bool = False) -> TransactionsLayout:
    """Return the layout of the transactions in the next state.

    The function reuses the objects with transactions of the current state. If there are no objects or `compact` is
    True, all transactions are written again.
    """
    listed = txns.listed
    if listed is None or compact or not listed.is_intact:
        return _all_transactions_anew(txns)
    small = [part for part in listed.parts if not part.info.in_order]
    entries = sum(part.info.num_entries for part in small) + len(txns.recent)
    if len(small) + bool(txns.recent) < MAX_SMALL_OBJECTS and entries <= ENTRIES_PER_OBJECT:
        return TransactionsLayout(kept=listed.parts, newest=txns.recent)
    joined: dict[str, Txn | None] = {}
    for part in small:
        joined.update(part.recorded)
    joined.update(txns.recent)
    return _folded([part for part in listed.parts if part.info.in_order], joined)


def _all_transactions_anew(txns: Transactions) -> TransactionsLayout:
    every = txns.every()
    return TransactionsLayout() if len(every) <= MOST_LINES else TransactionsLayout(in_order=list(_chunks(every)))


def _folded(sorted_parts: Sequence[TransactionsPart], joined: Recorded) -> TransactionsLayout:
    """Add each transaction of `joined` to the sorted part whose range of appIds contains its appId.

    The other parts do not change.
    """
    starts = [part.info.least for part in sorted_parts]
    of_part: dict[int, dict[str, Txn | None]] = {}
    for app_id, txn in joined.items():
        of_part.setdefault(max(0, bisect_right(starts, app_id) - 1), {})[app_id] = txn
    kept = tuple(part for number, part in enumerate(sorted_parts) if number not in of_part)
    # Rewritten parts with adjacent ranges are merged, and the merged range is divided again. Otherwise small objects
    # would stay small permanently.
    stretches = groupby(enumerate(sorted(of_part)), key=lambda each: each[1] - each[0])
    written: list[Recorded] = []
    for _, numbers in stretches:
        stretch: dict[str, Txn | None] = {}
        for _, number in numbers:
            stretch.update(sorted_parts[number].recorded if sorted_parts else {})
            stretch.update(of_part[number])
        written += _chunks({app_id: txn for app_id, txn in stretch.items() if txn is not None})
    return TransactionsLayout(kept=kept, in_order=written)


def _chunks(every: Recorded) -> Iterator[Recorded]:
    """Yield the transactions in order, in chunks of nearly equal size. Each chunk becomes an object."""
    ordered = sorted(every)
    count = -(-len(ordered) // ENTRIES_PER_OBJECT)
    edges = [len(ordered) * number // count for number in range(count + 1)] if count else []
    for start, end in pairwise(edges):
        yield {app_id: every[app_id] for app_id in ordered[start:end]}


_ADVICE = "write the checkpoint again"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CheckpointResult:
    """The result of `write_checkpoint` for `version`.

    Attributes:
        files: The number of live files.
        bytes: The number of bytes that this call wrote.
        written: True if this call wrote the state.
        snapshot: The snapshot of the same version, now based on the manifests of that state.
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
    """Ensure that the snapshot's version has a complete state, and that the hint is not older.

    Idempotent: a second call writes nothing. New manifests contain only the changes since the state on which the
        snapshot is based. If the layout joins old manifests, the new manifests also contain the entries of the old
        manifests. The caller ensures that this base state still exists.

    Args:
        compact: True to rewrite all manifests.
        recovery: The fallback for unreadable objects of the returned snapshot.

    Raises:
        CommitUnknown: The store did not report an outcome. A repeated call is safe.
        Unavailable: The store cannot be reached. A repeated call is safe.

    Cost:
        One PUT per new manifest or object of transactions, and one PUT for the state. One HEAD per manifest or object
        of transactions that is shared with the earlier state. One GET and one PUT for the hint.
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
        _logger.warning("a manifest that must be rewritten is damaged, so all manifests are written again: %s", error)
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
        _logger.warning(
            "transactions that must be rewritten are damaged, so all transactions are written again: %s", error
        )
        return transactions_layout(snapshot.txns, compact=True)


def _write_transactions(
    store: ObjectStore, planned: TransactionsLayout, snapshot: Snapshot, compression: Compression
) -> tuple[TransactionsPart, ...]:
    """Write the new objects. Return all objects of the state, the sorted objects first and the newest last."""
    write = partial(write_part, store, compression=compression, at_most_ms=snapshot.timestamp)
    in_order = [part for part in planned.kept if part.info.in_order]
    in_order += [write(each, in_order=True) for each in planned.in_order]
    small = [part for part in planned.kept if not part.info.in_order]
    small += [write(planned.newest, in_order=False)] if planned.newest else []
    return (*sorted(in_order, key=lambda part: part.info.least), *small)


def _with_references(entries: pa.Table, renamed: Mapping[str, str]) -> pa.Table:
    """Return the entries.

    If `renamed` has a `docMappingRef` as a key, the value of this key replaces the `docMappingRef`.
    """
    found = entries.column("docMappingRef")
    position = pc.index_in(found, value_set=pa.array(list(renamed)))
    column = pc.coalesce(pa.array(list(renamed.values())).take(position.combine_chunks()), found.combine_chunks())
    return entries.set_column(entries.schema.get_field_index("docMappingRef"), "docMappingRef", column)


def _is_complete(store: ObjectStore, listed: ListedFiles | None) -> bool:
    """Return whether every manifest that could be shared exists. A new state must not refer to a lost manifest."""
    if listed is None or not listed.closed:
        return True
    return not missing(store, [LOG_PREFIX + part.info.path for part in listed.parts])


def _already_there(store: ObjectStore, snapshot: Snapshot) -> CheckpointResult:
    """Return another writer's state with its manifests. The manifests that this call has written are then garbage."""
    try:
        snapshot = load_checkpoint(store, snapshot.version)
    except Corrupt as error:
        _logger.warning("version %d of %s has a damaged state already: %s", snapshot.version, store.uri, error)
    return CheckpointResult(snapshot.version, len(snapshot.splits), 0, written=False, snapshot=snapshot)


def _live_bytes(files: LiveFiles, planned: Layout) -> int:
    """Return the total size of all live splits. Only manifests with changes are read."""
    written = pc.sum(planned.entries.column("size")).as_py() or 0
    if not planned.kept:
        return int(written)
    listed = files.listed
    if listed is None:
        raise AssertionError("only a state with a list of parts keeps parts")
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
