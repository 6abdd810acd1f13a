"""`forget`: erase rows of a table and of all stores that they went through, and say what still holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.commands import output
from pipelines.commands.arguments import Json, Uri
from pipelines.commands.target import open_table, resolve
from storage_core.errors import InvalidInput, Unavailable
from storage_core.wording import counted

if TYPE_CHECKING:
    from storage_core.forget.raw_table import RawTable
    from storage_core.forget.report import ForgetReport, Held
    from storage_core.table import Table

_SHOWN = 20
_CATALOGS = (
    "not looked through: SQL catalogs, which drop the bounds of splits that left with `tidemark catalog refresh`"
)
_REASONS = {
    "version": "versions that are retained need them",
    "collector": "nothing needs them, and the collector takes them when their horizon has passed",
}
"""Reasons that differ from object to object only by a number. Others say what somebody has to do."""


def forget(
    uri: Uri,
    *,
    where: Annotated[str, typer.Option(metavar="CONDITION", help="The rows, by a SQL condition over their columns.")],
    report: Annotated[bool, typer.Option("--report", help="Only say what still holds them; 5 while any does.")] = False,
    raw: Annotated[
        list[str] | None,
        typer.Option(metavar="URI", help="A store of the raw log of a table that is not declared."),
    ] = None,
    raw_table: Annotated[
        str | None, typer.Option(metavar="NAME", help="What the records of that raw log call the table.")
    ] = None,
    paths: Annotated[bool, typer.Option("--paths", help="List every object that still holds them.")] = False,
    as_json: Json = False,
) -> None:
    """Erase the rows that meet a condition.

    They leave the table at once. What held them leaves the stores as `tidemark gc` and `tidemark raw --collect` go:
    when older versions are no longer retained. The report counts by reason and date what still holds them, and names
    the landed files of a declared table: remove these yourself. A tag keeps its version until it is removed. --report
    makes it again later.
    """
    table, raw_logs = open_table(uri), _raw_logs(uri, raw or [], raw_table)
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
    """The raw logs of a declared table, or the one that is given."""
    from storage_core.forget.raw_table import RawTable

    if bool(stores) != bool(table):
        raise InvalidInput("--raw and --raw-table go together: where a raw log is, and what it calls the table")
    if stores and table:
        return [RawTable(table, [resolve(each).uri for each in stores])]
    target = resolve(uri)
    if target.file is None:
        return []
    from pipelines.raw_logs import read_raw_logs
    from pipelines.tables import tables_folder
    from storage_core.declaration_parts import below

    feeding = [each.declaration for each in read_raw_logs(tables_folder()).raw_logs if each.declaration.feeds(uri)]
    return [RawTable(uri, [below(target.root, each) for each in one.uris]) for one in feeding]


def _with_landed(table: Table, uri: str, where: str, found: ForgetReport) -> ForgetReport:
    """The report with the landed files of a declared table that hold the rows."""
    from pipelines.tables import read_tables, tables_folder
    from storage_core.dml.statements import required_filter
    from storage_core.forget.judge import Judge
    from storage_core.forget.landed import held_by_landed_files

    if resolve(uri).file is None:
        return found
    known = read_tables(tables_folder()).named(uri)
    spec = None if known is None else known.declaration.landing_spec()
    if spec is None:
        return found
    snapshot = table.refresh().snapshot
    judge = Judge(table.store, snapshot, required_filter(where, "forget", snapshot.schema.names))
    return replace(found, held=(*found.held, *held_by_landed_files(judge, spec)))


def _objects(found: ForgetReport) -> set[tuple[str, str]]:
    return {(each.store, each.key) for each in found.held}


def _show(found: ForgetReport, fields: Mapping[str, object], *, paths: bool, as_json: bool) -> None:
    if as_json:
        output.json_line({**fields, "version": found.version, **found.to_dict()})
        return
    if found.is_clean:
        output.line(f"nothing of it is left: {counted(found.objects, 'object')} read")
        output.line(_CATALOGS)
        return
    of_table = [each for each in found.held if each.kind != "landed_file"]
    landed = [each for each in found.held if each.kind == "landed_file"]
    output.line(
        f"{counted(len(_objects(found)), 'object')} still hold it, of {found.objects:,} objects and what landed:"
    )
    for reason, until, count in _summary(of_table):
        output.line(f"  {until}  {counted(count, 'object')}: {reason}")
    if landed:
        output.line(f"  {counted(len(landed), 'landed file')}, which stay until somebody removes them:")
        for each in landed if paths else landed[:_SHOWN]:
            output.line(f"    {each.store}/{each.key}: {each.why}")
        if len(landed) > _SHOWN and not paths:
            output.line(f"    and {len(landed) - _SHOWN:,} more: --paths lists all")
    for each in of_table if paths else ():
        output.line(f"  {each.store}/{each.key}: {each.why}{_until(each)}")
    if of_table and not paths:
        output.line("  --paths lists every object")
    output.line(_CATALOGS)


def _summary(held: Sequence[Held]) -> list[tuple[str, str, int]]:
    """Why objects are there, until which day, and how many; the latest day and what waits for somebody last."""
    keys: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for each in held:
        reason = _REASONS.get(each.by.value, each.why)
        day = "without a date   " if each.until_ms is None else f"until {output.instant_ms(each.until_ms)[:10]} "
        keys.setdefault((day, reason), set()).add((each.store, each.key))
    ordered = sorted(keys, key=lambda key: (key[0].startswith("without"), key))
    return [(reason, day.ljust(16), len(keys[day, reason])) for day, reason in ordered]


def _until(held: Held) -> str:
    return "" if held.until_ms is None else f", until {output.instant_ms(held.until_ms)}"
