"""Rows that change: `delete`, `update` and `overwrite` by a condition, `upsert` by columns that tell rows apart."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.commands import output
from pipelines.commands.arguments import Json, Uri
from pipelines.commands.target import open_table
from pipelines.commands.writing import Format, landed, rows_of
from storage_core.errors import InvalidInput
from storage_core.wording import counted

if TYPE_CHECKING:
    from storage_core.dml.changed import Changed

Where = Annotated[
    str, typer.Option(metavar="CONDITION", help="The rows, by a SQL condition over their columns; true for all.")
]
File = Annotated[str, typer.Argument(metavar="FILE|-", help="NDJSON, CSV or Parquet; - is standard input.")]
FormatOption = Annotated[
    Format | None, typer.Option("--format", help="What the file holds; by its suffix, and NDJSON for -, without.")
]
Application = Annotated[
    str | None, typer.Option(metavar="NAME:NUMBER", help="The work of this number is done once, however often it runs.")
]

_SET = re.compile(r'\s*(?:"((?:[^"]|"")+)"|(\w+))\s*=(?!=)(.*)', re.DOTALL)


def delete(uri: Uri, *, where: Where, as_json: Json = False) -> None:
    """Delete the rows that meet a condition, in one commit.

    No file is rewritten: the rows are hidden, also for what compacts, ingests or deletes meanwhile. Older versions
    still show them until they are no longer retained; `tidemark restore` brings them back.
    """
    _show(open_table(uri).delete(where), "deleted", as_json=as_json)


def update(
    uri: Uri,
    *,
    where: Where,
    set_: Annotated[
        list[str], typer.Option("--set", metavar="COLUMN=EXPRESSION", help="SQL over the old row; several times.")
    ],
    application: Application = None,
    as_json: Json = False,
) -> None:
    """Set columns of the rows that meet a condition.

    --set "n = n + 1" --set "host = 'unknown'": an expression sees the row as it was. In one
    commit the rows are hidden where they were and written anew.
    """
    values = dict(map(_assignment, set_))
    if len(values) < len(set_):
        raise InvalidInput("--set sets a column twice; give each column once")
    _show(open_table(uri).update(values, where, application=_application(application)), "updated", as_json=as_json)


def overwrite(
    uri: Uri,
    file: File,
    *,
    where: Where,
    format_: FormatOption = None,
    application: Application = None,
    as_json: Json = False,
) -> None:
    """Replace the rows that meet a condition by a file's.

    In one commit. Each row of the file meets the condition too, else nothing is done.
    """
    table = open_table(uri)
    with landed(file) as path:
        rows = rows_of(table, path, file, format_)
    _show(table.overwrite(rows, where, application=_application(application)), "replaced", as_json=as_json)


def upsert(
    uri: Uri,
    file: File,
    *,
    on: Annotated[str, typer.Option(metavar="COLUMNS", help="The columns that tell rows apart, with commas.")],
    format_: FormatOption = None,
    as_json: Json = False,
) -> None:
    """Add rows in the place of those with the same values.

    In one commit: a row of the file replaces those that have its values in some columns. Of a keyed table these are its
    primary key, and the rows go through a writer, as those of `append` do.
    """
    table = open_table(uri)
    with landed(file) as path:
        rows = rows_of(table, path, file, format_)
    _show(table.upsert(rows, on=[name.strip() for name in on.split(",")]), "replaced", as_json=as_json)


def _assignment(text: str) -> tuple[str, object]:
    from storage_core.dml.assignments import expr

    found = _SET.fullmatch(text)
    if found is None:
        raise InvalidInput(f'--set {text!r} is no assignment; write COLUMN = EXPRESSION, such as "n = n + 1"')
    quoted, plain, expression = found.groups()
    return plain or quoted.replace('""', '"'), expr(expression.strip())


def _application(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    name, _, number = text.rpartition(":")
    if not name or not re.fullmatch("[0-9]{1,19}", number):
        raise InvalidInput(f"--application {text!r} is no name and number; write them as nightly:17")
    return name, int(number)


def _show(done: Changed, did: str, *, as_json: bool) -> None:
    is_done = bool(done.commit_id or done.rows_added)
    if as_json:
        status = "committed" if done.commit_id else "acknowledged" if is_done else "nothing_to_do"
        output.json_line({"status": status, **asdict(done), "commit_id": done.commit_id or None})
        return
    if not is_done:
        output.line(f"nothing to do (version {done.version:,})")
        return
    added = f", {counted(done.rows_added, 'row')} added" if done.rows_added and did != "updated" else ""
    splits = f"{counted(done.splits, 'split')} touched, {done.splits_added:,} new"
    output.line(f"{counted(done.rows, 'row')} {did}{added} (version {done.version:,}, {splits})")
