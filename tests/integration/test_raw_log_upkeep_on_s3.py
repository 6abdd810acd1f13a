"""A raw log on S3 over HTTP.

The test restores missing copies of the log, distributes the rows exactly once by ID, and collects the log, with real
requests.
"""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

from storage_core.maintain.raw_logs import heal
from storage_core.store.memory import MemoryStore
from storage_core.store.resolve import open_store
from storage_core.write.raw_log.history import union
from storage_core.write.raw_log.records import RawLimits
from storage_core.write.raw_log.writer import RawLog
from tests.support.clock import ManualClock
from tests.support.copies import contents
from tests.support.distribution import Board
from tests.support.ids import SeededIds
from tests.support.raw_collection import collector
from tests.support.s3_server import S3Server

NOW_MS = 4_000_000_000_000
"""A time that is later than all times that a store of this test records."""


def test_a_store_that_was_away_for_a_thousand_chunks_is_complete(s3_server: S3Server, tmp_path: Path) -> None:
    clock = ManualClock()
    with RawLog([tmp_path / "here"], clock=clock, ids=SeededIds(1), limits=RawLimits(segment_ms=100)) as log:
        for number in range(1_000):
            log.append("t", {"n": number})
            clock.now += 1
    stores = [open_store(tmp_path / "here"), open_store(s3_server.uri(f"raw-{uuid4()}"))]
    report = heal(stores, clock=ManualClock(), ids=SeededIds(3))
    assert (report.copied, report.is_whole) == ({stores[1].uri: 1_000}, True)
    assert contents(stores[0]) == {key: data for key, data in contents(stores[1]).items() if key.startswith("live/")}
    found = union(stores[1:]).verify()
    assert (found.records, found.gaps, found.damaged) == (1_000, (), ())


def test_a_retry_through_another_bucket_is_one_row_and_both_buckets_are_collected(s3_server: S3Server) -> None:
    stores = [open_store(s3_server.uri(f"raw-{uuid4()}")) for _ in range(2)]
    board = Board(stores, {"events": MemoryStore("events")}).create()
    for seed, places in ((1, stores[:1]), (2, stores[1:]), (3, stores)):
        clock = ManualClock()
        with RawLog(places, clock=clock, ids=SeededIds(seed), limits=RawLimits(segment_ms=1)) as log:
            for number in range(5):
                log.append("events", {"n": number}, unique_by="n")
                clock.now += 1
    board.distribute()
    assert board.numbers("events") == [0, 1, 2, 3, 4]
    heal(stores, clock=ManualClock(), ids=SeededIds(4))
    report = collector(board, now_ms=NOW_MS, retention_ms=0).collect()
    assert {uri: len(keys) for uri, keys in report.deleted.items()} == {each.uri: 16 for each in stores}, (
        "15 chunks, and their ids"
    )
    assert union(stores).chunks == []
    later = Board(stores, {"later": MemoryStore("later")}, seed=9).create()
    assert later.distribute().held == ()
