"""The declared tables, for the command and for Dagster alike: every valid one, and what is wrong with the others.

One bad file does not take the other tables down: Dagster logs it as an error and the asset graph shows it in place of
its table, with file, line and field; the command names it where it is asked for. Free of Dagster, so that a command
answers at once.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from assets.names import identifier
from storage_core.declaration import TableDeclaration, load
from storage_core.errors import InvalidInput, NotFound, TidemarkError
from storage_core.formats import located_yaml
from storage_core.ingest.landing import landing_overlap
from storage_core.objectstore.resolve import canonical, with_locations_above

TABLES = "TIDEMARK_TABLES"

Taken = dict[tuple[str, str], tuple[str, Path]]
"""By field and what is the same of it for all ways to write it: how it is written, and in which file."""

LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class _Locations:
    """Locations of tables, or of their landing places, with the name of the first table of each.

    `at` has the locations themselves, `within` the locations that they lie in.
    """

    at: dict[str, str] = field(default_factory=dict)
    within: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, location: Sequence[str]) -> None:
        """Add the location of a table, as `with_locations_above` returns it."""
        here, *above = location
        self.at.setdefault(here, name)
        for each in above:
            self.within.setdefault(each, name)

    def overlapping(self, location: Sequence[str]) -> str | None:
        """Return the name of a table whose location overlaps this one, or None."""
        here, *_ = location
        if here in self.within:
            return self.within[here]
        return next((self.at[each] for each in location if each in self.at), None)


@dataclass(frozen=True, slots=True)
class DeclaredTable:
    """A valid declaration and the file that it is from; its places are ready for use in this process.

    `file` is relative to the working directory where the folder of the declarations lies in that.
    """

    declaration: TableDeclaration
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """A declaration that was left out: `message` has a line per fault, each with file, line and field."""

    file: Path
    message: str


@dataclass(frozen=True, slots=True)
class DeclaredTables:
    """What a folder of declarations holds. `root` is what relative places in them are relative to."""

    root: Path
    tables: tuple[DeclaredTable, ...]
    problems: tuple[Problem, ...] = ()
    folder: Path | None = None

    def named(self, name: str) -> DeclaredTable | None:
        """Return the table of this name, or None."""
        return next((each for each in self.tables if each.declaration.name == name), None)

    def names(self) -> str:
        """Return the names of the tables as a message has them."""
        return ", ".join(each.declaration.name for each in self.tables) or "none"

    def require_sound(self) -> None:
        """Raise `InvalidInput` with every problem; return when there is none."""
        require_sound(self.problems)


def require_sound(problems: Sequence[Problem]) -> None:
    """Raise `InvalidInput` with every problem; return when there is none."""
    if problems:
        raise InvalidInput("\n".join(each.message for each in problems))


def tables_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the declarations: `TIDEMARK_TABLES`, else `tables/` here, else that of the repository.

    Raises `NotFound` when `TIDEMARK_TABLES` names no folder.
    """
    if named := environment.get(TABLES):
        if not Path(named).is_dir():
            raise NotFound(f"{TABLES} is {named!r}, which is no folder; name the folder of the table declarations")
        return Path(named).resolve()
    here, repository = Path.cwd() / "tables", Path(__file__).resolve().parents[1]
    installed = not (repository / "pyproject.toml").is_file()  # beside other packages, of which one is called so
    return here if here.is_dir() or installed else repository / "tables"


def read_tables(folder: Path) -> DeclaredTables:
    """Return what `*.yaml` of the folder declare, by file name; a name or place belongs to the first.

    A folder that is not there declares nothing.
    """
    root = folder.parent
    tables: list[DeclaredTable] = []
    taken: Taken = {}
    own, landing = _Locations(), _Locations()
    problems: list[Problem] = []
    for path in sorted(folder.glob("*.yaml")):
        file = _shown(path, root)
        try:
            declaration = _resolved(load(file), root)
            here = with_locations_above(declaration.uri)
            place = declaration.landing
            # A Delta landing place may be the mirror of another table: its log names the files to read.
            lands = None if place is None or place.is_delta else with_locations_above(place.uri)
            _require_apart(file, here, lands, tables=own, landings=landing)
            _take(declaration, file, taken)
            own.add(declaration.name, here)
            if lands is not None:
                landing.add(declaration.name, lands)
            tables.append(DeclaredTable(declaration, file))
        except TidemarkError as error:
            problems.append(Problem(file, str(error)))
    return DeclaredTables(root, tuple(tables), tuple(problems), folder)


def load_tables(folder: Path) -> DeclaredTables:
    """Return what the folder declares as `read_tables` does, and log every problem: what Dagster loads.

    Raises `InvalidInput` when there are files and none is valid, `NotFound` when there is no such folder.
    """
    if not folder.is_dir():
        raise NotFound(f"{folder}: no folder of table declarations; run this in the repository root, or set {TABLES}")
    declared = read_tables(folder)
    for problem in declared.problems:
        LOG.error("a table is left out: %s", problem.message)
    if not declared.tables:
        declared.require_sound()
    return declared


def _shown(file: Path, root: Path) -> Path:
    """The path as messages name it: relative where that is short."""
    return file.relative_to(root) if root == Path.cwd() else file


def _take(declaration: TableDeclaration, file: Path, taken: Taken) -> None:
    """Raise `InvalidInput` where the name or the place is another's, however that writes it."""
    # Names that differ in a dash would be one name in Dagster.
    own = {("name", identifier(declaration.name)), ("uri", canonical(declaration.uri))}
    for name, same in sorted(own & taken.keys()):
        value, (other, its_file) = getattr(declaration, name), taken[name, same]
        line = located_yaml.parse(file.read_bytes(), str(file)).line_of((name,))
        raise InvalidInput(f"{file}:{line}: field `{name}`: {value!r} is taken, {its_file} has {other!r}")
    taken.update({(name, same): (getattr(declaration, name), file) for name, same in own})


def _require_apart(
    file: Path, table: Sequence[str], landing: Sequence[str] | None, *, tables: _Locations, landings: _Locations
) -> None:
    """Raise `InvalidInput` if a landing place overlaps a table, of this declaration or of one before it.

    Both locations are as `with_locations_above` returns them. Cost: a lookup for each location above them.
    """
    if landing is not None and (table[0] in landing or landing[0] in table):
        raise _in_field(file, "landing", landing_overlap("the table"))
    if landing is not None and (name := tables.overlapping(landing)) is not None:
        raise _in_field(file, "landing", landing_overlap(f"the table {name!r}"))
    if (name := landings.overlapping(table)) is not None:
        raise _in_field(file, "uri", landing_overlap("the table", f"the landing place of {name!r}"))


def _in_field(file: Path, name: str, error: InvalidInput) -> InvalidInput:
    line = located_yaml.parse(file.read_bytes(), str(file)).line_of((name,))
    return InvalidInput(f"{file}:{line}: field `{name}`: {error}")


def _resolved(declaration: TableDeclaration, root: Path) -> TableDeclaration:
    """The declaration with relative places made absolute, where this process does not run in the root."""
    return declaration if root == Path.cwd() else declaration.below(root)
