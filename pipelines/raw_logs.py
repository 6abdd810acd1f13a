"""The declared raw logs, for the command and for Dagster alike: `raw_logs/` lies beside `tables/`.

As with tables, one bad file does not take the other raw logs down. Free of Dagster.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from assets.names import identifier
from jobs.requests.distribute import DistributeRequest
from jobs.requests.raw_log import RawLogRequest
from pipelines.tables import Problem
from storage_core.errors import InvalidInput, TidemarkError
from storage_core.raw_declaration import RawLogDeclaration, load_raw_log


@dataclass(frozen=True, slots=True)
class DeclaredRawLog:
    """A valid declaration, and what the jobs are asked for it."""

    declaration: RawLogDeclaration
    request: DistributeRequest

    @property
    def upkeep(self) -> RawLogRequest:
        """What the jobs are asked that collect and heal it."""
        return RawLogRequest(raw_log=self.request.raw_log, tables=self.request.tables, root=self.request.root)


@dataclass(frozen=True, slots=True)
class DeclaredRawLogs:
    """What a folder of declarations holds. `problems` have a line per fault, each with file, line and field."""

    raw_logs: tuple[DeclaredRawLog, ...] = ()
    problems: tuple[Problem, ...] = ()

    def named(self, name: str) -> DeclaredRawLog:
        """Return the raw log of this name. Raises `InvalidInput`, with the problems of a file of that name."""
        for each in self.raw_logs:
            if each.declaration.name == name:
                return each
        for problem in self.problems:
            if problem.file.stem == name:
                raise InvalidInput(problem.message)
        known = ", ".join(each.declaration.name for each in self.raw_logs) or "none"
        raise InvalidInput(f"{name!r} is no raw log declared in raw_logs/*.yaml (declared: {known})")


def read_raw_logs(tables: Path) -> DeclaredRawLogs:
    """Return what the folder beside that of the tables declares; without one, nothing. A name belongs to the first."""
    root = tables.parent
    found: dict[str, DeclaredRawLog] = {}
    problems: list[Problem] = []
    files = tuple(_shown(each, root) for each in sorted(tables.glob("*.yaml")))
    for path in sorted((root / "raw_logs").glob("*.yaml")):
        try:
            declaration = load_raw_log(_shown(path, root))
            name = identifier(declaration.name)
            if name in found:
                raise InvalidInput(f"{_shown(path, root)}:1: field `name`: {declaration.name!r} is taken")
            request = DistributeRequest(
                raw_log=_shown(path, root), tables=files, root=None if root == Path.cwd() else str(root)
            )
            found[name] = DeclaredRawLog(declaration, request)
        except TidemarkError as error:
            problems.append(Problem(path, str(error)))
    return DeclaredRawLogs(tuple(found.values()), tuple(problems))


def _shown(file: Path, root: Path) -> str:
    return str(file.relative_to(root) if root == Path.cwd() else file)
