"""Many tables of a catalogue, one after the other: one that fails stops no other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage_core.catalog.answers import Refreshed
from storage_core.errors import NotFound, TidemarkError

if TYPE_CHECKING:
    from storage_core.catalog.catalog import Catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class NotRefreshed:
    """A table that was left as it was, and why; `is_failure` is False where there is no table yet."""

    name: str
    uri: str
    error: TidemarkError

    @property
    def is_failure(self) -> bool:
        """Whether somebody has to act."""
        return not isinstance(self.error, NotFound)


def refreshed(
    catalog: Catalog, tables: Mapping[str, str], *, rebuild: bool = False
) -> Iterator[Refreshed | NotRefreshed]:
    """Refresh tables, given by name and URI, or rebuild them; yield what became of each."""
    for name, uri in tables.items():
        try:
            yield catalog.rebuild(uri, name=name) if rebuild else catalog.refresh(uri, name=name)
        except TidemarkError as error:
            yield NotRefreshed(name=name, uri=uri, error=error)
