"""Helpers that format lists in the texts of run reports and errors."""

from __future__ import annotations

from storage_core.base.text import MOST_LISTED, first_of, listed
from storage_core.log.job_run import JobReport, Metrics


def test_an_error_names_the_first_and_counts_the_others() -> None:
    assert listed([None, 3600]) == "None, 3600"
    names = list(range(MOST_LISTED + 2))
    assert listed(names[:MOST_LISTED]).endswith(f", {MOST_LISTED - 1}")
    assert listed(names).endswith(f", {MOST_LISTED - 1}, and 2 more")


def test_a_list_is_shortened_only_when_it_is_longer() -> None:
    assert first_of([1, 2], 2) == [1, 2]
    assert first_of([1, 2, 3], 2) == [1, 2, "and 1 more"]


def test_a_text_leaves_out_what_is_nothing_and_shows_no_brackets_of_python() -> None:
    late = {"accepted": 0, "dropped": 2}
    details = {
        "tables": {"clicks": {"version": 1, "rows": 4_000, "rejected": {}, "late": late}, "idle": {"rows": 0}},
        "rejected_reasons": {"not a valid timestamp": 1},
        "horizon_ms": 86_400_000,
        "keys": ["a", "b"],
    }
    found = JobReport(job="distribute", status="committed", version=0, requests={"put": 1, "get": 0}, details=details)
    assert found.to_text().splitlines() == [
        "distribute: committed (0.0 s)",
        "  ran: driver",
        "  requests: put 1",
        "  tables: clicks (version 1, rows 4,000, late (dropped 2))",
        "  rejected_reasons: not a valid timestamp 1",
        "  horizon_ms: 86,400,000",
    ]


def test_a_plan_tells_of_its_input_only() -> None:
    planned = JobReport(job="compact", status="planned", version=1_234, metrics=Metrics(rows_in=1_010, splits_in=4))
    assert planned.to_text().splitlines() == [
        "compact: planned (version 1,234, 0.0 s)",
        "  rows           1,010",
        "  splits             4",
    ]
    both = Metrics(rows_in=1_010, rows_out=1_010, splits_in=4, splits_out=2)
    done = JobReport(job="compact", status="committed", version=2, metrics=both)
    assert done.to_text().splitlines()[1:3] == ["  rows           1,010 -> 1,010", "  splits             4 -> 2"]


def test_reasons_that_hold_commas_are_a_line_each() -> None:
    reasons = {"column a: expected int, found 'x'": 1_200, "not JSON, an array": 1}
    found = JobReport(job="ingest", status="committed", version=0, details={"rejected_reasons": reasons})
    assert found.to_text().splitlines()[1:] == [
        "  ran: driver",
        "  rejected_reasons: ",
        "         1,200  column a: expected int, found 'x'",
        "             1  not JSON, an array",
    ]
