"""A snapshot as Avro state and back (design page 02, "Checkpoints").

Pure mapping: the state holds everything that a snapshot holds, and equal snapshots give equal records in equal order.
What the source's format has no field for (protocol, transactions, fences, merge progress, segments, skips) travels as
action lines; splits travel as file entries.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, cast

from storage_core.errors import Corrupt
from storage_core.formats.avro_state import ENTRY_FIELD_NAMES, ManifestInfo, StateManifest
from storage_core.log.actions import (
    Action,
    Add,
    Fence,
    IndexSegment,
    MergedGenerations,
    MergeSkip,
    Metadata,
    Protocol,
    Txn,
    from_json_object,
    to_json_object,
)
from storage_core.log.codec import decode_line, encode_line, is_safe_path
from storage_core.log.schema_registry import registry, with_registry
from storage_core.log.snapshot import Snapshot, require_readable

_ADD_FIELDS = tuple(each.name for each in fields(Add) if each.name in ENTRY_FIELD_NAMES)


def entries_of(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return one file entry per live split, sorted by partition values and then by path."""
    ordered = sorted(snapshot.splits.values(), key=lambda add: (sorted(add.partitionValues.items()), add.path))
    return [_entry(add, *snapshot.added_at[add.path]) for add in ordered]


def state_of(snapshot: Snapshot, manifests: Iterable[ManifestInfo]) -> StateManifest:
    """Return the root record of the snapshot's state."""
    return StateManifest(
        state_version=snapshot.version,
        created_at=snapshot.timestamp,
        num_files=len(snapshot.splits),
        total_bytes=snapshot.bytes,
        manifests=tuple(manifests),
        schema_registry=registry(snapshot.metadata.configuration),
        metadata=encode_line(snapshot.metadata),
        actions=tuple(encode_line(action) for action in _progress(snapshot)),
    )


def metadata_of(state: StateManifest, where: str) -> Metadata | None:
    """Return the metadata of a state, wrapped or bare; None when the state holds none. Raises `Corrupt`."""
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


def is_own(state: StateManifest) -> bool:
    """Tell whether Tidemark wrote the state: such states are derived from version files, others may be commits."""
    return bool(state.actions)


def snapshot_of(state: StateManifest, entries: Iterable[Mapping[str, Any]], metadata: Metadata, where: str) -> Snapshot:
    """Return the snapshot that a state and the entries of its manifests describe, tombstones applied.

    Raises `Corrupt` when an entry is incomplete or leaves the table, or when the count does not match the root's.
    """
    actions = [decode_line(line, f"{where}, action {number}") for number, line in enumerate(state.actions, start=1)]
    buried = frozenset(state.tombstones)
    live = [entry for entry in entries if entry.get("path") not in buried]
    splits = {add.path: add for add in (_add(entry, where) for entry in live)}
    if is_own(state) and len(splits) != state.num_files:
        raise Corrupt(f"{where}: expected {state.num_files} live files, found {len(splits)}", key=where)
    protocol = next((action for action in actions if isinstance(action, Protocol)), Protocol())
    require_readable(protocol)
    return Snapshot(
        version=state.state_version,
        timestamp=state.created_at,
        protocol=protocol,
        metadata=_with_registry(metadata, state.schema_registry),
        splits=splits,
        added_at={
            entry["path"]: (entry.get("addedAtVersion") or 0, entry.get("addedAtTimestamp") or 0) for entry in live
        },
        txns={action.appId: action.version for action in actions if isinstance(action, Txn)},
        fences={action.resource: action.token for action in actions if isinstance(action, Fence)},
        merged_generations={
            action.region: action.generation for action in actions if isinstance(action, MergedGenerations)
        },
        segments={action.path: action for action in actions if isinstance(action, IndexSegment)},
        mergeskips={action.path: action for action in actions if isinstance(action, MergeSkip)},
        checkpoint_version=state.state_version,
    )


def manifest_info(path: str, entries: list[dict[str, Any]], partition_columns: Iterable[str]) -> ManifestInfo:
    """Return the root's line about one manifest: its entries, their versions, and bounds per partition column."""
    versions = [entry["addedAtVersion"] for entry in entries]
    bounds = {}
    for column in partition_columns:
        values = [entry["partitionValues"].get(column) for entry in entries]
        known = [value for value in values if value is not None]
        # A null has no place between two texts, so a manifest that holds one is never pruned by this column.
        if known and len(known) == len(values):
            bounds[column] = (min(known), max(known))
    return ManifestInfo(
        path=path,
        num_entries=len(entries),
        min_added_at_version=min(versions),
        max_added_at_version=max(versions),
        partition_bounds=bounds or None,
    )


def _progress(snapshot: Snapshot) -> Iterable[Action]:
    yield snapshot.protocol
    yield from (Txn(appId=app, version=version) for app, version in sorted(snapshot.txns.items()))
    yield from (Fence(resource=name, token=token) for name, token in sorted(snapshot.fences.items()))
    for region, generation in sorted(snapshot.merged_generations.items()):
        yield MergedGenerations(region=region, generation=generation)
    yield from (snapshot.segments[path] for path in sorted(snapshot.segments))
    yield from (snapshot.mergeskips[path] for path in sorted(snapshot.mergeskips))


def _entry(add: Add, version: int, timestamp: int) -> dict[str, Any]:
    entry = {name: getattr(add, name) for name in _ADD_FIELDS}
    entry["splitTags"] = list(add.splitTags) if add.splitTags is not None else None
    if add.deletionVector is not None:
        entry["deletionVector"] = json.dumps(to_json_object(add)[Add.NAME]["deletionVector"], separators=(",", ":"))
    return entry | {"addedAtVersion": version, "addedAtTimestamp": timestamp}


def _add(entry: Mapping[str, Any], where: str) -> Add:
    values = {name: entry[name] for name in _ADD_FIELDS if name in entry}
    try:
        if values.get("splitTags") is not None:
            values["splitTags"] = tuple(values["splitTags"])
        if values.get("deletionVector") is not None:
            values["deletionVector"] = json.loads(values["deletionVector"])
        add = Add(**values)
    except (TypeError, ValueError) as error:
        raise Corrupt(f"{where}: a file entry is incomplete: {error}", key=where) from error
    if not is_safe_path(add.path):
        raise Corrupt(f"{where}: the path {add.path!r} leaves the table", key=where)
    return add


def _with_registry(metadata: Metadata, registered: Mapping[str, str]) -> Metadata:
    configuration = with_registry(metadata.configuration, registered)
    if configuration == metadata.configuration:
        return metadata
    values = {each.name: getattr(metadata, each.name) for each in fields(Metadata)}
    return Metadata(**(values | {"configuration": configuration}))
