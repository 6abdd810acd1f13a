"""What `dagster definitions validate` makes of declarations that are not sound."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from storage_core.errors import InvalidInput

pytestmark = pytest.mark.dagster


def test_dagster_validates_nothing_while_a_file_is_left_out(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (checkout / "tables" / "broken.yaml").write_text("name: broken\nuri: warehouse/broken\ncolumns:\n  a: strin\n")

    runpy.run_module("pipelines.definitions")  # as a daemon loads them
    monkeypatch.setenv("DAGSTER_IS_DEFS_VALIDATION_CLI", "1")  # as `dagster definitions validate` does
    with pytest.raises(InvalidInput, match=r"tables/broken.yaml:4: field `columns.a"):
        runpy.run_module("pipelines.definitions")
