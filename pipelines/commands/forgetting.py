"""`forget`: erase rows of a table and of all stores that they went through, and say what still holds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.commands import output
from pipelines.commands.arguments import Json, Uri
from pipelines.commands.target import open_table, resolve
from storage_core.errors import InvalidInput, Unavailable
from storage_core.wording import counted

if TYPE_CHECKING:
    from storage_core.forget.raw_table import RawTable
    from storage_core.forget.report import ForgetReport

_SHOWN = 50
_CATALOGS = (
    "not looked through: SQL catalogs, which drop the bounds of splits that left with `tidemark catalog refresh`"
)


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
    as_json: Json = False,
) -> None:
    """Erase the rows that meet a condition.

    They leave the table at once. What held them leaves the stores as `tidemark gc` and `tidemark raw --collect` go:
    when older versions are no longer retained. The report names each object, and until when; a tag keeps its version
    until it is removed. --report makes it again later.
    """
    table, raw_logs = open_table(uri), _raw_logs(uri, raw or [], raw_table)
    if report:
        found = table.forget_report(where, raw_logs=raw_logs)
        _show(found, {}, as_json=as_json)
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
    _show(done.report, fields, as_json=as_json)


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


def _objects(found: ForgetReport) -> set[tuple[str, str]]:
    return {(each.store, each.key) for each in found.held}


def _show(found: ForgetReport, fields: Mapping[str, object], *, as_json: bool) -> None:
    if as_json:
        output.json_line({**fields, "version": found.version, **found.to_dict()})
        return
    if found.is_clean:
        output.line(f"nothing of it is left: {counted(found.objects, 'object')} read")
        output.line(_CATALOGS)
        return
    output.line(f"{counted(len(_objects(found)), 'object')} of {found.objects:,} still hold it:")
    for each in found.held[:_SHOWN]:
        until = "" if each.until_ms is None else f", until {output.instant_ms(each.until_ms)}"
        output.line(f"  {each.store}/{each.key}: {each.why}{until}")
    if len(found.held) > _SHOWN:
        output.line(f"  and {len(found.held) - _SHOWN:,} more: --json has all")
    output.line(_CATALOGS)
