"""Write `benchmarks/RESULTS.md`: one page with the metrics that answer a reader's first questions.

    python -m benchmarks.results_page

The files `benchmarks/results/NAME.json` contain all metrics. `run_all` writes these files. The table `AREAS` selects
the rows of the page. A row that names a metric without a measurement is an error, so a renamed metric cannot be lost.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from benchmarks.metrics import Metric

FOLDER: Final = Path(__file__).parent / "results"
PAGE: Final = Path(__file__).parent / "RESULTS.md"


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the page.

    Attributes:
        what: The description of the measured operation.
        benchmark: The benchmark that measured the metric.
        metric: The name of the metric.
        against: The peer of the metric. With `peer`, the name of the peer on the page.
        peer: The name of the metric that contains the peer's value, if the ratio belongs to that metric.
    """

    what: str
    benchmark: str
    metric: str
    against: str
    peer: str | None = None


def _days(what: str, question: str) -> Row:
    return Row(f"{what}, 366 splits", "reads", f"flights by day, 366 splits, {question}", "DuckDB read_parquet")


def _wide(what: str, question: str) -> Row:
    return Row(f"{what}, 60 columns, 1 split", "reads", f"60 columns, 1 split, {question}", "DuckDB read_parquet")


def _remote(what: str, question: str, state: str) -> Row:
    return Row(f"{what}, 366 splits, {state}", "remote_reads", f"days, 366 splits, {question}, {state}", "DataFusion")


def _landed(files: str, rows: str, place: str, peer: str) -> Row:
    name = f"{files} files, {rows} rows, {place}, processor"
    return Row(f"{files} files, {rows} rows, {place}, processor time", "landing", name, peer)


_MERGE: Final = "distribution and merging, 1,000,000 upserts into 1,000,000 keys"
_APPEND: Final = "durable append of 1,000 rows, p50"
_DELETED: Final = "99,966 of 10,000,000 rows gone, scattered"
_DRIVER: Final = ("driver", "DuckDB + delta-rs")
_SPARK: Final = ("warm Spark", "plain Spark")

AREAS: Final[Mapping[str, tuple[Row, ...]]] = {
    "Land files": (
        _landed("72 ndjson", "432,000", *_DRIVER),
        _landed("72 csv", "432,000", *_DRIVER),
        _landed("72 parquet", "432,000", *_DRIVER),
        _landed("336 ndjson", "2,016,000", *_DRIVER),
        _landed("72 ndjson", "432,000", *_SPARK),
        _landed("336 ndjson", "2,016,000", *_SPARK),
        Row(
            "336,776 flights from 24 CSV files, Spark", "ingest_and_compact", "ingest of 336,776 flights", "plain Spark"
        ),
        Row(
            "a Delta table of 1,000,000 rows into an append table",
            "delta_source",
            "a Delta table of 1,000,000 rows lands in an append table",
            "Spark reading, sorting and writing it",
        ),
    ),
    "Write rows and keys": (
        Row(
            "durable append of 1,000 rows of 32 bytes, median",
            "ingestion",
            f"{_APPEND}, to a deltalake append",
            "deltalake append",
        ),
        Row(
            "durable append of 1,000 rows of 32 bytes, median",
            "ingestion",
            f"{_APPEND}, to a DuckLake insert",
            "DuckLake insert",
        ),
        Row(
            "durable append of 1,000 rows of 32 bytes, median",
            "ingestion",
            f"{_APPEND}, to a bare fsynced write",
            "bare fsynced write",
        ),
        Row(
            "1,000,000 upserts into 1,000,000 keys",
            "ingestion",
            f"{_MERGE}, to a Delta MERGE on Spark",
            "Delta MERGE on Spark",
        ),
        Row("1,000,000 upserts into 1,000,000 keys", "ingestion", f"{_MERGE}, to a deltalake merge", "deltalake merge"),
        Row(
            "get one of 1,000,000 keys, median",
            "ingestion",
            "get, 1,000,000 keys, 0 generations, a hit in the base, again, p50",
            "2 ms",
        ),
    ),
    "Delete and update": (
        Row(
            "delete 1 % of 10,000,000 rows", "deletes", "delete of 1 % of 10,000,000 rows, beside delta-rs", "delta-rs"
        ),
        Row(
            "update 1 % of 10,000,000 rows", "deletes", "update of 1 % of 10,000,000 rows, beside delta-rs", "delta-rs"
        ),
        Row(
            "delete 1 % of 10,000,000 rows", "deletes", "delete of 1 % of 10,000,000 rows, beside DuckLake", "DuckLake"
        ),
        Row(
            "update 1 % of 10,000,000 rows", "deletes", "update of 1 % of 10,000,000 rows, beside DuckLake", "DuckLake"
        ),
        Row("aggregate after deleting 1 % of the rows", "deletes", f"aggregate, {_DELETED}", "1.2 x before"),
        Row("count after deleting 1 % of the rows", "deletes", f"count, {_DELETED}", "1.2 x before"),
    ),
    "Open and commit": (
        Row("open a table of 1,000,000 files", "log_at_scale", "open 1,000,000 files", "delta-rs"),
        Row(
            "open this table and read all entries and statistics",
            "log_at_scale",
            "open 1,000,000 files and look at all, statistics too",
            "delta-rs",
        ),
        Row(
            "open this table and commit 100 files", "log_at_scale", "open and commit 100 files to 1,000,000", "delta-rs"
        ),
        Row(
            "write a checkpoint of this table after 1,000 new files",
            "log_at_scale",
            "checkpoint of 1,000,000 files after 1,000 new ones",
            "writing all of it",
        ),
    ),
    "Compact": (
        Row(
            "16 sorted splits, 8 columns, processor time",
            "compaction",
            "16 splits, 8 columns, to DuckDB ORDER BY",
            "DuckDB ORDER BY",
        ),
        Row(
            "16 sorted splits, 60 columns, processor time",
            "compaction",
            "16 splits, 60 columns, to DuckDB ORDER BY",
            "DuckDB ORDER BY",
        ),
        Row(
            "16 sorted splits, 8 columns, processor time",
            "compaction",
            "16 splits, 8 columns, to DuckLake's merge",
            "DuckLake's merge",
        ),
        Row(
            "the compaction job on Spark, processor time",
            "compaction",
            "compact job, to a Delta OPTIMIZE",
            "Delta OPTIMIZE",
        ),
        Row(
            "the compaction job on Spark, processor time",
            "compaction",
            "compact job, to a Delta OPTIMIZE ZORDER BY",
            "Delta OPTIMIZE ZORDER BY",
        ),
        Row(
            "plan 1,000,000 splits in 10,000 windows",
            "compaction",
            "plan of 1,000,000 splits in 10,000 windows",
            "the bound",
        ),
    ),
    "Query with SQL": (
        _days("count", "count"),
        _days("sum of one column", "one column"),
        _days("group by", "group"),
        _days("top rows", "top"),
        _wide("sum of one column", "one column"),
        _wide("top rows", "top"),
        _remote("count on S3", "count", "cold"),
        _remote("group by on S3", "group", "cold"),
        _remote("group by on S3", "group", "again"),
        _remote("top rows on S3", "top", "cold"),
        Row("memory of a scan over 10.2 GB", "read_memory", "scan over 10.2 GB of splits, process", "512 MB"),
    ),
    "Read from Spark": (
        Row(
            "3 of 6 columns of 16,000,000 rows",
            "spark_source",
            "whole read of 3 of 6 columns, 16,000,000 rows, 8 splits",
            "Spark's Parquet reader",
        ),
        Row(
            "one hour of a table with 1,000 splits",
            "spark_source",
            "one hour of 1,000 splits",
            "Spark's Parquet reader",
        ),
    ),
    "Search": (
        Row("one word in 200,000 lines, repeated question", "reads", "search of 200,000 lines, tide, 10 rows", "5 ms"),
        Row(
            "one word in 200,000 lines, repeated question",
            "reads",
            "search of 200,000 lines, tide, 10 rows",
            "Lance",
            "search of 200,000 lines, tide, 10 rows, Lance",
        ),
        Row(
            "one word in 5,000,000 lines, repeated question",
            "reads",
            "search of 5,000,000 lines, tide, 10 rows",
            "15 ms",
        ),
        Row(
            "one word in 5,000,000 lines with a time column",
            "reads",
            "search of 5,000,000 lines with times, tide, 10 rows",
            "15 ms",
        ),
        Row(
            "nearest 10 of 399,800 embeddings, recall 1.00",
            "vectors",
            "GloVe, 399,800 × 50, ours, p50",
            "Lance IVF_PQ, recall 0.79",
            "GloVe, 399,800 × 50, Lance IVF_PQ, p50",
        ),
        Row(
            "processor time to index 399,800 embeddings",
            "vectors",
            "GloVe, 399,800 × 50, ours, build, processor",
            "Lance IVF_PQ",
            "GloVe, 399,800 × 50, Lance IVF_PQ, build, processor",
        ),
        Row(
            "quality of words and embeddings together",
            "hybrid_quality",
            "50 documents, both, rrf",
            "the better of words and vector",
        ),
        Row(
            "bytes written for indexes by a compaction",
            "index_moves",
            "a compaction of 1,000,000 indexed rows, 0 of them indexed again: written for indexes",
            "their segments",
        ),
    ),
    "Operate many tables": (
        Row(
            "first load of 1,000,000 splits into the catalog, SQLite",
            "catalog",
            "first load of 1,000,000 splits in SQLite",
            "60 s",
        ),
        Row("load the definitions of 500 tables in Dagster", "many_tables", "500 tables, load", "10 s"),
        Row(
            "page of runs after 100,000 events, PostgreSQL",
            "dagster_history",
            "100,000 events in PostgreSQL, page of runs",
            "1 s",
        ),
        Row("`tidemark sql`, whole process", "startup", "tidemark sql", "0.7 s"),
        Row(
            "compaction job on a Spark that runs already",
            "job_starts",
            "compaction on a warm Spark, later jobs",
            "1.5 s",
        ),
    ),
}

_INTRODUCTION: Final = """\
# Benchmark results

`make bench` writes this page. A ratio compares Tidemark with the peer in the same run. "2 × better" means half the
time, memory or bytes, or twice the rows per second. **Bold** marks a ratio that is worse than the peer's.
A peer such as "5 ms" is a fixed limit.
The files in `benchmarks/results/` contain all metrics, the machine and the versions of the packages.
`python -m benchmarks.NAME` prints the metrics of one benchmark.
"""


_PEERS: Final[Mapping[str, str]] = {
    "1.2 x before": "1.2 × the time before the delete",
    "bare fsynced write": "writing one file with fsync",
    "the bound": "2 s",
    "their segments": "bytes of the rebuilt segments",
    "the better of words and vector": "the better of text and vector search",
    "writing all of it": "writing a whole checkpoint",
}
"""The longer names on the page of some peers. The keys are the names of the peers in the metrics."""


@cache
def _stored(benchmark: str) -> Mapping[str, Any]:
    """Return the stored results of a benchmark. The result is empty if the benchmark has not been measured."""
    path = FOLDER / f"{benchmark}.json"
    found: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def metrics(benchmark: str) -> tuple[Metric, ...]:
    """Return the stored metrics of a benchmark. The result is empty if the benchmark has not been measured."""
    stored = _stored(benchmark).get("metrics", ())
    return tuple(Metric(**{name: value for name, value in each.items() if name != "holds"}) for each in stored)


def find(row: Row) -> tuple[Metric, float, float | None]:
    """Return the metric of a row, the factor by which Tidemark is better than the peer, and the aim for the factor.

    Raises `KeyError` if the metric or its peer has not been measured.
    """
    of_name = [each for each in metrics(row.benchmark) if each.name == row.metric]
    if row.peer is not None:
        theirs = next((each for each in metrics(row.benchmark) if each.name == row.peer), None)
        if not of_name or theirs is None or not theirs.ratio:
            raise KeyError(f"{row.benchmark}: {row.metric!r} and {row.peer!r} are not both measured")
        return of_name[0], 1 / theirs.ratio, None
    for each in of_name:
        if each.against == row.against and each.ratio is not None:
            return each, each.ratio, each.aim
    raise KeyError(f"{row.benchmark}: {row.metric!r} against {row.against!r} is not measured")


def page() -> str:
    """Return the text of the page."""
    return "\n".join([_INTRODUCTION, *_sections()])


def _sections() -> Iterator[str]:
    for area, rows in AREAS.items():
        yield f"## {area}\n"
        yield "| Operation | Tidemark | Compared with | Ratio | Aim | Benchmark |"
        yield "|---|---|---|---|---|---|"
        for row in rows:
            metric, ratio, aim = find(row)
            shown = f"{_number(ratio)} × better" if ratio >= 1 else f"**{_number(ratio)} ×**"
            wanted = "" if aim is None else f"{_number(aim)} ×"
            value = f"{_number(metric.value)} {metric.unit}"
            cells = (row.what, value, _PEERS.get(row.against, row.against), shown, wanted, f"`{row.benchmark}`")
            yield f"| {' | '.join(cells)} |"
        yield ""
        for benchmark in dict.fromkeys(row.benchmark for row in rows):
            if remark := _stored(benchmark).get("note"):
                yield textwrap.fill(f"`{benchmark}`: {remark}", 120, break_on_hyphens=False) + "\n"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value else "< 0.01"


def main() -> int:
    """Write the page. Return 0."""
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
