"""What a job is asked to do, and its one form as command-line arguments.

Assets, commands and tests build a `JobRequest`; `to_argv` and `parse` turn it into arguments and back, so that a job
does the same whether it runs in this process or in a subprocess.
"""

from __future__ import annotations

import argparse
import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jobs.master import LOCAL_SPARK
from storage_core.compaction.policy import Mode
from storage_core.errors import InvalidInput

NULL_WINDOW = "null"


@dataclass(frozen=True, slots=True)
class WindowRange:
    """Windows that start in [start, end), in seconds since the epoch; None leaves that side open.

    `null_only` selects the bucket of rows without a time instead.
    """

    start: int | None = None
    end: int | None = None
    null_only: bool = False

    def holds(self, window: int | None) -> bool:
        """Return whether a window, by its start, is in the range; one open on both sides holds the null bucket."""
        if window is None or self.null_only:
            return window is None and (self.null_only or (self.start is None and self.end is None))
        return (self.start is None or window >= self.start) and (self.end is None or window < self.end)

    def of_table(self, window_seconds: int | None) -> WindowRange:
        """Return the range if a table with windows of this length has it; None is a table without windows.

        Raises `InvalidInput` for bounds in a table without windows, and for one window by a time that is not its start.
        """
        bounds = [each for each in (self.start, self.end) if each is not None]
        if window_seconds is None and bounds:
            raise InvalidInput("the table has no windows; leave out --window, --from and --to")
        one = self.start is not None and self.end == self.start + 1
        if one and window_seconds is not None and bounds[0] % window_seconds:
            holder = bounds[0] - bounds[0] % window_seconds
            raise InvalidInput(
                f"no window starts at {_moment(bounds[0])}; the one that holds it is {_moment(holder)} "
                f"({holder}): windows of this table are {window_seconds} s long",
                window=holder,
            )
        return self

    def select(self, windows: Iterable[int | None]) -> set[int | None]:
        """Return those of the given windows that are in the range."""
        return {window for window in windows if self.holds(window)}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """One run of one job on one table. Fields that a job does not use are ignored by it.

    `declaration` is the file that declares the table, for the job that may create it. `horizon_ms` overrides the
    collector's horizon. `run_id` is recorded in the commit. `master` is Spark's master URL. `wait_ms` is how long to
    wait while another run holds the lease. `mode` is what a compaction merges: all there is, or what pays now. `since`,
    `commits` and `last_run` limit an audit to what was committed after a version, to so many of the newest compactions,
    or to those of the job run that compacted last.
    """

    table_uri: str
    windows: WindowRange = WindowRange()
    index: str | None = None
    declaration: str | None = None
    dry_run: bool = False
    horizon_ms: int | None = None
    run_id: str | None = None
    master: str = LOCAL_SPARK
    wait_ms: int = 0
    mode: Mode = Mode.FINALIZE
    since: int | None = None
    commits: int | None = None
    last_run: bool = False


def parser(job: str, summary: str) -> argparse.ArgumentParser:
    """Return the argument parser that every job shares."""
    result = argparse.ArgumentParser(prog=f"python -m jobs.{job}", description=summary)
    result.add_argument("--table-uri", required=True, help="where the table is: a path, file:///… or s3://…")
    which = result.add_argument_group("windows (default: all)")
    which.add_argument("--window", help="one window by its start: 2015-05-17T10:00 (UTC), seconds, or 'null'")
    which.add_argument("--from", dest="start", help="first window, inclusive")
    which.add_argument("--to", dest="end", help="end of the range, exclusive")
    result.add_argument("--index", help="one index by name (default: every index)")
    result.add_argument("--declaration", help="the tables/*.yaml file that declares the table")
    result.add_argument("--dry-run", action="store_true", help="say what would be done, and change nothing")
    result.add_argument("--horizon-ms", type=int, help="override of the horizon before an object is deleted")
    result.add_argument("--run-id", help="recorded in the commit, to find the run that made it")
    result.add_argument("--master", default=LOCAL_SPARK, help="Spark master, or sc://host:port (default: %(default)s)")
    result.add_argument(
        "--wait-ms", type=int, default=0, help="wait so long while another run works on it, then exit 3 (default: 0)"
    )
    result.add_argument(
        "--policy", action="store_true", help="compact only what pays now, as scheduled runs do (default: every window)"
    )
    audited = result.add_argument_group("what an audit looks at (default: every live split and retained compaction)")
    audited.add_argument("--since", type=int, help="what was committed after this version")
    audited.add_argument("--commits", type=int, help="so many of the newest compactions, and what they wrote")
    audited.add_argument("--last-run", action="store_true", help="what the job run wrote that compacted last")
    result.add_argument("--json", action="store_true", help="print the report as one JSON object")
    return result


def parse(arguments: argparse.Namespace) -> JobRequest:
    """Return the request for parsed arguments. Raises `InvalidInput` for a window that cannot be read."""
    return JobRequest(
        table_uri=arguments.table_uri,
        windows=window_range(arguments.window, arguments.start, arguments.end),
        index=arguments.index,
        declaration=arguments.declaration,
        dry_run=arguments.dry_run,
        horizon_ms=arguments.horizon_ms,
        run_id=arguments.run_id,
        master=arguments.master,
        wait_ms=arguments.wait_ms,
        mode=Mode.POLICY if arguments.policy else Mode.FINALIZE,
        since=arguments.since,
        commits=arguments.commits,
        last_run=arguments.last_run,
    )


def to_argv(request: JobRequest) -> Sequence[str]:
    """Return the arguments that `parse` reads back as this request."""
    argv = ["--table-uri", request.table_uri, "--master", request.master]
    if request.windows.null_only:
        argv += ["--window", NULL_WINDOW]
    options = {
        "--from": request.windows.start,
        "--to": request.windows.end,
        "--index": request.index,
        "--declaration": request.declaration,
        "--horizon-ms": request.horizon_ms,
        "--run-id": request.run_id,
        "--wait-ms": request.wait_ms or None,
        "--since": request.since,
        "--commits": request.commits,
    }
    argv += [f"{name}={value}" for name, value in options.items() if value is not None]
    argv += ["--policy"] if request.mode is Mode.POLICY else []
    argv += ["--last-run"] if request.last_run else []
    return argv + (["--dry-run"] if request.dry_run else [])


def window_range(window: str | None, start: str | None = None, end: str | None = None) -> WindowRange:
    """Return the range for one window, or for the bounds of several; without any, the range that holds everything."""
    if window is not None and (start is not None or end is not None):
        raise InvalidInput("give either --window or --from/--to, not both")
    if window == NULL_WINDOW:
        return WindowRange(null_only=True)
    if window is not None:
        first = window_seconds(window)
        return WindowRange(first, first + 1)
    return WindowRange(
        None if start is None else window_seconds(start),
        None if end is None else window_seconds(end),
    )


def _moment(seconds: int) -> str:
    try:
        return f"{dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S}"
    except OverflowError:
        return str(seconds)


def window_seconds(text: str) -> int:
    """Return seconds since the epoch for a window named by UTC time (`2015-05-17T10:00`) or by seconds."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(f"the window {text!r} is neither a time like 2015-05-17T10:00 nor seconds") from error
    return int((moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).timestamp())
