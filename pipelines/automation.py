"""The rules for automatic maintenance: which tables and raw logs it covers, and whether it starts by itself.

Each table has one switch (decision 0037), which is `automation: on` or `off` in its file. The file `automation.yaml`
contains the default for all tables.

- If the switch of at least one table is on, the upkeep sensor and the schedules start by themselves. The sensor and the
  schedules then maintain a table only if its switch is on.
- If no switch is on, a person must start the upkeep sensor and the schedules. The sensor and the schedules then
  maintain all tables except tables whose switch is off.

All other sensors and schedules, for example those for alerts and for the purge, start in the same way (decision 0037).
This module imports Dagster only to return the status of sensors and schedules.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from pipelines.tables import Problem
from storage_core.base.errors import TidemarkError
from storage_core.change.declaration import RawLogDeclaration, TableDeclaration
from storage_core.change.declaration_file import read_automation
from storage_core.change.declaration_parts import AUTOMATION, AutomationDeclaration

if TYPE_CHECKING:
    from dagster import DefaultScheduleStatus, DefaultSensorStatus

    from assets.metadata import Automated

UPKEEP_SENSOR: Final = "upkeep_sensor"
"""The name under which Dagster shows and stores the upkeep sensor."""

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Automation:
    """The switches of all tables, the raw logs of these tables, and the shared settings."""

    tables: Sequence[TableDeclaration] = ()
    raw_logs: Sequence[RawLogDeclaration] = ()
    of_all: AutomationDeclaration = field(default_factory=AutomationDeclaration)
    prefix: str = ""
    """The prefix for the names of jobs, schedules and sensors. A project with components also has jobs of its own."""

    @cached_property
    def starts_by_itself(self) -> bool:
        """Whether all sensors and schedules start by themselves, and run until a person stops them."""
        return any(self._switch(each) == "on" for each in self.tables)

    @property
    def sensor_status(self) -> DefaultSensorStatus:
        """The status of a sensor before a person starts or stops it."""
        from dagster import DefaultSensorStatus

        return DefaultSensorStatus.RUNNING if self.starts_by_itself else DefaultSensorStatus.STOPPED

    @property
    def schedule_status(self) -> DefaultScheduleStatus:
        """The status of a schedule before a person starts or stops it."""
        from dagster import DefaultScheduleStatus

        return DefaultScheduleStatus.RUNNING if self.starts_by_itself else DefaultScheduleStatus.STOPPED

    @property
    def interval_seconds(self) -> int:
        """The minimum time between two ticks of the upkeep sensor, in seconds."""
        return self.of_all.interval // 1000

    def of(self, table: TableDeclaration) -> Automated:
        """Return the automation of the table in the form that the table's assets show."""
        switch = self._switch(table)
        if switch is not None:
            return switch
        return "off" if self.starts_by_itself else "when_started"

    def looks_after(self, each: TableDeclaration | RawLogDeclaration) -> bool:
        """Return whether the upkeep sensor and the schedules request runs for this table or raw log.

        A raw log is maintained if one of its tables is maintained.
        """
        if isinstance(each, TableDeclaration):
            return self.of(each) != "off"
        return not self.tables or any(self.looks_after(table) for table in self.tables if each.feeds(table.name))

    def _switch(self, table: TableDeclaration) -> Literal["on", "off"] | None:
        return table.automation or self.of_all.default


def load_automation(root: Path) -> tuple[AutomationDeclaration, Sequence[Problem]]:
    """Return the settings of all tables. An invalid file is ignored, and the function logs and returns the problem."""
    try:
        return read_automation(root), ()
    except TidemarkError as error:
        problem = Problem(root / AUTOMATION, str(error))
    LOG.error("the declaration of automation is not valid and is ignored: %s", problem.message)
    return AutomationDeclaration(), (problem,)
