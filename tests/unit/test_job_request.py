"""Which windows a job is asked for, and what it is told when there are none such."""

from __future__ import annotations

import pytest

from jobs.requests.request import JobRequest, parse, parser, to_argv
from jobs.requests.window_range import WindowRange, window_name, window_range
from jobs.running.shared_place import require_shared
from pipelines.commands.arguments import duration_ms
from storage_core.compaction.policy import Mode
from storage_core.errors import InvalidInput

HOUR = 3600
TEN = 1767261600  # 2026-01-01T10:00


def test_a_window_is_named_by_its_start() -> None:
    wanted = window_range("2026-01-01T10:00")
    wanted.require_fits(HOUR)
    assert wanted.select({TEN, TEN + HOUR, None}) == {TEN}
    assert [window_name(each) for each in (TEN, TEN + 7, None)] == ["2026-01-01T10:00", "2026-01-01T10:00:07", "null"]


@pytest.mark.parametrize("text", ["2026-01-01T10:07", str(TEN + 420), "2026-01-01T11:07+01:00"])
def test_a_time_inside_a_window_is_refused_with_the_window_that_holds_it(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"starts at 2026-01-01T10:07; .* is 2026-01-01T10:00: windows"):
        window_range(text).require_fits(HOUR)


def test_bounds_may_be_any_times_and_all_windows_need_none() -> None:
    for wanted in (window_range(None, "2026-01-01T10:07", "2026-01-01T12:00"), WindowRange(), window_range("null")):
        wanted.require_fits(HOUR)
    assert window_range(None, "2026-01-01T10:07").select({TEN, TEN + HOUR}) == {TEN + HOUR}


def test_a_table_without_windows_has_none_to_ask_for() -> None:
    for wanted in (window_range(str(TEN)), window_range(None, str(TEN))):
        with pytest.raises(InvalidInput, match="the table has no windows"):
            wanted.require_fits(None)
    WindowRange().require_fits(None)


def test_nothing_is_a_duration_without_a_unit_and_every_other_needs_one() -> None:
    assert [duration_ms("--horizon", text) for text in ("0", "0s", "90m", None)] == [0, 0, 5_400_000, None]
    for text in ("5", "00", "-0", ""):
        with pytest.raises(InvalidInput, match="--horizon"):
            duration_ms("--horizon", text)


@pytest.mark.parametrize(
    "request_",
    [
        JobRequest(table_uri="t"),
        JobRequest(
            table_uri="t",
            windows=WindowRange(TEN, TEN + HOUR),
            index="words",
            declaration="tables/a b.yaml",
            dry_run=True,
            horizon_ms=0,
            run_id="run",
            master="local[1]",
            wait_ms=1,
            mode=Mode.POLICY,
            quarantine=True,
            compact_state=True,
        ),
        JobRequest(table_uri="-t", index="finalize", windows=WindowRange(null_only=True)),
    ],
    ids=["defaults", "all", "odd"],
)
def test_a_request_travels_as_arguments(request_: JobRequest) -> None:
    assert parse(parser("merge", "").parse_args(to_argv(request_))) == request_


def test_a_place_in_the_memory_of_one_process_is_refused_for_jobs() -> None:
    assert require_shared("file:///lake/t") == "file:///lake/t"
    with pytest.raises(InvalidInput, match="memory://t: what is in memory lives in one process"):
        require_shared("memory://t")
