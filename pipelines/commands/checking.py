"""What is wrong with a table, and what is left of it: `fsck`, `audit`, `repair`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobs.spark.master import LOCAL_SPARK
from pipelines.commands import output
from pipelines.commands.arguments import DryRun, From, Json, Master, To, Uri, Window
from pipelines.commands.running import run_here, windows
from pipelines.commands.target import resolve
from storage_core.errors import Corrupt
from storage_core.wording import counted

if TYPE_CHECKING:
    from jobs.reports.report import JobReport
    from storage_core.fsck.report import Report
    from storage_core.repair.outcome import Outcome


def fsck(
    uri: Uri,
    *,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read and hash every object; else splits and segments by size only.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say what is wrong with the files of a table.

    Each line ends with what to do. Writes nothing. Ends with 0 when nothing is damaged, also beside notes, else with 4.
    """
    from storage_core.clock import SystemClock
    from storage_core.fsck.check import fsck as check
    from storage_core.log.sharing import open_table_store

    report = check(open_table_store(resolve(uri).uri), clock=SystemClock(), deep=deep)
    _show_report(report, as_json=as_json)
    raise typer.Exit(report.exit_code)


def audit(
    uri: Uri,
    *,
    window: Window = None,
    start: From = None,
    end: To = None,
    since: Annotated[
        int | None, typer.Option("--since", metavar="VERSION", help="Only what was committed after this version.")
    ] = None,
    commits: Annotated[
        int | None,
        typer.Option("--commits", metavar="N", help="Only the newest N compactions, and the splits that they wrote."),
    ] = None,
    master: Master = LOCAL_SPARK,
    as_json: Json = False,
) -> None:
    """Judge splits and compactions by their files.

    Writes nothing. A merge whose inputs have been collected cannot be judged by its rows: it is named as not checkable.
    Ends with 0 when nothing is violated, else with 4.
    """
    from jobs.audit import run
    from jobs.requests.audit import AuditRequest

    chosen = windows(window, start, end, everything=False)
    request = AuditRequest(table_uri=resolve(uri).uri, windows=chosen, since=since, commits=commits, master=master)
    done = run_here(run, request)
    _show_audit(done, as_json=as_json)
    raise typer.Exit(0 if done.details["clean"] else Corrupt.exit_code)


def repair(
    uri: Uri,
    *,
    into: Annotated[str, typer.Option(metavar="URI", help="Where the repaired table goes: an empty place of its own.")],
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Make a sound table of what can still be read.

    The damaged table is only read. What could not be brought over is listed with its rows, where somebody counted them.
    """
    from storage_core.clock import SystemClock
    from storage_core.ids import SystemIds
    from storage_core.objectstore.resolve import open_store
    from storage_core.repair.repair import repair as run

    source, target = open_store(resolve(uri).uri), open_store(into)
    outcome = run(source, target, clock=SystemClock(), ids=SystemIds(), dry_run=dry_run)
    _show_outcome(outcome, as_json=as_json)
    if outcome.check is not None:
        raise typer.Exit(outcome.check.exit_code)


def _show_report(report: Report, *, as_json: bool) -> None:
    from storage_core.fsck.report import Severity

    found = [
        {
            "severity": each.severity,
            "kind": each.kind,
            "key": each.key,
            "expected": each.expected,
            "found": each.found,
            "advice": each.advice,
        }
        for each in report.findings
    ]
    counts = {f"{severity}s": report.count(severity) for severity in Severity}
    if as_json:
        for each in found:
            output.json_line(each)
        about = {"status": "clean" if report.clean else "damaged", "uri": report.uri, "version": report.version}
        metrics = {"deep": report.deep, "objects": report.objects, "bytes": report.bytes, **counts}
        output.json_line({"summary": {**about, **metrics, "requests": dict(report.requests)}})
        return
    shown = dict.fromkeys(("severity", "kind", "key", "expected", "found", "advice"), output.cell)
    output.records(found, shown, as_json=False, nothing="nothing is wrong")
    opens = "does not open" if report.version is None else f"opens at version {report.version}"
    looked = "every object read" if report.deep else "splits and segments by size only; --deep reads them"
    tally = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    size = f"{counted(report.objects, 'object')}, {counted(report.bytes, 'byte')}"
    output.line(f"{report.uri} {opens}: {size} ({looked}); {tally}")


def _show_audit(done: JobReport, *, as_json: bool) -> None:
    details: dict[str, Any] = dict(done.details)
    violations, unchecked, clean = (details.pop(name) for name in ("violations", "unchecked", "clean"))
    if as_json:
        for each in violations:
            output.json_line({"violation": each.pop("invariant"), **each})
        for each in unchecked:
            output.json_line({"not_checkable": each.pop("path"), **each})
        status = "clean" if clean else "violated"
        metrics = {"requests": dict(done.requests), "seconds": done.seconds}
        output.json_line({"summary": {"status": status, "version": done.version, **details, **metrics}})
        return
    shown = dict.fromkeys(("invariant", "path", "version", "message", "advice"), output.cell)
    output.records(violations, shown, as_json=False, nothing="no invariant is violated")
    if unchecked:
        named = [{**each, "not checkable": each["path"]} for each in unchecked]
        output.records(
            named, dict.fromkeys(("not checkable", "version", "reason"), output.cell), as_json=False, nothing=""
        )
    judged = f"{counted(details['splits'], 'split')} and {counted(details['merges'], 'merge')} judged"
    violated = counted(sum(details["violated"].values()), "violation")
    output.line(f"version {done.version}: {judged}, {details['not_checkable']:,} not checkable, {violated}")


def _show_outcome(outcome: Outcome, *, as_json: bool) -> None:
    recovered: list[output.Record] = [{"recovered": each.key, "how": each.how} for each in outcome.recovered]
    lost: list[output.Record] = [
        {"lost": each.key, "reason": each.reason, "rows": each.rows, "uncounted": each.is_uncounted}
        for each in outcome.lost
    ]
    unproven: list[output.Record] = [
        {"unproven": key, "reason": "nothing but the file says that it was committed"} for key in outcome.unproven
    ]
    if as_json:
        for each in [*recovered, *lost, *unproven]:
            output.json_line(each)
        output.json_line({"summary": _summary(outcome)})
        return
    if recovered:
        output.records(recovered, {"recovered": output.cell, "how": output.cell}, as_json=False, nothing="")
    shown = {"lost": output.cell, "reason": output.cell, "rows": output.number}
    output.records(lost, shown, as_json=False, nothing="nothing is lost")
    if unproven:
        output.records(unproven, {"unproven": output.cell, "reason": output.cell}, as_json=False, nothing="")
    unknown = f", and an unknown number of rows in {counted(outcome.uncounted, 'object')}" if outcome.uncounted else ""
    verb = "repaired" if outcome.status == "repaired" else "would be repaired"
    output.line(
        f"{outcome.source} {verb} into {outcome.target}: versions {outcome.first_version} to {outcome.version}, "
        f"{counted(outcome.splits, 'split')}, {counted(outcome.rows, 'row')}, {counted(outcome.records, 'record')} not "
        f"merged, {counted(outcome.rows_lost, 'row')} known to be lost{unknown}"
    )
    if outcome.check is not None:
        output.line(
            "a deep check of it found nothing wrong" if outcome.check.clean else "it is NOT clean: tidemark fsck"
        )


def _summary(outcome: Outcome) -> dict[str, object]:
    metrics = (
        "source",
        "target",
        "status",
        "first_version",
        "version",
        "splits",
        "rows",
        "bytes",
        "records",
        "rows_lost",
        "uncounted",
    )
    clean = None if outcome.check is None else outcome.check.clean
    return {**{name: getattr(outcome, name) for name in metrics}, "lost": len(outcome.lost), "clean": clean}
