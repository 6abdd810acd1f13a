"""Tables lie apart: in the folder of another one a table's objects would be met by the collectors of both."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice

from storage_core.errors import InvalidInput, Unavailable
from storage_core.formats.keys import LOG_PREFIX, parse
from storage_core.log.listing import has_log
from storage_core.objectstore.contract import PAGE_KEYS, ObjectStore
from storage_core.objectstore.meter import MeteredStore
from storage_core.objectstore.resolve import locations_above, open_store

MOST_LEVELS = 16


def require_apart(store: ObjectStore) -> None:
    """Return when the place lies in no other table's folder and holds no other table in its own.

    One LIST of the place, which shows tables among its first 1,000 objects, and one LIST of each of the 16 places above
    it that are nearest. A place above that this process may not list counts as no table, and so does a table that is
    being made at this moment. Raises `InvalidInput` that names the other table.
    """
    for outer in islice(locations_above(store.uri), MOST_LEVELS):
        with suppress(Unavailable):
            above = open_store(outer)
            if has_log(MeteredStore(above, store.meter) if isinstance(store, MeteredStore) else above):
                raise InvalidInput(
                    f"{store.uri}: lies in the folder of the table {outer}; choose a place outside of it"
                )
    for info in islice(store.list(""), PAGE_KEYS):
        folder, found, inside = info.key.rpartition(f"/{LOG_PREFIX}")
        parsed = parse(LOG_PREFIX + inside) if found else None
        if parsed is not None and parsed.version is not None:
            raise InvalidInput(f"{store.uri}: holds another table in {folder}; choose a place of its own")
