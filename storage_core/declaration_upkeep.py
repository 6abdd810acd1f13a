"""The parts of a table declaration that say how it is written and kept: splits, checkpoints, collection."""

from __future__ import annotations

from typing import Any, Self

from pydantic import model_validator

from storage_core.declaration_parts import Bytes, Closed, Milliseconds
from storage_core.settings.split_codec import SplitCompression
from storage_core.settings.table import CheckpointCompression, CheckpointFormat, SplitMetadata, TableConfig


class GcDeclaration(Closed):
    """How long an unreferenced object stays (`horizon`), and how long old versions can be opened (`retention`).

    The newest `states` stay however old they are. How long rows stay in the table is another setting, `retention` of
    the table.
    """

    horizon: Milliseconds = TableConfig().gc_horizon_ms
    retention: Milliseconds = TableConfig().version_retention_ms
    states: int = TableConfig().retained_states

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        TableConfig(**self.settings())
        return self

    def settings(self) -> dict[str, Any]:
        """Return the fields of `TableConfig` that it sets."""
        return {
            "gc_horizon_ms": self.horizon,
            "version_retention_ms": self.retention,
            "retained_states": self.states,
        }


class SplitsDeclaration(Closed):
    """How new splits are written: how large about, how compressed, and how much of a string the log keeps as bound."""

    target_size: Bytes = TableConfig().target_split_bytes
    compression: SplitCompression = TableConfig().split_compression
    compression_level: int | None = None
    metadata: SplitMetadata = TableConfig().split_metadata
    string_cut: int = TableConfig().string_cut

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        TableConfig(**self.settings())
        return self

    def settings(self) -> dict[str, Any]:
        """Return the fields of `TableConfig` that it sets."""
        return {
            "target_split_bytes": self.target_size,
            "split_compression": self.compression,
            "split_compression_level": self.compression_level,
            "split_metadata": self.metadata,
            "string_cut": self.string_cut,
        }


class CheckpointDeclaration(Closed):
    """After how many versions a checkpoint follows (0: by its job only), in which form, of manifests of which size."""

    interval: int = TableConfig().checkpoint_interval
    format: CheckpointFormat = TableConfig().checkpoint_format
    compression: CheckpointCompression = TableConfig().checkpoint_compression
    manifest_entries: int = TableConfig().manifest_entries

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        TableConfig(**self.settings())
        return self

    def settings(self) -> dict[str, Any]:
        """Return the fields of `TableConfig` that it sets."""
        return {
            "checkpoint_interval": self.interval,
            "checkpoint_format": self.format,
            "checkpoint_compression": self.compression,
            "manifest_entries": self.manifest_entries,
        }
