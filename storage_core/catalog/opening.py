"""Opening a catalogue: the one way in, which says what is missing where its packages are not installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage_core.arguments import checked
from storage_core.clock import Clock, SystemClock
from storage_core.extras import CATALOG, needs
from storage_core.ids import Ids, SystemIds

if TYPE_CHECKING:
    from storage_core.catalog.catalog import Catalog


@checked
def open_catalog(url: str, *, must_exist: bool = False, clock: Clock | None = None, ids: Ids | None = None) -> Catalog:
    """Open the SQL catalogue at `sqlite:///file` or `postgresql://…`, and make it in an empty database.

    Its tables are brought to the version of this release. Raises `InvalidInput` for another URL and for a database that
    holds anything else, `NotFound` for a catalogue that `must_exist`, `Unsupported` for one of a newer release,
    `Unavailable` without the packages of the extra `catalog` and without the database.
    """
    with needs(CATALOG, "the SQL catalogue"):
        from storage_core.catalog.catalog import Catalog
        from storage_core.catalog.database import open_database
        from storage_core.catalog.migrations import prepare

    database = open_database(url, must_exist=must_exist, clock=clock or SystemClock(), ids=ids or SystemIds())
    try:
        prepare(database, must_exist=must_exist)
    except BaseException:
        database.close()
        raise
    return Catalog(database)
