"""Where a raw log is kept: several stores, given by URI or opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from storage_core.arguments import checked_fields
from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.resolve import open_store
from storage_core.repeated import repeated

Place = str | Path | ObjectStore


@checked_fields
@dataclass(frozen=True, slots=True)
class RawStore:
    """One store of a raw log. A mandatory one acknowledges every append; an optional one may fail or lag."""

    place: Place
    mandatory: bool = True


def opened(stores: Sequence[Place | RawStore]) -> list[tuple[ObjectStore, bool]]:
    """Return each store with whether it is mandatory. No request. Raises `InvalidInput` for none, and for one twice.

    Two copies in one place would be one copy.
    """
    given = [each if isinstance(each, RawStore) else RawStore(each) for each in stores]
    found = [(_open(each.place), each.mandatory) for each in given]
    if not found:
        raise InvalidInput("a raw log needs at least one store")
    for uri in repeated(store.uri for store, _ in found):
        raise InvalidInput(f"{uri} is given twice; give each store of a raw log once", uri=uri)
    return found


def _open(place: Place) -> ObjectStore:
    if isinstance(place, str | Path):
        return open_store(place)
    if not hasattr(place, "make_durable"):
        raise InvalidInput(f"a store of a raw log is {quoted(place)}. Give a location, an open store or a RawStore.")
    return place
