"""The problems of the shared configuration files next to `tables/`. This module does not import Dagster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from pipelines.alerts.receivers import ALERTS, read_alerts
from pipelines.maintenance.budgets import UPKEEP, read_upkeep_of_all
from pipelines.tables import Problem
from storage_core.base.errors import TidemarkError
from storage_core.change.declaration_file import read_automation
from storage_core.change.declaration_parts import AUTOMATION

_READERS: Final[Mapping[str, Callable[[Path], object]]] = {
    AUTOMATION: read_automation,
    UPKEEP: read_upkeep_of_all,
    ALERTS: read_alerts,
}


def problems_of_all(root: Path) -> Iterator[Problem]:
    """Yield a problem for each shared configuration file in this folder that is invalid."""
    for name, read in _READERS.items():
        try:
            read(root)
        except TidemarkError as error:
            yield Problem(root / name, str(error))


def unset_variables(root: Path) -> Iterator[str]:
    """Yield a warning for each receiver of alerts with a missing environment variable.

    This process does not have the variable.
    """
    try:
        receivers = read_alerts(root).receivers
    except TidemarkError:  # `problems_of_all` reports the invalid file
        return
    for number, each in enumerate(receivers, 1):
        if (name := each.unset_variable()) is not None:
            yield (
                f"{ALERTS}: receiver {number} ({each.kind}) needs the environment variable {name}, which is not set "
                "here. Set the variable in the code server, which sends alerts."
            )
