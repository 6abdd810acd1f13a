"""Quarantine: what came in and is not in the table is kept beside it, with its reason (rule 7).

A key follows from the content, so that writing again writes nothing new. The collector never takes quarantine objects;
they are a person's to read and remove. Late rows come here from a `LateRowFilter` (decision 0051).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from storage_core.formats import quarantine_entry
from storage_core.formats.keys import QUARANTINE_PREFIX, KeyKind, parse, quarantine_key
from storage_core.formats.quarantine_entry import Entry
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.create import create_derived

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kept:
    """An entry in quarantine: its key, and whether it came there now or had been there before."""

    key: str
    is_new: bool


def keep(store: ObjectStore, entry: Entry) -> Kept:
    """Keep an entry and return where; durable when this returns.

    Idempotent: an equal entry is the same object. One PUT. Raises `CommitUnknown` when the store did not say whether it
    kept the object and it cannot be found.
    """
    data = quarantine_entry.encode(entry)
    key = quarantine_key(entry.source, quarantine_entry.id_of(data))
    is_new = create_derived(store, key, data, advice="write or ingest again")
    if is_new:
        _logger.info("quarantined %d of %s as %s", sum(entry.reasons.values()), entry.source, key)
    return Kept(key, is_new)


def entry_keys(store: ObjectStore) -> list[str]:
    """Return the keys of all entries, sorted. One LIST per 1,000 objects."""
    found = sorted(info.key for info in store.list(QUARANTINE_PREFIX))
    return [key for key in found if (parsed := parse(key)) is not None and parsed.kind is KeyKind.QUARANTINE]


def read_entry(store: ObjectStore, key: str) -> Entry:
    """Return one entry. One GET. Raises `NotFound`, and `Corrupt` when it is not what was written."""
    parsed = parse(key)
    return quarantine_entry.decode(store.get(key).data, key, parsed.id if parsed else None)


def read_entries(store: ObjectStore) -> Iterator[tuple[str, Entry]]:
    """Yield every entry with its key, in order of key. One LIST per 1,000 objects and one GET per object."""
    for key in entry_keys(store):
        yield key, read_entry(store, key)
