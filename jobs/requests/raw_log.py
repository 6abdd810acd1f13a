"""What the jobs that keep up a raw log are asked to do, and its form as command-line arguments."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from jobs.requests.request import any_parser, parse_as
from jobs.spark.master import LOCAL_SPARK


@dataclass(frozen=True, slots=True, kw_only=True)
class RawLogRequest:
    """One run of one job on one raw log. Fields that a job does not use are ignored by it.

    `raw_log` and `tables` are the files that declare them, `root` what relative places are relative to (default: the
    working directory). `horizon_ms` overrides how long a chunk is in the plan before it goes. With `verify` every copy
    is read and compared.
    """

    raw_log: str
    tables: tuple[str, ...] = ()
    root: str | None = None
    horizon_ms: int | None = None
    verify: bool = False
    dry_run: bool = False
    run_id: str | None = None
    master: str = LOCAL_SPARK


def parser(job: str, summary: str) -> argparse.ArgumentParser:
    """Return the argument parser that these jobs share; what a job does not use, it ignores."""
    result = any_parser(job, summary)
    result.add_argument("--raw-log", required=True, help="the raw_logs/*.yaml file that declares the raw log")
    result.add_argument(
        "--table", dest="tables", action="append", default=[], help="a tables/*.yaml file; give one per table"
    )
    result.add_argument("--root", help="what relative places in these files are relative to")
    result.add_argument("--horizon-ms", type=int, help="collect_raw: override of the horizon before a chunk is deleted")
    result.add_argument("--verify", action="store_true", help="heal_raw: read and compare every copy")
    result.add_argument("--dry-run", action="store_true", help="say what would be done, and change nothing")
    result.add_argument("--run-id", help="the run that asked for it")
    return result


def parse(arguments: argparse.Namespace) -> RawLogRequest:
    """Return the request for parsed arguments."""
    return parse_as(RawLogRequest, arguments)
