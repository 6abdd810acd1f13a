"""The parts of a declaration that say how tables are written and kept: freshness, budgets, splits, checkpoints, …"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, Field, model_validator

from storage_core.declaration_parts import Bytes, Closed, Milliseconds
from storage_core.errors import InvalidInput
from storage_core.named_settings import fields_below
from storage_core.settings.quiet_hours import QuietHours
from storage_core.settings.split_codec import SplitCompression
from storage_core.settings.table import CheckpointCompression, CheckpointFormat, SplitMetadata, TableConfig

USUAL_PRIORITY = 5
_LEAST_FRESHNESS_MS = 60_000


def _freshness(duration_ms: int) -> int:
    if duration_ms < _LEAST_FRESHNESS_MS:
        raise InvalidInput(f"a freshness is 1m at least, as Dagster asks, found {duration_ms} ms")
    return duration_ms


Freshness = Annotated[Milliseconds, AfterValidator(_freshness)]
Hours = Annotated[str, AfterValidator(lambda text: str(QuietHours.parse(text)))]


class Budgeted(Closed):
    """What upkeep may read within an hour, and the hours of the day (UTC) in which it rests (decision 0169)."""

    bytes_per_hour: Annotated[Bytes, Field(ge=1)] | None = None
    quiet_hours: Hours | None = None

    def is_quiet(self, at_ms: int) -> bool:
        """Return whether upkeep rests at this time."""
        return self.quiet_hours is not None and QuietHours.parse(self.quiet_hours).hold(at_ms)


class UpkeepDeclaration(Budgeted):
    """The upkeep of one table: how much of it there may be, and whose comes first: the higher `priority`."""

    priority: int = Field(default=USUAL_PRIORITY, ge=0, le=10)


class UpkeepOfAllDeclaration(Budgeted):
    """The upkeep of all tables together: how much of it there may be, and how many runs that wait or work at once."""

    runs_at_once: int | None = Field(default=None, ge=1)


class _Named(Closed):
    """Settings below one name of `named_settings.NAMED`, `below`."""

    below: ClassVar[str]

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        TableConfig(**self.settings())
        return self

    def settings(self) -> dict[str, Any]:
        """Return the fields of `TableConfig` that it sets."""
        return {field: getattr(self, name) for name, field in fields_below(self.below).items()}


class GcDeclaration(_Named):
    """How long an unreferenced object stays (`horizon`), and how long old versions can be opened (`retention`).

    The newest `states` stay however old they are. How long rows stay in the table is another setting, `retention` of
    the table.
    """

    below = "gc"

    horizon: Milliseconds = TableConfig().gc_horizon_ms
    retention: Milliseconds = TableConfig().version_retention_ms
    states: int = TableConfig().retained_states


class SplitsDeclaration(_Named):
    """How new splits are written: how large about, how compressed, and how much of a string the log keeps as bound."""

    below = "splits"

    target_size: Bytes = TableConfig().target_split_bytes
    compression: SplitCompression = TableConfig().split_compression
    compression_level: int | None = None
    metadata: SplitMetadata = TableConfig().split_metadata
    string_cut: int = TableConfig().string_cut


class CheckpointDeclaration(_Named):
    """After how many versions a checkpoint follows (0: by its job only), in which form, of manifests of which size."""

    below = "checkpoint"

    interval: int = TableConfig().checkpoint_interval
    format: CheckpointFormat = TableConfig().checkpoint_format
    compression: CheckpointCompression = TableConfig().checkpoint_compression
    manifest_entries: int = TableConfig().manifest_entries
