"""What declarations say of the automation of upkeep: `automation` of a table, and `automation.yaml` of all (0171)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field

from storage_core.declaration_file import load_optional
from storage_core.declaration_parts import Closed, Milliseconds

AUTOMATION: Final = "automation.yaml"
"""The file beside `tables/`."""


def _switch(given: object) -> object:
    """YAML 1.1 makes booleans of `on` and `off`; our own reader does not, that of Dagster's components does."""
    return {"true": "on", "false": "off"}.get(given, given) if isinstance(given, str) else given


Switch = Annotated[Literal["on", "off"], BeforeValidator(_switch)]


class AutomationDeclaration(Closed):
    """What is of all tables: `default` for those that say nothing, and how often the upkeep sensor looks at most."""

    default: Switch | None = None
    interval: Annotated[Milliseconds, Field(ge=1_000, le=86_400_000)] = 30_000


def read_automation(root: Path) -> AutomationDeclaration:
    """Return what the file in this folder declares, the defaults without one. Raises as `load_as`."""
    return load_optional(AutomationDeclaration, root / AUTOMATION)
