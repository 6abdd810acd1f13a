"""From what a person types for a table to the table: the name of a declared one, a path, or a URI."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from storage_core.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from storage_core.declaration import TableDeclaration
    from storage_core.table import Table

TABLES = Path("tables")
_BARE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Target:
    """Where a table is, and the file that declares it where there is one."""

    uri: str
    file: Path | None = None
    declaration: TableDeclaration | None = None


@dataclass(frozen=True, slots=True)
class Declared:
    """The declared tables by name, and what is wrong with the files that declare none."""

    tables: Mapping[str, Target]
    broken: Mapping[Path, InvalidInput]

    def raise_broken(self) -> None:
        """Raise `InvalidInput` with every problem of every broken file; return when there is none."""
        if self.broken:
            raise InvalidInput("\n".join(str(error) for error in self.broken.values()))


def declared(folder: Path = TABLES) -> Declared:
    """Return what a folder declares. A broken file takes no other table with it; a second file of a name is broken."""
    from storage_core.declaration import load

    tables: dict[str, Target] = {}
    broken: dict[Path, InvalidInput] = {}
    for file in sorted(folder.glob("*.yaml")):
        try:
            declaration = load(file)
        except InvalidInput as error:
            broken[file] = error
            continue
        other = tables.setdefault(declaration.name, Target(declaration.uri, file, declaration))
        if other.file != file:
            broken[file] = InvalidInput(f"{file}: field `name`: {declaration.name!r} is taken by {other.file}")
    return Declared(tables, broken)


def resolve(text: str) -> Target:
    """Return the declared table of this name, else the place of this path or URI.

    Raises `InvalidInput` when a file that is called like the name is broken, and `NotFound` for a bare word that is
    neither a name nor a folder.
    """
    if not _BARE_NAME.fullmatch(text):
        return Target(text)
    known = declared()
    if text in known.tables:
        return known.tables[text]
    if (own := TABLES / f"{text}.yaml") in known.broken:
        raise known.broken[own]
    if not Path(text).exists():
        names = ", ".join(known.tables) or "none"
        raise NotFound(f"{text!r} is neither a table declared in {TABLES}/*.yaml (declared: {names}) nor a folder here")
    return Target(text)


def open_table(text: str, at: str | None = None) -> Table:
    """Open the table that the text names, at its newest version or at another. Raises `NotFound`, with what to do."""
    from storage_core.table import Table, exists

    target = resolve(text)
    if target.declaration is not None and not exists(target.uri):
        raise NotFound(f"the table {text!r} is declared in {target.file} and not made yet; run: tidemark init {text}")
    return Table.open(target.uri, at=at)
