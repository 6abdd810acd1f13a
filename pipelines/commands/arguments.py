"""Arguments that several commands share. The module also converts the text of an argument to a table."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from storage_core.base.errors import InvalidInput, NotFound
from storage_core.base.text import did_you_mean, quoted
from storage_core.data.rows.window_range import WindowRange, window_range

if TYPE_CHECKING:
    from pipelines.tables import DeclaredTables
    from storage_core.data.steps import RunOptions
    from storage_core.log.job_run import JobReport
    from storage_core.table import Table


Uri = Annotated[
    str, typer.Argument(metavar="URI", help="A path, s3://…, or the name of a table declared in tables/*.yaml.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
At = Annotated[
    str | None,
    typer.Option(metavar="VERSION|TIME|TAG", help="Read the table as of a version, an ISO time (UTC) or a tag."),
]
Level = Literal["snapshot", "committed", "latest"]
Consistency = Annotated[
    Level | None,
    typer.Option(help="Keyed tables: merged rows only, flushed generations too, or every acknowledged row."),
]
Declaration = Annotated[Path | None, typer.Option(metavar="FILE", help="The file that declares the table.")]
Window = Annotated[
    str | None, typer.Option(metavar="START", help="One window: 2015-05-17T10:00 (UTC), seconds, or null.")
]
From = Annotated[str | None, typer.Option("--from", metavar="TIME", help="First window of the range (UTC).")]
To = Annotated[
    str | None,
    typer.Option("--to", metavar="TIME", help="End of the range (UTC). The window that starts here is not included."),
]
All = Annotated[bool, typer.Option("--all", help="Do all pending work (the default).")]
Everything = Annotated[bool, typer.Option("--all", help="Print all rows, and do not cut long values.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and change nothing.")]
Policy = Annotated[bool, typer.Option("--policy", help="Only the merges that a scheduled run would make now.")]
Wait = Annotated[
    str | None,
    typer.Option(
        metavar="DURATION", help="Wait this long, such as 10m, for another run of the step. Then exit with 3."
    ),
]
Master = Annotated[
    str, typer.Option(metavar="URL", help="The Spark master that runs the tasks, or sc://… of a Spark Connect server.")
]


def reject_combined(option: str, others: Mapping[str, object], *, why: str) -> None:
    """Raise `InvalidInput` if one of the other options is set. An option with None or False is not set."""
    given = [name for name, value in others.items() if value is not None and value is not False]
    if given:
        raise InvalidInput(f"{option} {why}, so it cannot be combined with {given[0]}. Leave one of them out.")


def duration_ms(option: str, text: str | None) -> int | None:
    """Return the milliseconds of a duration such as `0`, `90m`, `24h` or `7d`. None stays None.

    Declarations use the same format, but accept a number without a unit. An option needs the unit, because a reader
    might not know that a number means seconds.

    Raises:
        InvalidInput: The text is not a duration. The message contains the name of the option.
    """
    from storage_core.data.settings.setting import parse_milliseconds

    if text is None:
        return None
    wrong = f"{option}: {text!r} is not a duration. Write a number with ms, s, m, h or d, such as 24h"
    if text.strip().isdecimal() and text != "0":  # zero is valid without a unit
        raise InvalidInput(wrong)
    try:
        return parse_milliseconds(text)
    except InvalidInput:
        raise InvalidInput(wrong) from None


BARE_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Target:
    """The location of a table, and the file with its declaration if there is one.

    Relative locations in this file start at the folder `root`.
    """

    uri: str
    file: Path | None = None
    root: Path = Path()


def declared() -> DeclaredTables:
    """Return the declared tables, and the problems of all files without a valid declaration."""
    from pipelines.tables import read_tables, tables_folder

    return read_tables(tables_folder())


def resolve(text: str) -> Target:
    """Return the declared table with this name, or the table at this path or URI.

    Raises:
        InvalidInput: The declaration file of this name is broken, or the text is not a location.
        NotFound: The text is a single word, and there is no declared table and no folder of this name.
    """
    from storage_core.store.resolve import check_location

    if not BARE_NAME.fullmatch(text):
        return Target(check_location(text))
    known = declared()
    if found := known.find(text):
        return Target(found.declaration.uri, found.file, known.root)
    for problem in known.problems:
        if problem.file.stem == text:
            raise InvalidInput(problem.message)
    if not Path(text).exists():
        raise NotFound(
            f"{text!r} is neither a table declared in tables/*.yaml (declared: {known.names()}) nor a folder here"
            + (did_you_mean(text, (each.declaration.name for each in known.tables)) or ". Check the name")
        )
    return Target(text)


def open_table(text: str, at: str | None = None) -> Table:
    """Open the table with this name or location, at its newest version or at `at`.

    Raises:
        NotFound: The table does not exist. The message contains the command that creates a declared table.
    """
    return _existing(text, resolve(text), at)


def _existing(text: str, target: Target, at: str | None = None) -> Table:
    from storage_core.table import Table, exists

    if target.file is not None and not exists(target.uri):
        raise NotFound(
            f"the table {text!r} is declared in {target.file} and does not exist yet. Run: tidemark init {text}"
        )
    return Table.open(target.uri, at=at)


def declared_table(text: str, target: Target, *, dry_run: bool = False) -> Table | None:
    """Apply the declaration of a table and return the table. Dagster runs also apply the declaration before each step.

    If the table changes, a message is printed on standard error. A dry run changes nothing. A dry run returns the table
    in the state that it would have after the change. If no declared table has this location, return None. The working
    directory of the process must be the project root of `target`.

    Raises:
        InvalidInput: The declaration differs from the table in a setting that cannot change.
        NotFound: The table does not exist. The message contains the command that creates the table.
    """
    if target.file is None:
        return None
    from pipelines.commands import output
    from storage_core.change.creation import as_declared
    from storage_core.change.declaration import load
    from storage_core.table import Table

    declaration, before = load(target.file), _existing(text, target)
    if dry_run:
        table = Table(before.store, before.log, as_declared(before.log, declaration))
    else:
        table = Table.declare(declaration, target.uri)
    if table.snapshot.metadata != before.snapshot.metadata:
        did = "differs from the table. Without --dry-run, the run first changes the table"
        done = f"was applied to the table. The declaration changed the table at version {table.version}"
        output.warning(f"{target.file} {did if dry_run else done}")
    return table


def table_to_change(text: str) -> Table:
    """Open the table for a command that changes rows. First apply the declaration of the table.

    Raises the errors of `open_table` and `declared_table`.
    """
    target = resolve(text)
    with chdir(target.root):
        return declared_table(text, target) or _existing(text, target)


def run_here(options: RunOptions, table: Table | None = None) -> JobReport:
    """Run the step that these options describe in this process, and return the step's report.

    Spark starts only if the step has work for Spark. Pass `table` if the table is already open.
    """
    from jobs.spark.spark import Spark
    from storage_core.log.job_run import run

    with Spark(options.master) as spark:
        return run(options, spark, table)


def windows(window: str | None, start: str | None, end: str | None, *, everything: bool) -> WindowRange:
    """Return the windows that the options select, or all windows without options.

    Raises:
        InvalidInput: The options contradict each other.
    """
    if everything and (window, start, end) != (None, None, None):
        raise InvalidInput(
            "--all cannot be combined with windows (--window, --from, --to). Leave out --all or the windows"
        )
    chosen = window_range(window, start, end)
    if chosen.start is not None and chosen.end is not None and chosen.end <= chosen.start:
        raise InvalidInput(
            f"--to {end} is not after --from {start}. --to is the end of the range, which is not included"
        )
    return chosen


_MAGIC: Final = b"\x93NUMPY"
_DO: Final = "Write the vector with numpy.save('query.npy', vector), or give the numbers as JSON: --vector '[0.1,0.2]'"


def vector_of(text: str) -> object:
    """Return the numbers of a JSON list. After an `@`, the text is the path of a file with the numbers.

    Raises:
        InvalidInput: The text is not a list of numbers, or the file cannot be read as one vector.
    """
    if text.startswith("@"):
        return _in_file(text[1:])
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        found = f"--vector: {quoted(text)} is not a JSON list of numbers"
        raise InvalidInput(f"{found}. Write [0.1,0.2], or @ and a NumPy file, such as @query.npy") from error


def _in_file(path: str) -> object:
    import numpy as np

    expected, first = "Give a NumPy file (.npy) with one vector.", b""
    try:
        with Path(path).open("rb") as file:
            first = file.read(len(_MAGIC))
            file.seek(0)
            return np.lib.format.read_array(file)
    except OSError as error:
        raise InvalidInput(f"--vector: {quoted(path)} cannot be read: {error.strerror or error}. {expected}") from error
    except (ValueError, EOFError, MemoryError, RecursionError, SyntaxError) as error:
        why = (
            "the file contains Python objects" if "Object arrays" in str(error) else "the file is truncated or damaged"
        )
        found = why if first == _MAGIC else f"the file begins with {first!r}"
        raise InvalidInput(f"--vector: {quoted(path)} cannot be read: {found}. {expected} {_DO}") from error
