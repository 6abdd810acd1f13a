"""`alter`: a table's settings, changed by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import typer

from pipelines.commands import output
from pipelines.commands.arguments import Json, Uri
from pipelines.commands.target import open_table, resolve
from storage_core.errors import InvalidInput

Change = Literal["set", "unset"]


def alter(
    uri: Uri,
    change: Annotated[Change, typer.Argument(help="What to change.")],
    what: Annotated[list[str], typer.Argument(metavar="NAME[=VALUE]…", help="Such as gc.retention=90d.")],
    *,
    as_json: Json = False,
) -> None:
    """Change settings of a table.

    Names and values are those of tables/*.yaml and of describe; unset is back to the default. A declared table takes
    its settings from its file.
    """
    given = dict(map(_assigned if change == "set" else _bare, what))
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
