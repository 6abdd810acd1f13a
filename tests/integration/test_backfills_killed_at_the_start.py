"""If runs are killed while Dagster writes the list of their partitions, `--failed` selects all their windows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from dagster import AssetKey, AssetMaterialization, DagsterInstance, DagsterRun, DagsterRunStatus
from dagster._core.events import AssetMaterializationPlannedData, DagsterEvent

from assets.run_tags import PARTITION, TABLE
from pipelines.instance import home, open_instance
from pipelines.jobs import BACKFILL
from pipelines.runs import range_tags, unfinished
from storage_core.base.errors import Held

pytestmark = pytest.mark.dagster

KEY = AssetKey(["ticks", "compacted"])
HOURS = [f"2015-05-01T{hour:02}:00" for hour in range(6)]


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[DagsterInstance]:
    with open_instance(home(tmp_path, {})) as opened:
        yield opened


def begun(instance: DagsterInstance, tags: dict[str, str], planned: list[str]) -> DagsterRun:
    """Store a started backfill run for which Dagster has planned only the partitions in `planned`."""
    run = DagsterRun(
        job_name=BACKFILL,
        status=DagsterRunStatus.STARTED,
        tags={TABLE: "ticks", **tags},
        asset_selection=frozenset([KEY]),
    )
    instance.add_run(run)
    for name in planned:
        data = AssetMaterializationPlannedData(KEY, partition=name)
        event = DagsterEvent.build_asset_materialization_planned_event(BACKFILL, "ticks__compacted", data)
        instance.report_dagster_event(event, run.run_id)
    return run


def test_windows_that_dagster_had_not_written_down_yet_are_among_them_until_they_are_done(
    instance: DagsterInstance,
) -> None:
    before = begun(instance, range_tags(HOURS[0], HOURS[5]), HOURS)
    instance.report_run_failed(before, "long ago")
    for name in HOURS:
        instance.report_runless_asset_event(AssetMaterialization(KEY, partition=name))
    assert unfinished(instance, [KEY], HOURS) == set()

    killed = begun(instance, range_tags(HOURS[1], HOURS[4]), HOURS[1:2])
    with pytest.raises(Held, match=f"the run {killed.run_id} .* works on"):
        unfinished(instance, [KEY], HOURS[2:])
    assert unfinished(instance, [KEY], HOURS[5:]) == set()
    instance.report_run_failed(killed, "it was killed")
    assert unfinished(instance, [KEY], HOURS) == set(HOURS[1:5])

    instance.report_runless_asset_event(AssetMaterialization(KEY, partition=HOURS[3]))
    assert unfinished(instance, [KEY], HOURS) == {HOURS[1], HOURS[2], HOURS[4]}


def test_a_run_of_one_window_of_which_nothing_was_written_down_is_one_of_them(instance: DagsterInstance) -> None:
    killed = begun(instance, {PARTITION: HOURS[2]}, [])
    instance.report_run_failed(killed, "it was killed")
    assert unfinished(instance, [KEY], HOURS) == {HOURS[2]}
