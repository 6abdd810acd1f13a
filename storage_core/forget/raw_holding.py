"""Why a raw log still holds rows, and until when; what nobody looked through holds some, too, for all that is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from storage_core.forget.raw import RawFound, unknown_writers
from storage_core.forget.raw_table import RawTable
from storage_core.forget.report import Held, KeptBy
from storage_core.gc.forgotten import forgotten_chunks
from storage_core.gc.plan import read_plan
from storage_core.gc.raw_log import HORIZON_MS
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore

Looked = Sequence[tuple[RawTable, RawFound]]
"""Raw logs, and what was found in each."""


def held_in_raw_logs(looked: Looked) -> Iterator[Held]:
    """Yield what keeps chunks of raw logs, and stores of them that do not answer. The requests of `read_plan` each."""
    for raw, found in looked:
        for uri in found.unreachable:
            why = "the store does not answer: look again later"
            yield Held(store=uri, key="", kind="raw_log", by=KeptBy.NOT_READ, why=why)
        for store in found.stores:
            yield from _of_store(raw, found, store)


def held_in_others(uri: str, snapshot: Snapshot, searched: Sequence[RawFound]) -> Iterator[Held]:
    """Yield writers of raw logs that were not looked through, of the table at `uri`."""
    for writer in unknown_writers(snapshot, searched):
        why = f"rows of the table came from a raw log that was not looked through, by its writer {writer}: name it"
        yield Held(store=uri, key="", kind="raw_log", by=KeptBy.RAW_LOG, why=why)


def _of_store(raw: RawTable, found: RawFound, store: ObjectStore) -> Iterator[Held]:
    plan = read_plan(store)
    noted = forgotten_chunks([plan])
    for key, (writer, number) in sorted(found.keys[store.uri].items()):
        by, until_ms = KeptBy.RAW_LOG, None
        if (writer, number) in found.unread:
            by, why = KeptBy.NOT_READ, found.unread[writer, number]
        elif (writer, number) not in found.holding:
            continue
        elif found.offsets.get(writer, 0) < number:
            why = f"{raw.table} has not taken it, and its rows would come: distribute, forget again"
        elif number <= noted.get(writer, 0):
            known = plan.candidates.get(key)
            until_ms = None if known is None else known.first_seen_ms + HORIZON_MS
            by, why = KeptBy.COLLECTOR, "the collector takes it and those before it when every table has them"
        else:
            why = "it waits for its retention: forget again"
        yield Held(store=store.uri, key=key, kind="raw_chunk", by=by, why=why, until_ms=until_ms)
