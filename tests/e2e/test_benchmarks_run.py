"""The benchmarks start and print what `make bench` reads; how fast they are is not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
FIELDS = {"name", "value", "unit", "against", "ratio", "aim", "holds"}


def _figures(name: str) -> list[dict[str, Any]]:
    """Run the small form of a benchmark and return its figures, each with all fields and a name of its own."""
    command = [sys.executable, "-m", f"benchmarks.{name}", "--small", "--json"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert finished.returncode == 0, finished.stderr
    figures: list[dict[str, Any]] = [json.loads(line) for line in finished.stdout.splitlines()]
    assert {frozenset(figure) for figure in figures} == {frozenset(FIELDS)}
    assert len({figure["name"] for figure in figures}) == len(figures)
    for figure in figures:
        assert figure["value"] > 0
        assert figure["unit"]
        assert (figure["ratio"] is None) == (figure["against"] is None)
        judged = figure["aim"] is not None and figure["ratio"] is not None
        assert figure["holds"] == (figure["ratio"] >= figure["aim"] if judged else None)
    return figures


@pytest.mark.spark
def test_the_small_benchmark_of_ingest_and_compaction_prints_one_figure_per_line() -> None:
    figures = _figures("ingest_and_compact")
    for step in ("ingest", "compaction"):
        assert any(figure["name"].startswith(step) and figure["against"] == "plain Spark" for figure in figures)


def test_the_small_benchmark_of_the_log_prints_each_step_against_its_peers() -> None:
    figures = _figures("log_at_scale")
    assert {figure["against"] for figure in figures} == {"delta-rs", "JSON checkpoint", "50 ms", "writing all of it"}
    for step in ("open 5,000 files", "open and find", "open and commit", "checkpoint of"):
        assert any(figure["name"].startswith(step) for figure in figures)


def test_the_small_benchmark_of_compaction_plans_many_splits_and_says_what_opening_them_takes() -> None:
    figures = _figures("compaction_planning")
    case = "10,000 splits in 100 windows"
    for step in ("open", "plan of", "debt of"):
        assert {f"{step} {case}", f"{step} {case}, processor"} <= {figure["name"] for figure in figures}
    assert any(figure["name"] == f"peak memory, {case}" and figure["holds"] for figure in figures)


def test_the_small_benchmark_of_startup_prints_every_command_by_the_clock_and_by_the_processor() -> None:
    figures = _figures("startup")
    for name in ("tm.Table", "tidemark describe", "tidemark sql", "tidemark search", "tidemark get"):
        assert {name, f"{name}, processor"} <= {figure["name"] for figure in figures}


@pytest.mark.spark
def test_the_small_benchmark_of_ingestion_prints_every_part_and_names_a_peer_that_is_not_there() -> None:
    figures = _figures("ingestion")
    parts = ("durable append of 1,000 rows", "sustained durable appends", "writer that 16 threads gave", "get, ")
    for part in (*parts, "replay of", "dealing and merging", "merging 10 generations"):
        assert any(figure["name"].startswith(part) for figure in figures), part
    peers = ("bare fsynced write", "fsynced write under a name", "deltalake append", "deltalake merge")
    for peer in peers:
        assert any(figure["against"] == peer and figure["ratio"] > 0 for figure in figures), peer
    for figure in figures:
        if figure["ratio"] == 0:
            assert "not measured: " in figure["against"]
            assert figure["holds"] is not True


@pytest.mark.spark
def test_the_small_benchmark_of_compaction_prints_every_part_and_names_a_peer_that_is_not_there() -> None:
    figures = _figures("compaction")
    cases = ("16 splits, 8 columns", "16 splits, 60 columns", "64 splits, 8 columns", "compact job")
    for part in (*cases, "flights whole", "weather by window", "access log, read for a status"):
        assert any(figure["name"].startswith(part) for figure in figures), part
    for peer in ("Arrow copy", "DuckDB ORDER BY", "Polars sort", "DataFusion's sort-preserving merge", "Spark sort"):
        assert any(figure["against"] == peer and figure["ratio"] > 0 for figure in figures), peer
    for figure in figures:
        if figure["ratio"] == 0:
            assert "not measured: " in figure["against"]
            assert figure["holds"] is not True


def test_the_small_benchmark_of_the_questions_of_compaction_answers_each() -> None:
    figures = _figures("compaction_questions")
    for strategy in ("packed", "by-column", "k-way"):
        assert any(figure["name"] == f"order of 64 splits, {strategy}" for figure in figures), strategy
    for part in ("64 splits by 4", "pages of 65,536 rows", "a target of 1/8", "a tenth of the hosts null, nulls first"):
        assert any(figure["name"].startswith(part) for figure in figures), part
