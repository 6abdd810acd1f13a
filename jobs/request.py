"""What a job is asked to do, and its one form as command-line arguments.

Assets, commands and tests build a `JobRequest`; `to_argv` and `parse` turn it into arguments and back, so that a job
does the same whether it runs in this process or in a subprocess.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from jobs import window_range
from jobs.master import LOCAL_SPARK
from jobs.window_range import EVERY_WINDOW, WindowRange
from storage_core.compaction.policy import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """One run of one job on one table. Fields that a job does not use are ignored by it.

    `declaration` is the file that declares the table, for the job that may create it. `horizon_ms` overrides the
    collector's horizon. `run_id` is recorded in the commit. `master` is Spark's master URL. `wait_ms` is how long to
    wait while another run holds the lease. `mode` is what a compaction merges: all there is, or what pays now. With
    `quarantine` a merge puts what it cannot apply into quarantine (decision 0088).
    """

    table_uri: str
    windows: WindowRange = EVERY_WINDOW
    index: str | None = None
    declaration: str | None = None
    dry_run: bool = False
    horizon_ms: int | None = None
    run_id: str | None = None
    master: str = LOCAL_SPARK
    wait_ms: int = 0
    mode: Mode = Mode.FINALIZE
    quarantine: bool = False


def any_parser(job: str, summary: str) -> argparse.ArgumentParser:
    """Return a parser of the arguments that every job has: where Spark is, and how the report is printed."""
    result = argparse.ArgumentParser(prog=f"python -m jobs.{job}", description=summary)
    result.add_argument("--master", default=LOCAL_SPARK, help="Spark master, or sc://host:port (default: %(default)s)")
    result.add_argument("--json", action="store_true", help="print the report as one JSON object")
    return result


def parser(job: str, summary: str) -> argparse.ArgumentParser:
    """Return the argument parser that jobs share which keep a table up; what a job does not use, it ignores."""
    result = any_parser(job, summary)
    result.add_argument("--table-uri", required=True, help="where the table is: a path, file:///… or s3://…")
    window_range.add_options(result)
    result.add_argument("--index", help="one index by name (default: every index)")
    result.add_argument("--declaration", help="the tables/*.yaml file that declares the table")
    result.add_argument("--dry-run", action="store_true", help="say what would be done, and change nothing")
    result.add_argument("--horizon-ms", type=int, help="override of the horizon before an object is deleted")
    result.add_argument("--run-id", help="recorded in the commit, to find the run that made it")
    result.add_argument(
        "--wait-ms", type=int, default=0, help="wait so long while another run works on it, then exit 3 (default: 0)"
    )
    result.add_argument(
        "--policy", action="store_true", help="compact only what pays now, as scheduled runs do (default: every window)"
    )
    result.add_argument(
        "--quarantine", action="store_true", help="merge: what cannot be applied goes to quarantine (default: it fails)"
    )
    return result


def parse(arguments: argparse.Namespace) -> JobRequest:
    """Return the request for parsed arguments. Raises `InvalidInput` for a window that cannot be read."""
    return JobRequest(
        table_uri=arguments.table_uri,
        windows=window_range.parse(arguments),
        index=arguments.index,
        declaration=arguments.declaration,
        dry_run=arguments.dry_run,
        horizon_ms=arguments.horizon_ms,
        run_id=arguments.run_id,
        master=arguments.master,
        wait_ms=arguments.wait_ms,
        mode=Mode.POLICY if arguments.policy else Mode.FINALIZE,
        quarantine=arguments.quarantine,
    )


def to_argv(request: JobRequest) -> Sequence[str]:
    """Return the arguments that `parse` reads back as this request."""
    argv = ["--table-uri", request.table_uri, "--master", request.master, *window_range.to_argv(request.windows)]
    options = {
        "--index": request.index,
        "--declaration": request.declaration,
        "--horizon-ms": request.horizon_ms,
        "--run-id": request.run_id,
        "--wait-ms": request.wait_ms or None,
    }
    argv += [f"{name}={value}" for name, value in options.items() if value is not None]
    argv += ["--policy"] if request.mode is Mode.POLICY else []
    argv += ["--quarantine"] if request.quarantine else []
    return argv + (["--dry-run"] if request.dry_run else [])
