"""Quarantine: what could not be ingested is kept beside the table, with file, line and reason (design page 00, rule 7).

One object holds the rejections of one block of one file. Its key follows from the file and the content, so that running
again writes nothing new. The collector never takes quarantine objects; they are a person's to read and remove.
"""

from __future__ import annotations

import hashlib
import json
import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from storage_core.errors import Corrupt, Unsupported
from storage_core.formats.keys import QUARANTINE_PREFIX, KeyKind, parse, quarantine_key
from storage_core.ingest.rejection import RejectedLine
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.create import create_derived

_logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
_NAMESPACE = uuid.UUID("6f4dd3c6-3a0a-5d0e-9a43-7a1a5f0b6a53")


def write_quarantine(store: ObjectStore, source: str, size: int, rejected: Sequence[RejectedLine]) -> str:
    """Keep the rejections of one file (`source`, of `size` bytes) and return the key; durable when this returns.

    Idempotent: the same rejections are the same object. One PUT. Raises `CommitUnknown` when the store did not say
    whether it kept the object and it cannot be found.
    """
    body = {
        "formatVersion": FORMAT_VERSION,
        "source": source,
        "size": size,
        "rejected": [{key: value for key, value in asdict(each).items() if key != "file"} for each in rejected],
    }
    data = json.dumps(body, ensure_ascii=False, sort_keys=True).encode()
    key = quarantine_key(source, _entry_id(data))
    if create_derived(store, key, data, advice="run the ingestion again"):
        _logger.info("quarantined %d of %s as %s", len(rejected), source, key)
    return key


def read_quarantine(store: ObjectStore) -> Iterator[dict[str, Any]]:
    """Yield every rejection: `source`, `size` of the file, `line`, `reason`, `text`, `encoding`, the object's `key`.

    In order of key, then line. One LIST per 1,000 objects and one GET per object. Raises `Corrupt` naming an object
    that is no quarantine entry.
    """
    found = sorted(info.key for info in store.list(QUARANTINE_PREFIX))
    for key in found:
        parsed = parse(key)
        if parsed is None or parsed.kind is not KeyKind.QUARANTINE:
            continue
        body = read_entry(store, key)
        for each in body["rejected"]:
            yield {"key": key, "source": body["source"], "size": body["size"], **each}


def read_entry(store: ObjectStore, key: str) -> dict[str, Any]:
    """Return the body of one entry: `source`, `size`, and `rejected`, a list of objects. One GET.

    Raises `Corrupt` when it is not what was written: its key follows from its content.
    """
    data = store.get(key).data
    parsed = parse(key)
    try:
        body: dict[str, Any] = json.loads(data)
        if body["formatVersion"] > FORMAT_VERSION:
            raise Unsupported(f"{key}: a quarantine entry of format {body['formatVersion']}; upgrade", key=key)
        sound = isinstance(body["rejected"], list) and all(isinstance(each, dict) for each in body["rejected"])
        complete = sound and {"source", "size"} <= body.keys()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Corrupt(f"{key}: not a quarantine entry: {error!r}", key=key) from error
    if not complete or parsed is None or parsed.id != _entry_id(data):
        raise Corrupt(f"{key}: the content of the quarantine entry is not what was written", key=key)
    return body


def _entry_id(data: bytes) -> str:
    return str(uuid.uuid5(_NAMESPACE, hashlib.sha256(data).hexdigest()))
