"""Commands that create and change tables: `init`, `alter`, `clone` and `import`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, chdir, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from pipelines.commands import output
from pipelines.commands.arguments import (
    BARE_NAME,
    Declaration,
    Json,
    Uri,
    declared,
    open_table,
    reject_combined,
    resolve,
)
from storage_core.base.errors import InvalidInput, NotFound
from storage_core.base.text import counted

if TYPE_CHECKING:
    import pyarrow as pa

    from storage_core.interop.import_files import Stream
    from storage_core.interop.import_given import Imported
    from storage_core.log.sharing import Cloned
    from storage_core.table import Table


Status = Literal["created", "exists", "changed"]

_FROM_SCHEMA = "With --schema: "
_LARGEST_SCHEMA_BYTES = 4 * 2**20


def init(
    uri: Annotated[
        str | None, typer.Argument(metavar="URI", help="The name of a declared table, or the location of a new table.")
    ] = None,
    *,
    schema: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Columns, as YAML or JSON: a type per name, or Spark's schema.")
    ] = None,
    declaration: Declaration = None,
    time_column: Annotated[
        str | None, typer.Option(metavar="COLUMN", help=f"{_FROM_SCHEMA}column of event times.")
    ] = None,
    window: Annotated[
        str | None, typer.Option(metavar="DURATION", help=f"{_FROM_SCHEMA}length of windows (default: 15m).")
    ] = None,
    sort_schema: Annotated[str | None, typer.Option(metavar="TEXT", help=f"{_FROM_SCHEMA}order of rows.")] = None,
    primary_key: Annotated[
        str | None, typer.Option(metavar="COLUMNS", help=f"{_FROM_SCHEMA}columns of the key.")
    ] = None,
    partition_by: Annotated[
        str | None, typer.Option(metavar="FIELDS", help=f"{_FROM_SCHEMA}the partitioning, such as tenant,day(ts).")
    ] = None,
    index: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:KIND:COLUMNS", help=f"{_FROM_SCHEMA}an index, such as text:fulltext:message."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Create all declared tables, or one table.

    Without arguments, the command creates all tables that tables/*.yaml declare. With the name of a declared table, the
    command creates this table. With --schema or --declaration, the command creates a table at the given URI. A declared
    table that already exists keeps its rows. If the file of the table has changed settings, the command changes these
    settings in the table and prints the changes.

    Example: tidemark init clicks
    """
    if schema is None:
        given = {
            "--time-column": time_column,
            "--sort-schema": sort_schema,
            "--window": window,
            "--primary-key": primary_key,
            "--partition-by": partition_by,
            "--index": index,
        }
        ignored = [name for name, value in given.items() if value]
        if ignored:
            advice = "Write the settings into the declaration, or give --schema"
            raise InvalidInput(f"{', '.join(ignored)} cannot be given without --schema. {advice}")
        _init_declared(uri, declaration, as_json=as_json)
        return
    if uri is None or declaration is not None:
        raise InvalidInput(
            "--schema needs the URI of the new table, and goes without --declaration. "
            "Give the URI, and leave --declaration out"
        )
    if window is not None and time_column is None:
        raise InvalidInput("--window needs --time-column: windows are of the time of an event. Give both")
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
            raise InvalidInput(f"{uri!r} is not a declared table. Give --schema FILE or --declaration FILE as well.")
        _declare(target.file, None, target.root, as_json=as_json)
    else:
        known = declared()
        if not known.tables and not known.problems:
            raise InvalidInput("no table is declared here. Run this in a folder with tables/*.yaml, or give a URI.")
        for table in known.tables:
            if table.file is not None:
                _declare(table.file, None, known.root, as_json=as_json)
        known.require_valid()


def _declare(file: Path, uri: str | None, root: Path, *, as_json: bool) -> None:
    """Create the table. The root is the working directory, as in a job.

    Relative locations therefore start at the root.
    """
    from storage_core.change.declaration import load
    from storage_core.table import Table, exists

    with chdir(root):
        declaration = load(file)
        place = uri or declaration.uri
        before = Table.open(place).snapshot if exists(place) else None
        table = Table.declare(declaration, uri)
        # Do not compare versions, because another process may have committed a change in the meantime.
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
            "changed": f"{label} exists already. The settings of the table were changed at version {table.version}",
        }
        output.line(said[status])


def read_schema(file: Path) -> pa.Schema:
    """Return the columns that a file declares.

    The file contains `{column: type}` in YAML or JSON, or the JSON of a Spark schema. Types have the same form as in
    `tables/*.yaml`. A `!` means that the column must have a value.

    Raises:
        NotFound: The file does not exist or cannot be read.
        InvalidInput: The content is not a schema. The message contains the fault.
    """
    from storage_core.data.rows.schema import from_schema_string

    try:
        with file.open("rb") as opened:
            data = opened.read(_LARGEST_SCHEMA_BYTES + 1)
    except OSError as error:
        raise NotFound(f"{file}: the schema cannot be read: {error.strerror}. Correct the path") from error
    if len(data) > _LARGEST_SCHEMA_BYTES:
        raise InvalidInput(
            f"{file}: a schema has at most {_LARGEST_SCHEMA_BYTES:,} bytes, and this file has more. Give another file"
        )
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

    from storage_core.change import declaration_file
    from storage_core.change.declaration_parts import ColumnDeclaration, arrow_field

    document = declaration_file.parse_yaml(data, str(file), "a type for each column")
    if not isinstance(document.value, dict) or not document.value:
        raise InvalidInput(
            f"{file}: the file is not a mapping of columns to types. Write each column with its type, such as "
            "`status: int!`"
        )
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
        raise InvalidInput(
            f"--index {text!r} is not valid. Write NAME:KIND:COLUMNS, such as text:fulltext:request,agent"
        )
    return {"name": parts[0], "kind": parts[1], "columns": parts[2].split(",")}


# Commands that change tables.


Change = Literal["set", "unset", "add-column", "widen-column", "rename-column", "drop-column", "relax-column"]

_WORDS: Final[Mapping[str, str]] = {
    "add-column": "COLUMN TYPE",
    "widen-column": "COLUMN TYPE",
    "rename-column": "COLUMN NAME",
    "drop-column": "COLUMN",
    "relax-column": "COLUMN",
}
"""The arguments that each change of a column needs."""


def alter(
    uri: Uri,
    change: Annotated[Change, typer.Argument(help="The change to make.")],
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME[=VALUE]…|COLUMN [TYPE|NAME]",
            help="Settings, such as gc.retention=90d, or a column and its type or new name.",
        ),
    ],
    *,
    default: Annotated[
        str | None, typer.Option(metavar="VALUE", help="With add-column: the value of the new column in existing rows.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Change settings or a column of a table.

    Settings have the same names and values as in tables/*.yaml and in describe. unset restores the default. The
    settings of a declared table can only be changed in its file.

    A change of a column does not rewrite rows, and it does not change older versions. A new column is added after the
    other columns and can be null. A type can become wider: integers to longer integers, float to double, decimals to
    longer decimals, dates to timestamps. You cannot rename or drop a column that another setting uses, such as the key
    or an index.

    Example: tidemark alter logs set gc.retention=90d
    """
    if default is not None and change != "add-column":
        raise InvalidInput("--default goes with add-column only. Leave it out")
    if change in ("set", "unset"):
        _settings(uri, dict(map(_assigned if change == "set" else _bare, what)), as_json=as_json)
    else:
        _column(uri, change, what, default, as_json=as_json)


def _settings(uri: str, given: Mapping[str, str | None], *, as_json: bool) -> None:
    if (file := resolve(uri).file) is not None:
        from storage_core.data.settings.table import check_names

        check_names(given)
        raise InvalidInput(
            f"{uri!r} takes its settings from {file}. Change {', '.join(given)} there, then run: tidemark init {uri}"
        )
    table = open_table(uri)
    before = table.version
    found = table.alter(given).describe()["settings"]
    now = {name: value for name, value in found.items() if _is_of(name, given)} if isinstance(found, dict) else {}
    status = "unchanged" if table.version == before else "changed"
    if as_json:
        output.json_line({"status": status, "version": table.version, "settings": now})
    else:
        output.line(f"{status} at version {table.version}: {', '.join(f'{name}={now[name]}' for name in now)}")


def _is_of(name: str, given: Mapping[str, str | None]) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in given)


def _assigned(text: str) -> tuple[str, str | None]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise InvalidInput(f"{text!r} is not a setting with a value. Write NAME=VALUE, such as gc.retention=90d")
    return name.strip(), value.strip()


def _bare(name: str) -> tuple[str, str | None]:
    if "=" in name:
        raise InvalidInput(f"{name!r} has a value, but unset restores the default. Give only the name of the setting")
    return name, None


def _column(uri: str, change: str, what: Sequence[str], default: str | None, *, as_json: bool) -> None:
    if len(what) != len(_WORDS[change].split()):
        raise InvalidInput(f"{change} cannot use the arguments {' '.join(what)}. Give {_WORDS[change]}")
    table = open_table(uri)
    before = table.snapshot.metadata
    _change(table, change, what, default)
    status = "unchanged" if table.snapshot.metadata == before else "changed"
    if as_json:
        columns = [{"name": each.name, "type": str(each.type), "nullable": each.nullable} for each in table.schema]
        output.json_line({"status": status, "version": table.version, "columns": columns})
    else:
        output.line(f"{status} at version {table.version}: {', '.join(table.schema.names)}")


def _change(table: Table, change: str, what: Sequence[str], default: str | None) -> None:
    match change:
        case "add-column":
            table.add_column(*what, default=default)
        case "widen-column":
            table.widen_column(*what)
        case "rename-column":
            table.rename_column(*what)
        case "drop-column":
            table.drop_column(*what)
        case _:
            table.relax_column(*what)


# Clone and import.


def clone(
    uri: Uri,
    to: Annotated[str, typer.Argument(metavar="NEW", help="The location of the clone. The location must be empty.")],
    *,
    version: Annotated[
        str | None, typer.Option(metavar="VERSION|TIME|TAG", help="The version (default: the newest).")
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Copy every file. Without --deep, the clone shares the files of the table.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Create a new table from a version of a table.

    Without --deep, the command writes only the log of the new table. The files remain at their location. A tag in the
    source table keeps these files until the tag is removed. The clone does not contain unmerged rows of a keyed table,
    so merge first.

    Example: tidemark clone logs ./try
    """
    if BARE_NAME.fullmatch(to) and declared().find(to) is not None:
        raise InvalidInput(f"{to!r} is a declared table. Give a new location, such as ./{to}")
    _show_clone(open_table(uri).clone(to, version=version, deep=deep), as_json=as_json)


def _show_clone(done: Cloned, *, as_json: bool) -> None:
    if as_json:
        status = "committed" if done.commit_id else "nothing_to_do"
        output.json_line({"status": status, **asdict(done), "commit_id": done.commit_id or None})
        return
    if not done.commit_id:
        output.line(f"nothing to do, because {done.uri} is already this clone")
        return
    how = f"the tag {done.tag} keeps the files of this version" if done.tag else f"{done.copied_bytes:,} bytes copied"
    output.line(
        f"version {done.source_version:,} was cloned to {done.uri}: {counted(done.rows, 'row')} in "
        f"{counted(done.splits, 'split')}, {how}"
    )
    if done.unmerged:
        output.line(f"{counted(done.unmerged, 'record')} that are not merged yet are missing in the clone")


_NEW = "For a new table: "


def import_(
    uri: Uri,
    source: Annotated[
        str | None, typer.Argument(metavar="[SOURCE]", help="A folder of Parquet files, or a Delta table.")
    ] = None,
    *,
    query: Annotated[
        str | None, typer.Option(metavar="SQL", help="Instead of SOURCE: a SELECT for DuckDB over any of your files.")
    ] = None,
    database: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --query: a DuckDB database, which is opened read-only.")
    ] = None,
    version: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="Version of a Delta table (default: the newest).")
    ] = None,
    declaration: Declaration = None,
    time_column: Annotated[str | None, typer.Option(metavar="COLUMN", help=f"{_NEW}column of event times.")] = None,
    window: Annotated[
        str | None, typer.Option(metavar="DURATION", help=f"{_NEW}length of windows (default: 15m).")
    ] = None,
    sort_schema: Annotated[str | None, typer.Option(metavar="TEXT", help=f"{_NEW}the order of rows.")] = None,
    primary_key: Annotated[str | None, typer.Option(metavar="COLUMNS", help=f"{_NEW}columns of the key.")] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the import (default: the location of the rows).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Import rows of another system once, in one commit.

    If the table does not exist, the command creates it as declared, or with the columns of the source. The command does
    not change the source. A second run changes nothing, or it completes a run that was killed.

    Example: tidemark import logs lake/logs --time-column at --window 1h
    """
    from storage_core.change.declaration import load
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
    _show_imported(done, as_json=as_json)


def _source(
    source: str | None, query: str | None, database: Path | None, name: str | None
) -> AbstractContextManager[str | Stream]:
    """Yield the absolute location of the source. For a query, yield its result as a stream."""
    if query is not None:
        reject_combined("--query", {"SOURCE": source}, why="is the source of the import")
        from storage_core.interop.import_given import answer_of

        return answer_of(query, database, name=name)
    if source is None:
        raise InvalidInput("the source is missing. Give SOURCE, a folder or a Delta table, or --query.")
    if database is not None:
        raise InvalidInput("--database goes with --query. Give a query, such as SELECT * FROM events.")
    return nullcontext(source if "://" in source else str(Path(source).absolute()))


def _show_imported(done: Imported, *, as_json: bool) -> None:
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
        output.line(
            f"imported by another process in the meantime, so its rows are in the table once (version {done.version:,})"
        )
    else:
        output.line(f"imported before, nothing to do (version {done.version:,})")
