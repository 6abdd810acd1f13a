"""The one place where a job knows Dagster: it hands its progress and report to the run that started it, over Pipes.

Outside a Pipes run nothing happens. The asset that launched the job turns the message into metadata and checks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

STARTED_BY_DAGSTER = "DAGSTER_PIPES_CONTEXT"
"""The variable by which Dagster says to a process that it runs under Pipes."""


def report_to_dagster(report: Mapping[str, object]) -> None:
    """Send the report, or the failure, to the Dagster run that launched this process; do nothing without one."""
    if STARTED_BY_DAGSTER not in os.environ:
        return
    from dagster_pipes import open_dagster_pipes

    with open_dagster_pipes() as pipes:
        pipes.report_custom_message(dict(report))


def progress_to_dagster() -> Callable[[int, int], None] | None:
    """Return what logs in the Dagster run how many items are done, and of how many; None without a run.

    The messages are those of the run until `report_to_dagster`, which is their last.
    """
    if STARTED_BY_DAGSTER not in os.environ:
        return None
    from dagster_pipes import open_dagster_pipes

    def say(done: int, total: int) -> None:
        if not (pipes := open_dagster_pipes()).is_closed:
            pipes.log.info("%d of %d work items done", done, total)

    return say
