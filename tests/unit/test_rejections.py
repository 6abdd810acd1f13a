"""Commits count rejected rows. If a table rejects too many rows, all interfaces show the state `rejecting`."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipelines.cli import main
from pipelines.status import State, StatusTarget, collect_status
from storage_core.base.clock import HOUR_MS
from storage_core.base.errors import InvalidInput
from storage_core.change.declaration import load
from storage_core.data.formats.keys import quarantine_key
from storage_core.log.actions import Txn
from storage_core.log.log import TransactionLog
from storage_core.maintain import rejections
from storage_core.maintain.rejections import DAY_MS, MOST_DRIFTED, measure_rejections, rejection_text
from storage_core.maintain.status import status
from storage_core.store.contract import Overwrite
from storage_core.store.meter import MeteredStore
from storage_core.table import Table
from storage_core.write.ingest.convert import RejectedLine, write_quarantine
from tests.support.clock import ManualClock
from tests.support.ids import SeededIds

SCHEMA = pa.schema([("n", pa.int64())])
CLICKS = "name: clicks\nuri: clicks\ncolumns: {n: long}\nlanding: {uri: landing, format: ndjson%s}\n"
GOOD, BAD = '{"n": 1}\n', '{"n": "x"}\n'
NOT_A_NUMBER = "column n: not a valid int64"


class Log:
    """A table whose commits have given times and metrics."""

    def __init__(self) -> None:
        uri = f"memory://rejections-{uuid.uuid4()}"
        self.table = Table.create(uri, SCHEMA)
        self.store = self.table.store
        self.clock = ManualClock(self.table.snapshot.timestamp)
        self.log = TransactionLog(self.store, clock=self.clock, ids=SeededIds(1))
        self._count = 0

    def commit(self, operation: str = "INGEST", *, after_ms: int = 1, **metrics: object) -> None:
        self.clock.now += after_ms
        self._count += 1
        txn = Txn(appId=f"landed:{self._count}", version=1)
        self.log.commit(self.log.snapshot(), [txn], operation=operation, metrics=metrics)

    def reject(self, source: str, *reasons: str) -> None:
        lines = [RejectedLine(source, number, reason, "") for number, reason in enumerate(reasons)]
        write_quarantine(self.store, source, 1, lines)

    def state(self) -> State:
        return collect_status(StatusTarget(name="t", uri=self.store.uri), self.clock).state


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tables").mkdir()
    (tmp_path / "landing").mkdir()
    declare(tmp_path, "")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    return tmp_path


def declare(place: Path, more: str) -> None:
    (place / "tables" / "clicks.yaml").write_text(CLICKS % more)


def ingest(capfd: pytest.CaptureFixture[str], name: str, text: str) -> dict[str, Any]:
    Path("landing", name).write_text(text)
    capfd.readouterr()
    assert main(["ingest", "clicks", "--json"]) == 0, capfd.readouterr()
    return lines_of(capfd)[-1]


def lines_of(capfd: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


def status_of(capfd: pytest.CaptureFixture[str], *, code: int) -> dict[str, Any]:
    capfd.readouterr()
    assert main(["status", "--json"]) == code, capfd.readouterr()
    return next(each for each in lines_of(capfd) if each.get("name") == "clicks")


def newest_metrics() -> Mapping[str, Any]:
    return next(iter(Table.open("clicks").history(1))).metrics


# All commands read the numbers from the metrics of the commit.


@pytest.mark.usefixtures("place")
def test_the_commit_counts_read_written_and_rejected_rows(capfd: pytest.CaptureFixture[str]) -> None:
    report = ingest(capfd, "a.ndjson", 98 * GOOD + 2 * BAD)
    assert (report["rows_in"], report["rows_out"], report["rows_rejected"]) == (100, 98, 2)
    found = newest_metrics()
    assert (found["rows_in"], found["rows_out"], found["rows_rejected"]) == (100, 98, 2)
    assert main(["history", "clicks"]) == 0
    assert "rows_rejected 2" in " ".join(capfd.readouterr().out.split())
    assert main(["history", "clicks", "--json"]) == 0
    assert lines_of(capfd)[0]["metrics"]["rows_rejected"] == 2
    assert ingest(capfd, "b.ndjson", GOOD)["rows_rejected"] == 0
    assert "rows_rejected" not in newest_metrics()


@pytest.mark.usefixtures("place")
def test_2_of_100_lines_are_too_many_and_every_place_shows_the_same_numbers(capfd: pytest.CaptureFixture[str]) -> None:
    ingest(capfd, "a.ndjson", 98 * GOOD + 2 * BAD)
    found = status_of(capfd, code=7)
    assert found["status"] == "rejecting"
    own = found["rejections"]
    assert (own["rows_in"], own["rows_out"], own["rows_rejected"]) == (100, 98, 2)
    assert (own["share"], own["max_rejected"], own["reasons"]) == (0.02, 0.01, {NOT_A_NUMBER: 2})
    assert main(["status"]) == 7
    shown = " ".join(capfd.readouterr().out.split())
    assert "rejecting" in shown
    text = (
        "clicks: 2 of 100 rows of the last 24 hours were rejected (2 %). The limit is 1 %. "
        f"The most frequent reasons are: {NOT_A_NUMBER} (2). Run: tidemark quarantine clicks"
    )
    assert text in shown
    assert main(["metrics"]) == 0
    printed = capfd.readouterr().out.splitlines()
    assert 'tidemark_table_rows_rejected{table="clicks"} 2' in printed
    assert 'tidemark_table_rows_read{table="clicks"} 100' in printed
    assert 'tidemark_table_max_rejected_ratio{table="clicks"} 0.01' in printed
    assert 'tidemark_table_state{table="clicks",tidemark_table_state="rejecting"} 1' in printed
    assert main(["report", "--output", "report.html"]) == 0
    page = Path("report.html").read_text()
    assert '<span class="rejecting">rejecting</span>' in page
    assert "2 of 100 rows of the last 24 hours" in page


@pytest.mark.usefixtures("place")
def test_1_of_100_lines_is_within_the_limit(capfd: pytest.CaptureFixture[str]) -> None:
    ingest(capfd, "a.ndjson", 99 * GOOD + BAD)
    found = status_of(capfd, code=0)
    assert (found["status"], found["rejections"]["share"], found["rejections"]["reasons"]) == ("ok", 0.01, {})


def test_the_declaration_sets_the_limit(place: Path, capfd: pytest.CaptureFixture[str]) -> None:
    declare(place, ", max_rejected: 0.5")
    ingest(capfd, "a.ndjson", GOOD + BAD)
    assert status_of(capfd, code=0)["rejections"]["max_rejected"] == 0.5
    assert Table.open("clicks").describe()["settings"]["landing.max_rejected"] == 0.5  # type: ignore[index]  # a mapping
    declare(place, ", max_rejected: 0")
    assert main(["init", "clicks"]) == 0
    assert status_of(capfd, code=7)["status"] == "rejecting"
    for wrong in ("2", "-1", "many", "nan", "true"):
        declare(place, f", max_rejected: {wrong}")
        with pytest.raises(InvalidInput, match=r"max_rejected"):
            load(place / "tables" / "clicks.yaml")


@pytest.mark.dagster
def test_the_check_of_the_asset_fails_as_an_error_above_the_limit_and_warns_below(
    place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from dagster import AssetCheckSeverity

    from assets.checks import check_quarantine
    from assets.metadata import metadata_of

    report = ingest(capfd, "a.ndjson", 98 * GOOD + 2 * BAD)
    declared = load(place / "tables" / "clicks.yaml")
    found = check_quarantine(declared, report)
    assert (found.passed, found.severity) == (False, AssetCheckSeverity.ERROR)
    assert (found.description or "").startswith("2 of 100 rows of the last 24 hours were rejected (2 %)")
    assert (found.description or "").endswith("tidemark quarantine clicks")
    counted = {name: found.metadata[name].value for name in ("rejected", "rows_rejected", "rows_in")}
    assert counted == {"rejected": 2, "rows_rejected": 2, "rows_in": 100}
    assert metadata_of(report)["rows_rejected"].value == 2
    ingest(capfd, "b.ndjson", 200 * GOOD)
    found = check_quarantine(declared, ingest(capfd, "c.ndjson", GOOD))
    assert (found.passed, found.severity) == (False, AssetCheckSeverity.WARN), "the lines are still in quarantine"


# Tests of the share of rejected rows in the last 24 hours.


def test_commits_of_ingest_and_distribution_count_and_others_do_not(log: Log) -> None:
    log.reject("a", "r")
    log.commit(rows_in=50, rows_out=49, rows_rejected=1)
    log.commit("DISTRIBUTE", rows_in=50, rows_out=47, rows_rejected=1, rows_late_dropped=2)
    log.commit("DISTRIBUTE", rows_out=9, rejected=1)  # an older release wrote this commit
    log.commit("COMPACT", rows_in=1000, rows_out=1000, rows_rejected=5)
    log.commit(rows_in="many", rows_out=None, rows_rejected=-3)
    found = measure_rejections(log.store, log.log.snapshot(), now_ms=log.clock.now)
    assert (found.rows_in, found.rows_out, found.rows_rejected, found.rows_late_dropped) == (110, 105, 3, 2)
    assert (found.share, found.is_above, found.is_partial) == (3 / 110, True, False)


def test_the_names_of_drift_come_from_the_commits_of_a_day_and_other_values_are_left_out(log: Log) -> None:
    log.reject("a", "r")
    log.commit(drifted=["column old"])
    log.commit(after_ms=DAY_MS, rows_out=1, drifted=["field b", 5, None, "x" * 500])
    log.commit(drifted="field c")
    log.commit(drifted=["column a\x1b", "field b"])
    found = measure_rejections(log.store, log.log.snapshot(), now_ms=log.clock.now).drifted
    assert found == ("column a\\x1b", "field b", "x" * 119 + "…")
    for number in range(30):
        log.commit(drifted=[f"field {number}-{each}" for each in range(50)])
    found = measure_rejections(log.store, log.log.snapshot(), now_ms=log.clock.now).drifted
    assert len(found) == MOST_DRIFTED
    assert {each.partition("-")[0] for each in found} == {"field 29", "field 28"}


def test_late_rows_do_not_count_as_rejected(log: Log) -> None:
    log.reject("a", "r")
    log.commit(rows_in=1000, rows_out=99, rows_rejected=1, rows_late_quarantined=900)
    assert log.state() is State.OK


def test_a_run_of_one_window_that_reads_a_file_again_does_not_lower_the_share(log: Log) -> None:
    log.reject("a", "r")
    log.commit(rows_in=240, rows_out=5, rows_rejected=5)
    for _ in range(23):
        log.commit(rows_in=240, rows_out=10)
    found = measure_rejections(log.store, log.log.snapshot(), now_ms=log.clock.now)
    assert (found.rows_in, found.rows_rejected, found.is_above) == (470, 5, True)


def test_clean_runs_of_a_day_end_the_state(log: Log) -> None:
    log.reject("a", "r")
    log.commit(rows_in=100, rows_out=98, rows_rejected=2)
    states = []
    for _ in range(25):
        states.append(log.state())
        log.commit(after_ms=HOUR_MS, rows_in=1, rows_out=1)
    assert states == [State.REJECTING] * 24 + [State.OK]


def test_a_day_ends_exactly_24_hours_after_the_commit(log: Log) -> None:
    log.reject("a", "r")
    log.commit(rows_in=100, rows_out=98, rows_rejected=2)
    log.clock.now += DAY_MS - 1
    assert log.state() is State.REJECTING
    log.clock.now += 1
    assert log.state() is State.OK


def test_an_empty_quarantine_ends_the_state_and_costs_no_request(log: Log) -> None:
    log.commit(rows_in=100, rows_out=98, rows_rejected=2)
    asked = MeteredStore(log.store)
    assert status(asked, log.log.snapshot(), now_ms=log.clock.now).rejections is None
    assert asked.requests["get"] == 0
    log.reject("a", "r")
    assert log.state() is State.REJECTING


def test_a_table_that_is_behind_and_rejects_is_behind_and_shows_both(log: Log) -> None:
    log.reject("a", "r")
    log.commit(rows_in=2, rows_rejected=2)
    log.clock.now += 2 * HOUR_MS
    found = collect_status(StatusTarget(name="t", uri=log.store.uri, freshness_ms=HOUR_MS), log.clock)
    assert found.state is State.BEHIND
    assert found.is_rejecting


def test_counts_of_more_than_1000_entries_are_exact_and_the_newest_entries_give_the_reasons(log: Log) -> None:
    for number in range(1_005):
        log.store.put(quarantine_key(f"a{number:04}", str(uuid.UUID(int=number))), b"", Overwrite())
    log.commit(rows_in=2_010, rows_out=1_005, rows_rejected=1_005)
    log.reject("z", *["unknown field 'country'"] * 5_000)
    log.commit(rows_in=5_000, rows_rejected=5_000)
    found = collect_status(StatusTarget(name="t", uri=log.store.uri), log.clock).status
    assert found is not None
    assert found.rejections is not None
    assert (found.rejections.rows_in, found.rejections.rows_rejected) == (7_010, 6_005)
    assert found.rejections.reasons == {"unknown field 'country'": 5_000}


def test_a_bounded_number_of_versions_and_entries_is_read(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        log.reject(f"a{number}", "r")
        log.commit(rows_in=10, rows_out=9, rows_rejected=1)
    whole = measure_rejections(log.store, log.log.snapshot(), now_ms=log.clock.now)
    assert (whole.rows_rejected, whole.is_partial) == (30, False)
    monkeypatch.setattr(rejections, "MOST_COMMITS", 10)
    monkeypatch.setattr(rejections, "MOST_ENTRIES_READ", 5)
    asked = MeteredStore(log.store)
    found = measure_rejections(asked, log.log.snapshot(), now_ms=log.clock.now)
    assert (found.rows_in, found.rows_rejected, found.is_partial) == (100, 10, True)
    assert asked.requests["get"] == 15
    assert asked.requests["list"] == 1
    assert found.reasons == {"r": 5}


def test_the_text_has_three_reasons_and_no_control_characters(log: Log) -> None:
    reasons = ["a"] * 4 + ["b\x1b[31m"] * 3 + ["c" * 500] * 2 + ["d"]
    log.reject("a", *reasons)
    log.commit(rows_in=3_000, rows_out=2_990, rows_rejected=10)
    assert log.state() is State.OK
    log.table.alter({"landing.max_rejected": 0.001})
    found = measure_rejections(log.store, log.log.snapshot(), now_ms=log.clock.now)
    text = rejection_text(found, "t")
    assert "10 of 3,000 rows of the last 24 hours were rejected (0.333 %). The limit is 0.1 %." in text
    assert list(found.reasons.values()) == [4, 3, 2]
    assert "\x1b" not in text
    assert len(text) < 700


@pytest.mark.parametrize("value", [0.0, 1.0, 0.25])
def test_the_setting_is_stored_only_if_it_differs_from_the_default(value: float) -> None:
    table = Table.create(f"memory://share-{uuid.uuid4()}", SCHEMA)
    assert "tidemark.maxRejected" not in table.snapshot.metadata.configuration
    table.alter({"landing": {"max_rejected": value}})
    assert Table.open(table.uri).config.max_rejected == value
    table.alter({"landing.max_rejected": None})
    assert "tidemark.maxRejected" not in table.snapshot.metadata.configuration
