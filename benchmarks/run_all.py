"""Run every benchmark except `sql_confinement`, and write `benchmarks/results/` and `benchmarks/RESULTS.md`.

A file `benchmarks/results/NAME.json` contains the metrics of a benchmark, the machine and the versions of packages.

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

from benchmarks import results_page
from benchmarks.results_page import FOLDER

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
    "index_maintenance",
    "index_moves",
    "key_index",
    "deletes",
    "spark_source",
    "delta_source",
    "vectors",
    "vector_job",
    "read_memory",
    "read_client",
    "catalog",
    "many_tables",
    "dagster_history",
    "startup",
    "job_starts",
)
PACKAGES = (
    *("pyspark", "pyarrow", "duckdb", "tantivy", "dagster", "deltalake", "datafusion", "polars"),
    *("boto3", "obstore"),
)


def main() -> int:
    """Run the benchmarks sequentially, each in its own process. Return 1 if a benchmark failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="see that they run; results are not written")
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, help="run these, and keep the results of the others")
    options = parser.parse_args()
    small = ["--small"] if options.small else []
    failed = False
    for name in options.only or BENCHMARKS:
        run = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{name}", "--json", *small],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        sys.stdout.write(run.stdout)
        failed = failed or run.returncode != 0
        if not options.small and run.returncode == 0:
            (FOLDER / f"{name}.json").write_text(_stored([json.loads(line) for line in run.stdout.splitlines()]))
    if not options.small:
        results_page.main()
    return int(failed)


def _stored(metrics: list[dict[str, object]]) -> str:
    """Return the text of a file of results, with one line per metric."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}"
    packages = {name: version(name) for name in PACKAGES}
    head = json.dumps({"machine": machine, "packages": packages, "note": None}, indent=1).removesuffix("\n}")
    lines = ",\n".join(f"  {json.dumps(each, ensure_ascii=False)}" for each in metrics)
    return f'{head},\n "metrics": [\n{lines}\n ]\n}}\n'


if __name__ == "__main__":
    sys.exit(main())
