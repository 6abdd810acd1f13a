"""A new DuckLake catalog with default settings."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

import duckdb  # this version is older than the project's


def attached(folder: str | Path, *, threads: int) -> duckdb.DuckDBPyConnection:
    """Return a connection to a new lake in the folder. The lake has the name `lake` in this connection."""
    package = importlib.util.find_spec("duckdb_extension_ducklake")
    if package is None or package.origin is None:
        sys.exit("this Python has no DuckLake")
    (extension,) = Path(package.origin).parent.rglob("*.duckdb_extension")
    connection = duckdb.connect(config={"threads": threads})
    connection.execute("SET enable_progress_bar = false")  # the progress bar would appear in the output
    connection.execute(f"LOAD '{extension}'")
    connection.execute(f"ATTACH 'ducklake:{folder}/catalog.ducklake' AS lake (DATA_PATH '{folder}/data/')")
    return connection


def add_files(connection: duckdb.DuckDBPyConnection, table: str, files: Iterable[str]) -> None:
    """Register existing files as the files of a table."""
    for file in files:
        connection.execute("CALL ducklake_add_data_files('lake', ?, ?)", [table, file])


def create_like(connection: duckdb.DuckDBPyConnection, table: str, file: str) -> None:
    """Create a table with the columns of the file."""
    empty = f"SELECT * FROM read_parquet('{file}') LIMIT 0"  # noqa: S608 -- our own path
    connection.execute(f"CREATE TABLE lake.{table} AS {empty}")
