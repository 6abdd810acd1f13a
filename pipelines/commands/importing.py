"""`import`: tables of what others wrote."""

from __future__ import annotations

from contextlib import AbstractContextManager, chdir, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.commands import output
from pipelines.commands.arguments import Declaration, Json, Uri, refuse_beside
from pipelines.commands.target import resolve
from storage_core.errors import InvalidInput
from storage_core.wording import counted

if TYPE_CHECKING:
    from storage_core.importing.imported import Imported
    from storage_core.importing.source import Stream

_NEW = "Of a new table: "


def import_(
    uri: Uri,
    source: Annotated[
        str | None, typer.Argument(metavar="[SOURCE]", help="A folder of Parquet files, or a Delta table.")
    ] = None,
    *,
    query: Annotated[
        str | None, typer.Option(metavar="SQL", help="Instead of SOURCE: a SELECT of DuckDB, over any of your files.")
    ] = None,
    database: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --query: a database of DuckDB, which is only read.")
    ] = None,
    version: Annotated[int | None, typer.Option(metavar="NUMBER", help="Of a Delta table; its newest without.")] = None,
    declaration: Declaration = None,
    time_column: Annotated[str | None, typer.Option(metavar="COLUMN", help=f"{_NEW}the time of an event.")] = None,
    window: Annotated[str | None, typer.Option(metavar="DURATION", help=f"{_NEW}such as 1h; 15m unless given.")] = None,
    sort_schema: Annotated[str | None, typer.Option(metavar="TEXT", help=f"{_NEW}the order of rows.")] = None,
    primary_key: Annotated[str | None, typer.Option(metavar="COLUMNS", help=f"{_NEW}makes it keyed.")] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="What the import is known by; without, where the rows are.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Bring in rows that others wrote, in one commit, once.

    The table is made where there is none, as declared or with the columns of the source. Nothing at the source is
    changed. Run again it does nothing, or does what a run that was killed had not done.
    """
    from storage_core.declaration import load
    from storage_core.table import Table

    target = resolve(uri)
    file = declaration.resolve() if declaration else target.file
    with _source(source, query, database, name) as given, chdir(Path() if declaration else target.root):
        done = Table.import_from(
            target.uri,
            given,
            name=name,
            version=version,
            declaration=None if file is None else load(file),
            time_column=time_column,
            window=window,
            sort_schema=sort_schema,
            primary_key=None if primary_key is None else primary_key.split(","),
        )
    _show(done, as_json=as_json)


def _source(
    source: str | None, query: str | None, database: Path | None, name: str | None
) -> AbstractContextManager[str | Stream]:
    """The place of the source as it is from here, or the answer of the query while it is read."""
    if query is not None:
        refuse_beside("--query", {"SOURCE": source}, why="is what is imported")
        from storage_core.importing.query import answer_of

        return answer_of(query, database, name=name)
    if source is None:
        raise InvalidInput("name what to import: SOURCE, a folder or a Delta table, or --query")
    if database is not None:
        raise InvalidInput("--database is of --query; give a query, such as SELECT * FROM events")
    return nullcontext(source if "://" in source else str(Path(source).absolute()))


def _show(done: Imported, *, as_json: bool) -> None:
    for name, reason in () if as_json else done.not_read_names.items():
        output.line(f"not read: {name} ({reason})")
    if done.not_read > len(done.not_read_names) and not as_json:
        output.line(f"not read: {counted(done.not_read - len(done.not_read_names), 'more file')}")
    if as_json:
        told = {name: value for name, value in asdict(done).items() if name != "by_another"}
        output.json_line({"status": done.status, **told, "commit_id": done.commit_id or None})
    elif done.commit_id:
        of = f" of {counted(done.files, 'file')}" if done.files else ""
        output.line(
            f"{counted(done.rows, 'row')}{of} imported (version {done.version:,}, {done.splits_added:,} new splits)"
        )
    elif done.by_another:
        output.line(f"imported by another process meanwhile, its rows are in once (version {done.version:,})")
    else:
        output.line(f"imported before, nothing to do (version {done.version:,})")
