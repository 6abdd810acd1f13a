"""`init`: declared tables, one of them, or one made from a schema file."""

from __future__ import annotations

import json
from contextlib import chdir
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipelines.commands import output
from pipelines.commands.arguments import Declaration, Json
from pipelines.commands.target import declared, resolve
from storage_core.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    import pyarrow as pa

    from storage_core.table import Table

Status = Literal["created", "exists", "changed"]

_FROM_SCHEMA = "With --schema: "
_LARGEST_SCHEMA_BYTES = 4 * 2**20


def init(
    uri: Annotated[str | None, typer.Argument(metavar="URI", help="A declared name, or where to make it.")] = None,
    *,
    schema: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Columns, as YAML or JSON: a type per name, or Spark's schema.")
    ] = None,
    declaration: Declaration = None,
    time_column: Annotated[str | None, typer.Option(metavar="COLUMN", help=f"{_FROM_SCHEMA}time of an event.")] = None,
    window: Annotated[
        str | None, typer.Option(metavar="DURATION", help=f"{_FROM_SCHEMA}such as 1h; 15m unless given.")
    ] = None,
    sort_schema: Annotated[str | None, typer.Option(metavar="TEXT", help=f"{_FROM_SCHEMA}order of rows.")] = None,
    primary_key: Annotated[str | None, typer.Option(metavar="COLUMNS", help=f"{_FROM_SCHEMA}makes it keyed.")] = None,
    partition_by: Annotated[
        str | None, typer.Option(metavar="FIELDS", help=f"{_FROM_SCHEMA}such as tenant,day(ts).")
    ] = None,
    index: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:KIND:COLUMNS", help=f"{_FROM_SCHEMA}such as text:fulltext:message."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make tables: those declared, or one.

    Without arguments all that tables/*.yaml declare, with a name that one, with --schema or --declaration one at URI.
    A declared table that exists keeps its rows; settings that changed in its file are changed in it, and it is said.
    """
    if schema is None:
        _init_declared(uri, declaration, as_json=as_json)
        return
    if uri is None or declaration is not None:
        raise InvalidInput("--schema needs the URI of the new table, and goes without --declaration")
    if window is not None and time_column is None:
        raise InvalidInput("--window needs --time-column: windows are of the time of an event")
    from storage_core.table import Table

    table = Table.create(
        uri,
        read_schema(schema),
        time_column=time_column,
        sort_schema=sort_schema,
        window=window or "auto",
        primary_key=None if primary_key is None else primary_key.split(","),
        partition_by=() if partition_by is None else partition_by.split(","),
        indexes=[_index(each) for each in index or ()],
    )
    _made(table, None, "created", as_json=as_json)


def _init_declared(uri: str | None, file: Path | None, *, as_json: bool) -> None:
    if file is not None:
        _declare(file, uri, Path(), as_json=as_json)
    elif uri is not None:
        target = resolve(uri)
        if target.file is None:
            raise InvalidInput(f"{uri!r} is not a declared table; give --schema FILE or --declaration FILE as well")
        _declare(target.file, None, target.root, as_json=as_json)
    else:
        known = declared()
        if not known.tables and not known.problems:
            raise InvalidInput("no table is declared here; run this in a folder with tables/*.yaml, or give a URI")
        for table in known.tables:
            if table.file is not None:
                _declare(table.file, None, known.root, as_json=as_json)
        known.require_sound()


def _declare(file: Path, uri: str | None, root: Path, *, as_json: bool) -> None:
    """Make the table as a job in the root does: places in the table are relative to that, whatever makes it."""
    from storage_core.declaration import load
    from storage_core.table import Table, exists

    with chdir(root):
        declaration = load(file)
        place = uri or declaration.uri
        before = Table.open(place).snapshot if exists(place) else None
        table = Table.declare(declaration, uri)
        # Not by the version: others may have committed meanwhile.
        kept = before is not None and before.metadata.configuration == table.snapshot.metadata.configuration
        status: Status = "created" if before is None else "exists" if kept else "changed"
        _made(table, declaration.name, status, as_json=as_json)


def _made(table: Table, name: str | None, status: Status, *, as_json: bool) -> None:
    if as_json:
        kind = table.snapshot.config.kind
        about = {"status": status, "name": name, "uri": table.uri, "kind": kind, "version": table.version}
        output.json_line(about)
    else:
        label = f"{name} at {table.uri}" if name else table.uri
        said = {
            "created": f"made {label}",
            "exists": f"{label} exists already, at version {table.version}",
            "changed": f"{label} exists already; its settings are changed, at version {table.version}",
        }
        output.line(said[status])


def read_schema(file: Path) -> pa.Schema:
    """Return the columns that a file names: `{column: type}` in YAML or JSON, or the JSON of a Spark schema.

    Types and the `!` for a column that must have a value are those of `tables/*.yaml`. Raises `NotFound` without the
    file, `InvalidInput` naming what is wrong.
    """
    from storage_core.rows.schema import from_schema_string

    try:
        with file.open("rb") as opened:
            data = opened.read(_LARGEST_SCHEMA_BYTES + 1)
    except OSError as error:
        raise NotFound(f"{file}: the schema cannot be read: {error.strerror}") from error
    if len(data) > _LARGEST_SCHEMA_BYTES:
        raise InvalidInput(f"{file}: a schema has at most {_LARGEST_SCHEMA_BYTES:,} bytes, and this file has more")
    if _is_spark_schema(data):
        return from_schema_string(data.decode())
    return _schema_of_names(data, file)


def _is_spark_schema(data: bytes) -> bool:
    try:
        body = json.loads(data)
    except ValueError:
        return False
    return isinstance(body, dict) and body.get("type") == "struct" and isinstance(body.get("fields"), list)


def _schema_of_names(data: bytes, file: Path) -> pa.Schema:
    import pyarrow as pa
    from pydantic import ValidationError

    from storage_core.declaration_parts import ColumnDeclaration, arrow_field
    from storage_core.formats import located_yaml

    document = located_yaml.parse(data, str(file))
    if not isinstance(document.value, dict) or not document.value:
        raise InvalidInput(f"{file}: expected a type for each column, such as `status: int!`")
    found = []
    for name, value in document.value.items():
        try:
            column = ColumnDeclaration.model_validate(value)
        except ValidationError as error:
            reason = error.errors()[0]["msg"].removeprefix("Value error, ")
            raise InvalidInput(f"{file}:{document.line_of((name,))}: column `{name}`: {reason}") from error
        found.append(arrow_field(name, column.type, nullable=column.nullable))
    return pa.schema(found)


def _index(text: str) -> dict[str, object]:
    parts = text.split(":")
    if len(parts) != 3 or not all(parts):
        raise InvalidInput(f"--index {text!r}: write NAME:KIND:COLUMNS, such as text:fulltext:request,agent")
    return {"name": parts[0], "kind": parts[1], "columns": parts[2].split(",")}
