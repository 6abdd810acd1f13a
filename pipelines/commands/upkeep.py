"""Upkeep in this process: `compact`, `sort`, `merge`, `expire`, `checkpoint`, `catch-up`, … Each runs its job."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs.spark.master import LOCAL_SPARK
from pipelines.commands import output
from pipelines.commands.arguments import (
    All,
    DryRun,
    From,
    Json,
    Master,
    Policy,
    To,
    Uri,
    Wait,
    Window,
    duration_ms,
)
from pipelines.commands.running import run_here, run_job, waiting_ms, windows
from pipelines.commands.target import resolve
from storage_core.errors import InvalidInput

if TYPE_CHECKING:
    from jobs.reports.report import JobReport
    from jobs.requests.request import JobRequest


def compact(
    uri: Uri,
    *,
    window: Window = None,
    start: From = None,
    end: To = None,
    all_: All = False,
    dry_run: DryRun = False,
    policy: Policy = False,
    rewindow: Annotated[
        bool, typer.Option("--rewindow", help="Write splits of former windows anew in windows of today's duration.")
    ] = False,
    resort: Annotated[
        bool, typer.Option("--resort", help="Write splits of another sort schema in the order of the table's.")
    ] = False,
    wait: Wait = None,
    master: Master = LOCAL_SPARK,
    as_json: Json = False,
) -> None:
    """Rewrite the splits of a window as one sorted run."""
    from jobs.compact import run
    from jobs.requests.request import JobRequest
    from storage_core.compaction.policy import Mode

    given = [
        mode for mode, wanted in {Mode.POLICY: policy, Mode.REWINDOW: rewindow, Mode.RESORT: resort}.items() if wanted
    ]
    if len(given) > 1:
        raise InvalidInput(f"--{given[0]} and --{given[1]} exclude each other. Give one of them")
    chosen = windows(window, start, end, everything=all_)
    request = JobRequest(
        table_uri=resolve(uri).uri,
        windows=chosen,
        dry_run=dry_run,
        master=master,
        wait_ms=waiting_ms(wait),
        mode=given[0] if given else Mode.FINALIZE,
    )
    run_job(run, request, as_json=as_json)


def sort(
    uri: Uri,
    *,
    dry_run: DryRun = False,
    wait: Wait = None,
    master: Master = LOCAL_SPARK,
    as_json: Json = False,
) -> None:
    """Sort generations that wait for a merge, if many do."""
    from jobs.sort import run

    run_job(run, _of_table(uri, wait, dry_run=dry_run, master=master), as_json=as_json)


def merge(
    uri: Uri,
    *,
    quarantine: Annotated[
        bool, typer.Option("--quarantine", help="Put what cannot be applied into quarantine, and merge the rest.")
    ] = False,
    dry_run: DryRun = False,
    wait: Wait = None,
    master: Master = LOCAL_SPARK,
    as_json: Json = False,
) -> None:
    """Apply flushed generations to a keyed table's base."""
    from jobs.merge import run

    request = replace(_of_table(uri, wait, dry_run=dry_run, master=master), quarantine=quarantine)
    run_job(run, request, as_json=as_json)


def expire(uri: Uri, *, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Take out windows that are older than the retention.

    Whole windows, in one commit. Older versions still show their rows, as long as they are retained; then the collector
    deletes the files.
    """
    from jobs.expire import run
    from jobs.requests.request import JobRequest

    done = run_here(run, JobRequest(table_uri=resolve(uri).uri, dry_run=dry_run))
    if not as_json:
        shown = {"window_start": output.window, **dict.fromkeys(("splits", "rows", "bytes"), output.number)}
        kept = "no window has left" if done.details["retention_ms"] else "the table has no retention: every row stays"
        output.records(_windows_of(done), shown, as_json=False, nothing=kept)
    output.report(done, as_json=as_json)


def checkpoint(
    uri: Uri,
    *,
    compact: Annotated[
        bool, typer.Option("--compact", help="List all splits anew: the fewest manifests, and no tombstone.")
    ] = False,
    dry_run: DryRun = False,
    wait: Wait = None,
    as_json: Json = False,
) -> None:
    """Write the state that keeps opening a table fast."""
    from jobs.checkpoint import run

    request = replace(_of_table(uri, wait, dry_run=dry_run, master=LOCAL_SPARK), compact_state=compact)
    run_job(run, request, as_json=as_json)


def catch_up(
    uri: Uri,
    *,
    index: Annotated[str | None, typer.Option(metavar="NAME", help="Only this index.")] = None,
    all_: All = False,
    retrain: Annotated[bool, typer.Option("--retrain", help="Train all segments of vectors again.")] = False,
    dry_run: DryRun = False,
    wait: Wait = None,
    master: Master = LOCAL_SPARK,
    as_json: Json = False,
) -> None:
    """Build the index segments that live splits lack.

    Small segments become one, and vectors whose clusters are too unlike are trained again.
    """
    from jobs.catch_up import run

    if all_ and index is not None:
        raise InvalidInput("give either --all or --index, not both")
    request = replace(_of_table(uri, wait, dry_run=dry_run, master=master), index=index, retrain=retrain)
    run_job(run, request, as_json=as_json)


def merge_segments(
    uri: Uri,
    *,
    index: Annotated[str | None, typer.Option(metavar="NAME", help="Only this index.")] = None,
    dry_run: DryRun = False,
    wait: Wait = None,
    master: Master = LOCAL_SPARK,
    as_json: Json = False,
) -> None:
    """Make one of many small index segments.

    Every catch-up does so, too.
    """
    from jobs.catch_up import run

    request = replace(_of_table(uri, wait, dry_run=dry_run, master=master), index=index, merges_only=True)
    run_job(run, request, as_json=as_json)


def gc(
    uri: Uri,
    *,
    horizon: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Horizon instead of the table's own, such as 24h or 0s.")
    ] = None,
    dry_run: DryRun = False,
    wait: Wait = None,
    as_json: Json = False,
) -> None:
    """Delete what no retained version needs any more.

    Only what has been unneeded for the whole horizon goes, and a table keeps its old versions as long as it says.
    """
    from jobs.collect import run
    from jobs.requests.request import JobRequest

    request = JobRequest(
        table_uri=resolve(uri).uri,
        horizon_ms=duration_ms("--horizon", horizon),
        dry_run=dry_run,
        wait_ms=waiting_ms(wait),
    )
    _show_collection(run_here(run, request), as_json=as_json)


def _of_table(uri: str, wait: str | None, *, dry_run: bool, master: str) -> JobRequest:
    from jobs.requests.request import JobRequest

    return JobRequest(table_uri=resolve(uri).uri, dry_run=dry_run, master=master, wait_ms=waiting_ms(wait))


def _windows_of(done: JobReport) -> list[dict[str, object]]:
    details: dict[str, Any] = dict(done.details)
    return list(details["windows"])


def _show_collection(done: JobReport, *, as_json: bool) -> None:
    details: dict[str, Any] = dict(done.details)
    candidates, deleted = details.pop("candidates"), set(details.pop("deleted_keys"))
    if not as_json:
        shown = {"reason": output.cell, "size": output.number, "key": output.cell}
        output.records(candidates, shown, as_json=False, nothing="every object is needed")
        output.line(done.to_text())
        return
    for each in candidates:
        output.json_line(each if each["key"] not in deleted else {**each, "deleted": True})
    metrics = {"requests": dict(done.requests), "seconds": done.seconds}
    summary = {
        "status": done.status,
        "version": done.version,
        "candidates": len(candidates),
        "bytes": done.metrics.bytes_in,
    }
    output.json_line({"summary": {**summary, **details, **metrics}})
