"""Distributing a raw log to its tables: `distribute`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.spark.master import LOCAL_SPARK
from pipelines.commands import output
from pipelines.commands.arguments import DryRun, Json, Master
from pipelines.commands.running import run_here
from storage_core.errors import Corrupt

if TYPE_CHECKING:
    from jobs.reports.report import JobReport

SkipGap = Annotated[
    list[str] | None,
    typer.Option("--skip-gap", metavar="WRITER:LAST", help="Give up the chunks missing of a writer up to LAST."),
]


def distribute(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A raw log declared in raw_logs/*.yaml.")],
    *,
    skip_gap: SkipGap = None,
    dry_run: DryRun = False,
    master: Master = LOCAL_SPARK,
    as_json: Json = False,
) -> None:
    """Bring the closed segments of a raw log to its tables.

    Ends with 4 when chunks are missing that hold back what their writer wrote later; everything else is distributed.
    """
    from jobs.distribute import run
    from pipelines.raw_logs import read_raw_logs
    from pipelines.tables import tables_folder

    declared = read_raw_logs(tables_folder()).named(name)
    request = replace(declared.request, skip_gaps=tuple(skip_gap or ()), dry_run=dry_run, master=master)
    done = run_here(run, request)
    output.report(done, as_json=as_json)
    _require_no_gap(done, name)


def _require_no_gap(done: JobReport, name: str) -> None:
    held = done.details["held"]
    if isinstance(held, list) and held:
        gaps = ", ".join(f"{each['writer']}:{each['last']}" for each in held)
        raise Corrupt(
            f"the stores of {name} lack chunks, and what their writers wrote later waits",
            advice=f"copy a backup of live/ into any store, or give them up for ever with --skip-gap and one of {gaps}",
        )
