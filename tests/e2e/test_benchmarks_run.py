"""The benchmarks start, and print the output that `make bench` reads. No test checks the speed of a benchmark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
FIELDS = {"name", "value", "unit", "against", "ratio", "aim", "holds"}


def _metrics(name: str) -> list[dict[str, Any]]:
    """Return the metrics of a benchmark in its small form. Each metric has all fields and a unique name."""
    command = [sys.executable, "-m", f"benchmarks.{name}", "--small", "--json"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert finished.returncode == 0, finished.stderr
    metrics: list[dict[str, Any]] = [json.loads(line) for line in finished.stdout.splitlines()]
    assert {frozenset(metric) for metric in metrics} == {frozenset(FIELDS)}
    assert len({metric["name"] for metric in metrics}) == len(metrics)
    for metric in metrics:
        assert metric["value"] > 0
        assert metric["unit"]
        assert (metric["ratio"] is None) == (metric["against"] is None)
        judged = metric["aim"] is not None and metric["ratio"] is not None
        assert metric["holds"] == (metric["ratio"] >= metric["aim"] if judged else None)
    return metrics


@pytest.mark.spark
def test_the_small_benchmark_of_ingest_and_compaction_prints_one_metric_per_line() -> None:
    metrics = _metrics("ingest_and_compact")
    for step in ("ingest", "compaction"):
        assert any(metric["name"].startswith(step) and metric["against"] == "plain Spark" for metric in metrics)


@pytest.mark.spark
def test_the_small_benchmark_of_landing_prints_driver_and_spark_beside_their_peers() -> None:
    metrics = {metric["name"]: metric for metric in _metrics("landing")}
    for input_ in ("ndjson files", "ndjson files, dirty", "csv files", "csv files, dirty", "parquet files"):
        kind, _, dirty = input_.partition(", ")
        name = f"6 {kind}, 6,000 rows{', 1 % bad lines' if dirty else ''}"
        for where, against in (("driver", "DuckDB + delta-rs"), ("warm Spark", "plain Spark")):
            for time in ("processor", "wall"):
                assert metrics[f"{name}, {where}, {time}"]["against"].startswith(against)
            assert metrics[f"{name}, {where}, splits"]["holds"]
            assert metrics[f"{name}, {where}, PUTs into the table"]["value"] == 3 + bool(dirty)
    assert "6 ndjson files, 6,000 rows, cold Spark, processor" in metrics


def test_the_small_benchmark_of_the_log_prints_each_step_against_its_peers() -> None:
    metrics = _metrics("log_at_scale")
    assert {metric["against"] for metric in metrics} == {"delta-rs", "JSON checkpoint", "50 ms", "writing all of it"}
    for step in ("open 5,000 files", "open and find", "open and commit", "checkpoint of"):
        assert any(metric["name"].startswith(step) for metric in metrics)


def test_the_small_benchmark_of_progress_prints_what_opening_costs_against_a_young_table() -> None:
    metrics = _metrics("progress")
    compared = {metric["unit"] for metric in metrics if metric["against"] == "after 10"}
    assert compared == {"requests", "bytes", "ms"}


def test_the_small_benchmark_of_announced_files_finds_each_file_once_with_two_requests() -> None:
    """The benchmark fails if a file is not in the table exactly once."""
    counted = {metric["name"]: metric["value"] for metric in _metrics("announced") if metric["unit"] == "requests"}
    assert (counted["requests per file, head"], counted["requests per file, get"]) == (1, 1)
    assert counted["its LISTs"] == 1


def test_the_small_benchmark_of_publishing_prints_what_a_commit_costs_against_a_young_table() -> None:
    compared = {metric["unit"] for metric in _metrics("publishing") if metric["against"] == "after 10"}
    assert compared == {"requests", "KiB", "ms"}


def test_the_small_benchmark_of_startup_prints_every_command_by_the_clock_and_by_the_processor() -> None:
    metrics = _metrics("startup")
    for name in ("tm.Table", "tidemark describe", "tidemark sql", "tidemark search", "tidemark get"):
        assert {name, f"{name}, processor"} <= {metric["name"] for metric in metrics}


@pytest.mark.spark
def test_the_small_benchmark_of_starts_of_jobs_prints_the_driver_and_a_warm_spark() -> None:
    names = {metric["name"] for metric in _metrics("job_starts")}
    assert names > {"tidemark spark up", "compaction in the job's own process"}
    assert {f"compaction on a warm Spark, {which}" for which in ("first job", "later jobs")} < names


def test_the_small_benchmark_of_reads_prints_every_query_against_the_engines() -> None:
    metrics = _metrics("reads")
    for name in ("flights by day", "flights in one split", "60 columns", "search of"):
        assert any(metric["name"].startswith(name) for metric in metrics), name
    assert {metric["against"] for metric in metrics} >= {"DuckDB read_parquet", "ours", "5 ms"}


def test_the_small_benchmark_of_remote_reads_prints_what_every_query_costs_both_readers() -> None:
    metrics = {metric["name"]: metric for metric in _metrics("remote_reads")}
    for asked in ("cold", "again", "after 10 commits"):
        (name,) = (each for each in metrics if each.startswith("days") and each.endswith(f"one column, {asked}"))
        assert metrics[name]["against"] == "DataFusion"
        for reader in ("ours", "DataFusion"):
            counts = [metrics[f"{name}, {reader}: {count}"]["value"] for count in ("requests", "waves", "bytes")]
            assert counts[0] >= counts[1], "a wave is a request at least"


def test_the_small_benchmark_of_bitmaps_prints_every_query_with_the_index_and_without() -> None:
    metrics = _metrics("bitmaps")
    assert {metric["against"] for metric in metrics} == {"DuckDB read_parquet", "ours", "without the index"}
    for unit in ("ms", "requests", "MiB"):
        assert any(metric["name"].endswith(f"a rare value, {unit}") for metric in metrics), unit


def test_the_small_benchmark_of_index_maintenance_prints_what_was_written_and_how_many_segments_are_left() -> None:
    metrics = _metrics("index_maintenance")
    written, time, lance, *segments = metrics
    assert (written["unit"], time["unit"], lance["unit"]) == ("MB", "s", "s")
    assert written["value"] > 0
    assert [each["name"].split(", segments that ")[1].split()[0] for each in segments] == ["words", "levels"]
    assert all(0 < each["value"] <= 6 for each in segments)


def test_the_small_benchmark_of_rows_that_move_prints_what_was_written_for_indexes_beside_their_segments() -> None:
    metrics = _metrics("index_moves")
    for what in ("a compaction", "a merge of generations"):
        (written,) = (each for each in metrics if each["name"].startswith(what) and each["against"])
        assert (written["against"], written["aim"], written["holds"]) == ("their segments", 20, True)
        assert "0 of them indexed again" in written["name"]


def test_the_small_benchmark_of_hybrid_quality_prints_words_vector_and_both() -> None:
    metrics = _metrics("hybrid_quality")
    assert [each["name"].split(", ", 2)[2] for each in metrics] == ["words", "vector", "both, rrf", "both, linear"]
    assert [each["value"] for each in metrics] == [1] * 4, "of two subjects nobody mistakes one for the other"


def test_the_small_benchmark_of_key_indexes_prints_lookups_and_merges_with_the_index_and_without() -> None:
    metrics = _metrics("key_index")
    assert {metric["against"] for metric in metrics} == {"without the index", None}
    for what in ("get of a row", "get of none", "get_many of 10", "merge of 2 changes"):
        assert any(metric["name"].endswith(f"{what}, requests") for metric in metrics), what


def test_the_small_benchmark_of_deletes_prints_statements_beside_delta_and_reads_after_them() -> None:
    metrics = _metrics("deletes")
    for name in ("delete of 1 %", "update of 1 %"):
        assert any(each["name"].startswith(name) and each["against"] == "delta-rs" for each in metrics), name
    assert any(each["name"].startswith("aggregate after a delete") for each in metrics)
    assert any(each["name"].endswith("by time") for each in metrics)


def test_the_small_benchmark_of_read_clients_prints_every_work_beside_both_peers() -> None:
    metrics = _metrics("read_client")
    assert {metric["against"] for metric in metrics} == {"boto3", "obstore"}
    for name in ("answers from memory", "S3 server of the tests", "20 ms later", "first read of a program"):
        assert any(metric["name"].startswith(name) for metric in metrics), name


@pytest.mark.spark
def test_the_small_benchmark_of_ingestion_prints_every_part_and_names_a_peer_that_is_not_there() -> None:
    metrics = _metrics("ingestion")
    parts = ("durable append of 1,000 rows", "sustained durable appends", "writer that 16 threads gave", "get, ")
    for part in (*parts, "replay of", "distribution and merging", "merging 10 generations"):
        assert any(metric["name"].startswith(part) for metric in metrics), part
    peers = ("bare fsynced write", "fsynced write under a name", "deltalake append", "deltalake merge")
    for peer in peers:
        assert any(metric["against"] == peer and metric["ratio"] > 0 for metric in metrics), peer
    for metric in metrics:
        if metric["ratio"] == 0:
            assert "not measured: " in metric["against"]
            assert metric["holds"] is not True


@pytest.mark.spark
def test_the_small_benchmark_of_compaction_prints_every_part_and_names_a_peer_that_is_not_there() -> None:
    metrics = _metrics("compaction")
    cases = ("16 splits, 8 columns", "16 splits, 60 columns", "64 splits, 8 columns", "compact job", "flights whole")
    sizes = ("weather by window, packed", "access log, a split of one row", "access log, read for a status")
    for part in (*cases, *sizes, "a window of 20,000 rows"):
        assert any(metric["name"].startswith(part) for metric in metrics), part
    for peer in ("Arrow copy", "DuckDB ORDER BY", "Polars sort", "DataFusion's sort-preserving merge", "Spark sort"):
        assert any(metric["against"] == peer and metric["ratio"] > 0 for metric in metrics), peer
    for metric in metrics:
        if metric["ratio"] == 0:
            assert "not measured: " in metric["against"]
            assert metric["holds"] is not True
    planned = "10,000 splits in 100 windows"
    for step in ("open", "plan of", "debt of"):
        assert {f"{step} {planned}", f"{step} {planned}, processor"} <= {metric["name"] for metric in metrics}
    assert any(metric["name"] == f"peak memory, {planned}" and metric["holds"] for metric in metrics)


def test_the_small_benchmark_of_the_questions_of_compaction_answers_each() -> None:
    metrics = _metrics("compaction_questions")
    for strategy in ("packed", "by-column", "k-way"):
        assert any(metric["name"] == f"order of 64 splits, {strategy}" for metric in metrics), strategy
    for part in ("64 splits by 4", "pages of 65,536 rows", "a target of 1/8", "a tenth of the hosts null, nulls first"):
        assert any(metric["name"].startswith(part) for metric in metrics), part


def test_the_small_benchmark_of_vectors_prints_what_is_found_warm_and_cold() -> None:
    metrics = {metric["name"]: metric for metric in _metrics("vectors")}
    for data in ("GloVe, 4,180 × 50", "made, 4,000 × 256"):
        for name in ("recall@10", "recall@10, 0.1 %", "recall@10, 10 % on one side"):
            assert metrics[f"{data}, ours, {name}"]["holds"], name
        for name in ("build, processor", "index per vector", "p50", "p99", "cold on S3, of the segment: waves"):
            assert f"{data}, ours, {name}" in metrics, name
        for peer in ("Lance IVF_PQ", "Lance IVF_RQ", "faiss IVF in memory", "numpy looks at all"):
            assert any(name.startswith(f"{data}, {peer}") for name in metrics), peer


@pytest.mark.spark
def test_the_small_benchmark_of_the_vector_job_kills_it_and_runs_it_again() -> None:
    metrics = {metric["name"].partition(", ")[2]: metric for metric in _metrics("vector_job")}
    assert metrics["splits covered when run again"]["value"] == 10
    assert metrics["most memory of a task"]["holds"]


def test_the_small_benchmark_of_the_catalog_prints_each_question_of_each_database() -> None:
    metrics = _metrics("catalog")
    for database in ("SQLite", "PostgreSQL"):
        for question in ("compaction candidates", "splits of a time", "windows to discard", "what changed"):
            assert any(each["name"].startswith(question) and each["name"].endswith(database) for each in metrics)


def test_the_small_benchmark_of_the_history_of_dagster_prints_each_page_before_and_after_the_purge() -> None:
    found = {metric["name"]: metric["value"] for metric in _metrics("dagster_history")}
    for database in ("SQLite", "PostgreSQL"):
        full, purged = f"400 events in {database}", f"after the purge in {database}"
        assert [found[f"{full}, {each}"] for each in ("runs", "runs that assets show")] == [2, 1]
        pages = ("page of runs", "page of an asset", "event log of a run")
        assert [found[f"{full}, {each}, lines"] for each in pages] == [2, 22, 200]
        assert [found[f"{purged}, {each}, lines"] for each in pages] == [1, 11, 200]
        assert {f"{when}, {each}" for when in (full, purged) for each in pages} <= found.keys()
