"""Quarantine receipts are merged into one. Retries do not make a listing of the quarantine slower."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from storage_core.data.formats.keys import QUARANTINE_PREFIX
from storage_core.data.settings.table import TableConfig
from storage_core.data.steps import Collect
from storage_core.log.job_run import InProcessExecutor, run
from storage_core.log.log import TransactionLog
from storage_core.maintain.collect import collect, forgotten_keys, read_plan
from storage_core.maintain.quarantine import MOST_RECEIPTS, RETRIES, clear, pending_entries, prune, selection
from storage_core.store.meter import MeteredStore
from tests.support.announcing import Opened
from tests.support.clock import ManualClock
from tests.support.crashes import left_by_crashes
from tests.support.quarantined import HOUR, Bench, line, make_bench

CONFIG = TableConfig(time_column="at", window_seconds=HOUR, gc_horizon_ms=1_000, version_retention_ms=1_000)
DAY_MS = 86_400_000


def receipts(bench: Bench) -> list[str]:
    return [app for app in bench.log.snapshot().txns if app.startswith("quarantine:") and app != RETRIES]


def clear_file(bench: Bench, name: str) -> None:
    log = bench.log
    assert clear(log, log.snapshot(), selection(name, None))[0]


@pytest.fixture
def cleared(tmp_path: Path) -> Bench:
    """Return a table with a quarantine object of 12 files.

    Ten of these files were removed from the quarantine, each in a separate operation.
    """
    bench = make_bench(tmp_path, config=CONFIG)
    for number in range(12):
        bench.land(f"{number:02}.ndjson", line(60, number) + "bad\n")
    bench.ingest()
    for number in range(10):
        clear_file(bench, f"{number:02}.ndjson")
    return bench


LEFT = [("10.ndjson", 2, "the line is not valid JSON"), ("11.ndjson", 2, "the line is not valid JSON")]


def test_many_receipts_become_one_and_the_same_lines_are_pending(cleared: Bench) -> None:
    assert len(receipts(cleared)) == 10
    assert cleared.pending() == LEFT
    assert prune(cleared.log) == 10
    assert len(receipts(cleared)) == 1
    assert cleared.pending() == LEFT
    assert prune(cleared.log) == 0, "a repetition removes nothing"


def test_a_listing_reads_one_receipt_after_any_number_of_clears(cleared: Bench) -> None:
    prune(cleared.log)
    store = MeteredStore(cleared.store)
    snapshot = TransactionLog(cleared.store).snapshot()
    assert list(pending_entries(store, snapshot))
    assert store.requests["get"] == 3, "the plan of the collector, the receipt and the object"


def test_few_receipts_stay(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, config=CONFIG)
    for number in range(MOST_RECEIPTS + 1):
        bench.land(f"{number}.ndjson", "bad\n")
    bench.ingest()
    for number in range(MOST_RECEIPTS):
        clear_file(bench, f"{number}.ndjson")
    version = bench.log.snapshot().version
    assert prune(bench.log) == 0
    assert bench.log.snapshot().version == version


def test_a_dry_run_counts_and_changes_nothing(cleared: Bench) -> None:
    before = {each.key: each.etag for each in cleared.store.list("")}
    assert prune(cleared.log, dry_run=True) == 10
    assert {each.key: each.etag for each in cleared.store.list("")} == before


def test_lines_and_names_of_deleted_objects_are_dropped(cleared: Bench) -> None:
    for number in (10, 11):
        clear_file(cleared, f"{number}.ndjson")
    assert cleared.pending() == []
    cleared.store.delete([each.key for each in cleared.store.list(f"{QUARANTINE_PREFIX}_landed/")])
    assert prune(cleared.log) == 13, "12 receipts and the name of the object"
    log = cleared.log
    assert not [app for app in log.snapshot().txns if app.startswith("quarantined:")]
    (name,) = receipts(cleared)
    data = cleared.store.get(f"{QUARANTINE_PREFIX}_receipts/{name.partition(':')[2]}.json").data
    assert b'"done": []' in data


def test_an_object_that_waits_for_the_collector_keeps_its_lines_in_the_receipt(cleared: Bench) -> None:
    for number in (10, 11):
        clear_file(cleared, f"{number}.ndjson")
    assert forgotten_keys([read_plan(cleared.store)]) == set(cleared.objects())
    prune(cleared.log)
    cleared.store.delete(["_gc/candidates.json"])  # simulates that the plan was lost
    assert cleared.pending() == []


def test_old_receipts_are_collected_after_the_horizon_and_the_named_one_stays(cleared: Bench) -> None:
    store: Any = cleared.store
    clock: ManualClock = store._clock
    prune(TransactionLog(store, clock=clock, ids=cleared.seeds))
    assert len(list(store.list(f"{QUARANTINE_PREFIX}_receipts/"))) == 11
    for _ in range(3):
        clock.now += DAY_MS
        log = TransactionLog(store, clock=clock, ids=cleared.seeds)
        prune(log)
        collect(store, log, clock=clock)
    (left,) = cleared.store.list(f"{QUARANTINE_PREFIX}_receipts/")
    assert receipts(cleared) == [f"quarantine:{left.key.rpartition('/')[2].removesuffix('.json')}"]
    assert cleared.pending() == LEFT


def test_a_prune_that_ends_at_any_request_is_completed_by_the_next(cleared: Bench) -> None:
    left = left_by_crashes(cleared.store, lambda store: prune(cleared.at(store).log))
    assert len(left) >= 3
    for number, store in enumerate(left):
        after = cleared.at(store, seed=1000 + number)
        assert after.pending() == LEFT
        prune(after.log)
        assert after.pending() == LEFT
        assert len(receipts(after)) == 1


def test_a_clear_and_a_retry_that_were_planned_before_are_planned_again(cleared: Bench) -> None:
    log = cleared.log
    planned = log.snapshot()
    prune(cleared.log)
    assert clear(log, planned, selection("10.ndjson", None))[0] == 1
    assert cleared.pending() == LEFT[1:]
    cleared.retry()
    assert cleared.ids() == list(range(12))


def test_the_job_of_the_collector_prunes_and_reports_the_number(cleared: Bench) -> None:
    log = cleared.log
    options = Collect(table_uri=cleared.store.uri, horizon_ms=DAY_MS)
    report = run(options, InProcessExecutor(log), Opened(log, log.snapshot()))
    assert (report.status, report.details["pruned_quarantine"]) == ("committed", 10)
    assert len(receipts(cleared)) == 1
