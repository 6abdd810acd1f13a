"""A compaction with a byte limit takes the newest pieces that fit and that were known before the run."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from jobs.command import from_arguments, to_arguments
from jobs.spark.spark import Spark
from storage_core.compact.pending_work import Pieces, find_pieces, within
from storage_core.data.settings.layout import Mode
from storage_core.data.steps import Compact
from storage_core.log.job_run import run
from storage_core.log.snapshot import Snapshot
from tests.support.events import CONFIG, HOUR_SECONDS, snapshot
from tests.support.many_splits import SPLIT_BYTES, snapshot_of_many
from tests.unit.test_debt import JOINING, _add
from tidemark import Table

LATER_MS = 10**13


def seen(held: Snapshot) -> Pieces:
    return find_pieces(held, now_ms=LATER_MS, mode=Mode.POLICY).first()


def read_by(held: Snapshot, most_bytes: int | None) -> list[tuple[int | None, int]]:
    """Return the window and the bytes of each task of a run."""
    pieces = seen(held).within(most_bytes)
    begun = {add.windowStart for task in pieces.rewindowed for add in task.inputs}
    assert not begun.intersection(task.window for task in pieces.merges.tasks())
    inputs = [*(each.inputs for each in pieces.rewindowed), *(each.inputs for each in pieces.merges.tasks())]
    return [(adds[0].windowStart, sum(add.size for add in adds)) for adds in inputs]


def test_the_pieces_that_fit_are_taken_and_a_large_one_goes_before_small_ones() -> None:
    assert within([30, 30, 20, 10], 70) == [0, 1, 3]
    assert within([10, 10, 60, 10], 70) == [2, 0]
    assert within([80, 90], 70) == []


def test_a_run_reads_the_newest_windows_that_fit_and_what_was_seen_before_it() -> None:
    held = snapshot_of_many(600, 10)
    pieces = seen(held)
    assert pieces.splits == 600
    assert pieces.newest == 9 * HOUR_SECONDS
    assert sum(pieces.bytes) == 600 * SPLIT_BYTES == sum(size for _, size in read_by(held, None))
    window_bytes = 60 * SPLIT_BYTES
    found = read_by(held, 3 * window_bytes + 1)
    assert sorted({window for window, _ in found if window is not None}) == [each * HOUR_SECONDS for each in (7, 8, 9)]
    assert sum(size for _, size in found) == 3 * window_bytes
    assert read_by(held, min(pieces.bytes) - 1) == []
    assert read_by(held, sum(pieces.bytes)) == read_by(held, None)


def test_windows_that_are_joined_are_pieces_too() -> None:
    adds = [_add(str(number), number * HOUR_SECONDS) for number in range(60)]
    held = snapshot(adds, config=replace(JOINING, target_split_bytes=5_000))
    pieces = seen(held)
    assert (pieces.splits, sum(pieces.bytes), max(pieces.bytes)) == (60, 60_000, 5_000)
    found = read_by(held, 11_000)
    assert 6_000 < sum(size for _, size in found) <= 11_000
    assert set(found) < set(read_by(held, None))


def test_nothing_to_do_is_no_piece() -> None:
    assert seen(snapshot([_add("a", 0)], config=CONFIG)).bytes == ()


def test_the_job_plans_no_more_than_it_was_granted(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("at", pa.timestamp("us", "UTC"), nullable=False), pa.field("n", pa.int64())])
    table = Table.create(str(tmp_path / "t"), schema, time_column="at", window="1h")
    hours = [datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in range(3)]
    for number in range(10):
        table.append(pa.table({"at": hours, "n": [number] * 3}, schema))
    pieces = find_pieces(table.snapshot, now_ms=table.log.clock.now_ms(), mode=Mode.POLICY).first()
    request = Compact(table_uri=table.uri, mode=Mode.POLICY, dry_run=True)
    for most, windows in ((None, 3), (sum(pieces.bytes), 3), (sum(pieces.bytes[:2]), 2), (min(pieces.bytes) - 1, 0)):
        report = run(replace(request, most_bytes=most), Spark())  # planning does not start Spark
        planned = report.metrics.bytes_in if report.status == "planned" else 0
        assert planned == sum(pieces.bytes[:windows])


@pytest.mark.parametrize("most", [None, 7])
def test_the_bound_travels_to_the_job(most: int | None) -> None:
    request = Compact(table_uri="t", most_bytes=most)
    assert from_arguments("compact", to_arguments(request)) == request
