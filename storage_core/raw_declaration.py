"""Raw logs as declared in `raw_logs/*.yaml`: where they are kept, whose rows they carry, when they are distributed.

Checked on load like table declarations, each error with its file, line and field.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, field_validator

from storage_core.declaration_file import load_as
from storage_core.declaration_parts import Closed, Cron, Milliseconds, Owners, Tags, place
from storage_core.distribution.work import UNIQUE_FOR_MS
from storage_core.errors import InvalidInput
from storage_core.formats.keys import validate_table_name
from storage_core.raw_log.history import CLOSED_AFTER_MS
from storage_core.repeated import repeated


class RawStoreDeclaration(Closed):
    """One store; in short its URI. A mandatory one acknowledges every append, an optional one may fail."""

    uri: Annotated[str, AfterValidator(place)]
    mandatory: bool = True


def _spelled_out(store: object) -> object:
    return {"uri": store} if isinstance(store, str) else store


class RawLogDeclaration(Closed):
    """One raw log. Without `tables` it carries rows of every declared table.

    `closed_after` is the age at which a segment counts as closed though its writer began no other. Every writer must
    begin another before. Chunks that every table has are collected when they are older than `retention`; without it
    all are kept. A record whose producer gave it an id is taken once among records of segments that began at most
    `unique_for` apart. `upkeep_schedule` is when stores are healed and chunks collected. Dagster shows `owners` and
    `tags` on its assets.
    """

    name: Annotated[str, AfterValidator(validate_table_name)]
    stores: tuple[Annotated[RawStoreDeclaration, BeforeValidator(_spelled_out)], ...] = Field(min_length=1)
    tables: tuple[Annotated[str, AfterValidator(validate_table_name)], ...] = ()
    closed_after: Milliseconds = CLOSED_AFTER_MS
    schedule: Cron = "*/15 * * * *"
    unique_for: Milliseconds = UNIQUE_FOR_MS
    retention: Milliseconds | None = None
    upkeep_schedule: Cron = "40 3 * * *"
    owners: Owners = ()
    tags: Tags = Field(default_factory=dict)

    @field_validator("stores")
    @classmethod
    def _one_is_mandatory(cls, stores: tuple[RawStoreDeclaration, ...]) -> tuple[RawStoreDeclaration, ...]:
        if twice := repeated(each.uri for each in stores):
            raise InvalidInput(f"{twice[0]!r} is given twice; give each store of a raw log once")
        if not any(each.mandatory for each in stores):
            raise InvalidInput("a raw log needs a mandatory store: without one nothing would be durable")
        return stores

    def feeds(self, table: str) -> bool:
        """Return whether rows of the table come through this raw log."""
        return not self.tables or table in self.tables

    @property
    def uris(self) -> tuple[str, ...]:
        """The URIs of the stores, mandatory ones first."""
        return tuple(each.uri for each in sorted(self.stores, key=lambda each: not each.mandatory))


def load_raw_log(path: str | Path) -> RawLogDeclaration:
    """Return the raw log declared in one file. Raises what `declaration_file.load_as` raises."""
    return load_as(RawLogDeclaration, path)
