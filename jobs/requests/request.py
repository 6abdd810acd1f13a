"""What a job is asked to do, and its one form as command-line arguments.

Assets, commands and tests build a request; `to_argv` and `parse_as` turn it into arguments and back, so that a job
does the same whether it runs in this process or in a subprocess.
"""

from __future__ import annotations

import argparse
from dataclasses import Field, dataclass, fields
from typing import Any, ClassVar, Protocol, TypeVar

from jobs.requests import window_range
from jobs.requests.window_range import EVERY_WINDOW, WindowRange
from jobs.spark.master import LOCAL_SPARK
from jobs.spark.small_work import SPARK, SparkUse
from storage_core.compaction.policy import Mode


class Request(Protocol):
    """A dataclass of what a job is asked to do."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


R = TypeVar("R", bound=Request)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """One run of one job on one table. Fields that a job does not use are ignored by it.

    `declaration` is the file that declares the table, for the job that may create it. `horizon_ms` overrides the
    collector's horizon. `run_id` is recorded in the commit. `master` is Spark's master URL. `wait_ms` is how long to
    wait while another run holds the lease. `mode` is what a compaction merges: all there is, or what pays now. With
    `quarantine` a merge puts what it cannot apply into quarantine (decision 0088). With `merges_only` a catch-up merges
    small segments and builds none; with `retrain` it trains all segments of vectors again. With
    `compact_state` a checkpoint is the smallest there can be. With `by_window` the report of an ingest or a compaction
    has the metrics of each window, as it has where windows are asked for. A compaction reads `most_bytes` at most.
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
    merges_only: bool = False
    retrain: bool = False
    compact_state: bool = False
    by_window: bool = False
    most_bytes: int | None = None


def any_parser(job: str, summary: str) -> argparse.ArgumentParser:
    """Return a parser of the arguments that every job has: where Spark is and when it is used, and how the
    report is printed.
    """
    result = argparse.ArgumentParser(prog=f"python -m jobs.{job}", description=summary)
    result.add_argument("--master", default=LOCAL_SPARK, help="Spark master, or sc://host:port (default: %(default)s)")
    result.add_argument(
        "--spark",
        choices=[each.value for each in SparkUse],
        help=f"always: start Spark for small work, too; auto: do that in this process (default: {SPARK}, else auto)",
    )
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
        "--policy",
        dest="mode",
        action="store_const",
        const=Mode.POLICY,
        default=Mode.FINALIZE,
        help="compact only what pays now, as scheduled runs do (default: every window)",
    )
    result.add_argument(
        "--rewindow",
        dest="mode",
        action="store_const",
        const=Mode.REWINDOW,
        help="compact: write splits of former windows anew in windows of the table's duration, and merge none",
    )
    result.add_argument(
        "--resort",
        dest="mode",
        action="store_const",
        const=Mode.RESORT,
        help="compact: write splits of another sort schema in the order of the table's, and merge none",
    )
    result.add_argument(
        "--quarantine", action="store_true", help="merge: what cannot be applied goes to quarantine (default: it fails)"
    )
    result.add_argument("--merges-only", action="store_true", help="catch_up: only merge small segments of indexes")
    result.add_argument("--retrain", action="store_true", help="catch_up: train all segments of vectors again")
    result.add_argument("--compact-state", action="store_true", help="checkpoint: the smallest state there can be")
    result.add_argument("--by-window", action="store_true", help="ingest, compact: report the metrics of each window")
    result.add_argument(
        "--most-bytes", type=int, metavar="N", help="compact: read so many at most, of the newest windows first"
    )
    return result


def parse(arguments: argparse.Namespace) -> JobRequest:
    """Return the request for parsed arguments. Raises `InvalidInput` for a window that cannot be read."""
    return parse_as(JobRequest, arguments)


def parse_as(kind: type[R], arguments: argparse.Namespace) -> R:
    """Return the request of this kind, each field from the argument of its name; of windows as `window_range` says."""
    given = vars(arguments) | {name: tuple(each) for name, each in vars(arguments).items() if isinstance(each, list)}
    if "window" in given:
        given["windows"] = window_range.parse(arguments)
    return kind(**{each.name: given[each.name] for each in fields(kind)})


def to_argv(request: Request) -> list[str]:
    """Return the arguments that `parse_as` reads back as this request: of each field the option of its name."""
    argv: list[str] = []
    for each in fields(request):
        option = f"--{each.name.replace('_', '-')}"
        match getattr(request, each.name):
            case None | False:
                pass
            case True:
                argv.append(option)
            case Mode() as mode:
                argv += [] if mode is Mode.FINALIZE else [f"--{mode}"]
            case WindowRange() as windows:
                argv += window_range.to_argv(windows)
            case tuple() as several:
                argv += [f"{option.removesuffix('s')}={one}" for one in several]
            case value:
                argv.append(f"{option}={value}")
    return argv
