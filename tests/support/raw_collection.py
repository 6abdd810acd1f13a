"""A raw log whose distributed chunks are collected, without Spark."""

from __future__ import annotations

from storage_core.log.log import TransactionLog
from storage_core.maintain.raw_logs import RawLogCollection, RawLogCollector
from storage_core.store.memory import MemoryStore
from storage_core.write.distribution.work import ByTable, Source, log_offsets
from storage_core.write.raw_log.history import RawStore
from storage_core.write.raw_log.records import RawLimits, RawRecord
from storage_core.write.raw_log.writer import RawLog
from tests.support.clock import START_MS, ManualClock
from tests.support.distribution import Board
from tests.support.ids import SeededIds

DAY_MS = 86_400_000
LONG_AFTER = START_MS + 400 * DAY_MS


def produce(board: Board, *numbers: int, table: str = "events", seed: int = 1, ids: bool = False) -> list[str]:
    """Append one record per number with one writer.

    Each record is in its own segment. Return the IDs of the records.
    """
    clock = ManualClock()
    places = [RawStore(each) for each in board.stores]
    found: list[str] = []
    with RawLog(places, clock=clock, ids=SeededIds(seed), limits=RawLimits(segment_ms=1)) as log:
        for n in numbers:
            record = RawRecord(table=table, fields={"n": n}, id=f"id-{n}" if ids else None)
            found += log.append_many([record]).ids
            clock.now += 1
    return found


def raw_board(*names: str) -> Board:
    """Return a `Board` with an append table and a raw log in stores of these names. The clock is at `START_MS`."""
    clock = ManualClock()
    stores = [MemoryStore(name, clock=clock) for name in names]
    return Board(stores, {"events": MemoryStore("events")}, raw_clock=clock).create()


def offsets_of(board: Board) -> ByTable:
    """Return the offsets of every existing table in `board`. A table that does not exist has no offsets."""
    found: dict[str, dict[str, int]] = {}
    for name, store in board.tables.items():
        log = TransactionLog(store)
        found[name] = log_offsets(log.snapshot()) if log.exists() else {}
    return found


def collector(
    board: Board, *, now_ms: int = LONG_AFTER, horizon_ms: int = 0, retention_ms: int = DAY_MS, seed: int = 9
) -> RawLogCollector:
    """Return a collector for the raw log in `board`.

    The time of the collector and of the stores is long after all writes.
    """
    board.raw_clock.now = max(now_ms, board.raw_clock.now)
    return RawLogCollector(
        source=Source(name="events", stores=tuple(each.uri for each in board.stores), tables=tuple(board.tables)),
        stores=board.stores,
        offsets=lambda: offsets_of(board),
        retention_ms=retention_ms,
        clock=ManualClock(now_ms),
        ids=SeededIds(seed),
        horizon_ms=horizon_ms,
    )


def collect(board: Board, **given: int) -> RawLogCollection:
    """Collect once."""
    return collector(board, **given).collect()
