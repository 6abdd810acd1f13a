"""The output of `dagster definitions validate` for invalid declarations."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from pipelines.cli import main
from storage_core.base.errors import InvalidInput

pytestmark = pytest.mark.dagster


def test_dagster_validates_nothing_while_a_file_is_left_out(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (checkout / "tables" / "broken.yaml").write_text("name: broken\nuri: warehouse/broken\ncolumns:\n  a: strin\n")

    runpy.run_module("pipelines.definitions")  # a daemon loads the definitions in the same way
    monkeypatch.setenv("DAGSTER_IS_DEFS_VALIDATION_CLI", "1")  # `dagster definitions validate` sets this variable
    with pytest.raises(InvalidInput, match=r"tables/broken.yaml:4: field `columns.a"):
        runpy.run_module("pipelines.definitions")


@pytest.mark.parametrize("file", ["automation.yaml", "upkeep.yaml", "alerts.yaml"])
def test_dagster_and_tables_name_a_file_of_all_tables_that_is_not_sound(
    checkout: Path, file: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (checkout / file).write_text("runs_at_one: 4\n")
    monkeypatch.setenv("DAGSTER_IS_DEFS_VALIDATION_CLI", "1")
    with pytest.raises(InvalidInput, match=rf"{file}:1: unknown field `runs_at_one`"):
        runpy.run_module("pipelines.definitions")
    assert main(["tables"]) == 2
    said = capfd.readouterr()
    assert "access_log" in said.out
    assert f"{file}:1: unknown field `runs_at_one`" in said.err
