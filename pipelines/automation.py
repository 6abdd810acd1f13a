"""Which tables and raw logs the sensor and schedules of upkeep look after, and whether these start by themselves.

The other sensors and schedules, such as those of alerts and of the purge, start with them (decision 0188).

One switch per table (decision 0171): `automation: on` or `off`, else what `automation.yaml` says of all. Where any is
on, sensor and schedules start by themselves, for those that are on and no others. Where none is, they wait until
somebody starts them, for all that are not off. Free of Dagster until somebody asks what its sensor and schedules are.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from pipelines.tables import Problem
from storage_core.declaration import TableDeclaration
from storage_core.declaration_automation import AUTOMATION, AutomationDeclaration, read_automation
from storage_core.errors import TidemarkError
from storage_core.raw_declaration import RawLogDeclaration

if TYPE_CHECKING:
    from dagster import DefaultScheduleStatus, DefaultSensorStatus

    from assets.definition_metadata import Automated

UPKEEP_SENSOR: Final = "upkeep_sensor"
"""Its name, as Dagster shows and stores it."""

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Automation:
    """The switches of all tables, the raw logs that feed them, and what is declared of all."""

    tables: Sequence[TableDeclaration] = ()
    raw_logs: Sequence[RawLogDeclaration] = ()
    of_all: AutomationDeclaration = field(default_factory=AutomationDeclaration)
    prefix: str = ""
    """The beginning of the names of jobs, schedules and sensors. A project of components has jobs of its own too."""

    @cached_property
    def starts_by_itself(self) -> bool:
        """Whether all sensors and schedules run until somebody stops them."""
        return any(self._switch(each) == "on" for each in self.tables)

    @property
    def sensor_status(self) -> DefaultSensorStatus:
        """What a sensor is until somebody starts or stops it."""
        from dagster import DefaultSensorStatus

        return DefaultSensorStatus.RUNNING if self.starts_by_itself else DefaultSensorStatus.STOPPED

    @property
    def schedule_status(self) -> DefaultScheduleStatus:
        """What a schedule is until somebody starts or stops it."""
        from dagster import DefaultScheduleStatus

        return DefaultScheduleStatus.RUNNING if self.starts_by_itself else DefaultScheduleStatus.STOPPED

    @property
    def interval_seconds(self) -> int:
        """How long the upkeep sensor waits between two ticks, at least."""
        return self.of_all.interval // 1000

    def of(self, table: TableDeclaration) -> Automated:
        """Return what is done for the table, as its assets show it."""
        switch = self._switch(table)
        if switch is not None:
            return switch
        return "off" if self.starts_by_itself else "when_started"

    def looks_after(self, each: TableDeclaration | RawLogDeclaration) -> bool:
        """Return whether sensor and schedules ask for runs of it: of a raw log if of a table that it feeds."""
        if isinstance(each, TableDeclaration):
            return self.of(each) != "off"
        return not self.tables or any(self.looks_after(table) for table in self.tables if each.feeds(table.name))

    def _switch(self, table: TableDeclaration) -> Literal["on", "off"] | None:
        return table.automation or self.of_all.default


def load_automation(root: Path) -> tuple[AutomationDeclaration, Sequence[Problem]]:
    """Return what is declared of all tables. A file that is not sound is logged, left out, and a problem."""
    try:
        return read_automation(root), ()
    except TidemarkError as error:
        problem = Problem(root / AUTOMATION, str(error))
    LOG.error("the automation of all tables is left out: %s", problem.message)
    return AutomationDeclaration(), (problem,)
