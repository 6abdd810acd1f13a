"""A helper that runs a job in a separate process with its own environment, as a user and Dagster do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from jobs.command import to_arguments
from jobs.spark.java import ROOT
from storage_core.data.steps import RunOptions


def run_command(options: RunOptions, environment: Mapping[str, str], *program: object) -> dict[str, Any]:
    """Run a job as `python -m PROGRAM ARGUMENTS` and return its report.

    `program` can also be a test program with its own arguments, which precede the arguments of the job.
    """
    ended = subprocess.run(
        [sys.executable, "-m", *map(str, program), *to_arguments(options), "--json"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4_000:]
    report: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    assert report["status"] == "committed"
    return report
