"""Logs in the form that foreign writers produce. A reader must accept these dialects of protocol version 4.

Foreign states have only the documented fields, and no action lines of Tidemark. The IDs and the order of the fields
differ from Tidemark's states. The entries of foreign logs have an undocumented field.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import fastavro

from storage_core.data.formats import avro_state
from storage_core.data.formats.keys import last_checkpoint_key, state_key
from storage_core.store.contract import IfAbsent, ObjectStore, Overwrite

SHARED_MANIFEST = "manifests/manifest-a1b2c3d4.avro"

OWN_FIELD_IDS = range(160, 200)
"""The IDs of the entry fields that only Tidemark writes."""


def put_state(
    store: ObjectStore,
    version: int,
    paths: Sequence[str],
    *,
    manifest: str = SHARED_MANIFEST,
    metadata: str | None = None,
    **more: Any,
) -> None:
    """Write a state of `version` that lists `paths` in one manifest. `more` replaces fields of the state's root."""
    folder = f"_transaction_log/state-v{version:020d}/"
    key = folder + manifest if "/" not in manifest else "_transaction_log/" + manifest
    entries = [
        {"aggregateHints": "x", "path": path, "partitionValues": {}, "size": 1, "modificationTime": 1,
         "dataChange": True, "hasFooterOffsets": False, "addedAtVersion": 0, "addedAtTimestamp": 0}
        for path in paths
    ]  # fmt: skip
    store.put(key, _avro(entry_schema(), entries), Overwrite())
    state = {
        "formatVersion": 1, "stateVersion": version, "createdAt": 1000 + version, "numFiles": len(paths),
        "totalBytes": len(paths), "protocolVersion": 4, "metadata": metadata, "tombstones": [], "schemaRegistry": {},
        "manifests": [{"path": manifest, "numEntries": len(paths), "minAddedAtVersion": 0, "maxAddedAtVersion": 0,
                       "partitionBounds": None, "tombstoneCount": 0, "liveEntryCount": -1}],
    } | more  # fmt: skip
    store.put(state_key(version), _avro(state_schema(), [state]), IfAbsent())


def put_hint(store: ObjectStore, version: int) -> None:
    """Point `_last_checkpoint` at the state of `version`."""
    body = {"version": version, "size": 1, "format": "avro-state", "stateDir": f"state-v{version:020d}"}
    store.put(last_checkpoint_key(), json.dumps(body).encode(), Overwrite())


def entry_schema() -> dict[str, Any]:
    """Return a file entry's schema with an unknown field, reversed documented fields, and new field IDs."""
    unknown = {"name": "aggregateHints", "type": ["null", "string"], "default": None, "field-id": 150}
    documented = [each for each in _fields(avro_state.ENTRY_SCHEMA) if each["field-id"] < min(OWN_FIELD_IDS)]
    renumbered = [{**each, "field-id": 900 + position} for position, each in enumerate([unknown, *documented[::-1]])]
    return {"type": "record", "name": "FileEntry", "namespace": "somebody.else", "fields": renumbered}


def state_schema() -> dict[str, Any]:
    """Return the schema of a state's root with the field names of foreign writers, without our fields."""
    documented = [each for each in _fields(avro_state.STATE_SCHEMA) if each["name"] != "actions"]
    return {"type": "record", "name": "StateManifest", "namespace": "io.indextables.state", "fields": documented}


def _fields(schema: Any) -> list[dict[str, Any]]:
    return list(schema["fields"])


def _avro(schema: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> bytes:
    target = io.BytesIO()
    fastavro.writer(target, dict(schema), records, codec="zstandard")
    return target.getvalue()
