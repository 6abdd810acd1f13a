"""The one place where a job knows Dagster: it hands its report to the run that started it, over Dagster Pipes.

Outside a Pipes run nothing happens. The asset that launched the job turns the message into metadata and checks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from dagster_pipes import DAGSTER_PIPES_CONTEXT_ENV_VAR, open_dagster_pipes


def report_to_dagster(report: Mapping[str, object]) -> None:
    """Send the report, or the failure, to the Dagster run that launched this process; do nothing without one."""
    if DAGSTER_PIPES_CONTEXT_ENV_VAR not in os.environ:
        return
    with open_dagster_pipes() as pipes:
        pipes.report_custom_message(dict(report))
