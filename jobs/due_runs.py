"""The run that a step of a table needs now, according to the table's log and landing location.

The upkeep sensor calls this module and requests the runs that the module returns. The sensor can miss a tick, a file
can be late, and a run can be killed. In each case, the next tick finds the work again. A table without work gets no run
(docs/architecture/orchestration.md). This module reads no landed file. A run ingests all waiting files once, regardless
of the windows of their rows.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass

from storage_core.base.clock import Clock, SystemClock
from storage_core.base.errors import NotFound
from storage_core.change.declaration import TableDeclaration
from storage_core.data.settings.table import TableConfig
from storage_core.data.steps import STEPS
from storage_core.log.job_run import DueRun, PlannedRun
from storage_core.log.snapshot import Snapshot
from storage_core.store.contract import ObjectStore
from storage_core.table import Table, exists
from storage_core.write.ingest.landing import LandedFile, discover


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInputs:
    """The state of one table, from which this module derives the runs that the table needs now.

    Attributes:
        declaration: The declaration of the table.
        table: The table, or None if it does not exist.
        landed: The files at the landing location of the table. Empty if the location is a Delta table or has a queue.
        clock: The clock.
    """

    declaration: TableDeclaration
    table: Table | None
    landed: Sequence[LandedFile]
    clock: Clock

    @classmethod
    def of(cls, declaration: TableDeclaration, clock: Clock | None = None) -> TableInputs:
        """Read the state of a table from storage.

        Cost: one LIST, the requests of `Table.open` if the table exists, and the requests of `discover`.
        """
        spec = declaration.landing_spec()
        return cls(
            declaration=declaration,
            table=Table.open(declaration.uri) if exists(declaration.uri) else None,
            landed=discover(spec) if spec is not None and not spec.is_delta and spec.queue is None else (),
            clock=clock or SystemClock(),
        )

    @property
    def store(self) -> ObjectStore:
        """The store of the table. Raises `NotFound` if the table does not exist."""
        return self._existing.store

    @property
    def snapshot(self) -> Snapshot:
        """The newest version. Raises `NotFound` if the table does not exist."""
        return self._existing.snapshot

    @property
    def declared(self) -> TableConfig:
        """The declared settings."""
        return self.declaration.config()

    @property
    def _existing(self) -> Table:
        if self.table is None:
            raise NotFound(f"there is no table at {self.declaration.uri}. Create the table with tidemark init")
        return self.table


def due_run(step: str, inputs: TableInputs) -> DueRun | None:
    """Return the run that a step of a table needs now, or None. `plan_next_run` also shows when a step will have new
    work.
    """
    return plan_next_run(step, inputs).due


def plan_next_run(step: str, inputs: TableInputs) -> PlannedRun:
    """Return the present and future work of one step of a table. The step is in `storage_core.data.steps.OBSERVABLE`.

    If the table does not exist yet, the only possible work is an ingest of landed files. This function reads storage
    and writes nothing. Raises the errors of the reads.
    """
    if inputs.table is None and step != "ingest":
        return PlannedRun(due=None)
    home = importlib.import_module(STEPS[step].home)
    found: DueRun | PlannedRun | None = getattr(home, f"due_{step}")(inputs)
    return found if isinstance(found, PlannedRun) else PlannedRun(due=found)
