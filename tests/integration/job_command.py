"""A job as a process of its own, with an environment of its own: what is started by hand, or by a Dagster run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from jobs.requests.request import JobRequest, to_argv
from jobs.spark.code_archive import ROOT


def run_command(request: JobRequest, environment: Mapping[str, str], *program: object) -> dict[str, Any]:
    """Run `python -m` of a job, or of a program and what it takes before the arguments of a job; return the report."""
    ended = subprocess.run(
        [sys.executable, "-m", *map(str, program), *to_argv(request), "--json"],
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
