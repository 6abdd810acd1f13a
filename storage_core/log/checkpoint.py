"""Reading of checkpoints: Avro states, JSON checkpoints, and states of other writers.

See docs/architecture/transaction-log.md. A state contains everything that a snapshot contains, and equal snapshots have
equal records. An Avro state consists of a root and manifests with the splits. If the table has many transactions, the
state also has objects of transactions. If an object cannot be read, `Recovery` provides the same content from another
source. JSON checkpoints are slower and exist for other tools.

The module also writes JSON checkpoints and objects that contain transactions. `checkpoint_writing` writes complete
states.
"""

from __future__ import annotations

import hashlib
import json
import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, cast

import pyarrow as pa
import xxhash

from storage_core.base.errors import Corrupt, NotFound
from storage_core.data.formats.avro import Compression
from storage_core.data.formats.avro_state import (
    ManifestInfo,
    ProgressInfo,
    ProgressRow,
    StateManifest,
    content_id,
    decode_entries,
    decode_progress,
    decode_state,
    encode_progress,
)
from storage_core.data.formats.documents import CheckpointKind
from storage_core.data.formats.keys import (
    LOG_PREFIX,
    json_checkpoint_key,
    json_checkpoint_part_key,
    manifest_key,
    parse,
    progress_key,
    state_key,
    version_key,
)
from storage_core.data.formats.kinds import KeyKind
from storage_core.log.actions import Action, Add, CommitInfo, Metadata, Protocol, Txn, from_json_object
from storage_core.log.codec import (
    commit_info,
    decode_line,
    decode_numbered,
    decode_version,
    encode_line,
    encode_version,
    expanded,
    registry,
    with_registry,
)
from storage_core.log.deletion_vector import is_safe_path
from storage_core.log.listing import Checkpointed, listed_states
from storage_core.log.live_splits import Added, ListedFiles, LiveFiles, Part, Recover
from storage_core.log.snapshot import Snapshot, SnapshotBuilder, require_readable
from storage_core.log.split_columns import conform
from storage_core.log.transactions import (
    ANY_KIND,
    ListedTransactions,
    Progress,
    Recorded,
    RecoverTransactions,
    Transactions,
    TransactionsPart,
    kind_of,
)
from storage_core.store.contract import ObjectStore, create_derived
from storage_core.store.pieces import NOT_CACHED, CachedPieces, Data, Piece


@dataclass(frozen=True, slots=True)
class Recovery:
    """Fallbacks for unreadable objects of a state.

    Each function gets the error of the failed read. The function returns the content of the object from another source,
    which is slower. If this source fails, the function raises the error of the failed read. None means that there is no
    fallback.
    """

    splits: Recover | None = None
    transactions: RecoverTransactions | None = None


NOWHERE = Recovery()


MOST_KINDS = 16


def key_of_progress(path: str, where: str) -> str:
    """Return the key of an object with transactions. The state `where` contains the object's `path`.

    Raises `Corrupt` if `path` is not the path of an object with transactions.
    """
    parsed = parse(LOG_PREFIX + path)
    if parsed is None or parsed.kind is not KeyKind.PROGRESS:
        raise Corrupt(f"{where}: {path!r} is not an object of transactions", key=where)
    return parsed.key


def write_part(
    store: ObjectStore,
    recorded: Recorded,
    compression: Compression,
    *,
    at_most_ms: int,
    in_order: bool,
) -> TransactionsPart:
    """Write an object with these transactions, sorted by appId, unless it already exists. One PUT.

    Args:
        at_most_ms: A time by which all transactions were recorded. It is written for transactions without a known time.
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
    """Return the transactions part that the entry `info` of the state `where` describes. Its object is read at first
    use.
    """
    return TransactionsPart(info, partial(_read, store, info, where, cached))


def _read(store: ObjectStore, info: ProgressInfo, where: str, cached: CachedPieces) -> Recorded:
    key = key_of_progress(info.path, where)
    try:
        piece = Piece(0, None, key, _named_by)
        data = cached.made(store.uri, key, key, piece, fetch=lambda: store.get(key).data, used=True)
    except NotFound as error:
        raise Corrupt(f"{key}: the object is missing, but {where} refers to it", key=key) from error
    if _named_by(data) != key:
        raise Corrupt(f"{key}: the content hashes to {_named_by(data)}. The content is not what was written", key=key)
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
    """Return the smallest and the largest appId of each kind. The given appIds are sorted.

    If the appIds have more than `MOST_KINDS` kinds, return one pair of bounds for all appIds.
    """
    found: dict[str, tuple[str, str]] = {}
    for app_id in app_ids:
        kind = kind_of(app_id)
        found[kind] = (found.get(kind, (app_id, app_id))[0], app_id)
        if len(found) > MOST_KINDS:
            return {ANY_KIND: (app_ids[0], app_ids[-1])}
    return found


def key_of_manifest(path: str, version: int) -> str:
    """Return the key of a manifest from its path in the state of `version`.

    Raises `Corrupt` if the path leaves the log.

    A path has one of three forms. Tidemark writes shared paths (`manifests/…`). Programs other than Tidemark write
    paths that begin with the folder of the state, or bare file names in this folder.
    """
    if not is_safe_path(path):
        raise Corrupt(f"{state_key(version)}: the manifest path {path!r} leads out of the log")
    if path.startswith(("manifests/", "state-v")):
        return LOG_PREFIX + path
    return f"{LOG_PREFIX}state-v{version:020d}/{path}"


def read_state(store: ObjectStore, version: int) -> StateManifest:
    """Return the root of the state of `version`. One GET. Raises `NotFound` and `Corrupt`."""
    key = state_key(version)
    state = decode_state(store.get(key).data, key)
    if state.state_version != version:
        raise Corrupt(f"{key}: expected the state of version {version}, found {state.state_version}", key=key)
    return state


def named_keys(store: ObjectStore, checkpoint: Checkpointed) -> tuple[str, ...]:
    """Return the keys of the manifests or parts of a checkpoint, without its root. One GET.

    Raises `NotFound` and `Corrupt`.
    """
    if checkpoint.kind is CheckpointKind.AVRO_STATE:
        return manifest_keys(read_state(store, checkpoint.version))

    return part_keys(store.get(checkpoint.key).data, checkpoint.key) or ()


def manifest_keys(state: StateManifest) -> tuple[str, ...]:
    """Return the keys of the manifests and the objects of transactions in a state.

    The collector must keep these objects.
    """
    manifests = (key_of_manifest(info.path, state.state_version) for info in state.manifests)
    where = state_key(state.state_version)
    return (*manifests, *(key_of_progress(info.path, where) for info in state.progress))


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The part of a state's root that describes splits and transactions.

    Attributes:
        manifests: The manifests that list the splits.
        tombstones: The paths in the manifests that are no longer live.
        files: The number of live splits.
        bytes: The total size of the live splits.
        progress: The objects of transactions. If empty, the transactions are lines of the root.
    """

    manifests: tuple[ManifestInfo, ...]
    tombstones: frozenset[str]
    files: int
    bytes: int
    progress: tuple[ProgressInfo, ...] = ()


def state_of(snapshot: Snapshot, listing: Listing) -> StateManifest:
    """Return the root record of the snapshot's state, with the splits of the listing."""
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
    """Return whether Tidemark wrote the state.

    Tidemark derives its states from version files. Another writer may write a state instead of a version file.
    """
    return bool(state.actions)


def snapshot_of(
    state: StateManifest, listed: ListedFiles, txns: Transactions, *, metadata: Metadata, where: str
) -> Snapshot:
    """Return the snapshot of a state with the splits in `listed`.

    The manifests of the state and `txns` are not read yet.

    Raises `Corrupt` if an action cannot be read. Raises `Corrupt` also if the entries of Tidemark's manifests do not
    add up to the number of files.
    """
    actions = [decode_line(line, f"{where}, action {number}") for number, line in enumerate(state.actions, start=1)]
    entries = sum(part.info.num_entries for part in listed.parts)
    if is_own(state) and entries - len(listed.tombstones) != state.num_files:
        raise Corrupt(
            f"{where}: expected {state.num_files} live files, but its manifests list {entries} files, of which "
            f"{len(listed.tombstones)} are removed",
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
    """Yield the content of a snapshot except metadata and splits, as actions in a fixed order."""
    yield snapshot.protocol
    yield from snapshot.progress.actions()


def _with_registry(metadata: Metadata, registered: Mapping[str, str]) -> Metadata:
    configuration = with_registry(metadata.configuration, registered)
    if configuration == metadata.configuration:
        return metadata
    return replace(metadata, configuration=configuration)


ACTIONS_PER_PART = 50_000
OPERATION = "CHECKPOINT"
_ADDED_AT = "addedAt"
_CHECKSUM = "xxh3"
_ADVICE = "write the checkpoint again"
_MAX_LIST_BYTES = 2**20


def write_json_checkpoint(store: ObjectStore, snapshot: Snapshot, *, in_parts: bool) -> tuple[int, bool]:
    """Write the checkpoint of the snapshot's version. Return the size in bytes, and whether the call wrote anything.

    The same snapshot always produces the same bytes and keys. The cost is one PUT, and with `in_parts` one more PUT per
    50,000 actions.
    """
    actions = list(_actions(snapshot))
    if not in_parts:
        data = encode_version(actions)
        return len(data), create_derived(store, json_checkpoint_key(snapshot.version), data, advice=_ADVICE)
    parts = [encode_version(actions[at : at + ACTIONS_PER_PART]) for at in range(0, len(actions), ACTIONS_PER_PART)]
    checkpoint_id = _content_uuid(parts)
    keys = [json_checkpoint_part_key(snapshot.version, checkpoint_id, number) for number in range(1, len(parts) + 1)]
    for key, data in zip(keys, parts, strict=True):
        create_derived(store, key, data, advice=_ADVICE)
    listed = {
        "version": snapshot.version,
        "checkpointId": checkpoint_id,
        "parts": [key.removeprefix(LOG_PREFIX) for key in keys],
        "createdTime": snapshot.timestamp,
        "format": "json",
    }
    root = _compact(listed | {_CHECKSUM: _checksum(listed)})
    written = create_derived(store, json_checkpoint_key(snapshot.version), root, advice=_ADVICE)
    return len(root) + sum(map(len, parts)), written


def load_json_checkpoint(store: ObjectStore, version: int) -> Snapshot:
    """Return the snapshot in the JSON checkpoint of `version`. Tidemark or other software wrote the checkpoint.

    Raises:
        NotFound: There is no JSON checkpoint of this version.
        Corrupt: The checkpoint or one of its parts is damaged, missing, or of another version.

    Cost:
        One GET, and one per part.
    """
    key = json_checkpoint_key(version)
    data = store.get(key).data
    parts = part_keys(data, key)
    kind = CheckpointKind.JSON if parts is None else CheckpointKind.JSON_MULTIPART
    actions = decode_version(data, key) if parts is None else _joined(store, key, parts)
    try:
        return _snapshot(Checkpointed(version, kind), actions)
    except Corrupt as error:
        raise Corrupt(f"{key}: {error.found}", key=key) from error


def part_keys(data: bytes, key: str) -> tuple[str, ...] | None:
    """Return the keys of the parts in a JSON checkpoint, or None if the checkpoint itself contains the actions.

    The checkpoint may be compressed with gzip. Raises `Corrupt` if the list is damaged. The list must contain exactly
    the parts of one checkpoint of the key's version, in order.
    """
    listed = _list_of_parts(data, key)
    if listed is None:
        return None
    try:
        body: dict[str, Any] = json.loads(listed)
        checksum, found = body.pop(_CHECKSUM, None), tuple(LOG_PREFIX + name for name in body["parts"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Corrupt(f"{key}: expected a list of parts: {error}", key=key) from error
    if checksum not in (None, _checksum(body)):
        raise Corrupt(f"{key}: expected xxh3-64 {checksum}, found {_checksum(body)}", key=key)
    expected = parse(key)
    parsed = [parse(each) for each in found]
    for number, (each, part) in enumerate(zip(found, parsed, strict=True), start=1):
        if part is None or expected is None or part.kind is not KeyKind.JSON_CHECKPOINT_PART:
            raise Corrupt(f"{key}: {each!r} is not a part of a checkpoint", key=key)
        if (part.version, part.id, part.entry) != (expected.version, body["checkpointId"], number):
            raise Corrupt(f"{key}: {each!r} is not part {number} of its checkpoint {body['checkpointId']!r}", key=key)
    return found


def _list_of_parts(data: bytes, key: str) -> bytes | None:
    """Return the decompressed text of a list of parts.

    Return None if the data is too long or is not a list of parts.
    """
    text = bytearray()
    for piece in expanded(data, key):
        text += piece
        if len(text) > _MAX_LIST_BYTES or not text.startswith(b"{"):
            return None
    return bytes(text) if b'"checkpointId"' in text.split(b"\n", 1)[0] else None


def _joined(store: ObjectStore, key: str, parts: Sequence[str]) -> list[Action]:
    """Return the actions of the parts.

    Tidemark names parts by their content, so a part of another checkpoint is detected.
    """
    stored = [_part(store, part) for part in parts]
    actions = [action for part, data in zip(parts, stored, strict=True) for action in decode_version(data, part)]
    info, named = commit_info(actions), parse(parts[0]) if parts else None
    if info is not None and info.operation == OPERATION and named is not None and named.id != _content_uuid(stored):
        raise Corrupt(f"{key}: the content of its parts hashes to {_content_uuid(stored)}, not {named.id}", key=key)
    return actions


def _part(store: ObjectStore, key: str) -> bytes:
    try:
        return store.get(key).data
    except NotFound as error:
        raise Corrupt(f"{key}: named by a checkpoint, but missing", key=key) from error


def _actions(snapshot: Snapshot) -> Iterator[Action]:
    ordered = sorted(snapshot.splits.values(), key=lambda add: add.path)
    times = [snapshot.splits.added_at(add.path) for add in ordered]
    # An action has no field for the time at which its split was added. The first line contains these times. Equal times
    # of consecutive actions are stored once.
    runs = [[*at, sum(1 for _ in group)] for at, group in groupby(times)]
    yield CommitInfo(
        commitId="",
        operation=OPERATION,
        timestamp=snapshot.timestamp,
        version=snapshot.version,
        metrics={_ADDED_AT: runs},
    )
    yield snapshot.metadata
    yield from progress_of(snapshot)
    yield from ordered


def _snapshot(checkpoint: Checkpointed, actions: Sequence[Action]) -> Snapshot:
    info = commit_info(actions)
    if info is not None and (info.operation != OPERATION or info.version not in (None, checkpoint.version)):
        other = f"{info.operation} of version {info.version}"
        raise Corrupt(f"expected the {OPERATION} of version {checkpoint.version}, found {other}")
    builder = SnapshotBuilder.at_checkpoint(checkpoint)
    builder.apply(checkpoint.version, actions)
    found = builder.build()
    runs = info.metrics.get(_ADDED_AT) if info is not None else None
    if runs is None:
        return found
    return replace(found, splits=_dated([action for action in actions if isinstance(action, Add)], runs))


def _dated(adds: Sequence[Add], runs: Iterable[Any]) -> LiveFiles:
    try:
        times = [(int(version), int(time)) for version, time, count in runs for _ in range(min(int(count), len(adds)))]
        return LiveFiles(added={add.path: Added(add, *at) for add, at in zip(adds, times, strict=True)})
    except (TypeError, ValueError) as error:
        raise Corrupt(f"the times at which splits were added do not fit the splits: {error}") from error


def _checksum(body: Mapping[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(_compact(body))


def _compact(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def _content_uuid(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return str(uuid.UUID(bytes=digest.digest()[:16], version=4))


_logger = logging.getLogger(__name__)


def metadata_of(state: StateManifest, where: str) -> Metadata | None:
    """Return the metadata of a state, or None if the state has no metadata. Raises `Corrupt`.

    The metadata may be the `metaData` action or only the fields of that action.
    """
    if state.metadata is None:
        return None
    try:
        value = json.loads(state.metadata)
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{where}: `metadata` is not JSON: {error}", key=where) from error
    if value is None:
        return None
    if not isinstance(value, dict):
        raise Corrupt(f"{where}: `metadata` is not an object", key=where)
    wrapped = value if Metadata.NAME in value else {Metadata.NAME: value}
    return cast("Metadata", from_json_object(wrapped, where))


class MetadataSearch:
    """The search for table metadata in older states. The state of another program can lack the metadata.

    The metadata is taken from the newest older state that contains metadata, else from version 0. Results are
    remembered. The search therefore adds at most one GET per older state, even if several states are tried. A damaged
    older state is skipped with a warning. The table can still be opened, because the splits of the older state are not
    needed.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._seen: dict[int, Metadata | None] = {}
        self._listed: list[int] | None = None

    def before(self, version: int) -> Metadata:
        """Return the metadata that is valid at the state of `version`. Raises `Corrupt` if no metadata is found."""
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
            raise Corrupt(
                f"{state_key(version)}: the state contains no metadata, and {key} is missing", key=key
            ) from error
        metadata = next((action for action in actions if isinstance(action, Metadata)), None)
        if metadata is None:
            raise Corrupt(f"{state_key(version)}: neither the state nor {key} contains metadata", key=key)
        return metadata


def load_checkpoint(
    store: ObjectStore,
    version: int,
    recovery: Recovery = NOWHERE,
    search: MetadataSearch | None = None,
    *,
    cached: CachedPieces = NOT_CACHED,
) -> Snapshot:
    """Return the snapshot of the state of `version`.

    The manifests and objects of transactions are read when they are first used. Each read costs one GET unless the
    object is cached. If an object cannot be read, `recovery` provides its content.

    Raises:
        NotFound: There is no such state.
        Corrupt: The state is damaged.

    Cost:
        One GET for the state. If the state has no metadata, also the requests of `search`.
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
        # The next process needs this manifest first. The read therefore counts as a use, so that no scan displaces the
        # manifest from the cache.
        piece, fetch = Piece(0, None, key, _named_by_root), partial(_object, store, key)
        data = cached.made(store.uri, key, key, piece, fetch=fetch, used=True)
    except NotFound as error:
        raise Corrupt(f"{key}: named by the state of version {state.state_version}, but missing", key=key) from error
    # In tables of other writers, the name of a manifest is not always a content hash. Only manifests of Tidemark can be
    # verified, and only these manifests are cached.
    if is_own(state) and _named_by_root(data) != key:
        raise Corrupt(f"{key}: the content hashes to {content_id(data)}. The content is not what was written", key=key)
    entries = conform(decode_entries(data, key), key)
    if is_own(state) and entries.num_rows != info.num_entries:
        raise Corrupt(f"{key}: expected {info.num_entries} entries, found {entries.num_rows}", key=key)
    return entries


def _object(store: ObjectStore, key: str) -> bytes:
    return store.get(key).data


def _named_by_root(data: Data) -> str:
    """Return the key of the manifest with this content."""
    return manifest_key(content_id(bytes(data)))
