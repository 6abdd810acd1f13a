"""What the distribute job is asked to do, and its form as command-line arguments: it works on a raw log."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass

from jobs.requests.request import any_parser, parse_as
from jobs.spark.master import LOCAL_SPARK
from storage_core.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributeRequest:
    """One run of distribution. `raw_log` and `tables` are the files that declare them, `root` what relative places are
    relative to (default: the working directory).

    `skip_gaps` gives up what is missing of a writer up to a chunk number, each as `WRITER:LAST`.
    """

    raw_log: str
    tables: tuple[str, ...] = ()
    root: str | None = None
    skip_gaps: tuple[str, ...] = ()
    dry_run: bool = False
    run_id: str | None = None
    master: str = LOCAL_SPARK

    def give_up_to(self) -> Mapping[str, int]:
        """Return the chunk number up to which gaps are given up, by writer. Raises `InvalidInput`."""
        found: dict[str, int] = {}
        for text in self.skip_gaps:
            writer, _, last = text.rpartition(":")
            if not writer or not last.isascii() or not last.isdigit():
                raise InvalidInput(f"--skip-gap {text!r}: write the writer and the last missing chunk as WRITER:LAST")
            found[writer] = max(int(last), found.get(writer, 0))
        return found


def parser(summary: str) -> argparse.ArgumentParser:
    """Return the argument parser of the job."""
    result = any_parser("distribute", summary)
    result.add_argument("--raw-log", required=True, help="the raw_logs/*.yaml file that declares the raw log")
    result.add_argument(
        "--table", dest="tables", action="append", default=[], help="a tables/*.yaml file; give one per table"
    )
    result.add_argument("--root", help="what relative places in these files are relative to")
    result.add_argument(
        "--skip-gap", dest="skip_gaps", action="append", default=[], help="WRITER:LAST, give up chunks up to LAST"
    )
    result.add_argument("--dry-run", action="store_true", help="say what would be done, and change nothing")
    result.add_argument("--run-id", help="recorded in the commits, to find the run that made them")
    return result


def parse(arguments: argparse.Namespace) -> DistributeRequest:
    """Return the request for parsed arguments."""
    return parse_as(DistributeRequest, arguments)
