"""What the job that forgets rows is asked to do, and its form as command-line arguments."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import ClassVar

from jobs.requests.request import any_parser, parse_as
from jobs.spark.master import LOCAL_SPARK


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetRequest:
    """One run on one table: forget the rows that meet the condition `where`, or with `report` only say what holds them.

    `raw_logs` are the files that declare the raw logs which the table, called `table` there, takes rows from; `root` is
    what relative places in them are relative to (default: the working directory).
    """

    table_uri: str
    where: str
    table: str | None = None
    raw_logs: tuple[str, ...] = ()
    root: str | None = None
    report: bool = False
    run_id: str | None = None
    master: str = LOCAL_SPARK
    # What a run reads of every request: it takes no lease.
    wait_ms: ClassVar[int] = 0

    @property
    def dry_run(self) -> bool:
        """Whether nothing is to be changed."""
        return self.report


def parser(summary: str) -> argparse.ArgumentParser:
    """Return the argument parser of the job."""
    result = any_parser("forget", summary)
    result.add_argument("--table-uri", required=True, help="where the table is: a path, file:///… or s3://…")
    result.add_argument("--where", required=True, help="the rows, by a SQL condition over their columns")
    result.add_argument("--table", help="what the records of raw logs call the table")
    result.add_argument(
        "--raw-log", dest="raw_logs", action="append", default=[], help="a raw_logs/*.yaml file; give one per raw log"
    )
    result.add_argument("--root", help="what relative places in these files are relative to")
    result.add_argument("--report", action="store_true", help="say what holds the rows, and change nothing")
    result.add_argument("--run-id", help="the run that asked for it")
    return result


def parse(arguments: argparse.Namespace) -> ForgetRequest:
    """Return the request for parsed arguments."""
    return parse_as(ForgetRequest, arguments)
