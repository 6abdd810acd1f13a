"""A retry adds each line of the quarantine exactly once, and keeps the lines that still fail."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage_core.base.errors import TidemarkError
from storage_core.data.formats.keys import parse
from storage_core.data.formats.kinds import KeyKind
from storage_core.data.settings.table import LateData, TableConfig
from storage_core.log.actions import Txn
from storage_core.log.job_run import JobReport
from storage_core.log.transactions import Transactions
from storage_core.maintain.collect import forgotten_keys, read_plan
from storage_core.maintain.quarantine import WHOLE_FILE, clear
from storage_core.store.local import LocalStore
from storage_core.table import Table
from storage_core.write.ingest.convert import RejectedLine, write_quarantine
from storage_core.write.late_rows import write_quarantine_entry
from tests.support.copies import copy_of
from tests.support.crashes import left_by_crashes
from tests.support.quarantined import HOUR, NOW_MS, SCHEMA, WIDER, Bench, line, make_bench
from tests.support.waves import WavesStore

UNKNOWN = "the field city is not a column of the table"
INVALID = "the line is not valid JSON"
LATE_CONFIG = TableConfig(
    time_column="at", window_seconds=HOUR, late_data=LateData(policy="quarantine", acceptance_ms=0)
)


def counts(report: JobReport) -> tuple[Any, ...]:
    return tuple(report.details[name] for name in ("read", "added", "still_rejected"))


@pytest.fixture
def drifted(tmp_path: Path) -> Bench:
    """Return a table with landed lines. Many lines have a field that is not a column, and some lines are not valid."""
    bench = make_bench(tmp_path)
    for file in range(3):
        lines = [line(60 * number, 10 * file + number, **({"city": "x"} if number % 2 else {})) for number in range(6)]
        bench.land(f"{file}.ndjson", "".join(lines) + "bad\n")
    bench.ingest()
    return bench


EVERY_ID = [10 * file + number for file in range(3) for number in range(6)]


def test_a_retry_after_the_declaration_was_mended_brings_every_row(drifted: Bench) -> None:
    assert len(drifted.ids()) == 9
    drifted.widen()
    report = drifted.retry()
    assert counts(report) == (12, 9, 3)
    assert (report.status, report.metrics.rows_in, report.metrics.rows_out) == ("committed", 12, 9)
    assert drifted.ids() == EVERY_ID
    assert drifted.pending() == [(f"{file}.ndjson", 7, INVALID) for file in range(3)]
    [entry] = list(drifted.store.list("quarantine/_landed/"))
    assert entry.key not in forgotten_keys([read_plan(drifted.store)]), "three lines are still in it"


def test_a_second_retry_adds_nothing(drifted: Bench) -> None:
    drifted.widen()
    drifted.retry()
    version = drifted.log.snapshot().version
    report = drifted.retry()
    assert (report.status, counts(report)) == ("nothing_to_do", (3, 0, 3))
    assert drifted.log.snapshot().version == version
    assert drifted.ids() == EVERY_ID


def test_a_retry_under_the_same_declaration_changes_nothing(drifted: Bench) -> None:
    before = {each.key: each.etag for each in drifted.store.list("")}
    report = drifted.retry()
    assert counts(report) == (12, 0, 12)
    assert report.details["rejected_reasons"] == {UNKNOWN: 9, INVALID: 3}
    assert {each.key: each.etag for each in drifted.store.list("")} == before


def test_a_retry_of_one_source_leaves_the_others(drifted: Bench) -> None:
    drifted.widen()
    assert counts(drifted.retry(source="1.ndjson")) == (4, 3, 1)
    assert drifted.ids() == sorted([*EVERY_ID[::2], 11, 13, 15])
    assert counts(drifted.retry()) == (9, 6, 3)
    assert drifted.ids() == EVERY_ID


def test_a_retry_that_ends_at_any_request_adds_each_row_once(drifted: Bench) -> None:
    drifted.widen()
    left = left_by_crashes(drifted.store, lambda store: drifted.at(store).retry())
    assert len(left) >= 4
    for number, store in enumerate(left):
        after = drifted.at(store, seed=1000 + number)
        after.retry()
        assert after.ids() == EVERY_ID
        assert after.pending() == [(f"{file}.ndjson", 7, INVALID) for file in range(3)]


def test_two_retries_at_once_add_each_row_once(drifted: Bench) -> None:
    """Before every second request of one retry of the quarantine, a second retry runs from start to end."""
    from tests.support.fault_store import FaultStore

    drifted.widen()
    requests = 0

    def count(*_: object) -> None:
        nonlocal requests
        requests += 1

    drifted.at(FaultStore(copy_of(drifted.store, "count"), watch=count)).retry()
    for when in range(0, requests, 2):
        store = copy_of(drifted.store, f"both-{when}")
        seen = 0

        def other(*_: object, store: Any = store, when: int = when) -> None:
            nonlocal seen
            seen += 1
            if seen == when + 1:
                drifted.at(store, seed=77).retry(source="1.ndjson")

        try:
            drifted.at(FaultStore(store, watch=other)).retry()
        except TidemarkError as error:
            pytest.fail(f"{when}: {error}")
        assert drifted.at(store).ids() == EVERY_ID


def test_lines_of_a_run_that_was_not_committed_wait_for_their_ingest(tmp_path: Path) -> None:
    bench = make_bench(tmp_path)
    bench.land("a.ndjson", line(1, 1, city="x") + line(2, 2))
    bench.execute(bench.works())  # this run ends before its commit
    bench.widen()
    assert counts(bench.retry()) == (0, 0, 0)
    bench.ingest()
    assert counts(bench.retry()) == (0, 0, 0)
    assert bench.ids() == [1, 2], "the ingest read both lines under the new declaration"


def test_lines_of_a_file_of_which_windows_are_missing_wait(tmp_path: Path) -> None:
    bench = make_bench(tmp_path)
    bench.land("a.ndjson", line(1, 1, city="x") + line(2, 2) + line(HOUR, 3))
    bench.ingest([0])
    assert bench.retry().details["not_retried"] == {"the file is not completely in the table. Ingest it first": 1}
    bench.ingest()
    bench.widen()
    assert counts(bench.retry()) == (1, 1, 0)
    assert bench.ids() == [1, 2, 3]


def test_a_line_that_two_objects_contain_is_added_once(tmp_path: Path) -> None:
    bench = make_bench(tmp_path)
    for name in "ab":
        bench.land(f"{name}.ndjson", line(1, ord(name), city="x"))
    bench.execute(bench.works())
    for work in bench.works():
        bench.commit(bench.execute([work]))
    assert len(bench.objects()) == 3
    bench.widen()
    assert counts(bench.retry()) == (2, 2, 0)
    assert bench.ids() == [ord("a"), ord("b")]
    assert len(forgotten_keys([read_plan(bench.store)])) == 2, "no commit names the third"


def test_a_line_with_a_new_reason_is_kept_with_it(tmp_path: Path) -> None:
    bench = make_bench(tmp_path)
    bench.land("a.ndjson", line(1, 1, city="x") + '{"id": "no number", "city": "y"}\n')
    bench.ingest()
    bench.widen()
    assert counts(bench.retry()) == (2, 1, 1)
    assert bench.pending() == [("a.ndjson", 2, "column id: not a valid int64")]
    assert counts(bench.retry()) == (1, 0, 1)
    [old] = bench.store.list("quarantine/_landed/")
    assert old.key in forgotten_keys([read_plan(bench.store)]), "all of its lines are elsewhere or in the table"


@pytest.mark.parametrize("accept_late", [False, True])
def test_late_rows_come_only_if_the_retry_accepts_them(tmp_path: Path, accept_late: bool) -> None:
    bench = make_bench(tmp_path, config=LATE_CONFIG)
    bench.land("a.ndjson", line(1, 1) + line(9 * HOUR, 2) + "bad\n" + line(2, 3, city="x"))
    os.utime(tmp_path / "landing" / "a.ndjson", ns=(0, 2 * HOUR * 10**9))
    bench.ingest()
    assert bench.pending() == [("a.ndjson", 1, "late"), ("a.ndjson", 3, INVALID), ("a.ndjson", 4, UNKNOWN)]
    bench.widen(LATE_CONFIG)
    bench.retry(accept_late=accept_late)
    if accept_late:
        assert bench.ids() == [1, 2, 3]
        assert bench.pending() == [("a.ndjson", 3, INVALID)]
    else:
        assert bench.ids() == [2]
        assert bench.pending() == [("a.ndjson", 1, "late"), ("a.ndjson", 3, INVALID), ("a.ndjson", 4, "late")]
        bench.retry(accept_late=True)
        assert bench.ids() == [1, 2, 3]
    bench.retry(accept_late=True)
    assert bench.ids() == [1, 2, 3]


def test_late_rows_come_when_the_rule_accepts_them(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, config=LATE_CONFIG)
    bench.land("a.ndjson", line(1, 1) + line(HOUR, 2))
    os.utime(tmp_path / "landing" / "a.ndjson", ns=(0, 2 * HOUR * 10**9))
    bench.ingest()
    assert bench.ids() == []
    bench.widen(replace(LATE_CONFIG, late_data=LateData(policy="quarantine", acceptance_ms=HOUR * 1000)))
    assert counts(bench.retry()) == (2, 1, 1)
    assert bench.ids() == [2]
    assert bench.pending() == [("a.ndjson", 1, "late")]


def test_late_rows_of_an_append_come_once(tmp_path: Path) -> None:
    from storage_core.data.formats.arrow_files import QuarantinedRows

    bench = make_bench(tmp_path, config=LATE_CONFIG)
    times = pa.array([HOUR * 10**6, 9 * HOUR * 10**6, 1], pa.timestamp("us", tz="UTC"))
    rows = pa.table({"at": times, "id": pa.array([1, 2, 3], pa.int64())}, schema=SCHEMA)
    entry = QuarantinedRows(source="append", reason="late", by="me", arrived_ms=5 * HOUR * 1000, rows=rows)
    write_quarantine_entry(bench.store, entry)
    assert counts(bench.retry()) == (3, 1, 2)
    assert bench.ids() == [2]
    assert counts(bench.retry()) == (2, 0, 2)
    assert counts(bench.retry(accept_late=True)) == (2, 2, 0)
    bench.retry(accept_late=True)
    assert bench.ids() == [1, 2, 3]
    assert bench.pending() == []


def test_rows_that_no_longer_fit_the_schema_stay_with_the_reason(tmp_path: Path) -> None:
    from storage_core.data.formats.arrow_files import QuarantinedRows

    bench = make_bench(tmp_path)
    rows = pa.table({"id": pa.array([1], pa.int64()), "gone": ["x"]})
    write_quarantine_entry(
        bench.store, QuarantinedRows(source="append", reason="late", by="me", arrived_ms=NOW_MS, rows=rows)
    )
    assert counts(bench.retry(accept_late=True)) == (1, 0, 1)
    [(source, number, reason)] = bench.pending()
    assert (source, number) == ("append", 0)
    assert "gone" in reason


def test_csv_records_come_back_with_their_header(tmp_path: Path) -> None:
    bench = make_bench(tmp_path, "csv", schema=WIDER)
    records = [
        "city,id,at",
        '"a ""b"", c",x1,1970-01-01T00:00:01Z',
        "p,2,1970-01-01T00:00:02Z",
        "too,few",
        '"",4x,',
        "",
    ]
    bench.land("a.csv", "\n".join(records))
    bench.ingest()
    assert bench.ids() == [2]
    assert [number for _, number, _ in bench.pending()] == [2, 4, 5]
    log = bench.log
    head = log.snapshot()
    texts = pa.schema([WIDER.field("at"), pa.field("id", pa.string()), WIDER.field("city")])
    from storage_core.data.rows.schema import to_schema_string

    log.commit(head, [replace(head.metadata, schemaString=to_schema_string(texts))], operation="SET SCHEMA")
    assert counts(bench.retry()) == (3, 2, 1)
    [(_, number, reason)] = bench.pending()
    assert (number, "fields" in reason) == (4, True)
    from storage_core.split.read import read_split

    snapshot = bench.log.snapshot()
    added = [
        row
        for add in snapshot.splits.values()
        for row in read_split(bench.store, add, ["id", "city"]).to_pylist()
        if "x" in str(row["id"])
    ]
    assert sorted(added, key=lambda row: row["id"]) == [{"id": "4x", "city": ""}, {"id": "x1", "city": 'a "b", c'}]


def test_rows_of_parquet_files_come_back(tmp_path: Path) -> None:
    required = pa.schema([pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False), pa.field("id", pa.int64())])
    bench = make_bench(tmp_path, "parquet", schema=required)
    times = pa.array([None, 5, None], pa.timestamp("us", tz="UTC"))
    pq.write_table(pa.table({"at": times, "id": [1, 2, 3]}), tmp_path / "landing" / "a.parquet")
    bench.ingest()
    assert bench.ids() == [2]
    bench.widen()
    assert counts(bench.retry()) == (2, 2, 0)
    assert bench.ids() == [1, 2, 3]


def test_lines_of_an_entry_of_the_first_format_come_back(tmp_path: Path) -> None:
    bench = make_bench(tmp_path)
    bench.land("a.ndjson", line(1, 1))
    bench.ingest()
    size = (tmp_path / "landing" / "a.ndjson").stat().st_size
    text = line(2, 2, city="x").strip()
    write_quarantine(bench.store, "a.ndjson", size, [RejectedLine("a.ndjson", 2, UNKNOWN, text)])
    bench.widen()
    assert counts(bench.retry()) == (1, 1, 0)
    bench.retry()
    assert bench.ids() == [1, 2]


def test_records_of_a_raw_log_and_whole_files_are_not_retried(tmp_path: Path) -> None:
    bench = make_bench(tmp_path)
    bench.land("a.ndjson", b"PK\x03\x04")
    bench.ingest()
    write_quarantine(bench.store, "events/w/1", 3, [RejectedLine("events/w/1", 3, "no column", '{"id": 1}')])
    report = bench.retry()
    assert counts(report) == (0, 0, 0)
    assert sum(report.details["not_retried"].values()) == 2  # type: ignore[attr-defined]
    assert len(bench.pending()) == 2


def test_a_retry_reads_at_most_one_object_after_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage_core.maintain.quarantine._MOST_BYTES", 0)
    bench = make_bench(tmp_path)
    for number in range(0, 10, 2):  # an object for two files
        for each in (number, number + 1):
            bench.land(f"{each}.ndjson", line(1, each, city="x"))
        bench.ingest()
    bench.widen()
    objects = bench.objects()
    watched = WavesStore(bench.store)
    assert bench.at(watched).retry().details["added"] == 1
    assert len(objects) == 5
    assert len(watched.waves.bytes.keys() & {*objects}) == 2
    while bench.retry().status == "committed":
        pass
    assert bench.ids() == [*range(10)], "no object was given to the collector while it had pending lines"


def test_a_retry_reads_only_the_transactions_of_its_files(tmp_path: Path) -> None:
    bench = make_bench(tmp_path)
    for name in ("a", "b"):
        bench.land(f"{name}.ndjson", line(1, ord(name)) + line(2, 2, city="x"))
        bench.ingest()
    bench.widen()
    asked: list[str | None] = []
    every = Transactions.every

    def watched(txns: Transactions, kind: str | None = None) -> dict[str, Txn]:
        asked.append(kind)
        return every(txns, kind)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transactions, "every", watched)
        assert counts(bench.retry(source="a.ndjson")) == (1, 1, 0)
    assert {*asked} == {"quarantine"}


def test_lines_of_a_rejected_file_advise_to_land_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage_core.write.ingest.batch.MOST_HELD_BYTES", 1)
    required = pa.schema([pa.field("at", pa.timestamp("us", tz="UTC"), nullable=False), pa.field("id", pa.int64())])
    bench = make_bench(tmp_path, "parquet", schema=required)
    times = pa.array([None, 5, None, 6], pa.timestamp("us", tz="UTC"))
    path = tmp_path / "landing" / "a.parquet"
    pq.write_table(pa.table({"at": times, "id": [1, 2, 3, 4]}), path, row_group_size=2, compression="none")
    data = bytearray(path.read_bytes())
    at = pq.read_metadata(path).row_group(1).column(1).data_page_offset
    data[at : at + 8] = b"\xff" * 8
    path.write_bytes(data)
    bench.ingest()
    assert [number for _, number, _ in bench.pending()] == [0, 1], "the first group is readable"
    bench.widen()
    assert bench.retry().details["not_retried"] == {WHOLE_FILE: 2}
    assert bench.ids() == []


def test_cleared_lines_do_not_come_back(drifted: Bench) -> None:
    log = drifted.log
    removed, head = clear(log, log.snapshot(), lambda entry, index: entry.rejected[index]["reason"] == UNKNOWN)  # type: ignore[union-attr]
    assert removed == 9
    assert drifted.pending() == [(f"{file}.ndjson", 7, INVALID) for file in range(3)]
    assert clear(log, head, lambda entry, index: entry.rejected[index]["reason"] == UNKNOWN)[0] == 0  # type: ignore[union-attr]
    drifted.widen()
    assert counts(drifted.retry()) == (3, 0, 3)
    assert clear(log, log.snapshot(), lambda *_: True)[0] == 3
    assert drifted.pending() == []
    marked = forgotten_keys([read_plan(drifted.store)])
    assert set(drifted.objects()) == marked
    assert {parsed.kind for key in marked if (parsed := parse(key))} == {KeyKind.QUARANTINE}


def test_a_clear_that_ends_at_any_request_is_completed_by_the_next(drifted: Bench) -> None:
    def cleared(store: Any) -> None:
        log = drifted.at(store).log
        clear(log, log.snapshot(), lambda *_: True)

    for store in left_by_crashes(drifted.store, cleared):
        cleared(store)
        assert drifted.at(store).pending() == []
        assert set(drifted.at(store).objects()) == forgotten_keys([read_plan(store)])


def test_a_forgotten_line_leaves_a_shared_object_and_does_not_come_back(tmp_path: Path) -> None:
    bench = replace(make_bench(tmp_path / "other"), root=tmp_path, store=LocalStore(tmp_path / "table"))
    bench.spec = replace(bench.spec, uri=str(tmp_path / "landing"))
    bench.create()
    bench.land("a.ndjson", line(1, 77001, city="x") + line(2, 77002, city="x"))
    bench.land("b.ndjson", line(3, 77003, city="x"))
    bench.ingest()
    Table.open(bench.store.uri).forget("id = 77001")
    assert [(source, number) for source, number, _ in bench.pending()] == [("a.ndjson", 2), ("b.ndjson", 1)]
    [old] = bench.store.list("quarantine/_landed/")
    assert forgotten_keys([read_plan(bench.store)]) == {old.key}
    bench.widen()
    assert counts(bench.retry()) == (2, 2, 0)
    assert bench.ids() == [77002, 77003]
