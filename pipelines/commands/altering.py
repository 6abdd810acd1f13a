"""`alter`: a table's settings, changed by name, and its columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from pipelines.commands import output
from pipelines.commands.arguments import Json, Uri
from pipelines.commands.target import open_table, resolve
from storage_core.errors import InvalidInput

if TYPE_CHECKING:
    from storage_core.table import Table

Change = Literal["set", "unset", "add-column", "widen-column", "rename-column", "drop-column", "relax-column"]

_WORDS: Final[Mapping[str, str]] = {
    "add-column": "COLUMN TYPE",
    "widen-column": "COLUMN TYPE",
    "rename-column": "COLUMN NAME",
    "drop-column": "COLUMN",
    "relax-column": "COLUMN",
}
"""What follows each change of a column."""


def alter(
    uri: Uri,
    change: Annotated[Change, typer.Argument(help="What to change.")],
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME[=VALUE]…|COLUMN [TYPE|NAME]",
            help="Settings, such as gc.retention=90d; or a column, and its type or new name.",
        ),
    ],
    *,
    default: Annotated[
        str | None, typer.Option(metavar="VALUE", help="With add-column: what rows written before have in it.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Change settings of a table, or one of its columns.

    Names and values of settings are those of tables/*.yaml and of describe; unset is back to the default. A declared
    table takes them from its file.

    A change of a column rewrites no row, and older versions stay as they were. A column is added behind the others and
    may be null. Integers become wider ones, float double, decimals longer ones, dates timestamps. A column that
    another setting names, such as the key or an index, is neither renamed nor dropped.
    """
    if default is not None and change != "add-column":
        raise InvalidInput("--default goes with add-column only")
    if change in ("set", "unset"):
        _settings(uri, dict(map(_assigned if change == "set" else _bare, what)), as_json=as_json)
    else:
        _column(uri, change, what, default, as_json=as_json)


def _settings(uri: str, given: Mapping[str, str | None], *, as_json: bool) -> None:
    if (file := resolve(uri).file) is not None:
        raise InvalidInput(
            f"{uri!r} takes its settings from {file}; change {', '.join(given)} there, then run: tidemark init {uri}"
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
        raise InvalidInput(f"{text!r}: write NAME=VALUE, such as gc.retention=90d")
    return name.strip(), value.strip()


def _bare(name: str) -> tuple[str, str | None]:
    if "=" in name:
        raise InvalidInput(f"{name!r}: unset takes names only; it is back to the default")
    return name, None


def _column(uri: str, change: str, what: Sequence[str], default: str | None, *, as_json: bool) -> None:
    if len(what) != len(_WORDS[change].split()):
        raise InvalidInput(f"{change} takes {_WORDS[change]}, found {' '.join(what)}")
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
