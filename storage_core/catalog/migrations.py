"""The version of a catalogue's tables: made new, brought forward, or refused (`docs/spec.md`, "SQL catalogue").

Steps are additive: they add tables, columns and indexes, and change nothing that is there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

import sqlalchemy as sa
from sqlalchemy import Connection

from storage_core.catalog.database import Database
from storage_core.catalog.schema import MARKER, METADATA
from storage_core.errors import InvalidInput, NotFound, Unsupported
from storage_core.foreign_text import quoted

FORMAT: Final = "tidemark-catalog"
FIRST: Final = 1

Step = Callable[[Connection], None]
STEPS: Mapping[int, Step] = {}
"""What leads to each version after the first. A new database is made by `schema`, which has all of them."""

_LOCK: Final = 8_239_611_035_147
_logger = logging.getLogger(__name__)


def prepare(database: Database, *, must_exist: bool, steps: Mapping[int, Step] = STEPS) -> None:
    """Make the tables where the database is empty, and bring older ones forward; in one transaction.

    Raises `InvalidInput` for a database that holds anything else, `Unsupported` for tables of a newer release,
    `NotFound` where there is nothing and it `must_exist`. Read only where there is nothing to do.
    """
    newest = max((FIRST, *steps))
    with database.read() as connection:
        found = _found(connection, database.place, newest)
    if found == newest:
        return
    if found is None and must_exist:
        raise NotFound(
            f"{database.place}: there is no catalogue; make it with: tidemark catalog refresh --url …",
            place=database.place,
        )
    database.write(lambda connection: _bring_forward(connection, database.place, steps))


def _bring_forward(connection: Connection, place: str, steps: Mapping[int, Step]) -> None:
    if connection.dialect.name == "postgresql":  # SQLite has one writer anyway
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
    newest = max((FIRST, *steps))
    found = _found(connection, place, newest)
    if found is None:
        METADATA.create_all(connection)
        connection.execute(MARKER.insert(), {"format": FORMAT, "version": newest})
        return
    for version in range(found + 1, newest + 1):
        steps[version](connection)
        connection.execute(MARKER.update().values(version=version))
        _logger.info("the catalogue %s is of version %d now", place, version)


def _found(connection: Connection, place: str, newest: int) -> int | None:
    """Return the version of the tables; None in an empty database. Raises for everything else."""
    inspector = sa.inspect(connection)
    names = inspector.get_table_names()
    if not names:
        return None
    if MARKER.name not in names:
        raise _foreign(place, f"it holds the tables {quoted(', '.join(sorted(names)))}")
    columns = {each["name"] for each in inspector.get_columns(MARKER.name)}
    if columns != set(MARKER.c.keys()):
        raise _foreign(place, f"its table {MARKER.name} has the columns {quoted(', '.join(sorted(columns)))}")
    rows = [(str(name), int(version)) for name, version in connection.execute(MARKER.select())]
    if [name for name, _ in rows] != [FORMAT]:
        raise _foreign(place, f"its table {MARKER.name} holds {rows[:3]}")
    version = rows[0][1]
    if version > newest:
        raise Unsupported(f"{place}: the catalogue is of version {version}, this release knows {newest}; upgrade")
    if version == newest:
        _require_columns(inspector, place)
    return version


def _require_columns(inspector: sa.Inspector, place: str) -> None:
    known = {name: several for (_, name), several in inspector.get_multi_columns().items()}
    for table in METADATA.tables.values():
        there = {each["name"] for each in known.get(table.name, ())}
        if missing := sorted(set(table.c.keys()) - there):
            raise _foreign(place, f"its table {table.name} lacks the columns {quoted(', '.join(missing))}")


def _foreign(place: str, found: str) -> InvalidInput:
    return InvalidInput(
        f"{place}: expected an empty database or a catalogue of Tidemark, and {found}; give the catalogue a database "
        "of its own, in PostgreSQL a schema of its own (?options=-csearch_path%3Dname)",
        place=place,
    )
