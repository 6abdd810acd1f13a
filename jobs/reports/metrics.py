"""What a run read and wrote, in numbers: as commits carry it as metrics, and reports show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol

from storage_core.log.actions import Action, Add, Remove


class TaskResult(Protocol):
    """What a task brings back from rewriting splits: the actions to commit, and what it read and wrote."""

    @property
    def actions(self) -> Sequence[Action]:
        """The actions of the commit; its adds and removes are the splits written and replaced."""
        ...

    @property
    def rows_in(self) -> int:
        """Rows read."""
        ...

    @property
    def rows_out(self) -> int:
        """Rows written."""
        ...

    @property
    def bytes_in(self) -> int:
        """Bytes read."""
        ...

    @property
    def bytes_out(self) -> int:
        """Bytes written."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Rows, bytes and splits that went in and came out, and late rows by what became of them. Sizes in bytes."""

    rows_in: int = 0
    rows_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    splits_in: int = 0
    splits_out: int = 0
    rows_late_accepted: int = 0
    rows_late_quarantined: int = 0
    rows_late_dropped: int = 0

    @staticmethod
    def of_adds(adds: Sequence[Add]) -> Metrics:
        """Return the metrics of rows that came from outside and went into these splits."""
        rows = sum(add.numRecords or 0 for add in adds)
        return Metrics(rows_in=rows, rows_out=rows, bytes_out=sum(add.size for add in adds), splits_out=len(adds))

    @staticmethod
    def of(results: Sequence[TaskResult]) -> Metrics:
        """Return the metrics of what several tasks did, added up."""
        actions = [action for result in results for action in result.actions]
        return Metrics(
            rows_in=sum(result.rows_in for result in results),
            rows_out=sum(result.rows_out for result in results),
            bytes_in=sum(result.bytes_in for result in results),
            bytes_out=sum(result.bytes_out for result in results),
            splits_in=sum(isinstance(action, Remove) for action in actions),
            splits_out=sum(isinstance(action, Add) for action in actions),
        )

    def as_mapping(self) -> dict[str, int]:
        """Return the metrics by name, as commit metrics and reports carry them."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


NO_METRICS = Metrics()
