"""The benchmarks start and print what `make bench` reads; how fast they are is not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
FIELDS = {"name", "value", "unit", "against", "ratio", "aim", "holds"}


@pytest.mark.spark
def test_the_small_benchmark_of_ingest_and_compaction_prints_one_figure_per_line() -> None:
    command = [sys.executable, "-m", "benchmarks.ingest_and_compact", "--small", "--json"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert finished.returncode == 0, finished.stderr
    figures = [json.loads(line) for line in finished.stdout.splitlines()]
    assert {frozenset(figure) for figure in figures} == {frozenset(FIELDS)}
    assert len({figure["name"] for figure in figures}) == len(figures)
    for step in ("ingest", "compaction"):
        assert any(figure["name"].startswith(step) and figure["against"] == "plain Spark" for figure in figures)
    for figure in figures:
        assert figure["value"] > 0
        assert figure["unit"]
        assert (figure["ratio"] is None) == (figure["against"] is None)
        judged = figure["aim"] is not None and figure["ratio"] is not None
        assert figure["holds"] == (figure["ratio"] >= figure["aim"] if judged else None)
