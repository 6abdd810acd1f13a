"""Dagster asset checks of the invariants.

The checks cover the last compaction after each run, and the whole table on demand.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from dagster import AssetCheckEvaluation, DagsterInstance, Definitions

from assets.checks import AUDITED
from assets.launcher import InProcessLauncher, PipesLauncher
from assets.run_tags import AUDIT_TAG
from jobs.spark.spark import Spark
from pipelines.catalog import build_definitions
from pipelines.tables import read_tables
from storage_core.base.clock import SystemIds
from storage_core.change.declaration import load
from storage_core.compact.execute import execute
from storage_core.log.actions import Remove
from tests.support.merge_plan import plan
from tidemark import Table

pytestmark = pytest.mark.dagster

START = dt.datetime(2015, 5, 17, tzinfo=dt.UTC)
DECLARATION = """
name: logs
uri: {uri}
columns: {{timestamp: timestamp!, service: string}}
sort_schema: service|timestamp/V2
time_column: timestamp
window: 1h
"""
SOUND = dict.fromkeys((name for name, _ in AUDITED.values()), True)


@pytest.fixture
def declared(tmp_path: Path) -> Path:
    folder = tmp_path / "tables"
    folder.mkdir()
    (folder / "logs.yaml").write_text(DECLARATION.format(uri=tmp_path / "warehouse" / "logs"))
    return folder


@pytest.fixture
def definitions(declared: Path) -> Definitions:
    return build_definitions(read_tables(declared), InProcessLauncher(Spark()))


@pytest.fixture
def table(declared: Path) -> Table:
    return Table.declare(load(declared / "logs.yaml"))


def append(table: Table) -> None:
    for number in range(2):
        table.append([{"timestamp": START + dt.timedelta(minutes=number), "service": f"s{number}"}])


def compact(table: Table, *, losing: bool = False) -> None:
    """Compact the table with the same plan, execution and commit as a job. If `losing` is True, drop all rows."""
    for operation in plan(table.refresh().snapshot):
        result = execute(table.store, operation, ids=SystemIds(), now_ms=1)
        kept = [each for each in result.actions if isinstance(each, Remove) or not losing]
        table.log.commit(table.refresh().snapshot, kept, operation="COMPACT")


def checked(definitions: Definitions, **tags: str) -> dict[str, AssetCheckEvaluation]:
    with DagsterInstance.ephemeral() as instance:
        done = definitions.resolve_job_def("check").execute_in_process(instance=instance, tags=tags)
    return {each.check_name: each for each in done.get_asset_check_evaluations()}


def verdicts(found: dict[str, AssetCheckEvaluation]) -> dict[str, bool]:
    return {name: each.passed for name, each in found.items()}


def test_the_checks_of_a_sound_table_pass_and_say_what_they_looked_at(definitions: Definitions, table: Table) -> None:
    append(table)
    compact(table)
    found = checked(definitions)
    assert verdicts(found) == SOUND
    for each in found.values():
        metrics = {name: value.value for name, value in each.metadata.items()}
        assert metrics == {"violated": {}, "first": [], "splits": 1, "merges": 1, "not_checkable": 0}


def test_a_table_that_is_not_there_yet_passes(definitions: Definitions) -> None:
    assert verdicts(checked(definitions)) == SOUND


def test_a_violation_fails_the_check_of_its_group(definitions: Definitions, table: Table) -> None:
    append(table)
    compact(table, losing=True)
    found = checked(definitions)
    assert verdicts(found) == {**SOUND, "mc_merges": False}
    assert str(found["mc_merges"].description).startswith("MC-1")
    assert "run tidemark restore NAME --to V" in str(found["mc_merges"].description)
    metadata = found["mc_merges"].metadata
    assert metadata["violated"].value == {"MC-1": 1}
    named: Any = metadata["first"].value
    assert [(each["invariant"], each["version"]) for each in named] == [("MC-1", table.refresh().version)]


def test_the_audit_runs_in_a_process_of_its_own(declared: Path, table: Table) -> None:
    append(table)
    compact(table, losing=True)
    found = checked(build_definitions(read_tables(declared), PipesLauncher(Path(__file__).resolve().parents[2])))
    assert verdicts(found) == {**SOUND, "mc_merges": False}


def test_after_a_run_only_its_own_compaction_is_looked_at(definitions: Definitions, table: Table) -> None:
    append(table)
    compact(table, losing=True)
    append(table)
    compact(table)
    assert verdicts(checked(definitions, **{AUDIT_TAG: "last"})) == SOUND
    assert verdicts(checked(definitions)) == {**SOUND, "mc_merges": False}
