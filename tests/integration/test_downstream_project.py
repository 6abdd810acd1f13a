"""The example project on a real instance. Two assets are downstream of a table, and run by partition and by range."""

from __future__ import annotations

import datetime as dt
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from dagster import AssetKey, DagsterInstance, Definitions, define_asset_job

from assets.run_tags import RANGE_END, RANGE_START
from tidemark import Table
from tidemark.dagster import TableComponent

# The function that Dagster calls to read a `defs.yaml`.
pytestmark = [pytest.mark.dagster, pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated:DeprecationWarning")]

PROJECT = Path(__file__).resolve().parents[2] / "examples" / "downstream"


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    return tmp_path / "warehouse"


@pytest.fixture
def project(warehouse: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Definitions]:
    """Load the project as `dagster dev` does, with its tables in the warehouse and jobs for its two assets."""
    monkeypatch.setenv("WAREHOUSE", str(warehouse))
    loaded = importlib.import_module("examples.downstream.definitions").defs()
    jobs = [define_asset_job("both", ["visits", "visitors"]), define_asset_job("visits_only", "visits")]
    yield Definitions.merge(loaded, Definitions(jobs=[*jobs, define_asset_job("visitors_only", "visitors")]))
    for name in [each for each in sys.modules if each.startswith("examples.downstream")]:
        del sys.modules[name]


def click(day: int, hour: int, visitor: str, ms: int) -> dict[str, object]:
    return {"time": dt.datetime(2026, 1, day, hour, tzinfo=dt.UTC), "visitor": visitor, "url": "/", "ms": ms}


def rows_of(place: Path) -> list[Any]:
    found: pa.Table = Table.open(str(place)).scan(consistency="latest").to_arrow()
    return sorted((tuple(each.values()) for each in found.to_pylist()), key=str)


def test_two_assets_downstream_of_a_table_follow_it_by_partition_and_by_range(
    project: Definitions, instance: DagsterInstance, warehouse: Path
) -> None:
    def run(job: str, *, partition: str | None = None, between: tuple[str, str] | None = None) -> None:
        tags = {RANGE_START: between[0], RANGE_END: between[1]} if between else {}
        resolved = project.resolve_job_def(job)
        assert resolved.execute_in_process(instance=instance, partition_key=partition, tags=tags).success

    clicks = _clicks(warehouse)
    clicks.append([click(1, 9, "ada", 5), click(1, 23, "ada", 7), click(2, 0, "bob", 1), click(3, 12, "ada", 2)])
    day = [dt.datetime(2026, 1, number, tzinfo=dt.UTC) for number in range(1, 4)]

    run("visits_only", partition="2026-01-01")
    assert rows_of(warehouse / "visits") == [(day[0], "ada", 2, 12)]
    run("visits_only", between=("2026-01-01", "2026-01-03"))
    every = [(day[0], "ada", 2, 12), (day[1], "bob", 1, 1), (day[2], "ada", 1, 2)]
    assert rows_of(warehouse / "visits") == every
    run("visitors_only")
    assert rows_of(warehouse / "visitors") == [("ada", 2, 3), ("bob", 1, 1)]

    run("tidemark_checkpoint")  # in its own process, as every maintenance job
    assert Table.open(clicks.uri).snapshot.checkpoint_version is not None

    clicks.append([click(2, 5, "eve", 9)])
    run("visits_only", partition="2026-01-02")
    run("visitors_only")
    assert rows_of(warehouse / "visits") == sorted([*every, (day[1], "eve", 1, 9)], key=str)
    assert rows_of(warehouse / "visitors") == [("ada", 2, 3), ("bob", 1, 1), ("eve", 1, 1)]
    assert instance.get_materialized_partitions(AssetKey("visits")) == {f"2026-01-0{number}" for number in (1, 2, 3)}


def _clicks(warehouse: Path) -> Table:
    """Make the table with the declaration of its component."""
    attributes = yaml.safe_load((PROJECT / "defs" / "clicks" / "defs.yaml").read_text())["attributes"]
    return Table.declare(TableComponent(**attributes | {"uri": str(warehouse / "clicks")}).declaration)
