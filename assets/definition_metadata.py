"""What every asset of a table shows beside what its runs did: place, links, tags, version of its code."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from dagster import MetadataValue

from storage_core.declaration import TableDeclaration
from storage_core.rows.schema import to_schema_string

Automated = Literal["on", "off", "when_started"]
"""Whether the upkeep sensor and the schedules look after a table: at once, never, or once somebody starts them."""

AUTOMATION_TAG: Final = "tidemark/automation"
_OPERATIONS: Final = Path(__file__).resolve().parents[1] / "docs" / "operations.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """What an asset shows of the project that its table is in: its automation, and the address of the report."""

    automated: Automated = "when_started"
    report: str | None = None


def tags_of(declaration: TableDeclaration, project: Project) -> dict[str, str]:
    """Return the tags of each asset of the table."""
    return {**declaration.tags, AUTOMATION_TAG: project.automated}


def metadata_of_asset(declaration: TableDeclaration, project: Project) -> Mapping[str, object]:
    """Return the metadata of each asset of the table: its place and name, the report, and what to do about symptoms.

    No link is to a file, which no browser opens from the page of a server.
    """
    found: dict[str, object] = {"dagster/uri": declaration.uri, "dagster/table_name": declaration.name}
    if project.report is not None:
        found["report"] = MetadataValue.url(f"{project.report}#table-{declaration.name}")
    if _OPERATIONS.is_file():  # not in an installed package
        found["operations"] = MetadataValue.path(str(_OPERATIONS))
    return found


def code_version(declaration: TableDeclaration) -> str:
    """Return a version that is another one when the declaration asks for other rows, order, files or indexes."""
    settings = sorted(declaration.config().to_configuration().items())
    text = repr((to_schema_string(declaration.schema()), settings, declaration.landing))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
