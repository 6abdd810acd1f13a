"""From what a person types for a table to the table: the name of a declared one, a path, or a URI."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from storage_core.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from pipelines.tables import DeclaredTables
    from storage_core.table import Table

_BARE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Target:
    """Where a table is, and the file that declares it where there is one.

    `root` is what relative places in that file are relative to.
    """

    uri: str
    file: Path | None = None
    root: Path = Path()


def declared() -> DeclaredTables:
    """Return the declared tables, and what is wrong with the files that declare none."""
    from pipelines.tables import read_tables, tables_folder

    return read_tables(tables_folder())


def resolve(text: str) -> Target:
    """Return the declared table of this name, else the place of this path or URI.

    Raises `InvalidInput` when a file that is called like the name is broken and for what is no place, and `NotFound`
    for a bare word that is neither a name nor a folder.
    """
    from storage_core.objectstore.resolve import check_location

    if not _BARE_NAME.fullmatch(text):
        return Target(check_location(text))
    known = declared()
    if found := known.named(text):
        return Target(found.declaration.uri, found.file, known.root)
    for problem in known.problems:
        if problem.file.stem == text:
            raise InvalidInput(problem.message)
    if not Path(text).exists():
        raise NotFound(
            f"{text!r} is neither a table declared in tables/*.yaml (declared: {known.names()}) nor a folder here"
        )
    return Target(text)


def open_table(text: str, at: str | None = None) -> Table:
    """Open the table that the text names, at its newest version or at another. Raises `NotFound`, with what to do."""
    from storage_core.table import Table, exists

    target = resolve(text)
    if target.file is not None and not exists(target.uri):
        raise NotFound(f"the table {text!r} is declared in {target.file} and not made yet; run: tidemark init {text}")
    return Table.open(target.uri, at=at)
