"""Which steps Dagster tries again: those that the store failed, and no step whose data did."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from dagster import DagsterInstance, Failure, RetryPolicy, materialize

from assets import factory
from assets.factory import asset_key, build_table_assets
from assets.launcher import LAUNCHER, Context, InProcessLauncher, JobName, Report, Request
from jobs.spark.spark import Spark
from pipelines.catalog import build_definitions
from pipelines.raw_logs import read_raw_logs
from pipelines.tables import load_tables
from storage_core.declaration import load
from storage_core.errors import InvalidInput
from tidemark import Table
from tidemark.io_manager.failures import RETRIES, shown

pytestmark = pytest.mark.dagster


class FailsFirst:
    """A launcher whose first jobs end with errors of these kinds, before they have done anything."""

    def __init__(self, *kinds: str) -> None:
        self.kinds = list(kinds)
        self._others = InProcessLauncher(Spark("local[1]"))  # which is not started for what needs none

    def submit(self, context: Context, job: JobName, request: Request) -> Report:
        if self.kinds:
            raise Failure(**shown(self.kinds.pop(0), "as the test wants it"))
        return self._others.submit(context, job, request)


@pytest.mark.parametrize(("kinds", "retries"), [(["unavailable", "held"], 2), (["corrupt"], 0), ([], 0)])
def test_a_step_is_tried_again_where_its_error_may_pass(
    kinds: list[str], retries: int, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(factory, "RETRIES", RetryPolicy(max_retries=RETRIES.max_retries))  # without the delay
    declaration = load(checkout / "tables" / "departures.yaml")
    Table.declare(declaration)

    with DagsterInstance.ephemeral() as instance:
        result = materialize(
            build_table_assets(declaration),
            selection=[asset_key("departures", "checkpointed")],
            resources={LAUNCHER: FailsFirst(*kinds)},
            instance=instance,
            raise_on_error=False,
        )

    assert result.success is (kinds != ["corrupt"])
    assert sum(event.is_step_up_for_retry for event in result.all_events) == retries


def test_every_step_has_the_policy_of_retries(checkout: Path) -> None:
    (checkout / "raw_logs").mkdir()
    (checkout / "raw_logs" / "fleet.yaml").write_text(
        "name: fleet\nstores:\n  - uri: warehouse/fleet\ntables: [planes]\n"
    )
    declared = load_tables(checkout / "tables")
    raw_logs = read_raw_logs(checkout / "tables")
    assert len(raw_logs.raw_logs) == 1, raw_logs.problems

    graph = build_definitions(declared, FailsFirst(), raw_logs=raw_logs, catalog=True).get_repository_def()

    for each in graph.assets_defs_by_key.values():
        if each.is_executable and each.keys:
            assert each.op.retry_policy == RETRIES, each.keys


def test_dagster_validates_nothing_while_a_file_is_left_out(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (checkout / "tables" / "broken.yaml").write_text("name: broken\nuri: warehouse/broken\ncolumns:\n  a: strin\n")

    runpy.run_module("pipelines.definitions")  # as a daemon loads them
    monkeypatch.setenv("DAGSTER_IS_DEFS_VALIDATION_CLI", "1")  # as `dagster definitions validate` does
    with pytest.raises(InvalidInput, match=r"tables/broken.yaml:4: field `columns.a"):
        runpy.run_module("pipelines.definitions")
