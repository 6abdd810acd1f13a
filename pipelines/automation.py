"""Which tables and raw logs the upkeep sensor and the schedules maintain, and whether both start by themselves.

Each table has one switch (decision 0037): `automation: on` or `off` in its file. The default for all tables is in
`automation.yaml`.

- If the switch of any table is on, the sensor and the schedules start by themselves. They then maintain a table only if
  its switch is on.
- If no switch is on, a person must start the sensor and the schedules. They then maintain all tables, except tables
  with the switch off.

The other sensors and schedules, such as those for alerts and for the purge, start in the same way (decision 0037). This
module imports Dagster only to return the status of sensors and schedules.
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
"""The name of the upkeep sensor, as Dagster shows and stores it."""

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Automation:
    """The switches of all tables, the raw logs that feed these tables, and the shared settings."""

    tables: Sequence[TableDeclaration] = ()
    raw_logs: Sequence[RawLogDeclaration] = ()
    of_all: AutomationDeclaration = field(default_factory=AutomationDeclaration)
    prefix: str = ""
    """Prefix of the names of jobs, schedules and sensors. A project with components also has its own jobs."""

    @cached_property
    def starts_by_itself(self) -> bool:
        """Whether all sensors and schedules run until a person stops them."""
        return any(self._switch(each) == "on" for each in self.tables)

    @property
    def sensor_status(self) -> DefaultSensorStatus:
        """The status of a sensor until a person starts or stops it."""
        from dagster import DefaultSensorStatus

        return DefaultSensorStatus.RUNNING if self.starts_by_itself else DefaultSensorStatus.STOPPED

    @property
    def schedule_status(self) -> DefaultScheduleStatus:
        """The status of a schedule until a person starts or stops it."""
        from dagster import DefaultScheduleStatus

        return DefaultScheduleStatus.RUNNING if self.starts_by_itself else DefaultScheduleStatus.STOPPED

    @property
    def interval_seconds(self) -> int:
        """The shortest time between two ticks of the upkeep sensor, in seconds."""
        return self.of_all.interval // 1000

    def of(self, table: TableDeclaration) -> Automated:
        """Return the automation of the table in the form that its assets show."""
        switch = self._switch(table)
        if switch is not None:
            return switch
        return "off" if self.starts_by_itself else "when_started"

    def looks_after(self, each: TableDeclaration | RawLogDeclaration) -> bool:
        """Return whether the sensor and the schedules request runs of this table or raw log.

        A raw log is maintained if one of its tables is maintained.
        """
        if isinstance(each, TableDeclaration):
            return self.of(each) != "off"
        return not self.tables or any(self.looks_after(table) for table in self.tables if each.feeds(table.name))

    def _switch(self, table: TableDeclaration) -> Literal["on", "off"] | None:
        return table.automation or self.of_all.default


def load_automation(root: Path) -> tuple[AutomationDeclaration, Sequence[Problem]]:
    """Return the settings of all tables. An invalid file is logged, ignored, and returned as a problem."""
    try:
        return read_automation(root), ()
    except TidemarkError as error:
        problem = Problem(root / AUTOMATION, str(error))
    LOG.error("the automation of all tables is left out: %s", problem.message)
    return AutomationDeclaration(), (problem,)
