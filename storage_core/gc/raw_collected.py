"""Noting up to which chunk a raw log is collected, in every store that answers, before anything goes."""

from __future__ import annotations

from collections.abc import Mapping

from storage_core.formats.raw_collected import Collected, encode
from storage_core.formats.raw_keys import COLLECTED_KEY
from storage_core.gc.replace import replace_state
from storage_core.ids import Ids
from storage_core.objectstore.contract import ObjectStore
from storage_core.raw_log.collected import StoredCollected, furthest, read_collected
from storage_core.raw_log.history import History

KEPT_MS = 90 * 24 * 3_600_000
"""How long the entry of a writer stays after its last chunk went: one that comes back later shows a gap before it."""


def note_collected(history: History, reached: Mapping[str, Collected], *, now_ms: int, ids: Ids) -> None:
    """Return once every store that answers says that these writers are collected that far, or further.

    Of writers without a chunk the entries go after `KEPT_MS`, where all stores answer. Two requests per store. Raises
    `CommitConflict` or `CommitUnknown` when that is not certain: then nothing may be deleted.
    """
    stored = {store.uri: read_collected(store) for store in history.stores}
    known = furthest(*(each.writers for each in stored.values()), reached)
    gone = set() if history.unreachable else known.keys() - set(history.writers)
    writers = {writer: each for writer, each in known.items() if writer not in gone or now_ms - each.at_ms < KEPT_MS}
    for store in history.stores:
        put_collected(store, stored[store.uri], writers, ids=ids)


def put_collected(store: ObjectStore, stored: StoredCollected, writers: Mapping[str, Collected], *, ids: Ids) -> None:
    """Replace what the store says, where it differs. One PUT. Raises `CommitConflict` or `CommitUnknown`."""
    if stored.writers != writers:
        replace_state(store, COLLECTED_KEY, encode(writers, nonce=ids.uuid()), etag=stored.etag)
