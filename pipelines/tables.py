"""The declared tables and raw logs.

The module returns the content of all valid files, and the problems of all other files.

An invalid file does not affect the other files. Dagster logs the invalid file's name, line and field as an error. This
module does not import Dagster.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from assets.run_tags import identifier
from storage_core.base.errors import InvalidInput, NotFound, TidemarkError, not_written
from storage_core.base.text import did_you_mean
from storage_core.change import declaration_file
from storage_core.change.declaration import TABLES, RawLogDeclaration, TableDeclaration, load, load_raw_log
from storage_core.data.steps import RawLogOptions
from storage_core.store.resolve import canonical, with_locations_above
from storage_core.write.ingest.landing import landing_overlap

DAGSTER_HOME = "DAGSTER_HOME"
POSTGRES = "TIDEMARK_DAGSTER_POSTGRES"
"""The name of an environment variable with the URL of the database. Every process of Dagster needs this variable."""
LOG_LEVEL = "TIDEMARK_LOG_LEVEL"
"""The name of an environment variable. The variable contains the lowest log level that a terminal shows for runs.

The process that creates Dagster's home folder reads this variable.
"""


# Texts and files.


_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"))


def duration(milliseconds: int) -> str:
    """Return a duration in its largest unit, rounded down to a whole number, such as `3h`."""
    for unit, name in _UNITS:
        if milliseconds >= unit:
            return f"{milliseconds // unit:,}{name}"
    return "0s"


def age(now_ms: int, moment_ms: int | None) -> str:
    """Return the duration since a given time, or an empty text if the time is None."""
    return "" if moment_ms is None else duration(max(0, now_ms - moment_ms))


def size(count: int) -> str:
    """Return bytes as text in a unit with at most four digits before the point, such as `12.3 MiB`."""
    number, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        if number < 1024:
            break
        number, unit = number / 1024, larger
    return f"{count} B" if unit == "B" else f"{number:,.1f} {unit}"


def write_whole(file: Path, text: str) -> None:
    """Replace the content of the file by the text. The folder of the file must exist.

    The umask of this process determines the permissions of the file. If the file cannot be written, the function raises
    `NotWritten` and the old file stays unchanged.
    """
    temporary: Path | None = None
    try:
        half = file.with_name(f".{file.name[:100]}.{secrets.token_hex(8)}")
        with half.open("x", encoding="utf-8") as opened:
            temporary = half
            opened.write(text)
        half.replace(file)
    except OSError as error:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink()
        raise not_written(str(file), error) from error


# Declared tables.


Taken = dict[tuple[str, str], tuple[str, Path]]
"""The key is a field and the canonical form of its value.

The entry contains the value of the field as written, and the declaration file that contains this value.
"""

LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class _Locations:
    """Locations of tables or landing locations, each with the name of the first table that uses it.

    `at` contains the locations themselves. `within` contains all parent locations of these locations.
    """

    at: dict[str, str] = field(default_factory=dict)
    within: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, location: Sequence[str]) -> None:
        """Add the location of a table, in the form of `with_locations_above`."""
        here, *above = location
        self.at.setdefault(here, name)
        for each in above:
            self.within.setdefault(each, name)

    def overlapping(self, location: Sequence[str]) -> str | None:
        """Return the name of a table with a location that overlaps the given location, or None."""
        here, *_ = location
        if here in self.within:
            return self.within[here]
        return next((self.at[each] for each in location if each in self.at), None)


@dataclass(frozen=True, slots=True)
class DeclaredTable:
    """A valid declaration and its file. This process can use the locations in the declaration.

    If the folder of the declarations is in the working directory, `file` is relative to the working directory.
    """

    declaration: TableDeclaration
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """An invalid declaration. `message` has one line per error, with the file, the line and the field."""

    file: Path
    message: str


@dataclass(frozen=True, slots=True)
class DeclaredTables:
    """The declarations of a folder. Relative locations in the declarations start at `root`."""

    root: Path
    tables: tuple[DeclaredTable, ...]
    problems: tuple[Problem, ...] = ()
    folder: Path | None = None

    def find(self, name: str) -> DeclaredTable | None:
        """Return the table with this name, or None."""
        return next((each for each in self.tables if each.declaration.name == name), None)

    def names(self) -> str:
        """Return the names of the tables as text for a message."""
        return ", ".join(each.declaration.name for each in self.tables) or "none"

    def require_valid(self) -> None:
        """Raise `InvalidInput` if there are problems. The message contains every problem."""
        require_valid(self.problems)


def require_valid(problems: Sequence[Problem]) -> None:
    """Raise `InvalidInput` if there are problems. The message contains every problem."""
    if problems:
        raise InvalidInput("\n".join(each.message for each in problems))


def tables_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the declarations.

    The folder is the value of `TIDEMARK_TABLES`, or `tables/` in the working directory, or `tables/` in the repository.
    Raises `NotFound` if `TIDEMARK_TABLES` is not the path of a folder.
    """
    if named := environment.get(TABLES):
        if not Path(named).is_dir():
            raise NotFound(
                f"{TABLES} is {named!r}, which is not a folder. Set {TABLES} to the folder of the table declarations."
            )
        return Path(named).resolve()
    here, repository = Path.cwd() / "tables", Path(__file__).resolve().parents[1]
    installed = not (repository / "pyproject.toml").is_file()  # another project may have a package `tables`
    return here if here.is_dir() or installed else repository / "tables"


def read_tables(folder: Path) -> DeclaredTables:
    """Return the declarations in all `*.yaml` files of the folder, in the order of the file names.

    If two files have the same name or location, only the first file is valid.

    If the folder is missing, there are no declarations.
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
            # The Delta table at a landing location may be the mirror of another table. A landing location with the
            # mirror of another table is safe, because the log of the Delta table lists the files to read.
            lands = None if place is None or place.is_delta else with_locations_above(place.uri)
            _require_apart(file, here, lands, tables=own, landings=landing)
            _take(declaration, file, taken)
            _require_outside(file, declaration, here, own)
            own.add(declaration.name, here)
            if lands is not None:
                landing.add(declaration.name, lands)
            tables.append(DeclaredTable(declaration, file))
        except TidemarkError as error:
            problems.append(Problem(file, str(error)))
    return DeclaredTables(root, tuple(tables), tuple(problems), folder)


def load_tables(folder: Path) -> DeclaredTables:
    """Return the result of `read_tables`, and log every problem. Dagster uses this function to load tables.

    Raises:
        InvalidInput: The folder contains files, and no file is valid.
        NotFound: The folder does not exist.
    """
    if not folder.is_dir():
        raise NotFound(
            f"{folder}: there is no folder of table declarations. Run this in the repository root, or set {TABLES}."
        )
    declared = read_tables(folder)
    for problem in declared.problems:
        LOG.error("a table is left out: %s", problem.message)
    if not declared.tables:
        declared.require_valid()
    return declared


def _shown(file: Path, root: Path) -> Path:
    """Return the path for messages. If the root is the working directory, the path is relative."""
    return file.relative_to(root) if root == Path.cwd() else file


def _take(declaration: TableDeclaration, file: Path, taken: Taken) -> None:
    """Raise `InvalidInput` if another file has the same name or location, even in a different spelling."""
    # Dagster treats a dash and an underscore in a name as the same character.
    own = {("name", identifier(declaration.name)), ("uri", canonical(declaration.uri))}
    _take_queue(declaration, file, taken)
    for name, same in sorted(own & taken.keys()):
        value, (other, its_file) = getattr(declaration, name), taken[name, same]
        line = declaration_file.parse_yaml(file.read_bytes(), str(file)).line_of((name,))
        raise InvalidInput(
            f"{file}:{line}: field `{name}`: the value {value!r} conflicts with {other!r} in "
            f"{its_file}. Choose another value"
        )
    taken.update({(name, same): (getattr(declaration, name), file) for name, same in own})


def _take_queue(declaration: TableDeclaration, file: Path, taken: Taken) -> None:
    """Raise `InvalidInput` if another file has the same queue. A message of a queue has only one receiver."""
    queue = declaration.landing.queue if declaration.landing else None
    if queue is None:
        return
    _, its_file = taken.setdefault(("queue", queue), (declaration.name, file))
    if its_file != file:
        why = (
            f"the queue already belongs to {its_file}, and a queue serves only one table. Create another "
            "queue, and send the events to both queues by SNS"
        )
        raise _in_field(file, "landing", InvalidInput(why))


def _require_apart(
    file: Path, table: Sequence[str], landing: Sequence[str] | None, *, tables: _Locations, landings: _Locations
) -> None:
    """Raise `InvalidInput` if a landing location overlaps a table.

    The landing location and the table can each come from this declaration or from an earlier declaration.

    The arguments `table` and `landing` are locations that `with_locations_above` returned. Cost: one lookup for
    each parent location.
    """
    if landing is not None and (table[0] in landing or landing[0] in table):
        raise _in_field(file, "landing", landing_overlap("the table"))
    if landing is not None and (name := tables.overlapping(landing)) is not None:
        raise _in_field(file, "landing", landing_overlap(f"the table {name!r}"))
    if (name := landings.overlapping(table)) is not None:
        raise _in_field(file, "uri", landing_overlap("the table", f"the landing location of {name!r}"))


def _require_outside(file: Path, declaration: TableDeclaration, table: Sequence[str], tables: _Locations) -> None:
    """Raise `InvalidInput` if this table is in the folder of an earlier table, or vice versa."""
    name = tables.overlapping(table)
    if name is not None:
        how = "contains" if table[0] in tables.within else "is in"
        raise _in_field(
            file,
            "uri",
            InvalidInput(
                f"{declaration.uri!r} {how} the folder of the table {name!r}. Choose a location outside of this folder"
            ),
        )


def _in_field(file: Path, name: str, error: InvalidInput) -> InvalidInput:
    line = declaration_file.parse_yaml(file.read_bytes(), str(file)).line_of((name,))
    return InvalidInput(f"{file}:{line}: field `{name}`: {error}")


def _resolved(declaration: TableDeclaration, root: Path) -> TableDeclaration:
    """Return the declaration.

    If the root is not the working directory, make the locations in the declaration absolute.
    """
    return declaration if root == Path.cwd() else declaration.below(root)


# Declared raw logs.


Kind = TypeVar("Kind", bound=RawLogOptions)


@dataclass(frozen=True, slots=True)
class DeclaredRawLog:
    """A valid declaration of a raw log, and the options for the steps of this raw log."""

    declaration: RawLogDeclaration
    files: RawLogOptions

    def options(self, kind: type[Kind], **given: Any) -> Kind:
        """Return the options of one step of the raw log."""
        return kind(raw_log=self.files.raw_log, tables=self.files.tables, root=self.files.root, **given)


@dataclass(frozen=True, slots=True)
class DeclaredRawLogs:
    """The raw logs of a folder. `problems` have one line per error, with the file, the line and the field."""

    raw_logs: tuple[DeclaredRawLog, ...] = ()
    problems: tuple[Problem, ...] = ()

    def find(self, name: str) -> DeclaredRawLog:
        """Return the raw log with this name.

        Raises `InvalidInput` if there is none, with the problems of a file of this name.
        """
        for each in self.raw_logs:
            if each.declaration.name == name:
                return each
        for problem in self.problems:
            if problem.file.stem == name:
                raise InvalidInput(problem.message)
        known = [each.declaration.name for each in self.raw_logs]
        raise InvalidInput(
            f"{name!r} is not a raw log declared in raw_logs/*.yaml (declared: {', '.join(known) or 'none'})"
            + (did_you_mean(name, known) or f". Declare the raw log in raw_logs/{name}.yaml, or give another name")
        )


def read_raw_logs(tables: Path) -> DeclaredRawLogs:
    """Return the raw logs in the folder `raw_logs` next to `tables`.

    If two files have the same name, the first is valid.

    If the folder is missing, there are no raw logs.
    """
    root = tables.parent
    found: dict[str, DeclaredRawLog] = {}
    problems: list[Problem] = []
    files = tuple(str(_shown(each, root)) for each in sorted(tables.glob("*.yaml")))
    for path in sorted((root / "raw_logs").glob("*.yaml")):
        try:
            declaration = load_raw_log(str(_shown(path, root)))
            name = identifier(declaration.name)
            if name in found:
                raise InvalidInput(
                    f"{_shown(path, root)}:1: field `name`: {declaration.name!r} is taken. Choose another name"
                )
            below = None if root == Path.cwd() else str(root)
            options = RawLogOptions(raw_log=str(_shown(path, root)), tables=files, root=below)
            found[name] = DeclaredRawLog(declaration, options)
        except TidemarkError as error:
            problems.append(Problem(path, str(error)))
    return DeclaredRawLogs(tuple(found.values()), tuple(problems))
