"""Many rows into a table at once: by COPY into PostgreSQL, by one prepared statement into SQLite."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import Connection

from storage_core.catalog.schema import SPLITS, TABLES

COPIED_ROWS: Final = 1_000
"""Fewer go in by INSERT, with everything else of a commit."""
ANEW_ROWS: Final = 20_000
"""Fewer go into the indexes one by one."""


def insert(connection: Connection, table: sa.Table, rows: pa.Table) -> None:
    """Insert rows whose columns are named like those of the table. One statement; COPY for `COPIED_ROWS` and more."""
    if not len(rows):
        return
    names = ", ".join(f'"{name}"' for name in rows.column_names)
    if connection.dialect.name == "postgresql" and len(rows) >= COPIED_ROWS:
        _copy(connection, f'COPY "{table.name}" ({names}) FROM STDIN (FORMAT csv)', rows)  # names of ours
        return
    mark = "%s" if connection.dialect.name == "postgresql" else "?"
    marks = ", ".join([mark] * rows.num_columns)
    statement = f'INSERT INTO "{table.name}" ({names}) VALUES ({marks})'  # noqa: S608  # names of ours
    columns = [column.to_pylist() for column in rows.columns]
    connection.exec_driver_sql(statement, list(zip(*columns, strict=True)))


@contextmanager
def bulk(connection: Connection, splits: int) -> Iterator[None]:
    """Let a block insert so many splits fast.

    Indexes are made anew behind the block where most of the rows are new, in PostgreSQL where all are: that is sorting,
    and changing them row by row is not. Readers of SQLite see what was there before; those of PostgreSQL would have to
    wait, so they do for the first rows only. PostgreSQL looks at the rows behind the block, or its planner would take
    the table for an empty one.
    """
    dropped = SPLITS.indexes if splits >= ANEW_ROWS and _is_new(connection, splits) else set()
    for index in dropped:
        index.drop(connection)
    yield
    for index in dropped:
        index.create(connection)
    if connection.dialect.name == "postgresql" and splits >= COPIED_ROWS:
        connection.exec_driver_sql(f"ANALYZE {SPLITS.name}")


def _is_new(connection: Connection, splits: int) -> bool:
    """Whether so many splits are most of what there will be, or in PostgreSQL the first."""
    if connection.dialect.name == "postgresql":
        return connection.execute(sa.select(SPLITS.c.split_id).limit(1)).first() is None
    others = connection.execute(sa.select(sa.func.sum(TABLES.c.live_splits))).scalar() or 0
    return splits >= int(others) // 2


def _copy(connection: Connection, statement: str, rows: pa.Table) -> None:
    from pyarrow import csv

    data = io.BytesIO()
    csv.write_csv(rows, data, csv.WriteOptions(include_header=False))  # texts are quoted, nulls are not there
    driver: Any = connection.connection.driver_connection
    with driver.cursor() as cursor, cursor.copy(statement) as copy:
        copy.write(data.getbuffer())
