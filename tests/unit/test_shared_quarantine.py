"""The files of a batch share quarantine objects, and every line is in quarantine once."""

from __future__ import annotations

import os
from pathlib import Path

from storage_core.data.settings.table import LateData, TableConfig
from storage_core.maintain.quarantine import count_rejected
from tests.support.quarantined import HOUR, NOW_MS, Bench, line, make_bench

BAD = "the line is not valid JSON"
LATE_CONFIG = TableConfig(
    time_column="at", window_seconds=HOUR, late_data=LateData(policy="quarantine", acceptance_ms=0)
)


def land_bad_files(bench: Bench, count: int = 72) -> None:
    for number in range(count):
        bench.land(f"{number:02}.ndjson", line(number, number) + "bad\n")


def test_72_files_with_bad_lines_and_late_rows_make_two_objects(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, config=LATE_CONFIG)
    for number in range(72):
        bench.land(f"{number:02}.ndjson", line(HOUR, number) + "bad\n" + line(5 * HOUR, 100 + number))
        os.utime(tmp_path / "landing" / f"{number:02}.ndjson", ns=(0, 2 * HOUR * 10**9))
    result = bench.ingest()
    assert len(bench.objects()) == len(result.quarantine_keys) == 2
    assert sum(file.rejected[BAD] for file in result.files) == 72
    assert sum(file.late.quarantined for file in result.files) == 72
    assert bench.pending() == sorted(
        (f"{number:02}.ndjson", *pair) for number in range(72) for pair in ((1, "late"), (2, BAD))
    )


def test_rejected_files_share_an_object(tmp_path: Path) -> None:
    bench = make_bench(tmp_path)
    for number in range(9):
        bench.land(f"{number}.ndjson", b"PK\x03\x04 an archive")
    bench.ingest()
    assert len(bench.objects()) == 1
    assert [(source, number) for source, number, _ in bench.pending()] == [(f"{each}.ndjson", 0) for each in range(9)]
    assert bench.works() == [] or bench.ingest().actions == []
    assert len(bench.objects()) == 1


def test_a_batch_that_is_repeated_after_a_crash_writes_the_same_object(tmp_path: Path) -> None:
    bench = make_bench(tmp_path)
    land_bad_files(bench, 5)
    bench.execute(bench.works())
    result = bench.ingest()
    assert len(bench.objects()) == 1
    assert sum(file.rejected[BAD] for file in result.files) == 5, "the first attempt was not committed"


def test_files_in_other_batches_after_a_crash_are_in_quarantine_once(tmp_path: Path) -> None:
    bench = make_bench(tmp_path)
    land_bad_files(bench, 6)
    works = bench.works()
    bench.execute(works[:4])  # this run ends before its commit
    for part in (works[:1], works[1:5], works[5:]):
        bench.commit(bench.execute(part))
    assert len(bench.objects()) == 4
    assert bench.pending() == [(f"{number:02}.ndjson", 2, BAD) for number in range(6)]
    found = count_rejected(bench.store, bench.log.snapshot())
    assert (found.reasons, found.unread) == ({BAD: 6}, 0)
    assert count_rejected(bench.store, bench.log.snapshot(), most=1).unread == 2


def test_a_run_of_windows_after_another_quarantines_no_line_again(tmp_path: Path) -> None:
    bench = make_bench(tmp_path)
    bench.land("a.ndjson", line(1, 1) + "bad\n" + line(HOUR, 2))
    first = bench.ingest([0])
    assert (first.files[0].rejected, first.files[0].rejected_before) == ({BAD: 1}, 0)
    rest = bench.ingest()
    assert (rest.files[0].rejected, rest.files[0].rejected_before) == ({}, 1)
    assert len(bench.objects()) == 1
    assert bench.ids() == [1, 2]


def test_the_lines_of_a_run_without_a_commit_do_not_count(tmp_path: Path) -> None:
    bench = make_bench(tmp_path)
    bench.land("a.ndjson", line(1, 1) + "bad\n")
    bench.execute(bench.works())
    bench.land("a.ndjson", line(1, 2) + "bad\n")
    bench.ingest()
    assert len(bench.objects()) == 2
    assert bench.pending() == [("a.ndjson", 2, BAD)], "no commit names the first object"


def test_many_rejected_bytes_of_one_file_become_several_objects(tmp_path: Path) -> None:
    bench = make_bench(tmp_path)
    bench.land("a.ndjson", ("x" * 2**20 + "\n") * 40)
    bench.ingest()
    assert 2 <= len(bench.objects()) <= 3
    assert [number for _, number, _ in bench.pending()] == [*range(1, 41)]


def test_a_run_of_other_windows_records_the_file_whose_lines_it_quarantined(tmp_path: Path) -> None:
    bench = make_bench(tmp_path)
    bench.land("a.ndjson", line(1, 1) + "bad\n")
    bench.ingest([5 * HOUR])
    assert bench.pending() == [("a.ndjson", 2, BAD)]
    rest = bench.ingest()
    assert (rest.files[0].rejected, rest.files[0].rejected_before) == ({}, 1)
    assert bench.pending() == [("a.ndjson", 2, BAD)]
    assert bench.ids() == [1]


def test_a_file_that_changes_while_it_is_read_leaves_no_line_in_quarantine(tmp_path: Path) -> None:
    bench = make_bench(tmp_path)
    bench.land("a.ndjson", line(1, 1) + "bad\n")
    works = bench.works()
    os.utime(tmp_path / "landing" / "a.ndjson", ns=(0, NOW_MS * 10**6))
    result = bench.execute(works)
    assert result.actions == []
    assert bench.objects() == []
