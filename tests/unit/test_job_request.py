"""The arguments of a job select windows. Tests cover windows, bounds, durations, and tables without windows."""

from __future__ import annotations

import pytest

from jobs.command import from_arguments, to_arguments
from pipelines.commands.arguments import duration_ms
from storage_core.base.errors import InvalidInput
from storage_core.data.rows.window_range import WindowRange, window_name, window_range
from storage_core.data.settings.layout import Mode
from storage_core.data.steps import (
    STEPS,
    Audit,
    CatchUp,
    Checkpoint,
    Collect,
    CollectRaw,
    Compact,
    Distribute,
    Expire,
    Forget,
    HealRaw,
    Ingest,
    Merge,
    Publish,
    RefreshCatalog,
    RunOptions,
    Sort,
    Step,
    described,
    step_of,
)
from storage_core.log.job_run import require_shared

HOUR = 3600
TEN = 1767261600  # 2026-01-01T10:00


def test_a_window_is_named_by_its_start() -> None:
    wanted = window_range("2026-01-01T10:00")
    wanted.require_fits(HOUR)
    assert wanted.select({TEN, TEN + HOUR, None}) == {TEN}
    assert [window_name(each) for each in (TEN, TEN + 7, None)] == ["2026-01-01T10:00", "2026-01-01T10:00:07", "null"]


@pytest.mark.parametrize("text", ["2026-01-01T10:07", str(TEN + 420), "2026-01-01T11:07+01:00"])
def test_a_time_inside_a_window_is_refused_with_the_window_that_holds_it(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"starts at 2026-01-01T10:07. .* Give 2026-01-01T10:00, the window"):
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
    "options",
    [
        Merge(table_uri="t"),
        Ingest(table_uri="t", windows=WindowRange(TEN, TEN + HOUR), declaration="tables/a b.yaml", dry_run=True),
        Compact(table_uri="t", mode=Mode.POLICY, windows=WindowRange(TEN, TEN + HOUR), most_bytes=1, by_window=True),
        Collect(table_uri="t", horizon_ms=0, run_id="run", master="local[1]", wait_ms=1),
        Merge(table_uri="t", quarantine=True),
        Checkpoint(table_uri="t", compact_state=True),
        CatchUp(table_uri="-t", index="finalize", retrain=True),
        Compact(table_uri="-t", windows=WindowRange(null_only=True)),
        Audit(table_uri="t", commits=2),
        Forget(table_uri="t", where="a = '--x'", raw_logs=("a", "b=c"), report=True),
        Distribute(raw_log="r", tables=("a", "b"), root="x", skip_gaps=("w:1", "v:2"), dry_run=True),
        HealRaw(raw_log="r", verify=True),
        CollectRaw(raw_log="r", horizon_ms=0),
        RefreshCatalog(tables=("a=b=c",), url="sqlite:///x"),
        *(Sort(table_uri="t"), Expire(table_uri="t", dry_run=True), Publish(table_uri="t")),
    ],
    ids=lambda options: step_of(options).name,
)
def test_options_travel_as_arguments(options: RunOptions) -> None:
    assert from_arguments(step_of(options).name, to_arguments(options)) == options


@pytest.mark.parametrize("step", STEPS.values(), ids=lambda step: step.name)
def test_every_option_is_explained(step: Step) -> None:
    for each in described(step.options):
        assert each.about.help.endswith("."), each.name


def test_a_step_takes_no_option_of_another() -> None:
    with pytest.raises(SystemExit):
        from_arguments("sort", ["--table-uri", "t", "--quarantine"])


def test_a_place_in_the_memory_of_one_process_is_refused_for_jobs() -> None:
    assert require_shared("file:///lake/t") == "file:///lake/t"
    with pytest.raises(InvalidInput, match="memory://t: Spark tasks cannot see a store in the memory"):
        require_shared("memory://t")
