"""What the audit job is asked to do, and its form as command-line arguments: it plans nothing and commits nothing."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from jobs import window_range
from jobs.master import LOCAL_SPARK
from jobs.window_range import EVERY_WINDOW, WindowRange


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


def parse(arguments: argparse.Namespace) -> AuditRequest:
    """Return the request for what `jobs.request.parser` parsed. Raises `InvalidInput` for a window nobody can read."""
    return AuditRequest(
        table_uri=arguments.table_uri,
        windows=window_range.parse(arguments),
        since=arguments.since,
        commits=arguments.commits,
        last_run=arguments.last_run,
        master=arguments.master,
    )


def to_argv(request: AuditRequest) -> Sequence[str]:
    """Return the arguments that `parse` reads back as this request."""
    argv = [f"--table-uri={request.table_uri}", f"--master={request.master}", *window_range.to_argv(request.windows)]
    limits = {"--since": request.since, "--commits": request.commits}
    argv += [f"{name}={value}" for name, value in limits.items() if value is not None]
    return argv + (["--last-run"] if request.last_run else [])
