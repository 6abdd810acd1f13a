"""Legacy checkpoints as JSON, in one file or in parts (IndexTables protocol, "JSON Checkpoint").

The file is a version file that starts from nothing: every action that the snapshot consists of, one per line, gzip. In
parts, the file is one line that lists them, put last: parts without it are nobody's. Slower to open than a state by an
order of magnitude; there for tools that read nothing else.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import xxhash

from storage_core.errors import Corrupt, NotFound
from storage_core.formats.hint import CheckpointKind
from storage_core.formats.keys import (
    LOG_PREFIX,
    KeyKind,
    json_checkpoint_key,
    json_checkpoint_part_key,
    parse,
)
from storage_core.log.actions import Action, Add, CommitInfo
from storage_core.log.checkpoints.checkpointed import Checkpointed
from storage_core.log.checkpoints.state import progress_of
from storage_core.log.encoding.codec import commit_info, decode_version, encode_version, expanded
from storage_core.log.files.live import Added, LiveFiles
from storage_core.log.snapshot import Snapshot, SnapshotBuilder
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.create import create_derived

ACTIONS_PER_PART = 50_000
OPERATION = "CHECKPOINT"
_ADDED_AT = "addedAt"
_CHECKSUM = "xxh3"
_ADVICE = "write the checkpoint again"
_MAX_LIST_BYTES = 2**20


def write_json_checkpoint(store: ObjectStore, snapshot: Snapshot, *, in_parts: bool) -> tuple[int, bool]:
    """Write the checkpoint of the snapshot's version; return its bytes, and whether this call wrote it.

    The same snapshot gives the same bytes and keys. One PUT, and with `in_parts` one more per 50,000 actions.
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
    """Return the snapshot that the JSON checkpoint of `version` holds, whatever wrote it.

    One GET, and one per part. Raises `NotFound` without one; `Corrupt` when it or a part of it is damaged, missing, or
    of another version.
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
    """Return the keys of the parts that a JSON checkpoint lists, in gzip or not; None when it holds the actions.

    Raises `Corrupt` for a list that is not what was written, or that is not all the parts of one checkpoint of the
    version in `key`, in order.
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
            raise Corrupt(f"{key}: {each!r} is no part of a checkpoint", key=key)
        if (part.version, part.id, part.entry) != (expected.version, body["checkpointId"], number):
            raise Corrupt(f"{key}: {each!r} is not part {number} of its checkpoint {body['checkpointId']!r}", key=key)
    return found


def _list_of_parts(data: bytes, key: str) -> bytes | None:
    """The text of a list of parts, unpacked as far as one may be long; None for what is no list."""
    text = bytearray()
    for piece in expanded(data, key):
        text += piece
        if len(text) > _MAX_LIST_BYTES or not text.startswith(b"{"):
            return None
    return bytes(text) if b'"checkpointId"' in text.split(b"\n", 1)[0] else None


def _joined(store: ObjectStore, key: str, parts: Sequence[str]) -> list[Action]:
    """The actions of the parts. What we wrote is named by its content, so a part of another checkpoint shows."""
    stored = [_part(store, part) for part in parts]
    actions = [action for part, data in zip(parts, stored, strict=True) for action in decode_version(data, part)]
    info, named = commit_info(actions), parse(parts[0]) if parts else None
    if info is not None and info.operation == OPERATION and named is not None and named.id != _content_uuid(stored):
        raise Corrupt(f"{key}: its parts hold what hashes to {_content_uuid(stored)}, not {named.id}", key=key)
    return actions


def _part(store: ObjectStore, key: str) -> bytes:
    try:
        return store.get(key).data
    except NotFound as error:
        raise Corrupt(f"{key}: named by a checkpoint, but missing", key=key) from error


def _actions(snapshot: Snapshot) -> Iterator[Action]:
    ordered = sorted(snapshot.splits.values(), key=lambda add: add.path)
    times = [snapshot.splits.added_at(add.path) for add in ordered]
    # When each split was added is no field of its action: the runs of equal times stand in the first line.
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
