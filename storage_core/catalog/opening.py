"""Open the catalog, and run the step `refresh_catalog`.

This module can be imported without the packages of the catalog. Opening a catalog then raises `Unavailable`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from storage_core.base.arguments import checked
from storage_core.base.clock import Clock, Ids, SystemClock, SystemIds
from storage_core.base.errors import CATALOG, InvalidInput, TidemarkError, needs
from storage_core.catalog.answers import NotRefreshed, Refreshed
from storage_core.data.steps import RefreshCatalog
from storage_core.log.job_run import JobReport, JobRun, with_report

if TYPE_CHECKING:
    from storage_core.catalog.catalog import Catalog


CATALOG_URL: Final = "TIDEMARK_CATALOG"
"""The environment variable with the URL of the catalog, which may contain a password."""


def catalog_url(url: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """Return the URL of the catalog: the given URL, else the URL in the environment. Raises `InvalidInput`."""
    found = url or environment.get(CATALOG_URL)
    if not found:
        raise InvalidInput(
            "the URL of the catalog is missing. Give --url sqlite:///catalog.db or postgresql://…, or set "
            f"{CATALOG_URL}"
        )
    return found


@checked
def open_catalog(url: str, *, must_exist: bool = False, clock: Clock | None = None, ids: Ids | None = None) -> Catalog:
    """Open the SQL catalog, and create its tables in an empty database.

    Older tables are upgraded to the version of this release.

    Args:
        url: `sqlite:///file` or `postgresql://…`.
        must_exist: True raises `NotFound` for a missing catalog. False (the default) creates it.
        clock: Clock for retries and times. None: the clock of this machine.
        ids: Source of new ids. None: random ids.

    Returns:
        The catalog. Close it with `close`, or use it as a context manager.

    Raises:
        InvalidInput: The URL has another form, or the database contains something else.
        NotFound: The catalog does not exist, and `must_exist` is True.
        Unsupported: A newer release created the catalog.
        Unavailable: The packages of the extra `catalog` are missing, or the database cannot be reached.
    """
    with needs(CATALOG, "the SQL catalog"):
        from storage_core.catalog.catalog import Catalog
        from storage_core.catalog.database import open_database, prepare

    database = open_database(url, must_exist=must_exist, clock=clock or SystemClock(), ids=ids or SystemIds())
    try:
        prepare(database, must_exist=must_exist)
    except BaseException:
        database.close()
        raise
    return Catalog(database)


def run_refresh_catalog(job: JobRun[RefreshCatalog]) -> JobReport:
    """Refresh every table in this process, one after the other. A table that does not exist yet is skipped.

    If tables fail, all other tables are still refreshed. Then the error of the first failed table is raised. The report
    of all tables is part of the error.
    """
    with open_catalog(catalog_url(job.options.url)) as catalog:
        done = list(refreshed(catalog, job.options.places))
    moved = [each for each in done if isinstance(each, Refreshed)]
    failed = [each for each in done if isinstance(each, NotRefreshed) and each.is_failure]
    report = job.report(
        "committed" if any(each.outcome != "current" for each in moved) else "nothing_to_do",
        0,
        details={
            "tables": {each.name: each.version for each in moved},
            "versions": sum(each.versions for each in moved),
            "loaded": {each.name: each.reason for each in moved if each.outcome == "loaded"},
            "failed": {each.name: str(each.error) for each in failed},
        },
    )
    if failed:
        raise with_report(failed[0].error, report)
    return report


def refreshed(
    catalog: Catalog, tables: Mapping[str, str], *, rebuild: bool = False
) -> Iterator[Refreshed | NotRefreshed]:
    """Refresh or rebuild tables, and yield each outcome. `tables` maps names to URIs."""
    for name, uri in tables.items():
        try:
            yield catalog.rebuild(uri, name=name) if rebuild else catalog.refresh(uri, name=name)
        except TidemarkError as error:
            yield NotRefreshed(name=name, uri=uri, error=error)
