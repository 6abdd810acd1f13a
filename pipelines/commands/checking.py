"""Commands that check, repair and erase data: `fsck`, `audit`, `repair`, `forget` and `probe`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from pipelines.commands import output
from pipelines.commands.arguments import DryRun, Json, Uri, open_table, resolve, table_to_change
from pipelines.commands.maintenance import command_of
from pipelines.commands.output import cell
from storage_core.base.errors import Corrupt, InvalidInput, Unavailable
from storage_core.base.text import counted
from storage_core.data.steps import STEPS

if TYPE_CHECKING:
    from storage_core.log.job_run import JobReport
    from storage_core.maintain.findings import Report
    from storage_core.maintain.forget_report import ForgetReport, Held, RawTable
    from storage_core.maintain.repair import Outcome
    from storage_core.table import Table


def fsck(
    uri: Uri,
    *,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep",
            help="Read and hash every object. Without --deep, only the sizes of splits and segments are checked.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Report damage in the files of a table.

    Each finding contains advice. The command changes nothing. The exit code is 0 if nothing is damaged, even if there
    are notes. Otherwise, the exit code is 4.

    Example: tidemark fsck clicks --deep
    """
    from storage_core.base.clock import SystemClock
    from storage_core.log.sharing import open_table_store
    from storage_core.maintain.check import fsck as check

    report = check(open_table_store(resolve(uri).uri), clock=SystemClock(), deep=deep)
    _show_report(report, as_json=as_json)
    raise typer.Exit(report.exit_code)


def repair(
    uri: Uri,
    *,
    into: Annotated[
        str, typer.Option(metavar="URI", help="The location of the repaired table. The location must be empty.")
    ],
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Copy all readable data to a new table.

    The command only reads the damaged table. The output lists the data that could not be copied, with the number of
    rows if this number is known.

    Example: tidemark repair clicks --into warehouse/repaired
    """
    from storage_core.base.clock import SystemClock, SystemIds
    from storage_core.maintain.repair import repair as run
    from storage_core.store.resolve import open_store

    source, target = open_store(resolve(uri).uri), open_store(into)
    outcome = run(source, target, clock=SystemClock(), ids=SystemIds(), dry_run=dry_run)
    _show_outcome(outcome, as_json=as_json)
    if outcome.check is not None:
        raise typer.Exit(outcome.check.exit_code)


def _show_report(report: Report, *, as_json: bool) -> None:
    from storage_core.maintain.findings import Severity

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
    looked = "every object read" if report.deep else "only the sizes of splits and segments, use --deep to read them"
    tally = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    size = f"{counted(report.objects, 'object')}, {counted(report.bytes, 'byte')}"
    output.line(f"{report.uri} {opens}: {size} ({looked}); {tally}")


def _show_audit(done: JobReport, *, as_json: bool) -> NoReturn:
    """Print the findings, and end the command with their exit code."""
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
        raise typer.Exit(0 if clean else Corrupt.exit_code)
    shown = dict.fromkeys(("invariant", "path", "version", "message", "advice"), output.cell)
    output.records(violations, shown, as_json=False, nothing="no invariant is violated")
    if unchecked:
        named = [{**each, "not checkable": each["path"]} for each in unchecked]
        output.records(
            named, dict.fromkeys(("not checkable", "version", "reason"), output.cell), as_json=False, nothing=""
        )
    judged = f"{counted(details['splits'], 'split')} and {counted(details['merges'], 'merge')} checked"
    violated = counted(sum(details["violated"].values()), "violation")
    output.line(f"version {done.version}: {judged}, {details['not_checkable']:,} not checkable, {violated}")
    raise typer.Exit(0 if clean else Corrupt.exit_code)


def _show_outcome(outcome: Outcome, *, as_json: bool) -> None:
    recovered: list[output.Record] = [{"recovered": each.key, "how": each.how} for each in outcome.recovered]
    lost: list[output.Record] = [
        {"lost": each.key, "reason": each.reason, "rows": each.rows, "uncounted": each.is_uncounted}
        for each in outcome.lost
    ]
    unproven: list[output.Record] = [
        {"unproven": key, "reason": "no log entry proves that the file was committed"} for key in outcome.unproven
    ]
    if as_json:
        for each in [*recovered, *lost, *unproven]:
            output.json_line(each)
        output.json_line({"summary": _check_summary(outcome)})
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
        f"{outcome.source} {verb} into {outcome.target}: versions {outcome.first_version} to {outcome.version} "
        f"with {counted(outcome.splits, 'split')}, {counted(outcome.rows, 'row')} and "
        f"{counted(outcome.records, 'unmerged record')}. Known to be lost: {counted(outcome.rows_lost, 'row')}{unknown}"
    )
    if outcome.check is not None:
        output.line(
            "a deep check of the new table found nothing wrong"
            if outcome.check.clean
            else "the new table is damaged: run tidemark fsck"
        )


def _check_summary(outcome: Outcome) -> dict[str, object]:
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


# Commands `audit` and `forget`.


audit = command_of(STEPS["audit"], _show_audit)


_SHOWN = 20
_CATALOGS = "not searched: SQL catalogs. `tidemark catalog refresh` removes the bounds of removed splits from a catalog"
_REASONS = {
    "version": "retained versions need these objects",
    "collector": "nothing needs these objects, and garbage collection deletes the objects after the horizon",
}
"""The texts for reasons whose messages are equal for all objects except for one number.

All other reasons already contain an instruction for a person.
"""


def forget(
    uri: Uri,
    *,
    where: Annotated[str, typer.Option(metavar="CONDITION", help="Condition in SQL that selects the rows.")],
    report: Annotated[
        bool,
        typer.Option(
            "--report",
            help="Only list the objects that still contain the rows. Exit with 5 if an object still "
            "contains such rows.",
        ),
    ] = False,
    raw: Annotated[
        list[str] | None,
        typer.Option(metavar="URI", help="A store of the raw log of a table that is not declared."),
    ] = None,
    raw_table: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the table in the records of that raw log.")
    ] = None,
    paths: Annotated[bool, typer.Option("--paths", help="List every object that still contains the rows.")] = False,
    as_json: Json = False,
) -> None:
    """Erase the rows that meet a condition.

    Reads do not return the rows any more. `tidemark gc` and `tidemark raw --collect` delete the objects that contain
    the rows. The two commands wait until no retained version needs the objects. A tagged version is retained until the
    tag is removed.

    The report counts the objects that still contain the rows, grouped by reason and date. For a declared table, the
    report also lists the landed files that contain the rows. You must remove landed files yourself.

    With --report, the command erases nothing and prints the current report.

    Example: tidemark forget clicks --where "visitor = 'ann'"
    """
    raw_logs = _raw_logs(uri, raw or [], raw_table)
    table = open_table(uri) if report else table_to_change(uri)
    if report:
        found = _with_landed(table, uri, where, table.forget_report(where, raw_logs=raw_logs))
        _show(found, {}, paths=paths, as_json=as_json)
        if not found.is_clean:
            raise typer.Exit(Unavailable.exit_code)
        return
    done = table.forget(where, raw_logs=raw_logs)
    fields = {
        "status": done.status,
        "commit_id": done.commit_id or None,
        "rows": done.rows,
        "splits_rewritten": done.splits_rewritten,
    }
    if not as_json:
        rewritten = f"{counted(done.splits_rewritten, 'split')} rewritten"
        output.line(f"{counted(done.rows, 'row')} deleted (version {done.version:,}, {rewritten})")
    _show(_with_landed(table, uri, where, done.report), fields, paths=paths, as_json=as_json)


def _raw_logs(uri: str, stores: list[str], table: str | None) -> list[RawTable]:
    """Return the raw logs that feed a declared table, or the raw log from the options."""
    from storage_core.maintain.forget_report import RawTable

    if bool(stores) != bool(table):
        raise InvalidInput("--raw and --raw-table go together. Give a raw log, and the table's name in its records.")
    if stores and table:
        from storage_core.store.resolve import open_store
        from storage_core.write.raw_log.history import require_raw_log

        uris = [resolve(each).uri for each in stores]
        for each in uris:  # without this raw log, the report would be incomplete
            require_raw_log([open_store(each)])
        return [RawTable(table, uris)]
    target = resolve(uri)
    if target.file is None:
        return []
    from pipelines.tables import read_raw_logs, tables_folder
    from storage_core.change.declaration_parts import below

    feeding = [each.declaration for each in read_raw_logs(tables_folder()).raw_logs if each.declaration.feeds(uri)]
    return [RawTable(uri, [below(target.root, each) for each in one.uris]) for one in feeding]


def _with_landed(table: Table, uri: str, where: str, found: ForgetReport) -> ForgetReport:
    """Return the report. For a declared table, add the landed files that contain the rows."""
    from pipelines.tables import read_tables, tables_folder
    from storage_core.maintain.forget import with_landed_files

    if resolve(uri).file is None:
        return found
    known = read_tables(tables_folder()).find(uri)
    spec = None if known is None else known.declaration.landing_spec()
    if spec is None:
        return found
    return with_landed_files(found, table.store, table.refresh().snapshot, where=where, spec=spec)


def _objects(found: ForgetReport) -> set[tuple[str, str]]:
    return {(each.store, each.key) for each in found.held}


def _show(found: ForgetReport, fields: Mapping[str, object], *, paths: bool, as_json: bool) -> None:
    if as_json:
        output.json_line({**fields, "version": found.version, **found.to_dict()})
        return
    if found.is_clean:
        output.line(f"no object contains the rows: {counted(found.objects, 'object')} read")
        output.line(_CATALOGS)
        return
    of_table = [each for each in found.held if each.kind != "landed_file"]
    landed = [each for each in found.held if each.kind == "landed_file"]
    output.line(
        f"{counted(len(_objects(found)), 'object')} still contain the rows, out of {found.objects:,} objects and the "
        "landed files:"
    )
    for reason, until, count in _forget_summary(of_table):
        output.line(f"  {until}  {counted(count, 'object')}: {reason}")
    if landed:
        output.line(f"  {counted(len(landed), 'landed file')}, which you must remove yourself:")
        for each in landed if paths else landed[:_SHOWN]:
            output.line(f"    {each.store}/{each.key}: {each.why}")
        if len(landed) > _SHOWN and not paths:
            output.line(f"    and {len(landed) - _SHOWN:,} more: --paths lists all")
    for each in of_table if paths else ():
        output.line(f"  {each.store}/{each.key}: {each.why}{_until(each)}")
    if of_table and not paths:
        output.line("  --paths lists every object")
    output.line(_CATALOGS)


def _forget_summary(held: Sequence[Held]) -> list[tuple[str, str, int]]:
    """Return each reason why objects still contain forgotten rows, with its last day and its number of objects.

    The entries are ordered by day. Reasons without a date are last. Objects that have a reason without a date remain
    until a person acts.
    """
    keys: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for each in held:
        reason = _REASONS.get(each.by.value, each.why)
        day = "without a date   " if each.until_ms is None else f"until {output.instant_ms(each.until_ms)[:10]} "
        keys.setdefault((day, reason), set()).add((each.store, each.key))
    ordered = sorted(keys, key=lambda key: (key[0].startswith("without"), key))
    return [(reason, day.ljust(16), len(keys[day, reason])) for day, reason in ordered]


def _until(held: Held) -> str:
    return "" if held.until_ms is None else f", until {output.instant_ms(held.until_ms)}"


def probe(uri: Uri, *, as_json: Json = False) -> None:
    """Check whether a table can be stored at a location.

    The command tests conditional writes, listing and deletion. The command uses one object below the location and
    deletes the object afterwards. The location does not have to contain a table. If a store fails a test, Tidemark does
    not create or change tables on it.

    Example: tidemark probe s3://bucket/warehouse/clicks
    """
    from storage_core.base.clock import SystemIds
    from storage_core.data.formats.keys import probe_key
    from storage_core.store import resolve as probing
    from storage_core.store.resolve import open_store

    found = probing.probe(open_store(resolve(uri).uri), probe_key(SystemIds().uuid()))
    records = ({"capability": str(each.capability), "ok": each.ok, "found": each.found} for each in found.trials)
    output.records(records, {"capability": cell, "ok": cell, "found": cell}, as_json=as_json, nothing="")
    found.require()
