"""What the audit job is asked to do, and its form as command-line arguments: it plans nothing and commits nothing."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import ClassVar

from jobs.requests import window_range
from jobs.requests.request import any_parser, parse_as
from jobs.requests.window_range import EVERY_WINDOW, WindowRange
from jobs.spark.master import LOCAL_SPARK


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequest:
    """One audit of one table: of all of it, or of less.

    `since`, `commits` and `last_run` limit it to what was committed after a version, to so many of the newest
    compactions, or to those of the job run that compacted last; at most one of them.
    """

    table_uri: str
    windows: WindowRange = EVERY_WINDOW
    since: int | None = None
    commits: int | None = None
    last_run: bool = False
    master: str = LOCAL_SPARK
    # What a run reads of every request: an audit has no commit to name it in, waits for nobody and changes nothing.
    run_id: ClassVar[str | None] = None
    wait_ms: ClassVar[int] = 0
    dry_run: ClassVar[bool] = True


def parser(summary: str) -> argparse.ArgumentParser:
    """Return the argument parser of the job."""
    result = any_parser("audit", summary)
    result.add_argument("--table-uri", required=True, help="where the table is: a path, file:///… or s3://…")
    window_range.add_options(result)
    limits = result.add_argument_group("what it looks at (default: every live split and retained compaction)")
    limits.add_argument("--since", type=int, help="what was committed after this version")
    limits.add_argument("--commits", type=int, help="so many of the newest compactions, and what they wrote")
    limits.add_argument("--last-run", action="store_true", help="what the job run wrote that compacted last")
    return result


def parse(arguments: argparse.Namespace) -> AuditRequest:
    """Return the request for parsed arguments. Raises `InvalidInput` for a window that cannot be read."""
    return parse_as(AuditRequest, arguments)
