"""Run every benchmark except `sql_confinement`, and write `benchmarks/RESULTS.md`.

The file contains the metrics, the machine and the versions.

python -m benchmarks.run_all [--small] [--only NAME …]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

BENCHMARKS = (
    "ingest_and_compact",
    "landing",
    "announced",
    "log_at_scale",
    "progress",
    "publishing",
    "ingestion",
    "compaction",
    "compaction_questions",
    "reads",
    "remote_reads",
    "bitmaps",
    "hybrid_quality",
    "index_upkeep",
    "index_moves",
    "key_index",
    "deletes",
    "spark_source",
    "delta_source",
    "vectors",
    "vector_job",
    "read_memory",
    "read_client",
    "catalogue",
    "many_tables",
    "dagster_history",
    "startup",
    "job_starts",
)
PACKAGES = (
    *("pyspark", "pyarrow", "duckdb", "tantivy", "dagster", "deltalake", "datafusion", "polars"),
    *("boto3", "obstore"),
)
RESULTS = Path(__file__).parent / "RESULTS.md"


def main() -> int:
    """Run the benchmarks sequentially, each in its own process. Return 1 if a benchmark failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="see that they run; results are not written")
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, help="run these, and leave the results of the others")
    options = parser.parse_args()
    small = ["--small"] if options.small else []
    sections, failed = dict.fromkeys(BENCHMARKS, ""), False
    if options.only:
        sections |= {each.partition("\n")[0]: f"## {each}" for each in RESULTS.read_text().split("\n## ")[1:]}
    for name in options.only or BENCHMARKS:
        run = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{name}", "--json", *small],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        failed = failed or run.returncode != 0
        sections[name] = _section(name, [json.loads(line) for line in run.stdout.splitlines()])
    report = "\n".join([_head(), *(each.rstrip("\n") + "\n" for each in sections.values() if each)])
    sys.stdout.write(report)
    if not small and not failed:
        RESULTS.write_text(report)
    return int(failed)


def _head() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}"
    return (
        f"# Benchmark results\n\nWritten by `make bench`. Machine: {machine}; {versions}.\n"
        "Ratios above 1 are better than the peer; both sides were measured in one run.\n"
    )


def _section(name: str, metrics: list[dict[str, object]]) -> str:
    rows = [
        f"## {name}\n",
        "| metric | value | unit | against | ratio | aim | holds |",
        "|---|---|---|---|---|---|---|",
    ]
    for metric in metrics:
        cells = [metric["name"], f"{metric['value']:,.2f}", metric["unit"], metric["against"]]
        cells += [None if metric["ratio"] is None else f"{metric['ratio']:.2f}", metric["aim"], metric["holds"]]
        rows.append("| " + " | ".join("" if cell is None else str(cell) for cell in cells) + " |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.exit(main())
