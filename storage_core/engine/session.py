"""DuckDB, confined: the only place that opens it. It reads the files it is given, and nothing else.

A session has no network, no extension that is not built in and no view of Python's variables. What it spills goes to a
private folder whose name is random, or nowhere: DuckDB lets every query read and write its `temp_directory`, which
would be `.tmp` of the working directory.
External access is off and the configuration locked before any text of a user is parsed. DuckDB's permission to read a
file is one to write it as well (decision 0083), which is why text is checked by `statement` and run by `sandbox`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from storage_core.headroom import QUERY_BYTES, require_headroom
from storage_core.settings.query import QueryLimits

if TYPE_CHECKING:
    import duckdb

_MIB = 2**20


def session(
    limits: QueryLimits | None = None,
    *,
    files: Sequence[Path] = (),
    folder: Path | None = None,
    threads: int = 2,
    most_nested: int = 1000,
) -> duckdb.DuckDBPyConnection:
    """Return a confined in-memory DuckDB in UTC that may open `files`, and can be told no other.

    Without `limits` time and memory are left to DuckDB; without `folder` nothing is spilled.
    """
    config: dict[str, str | bool | int | float | list[str]] = {
        "allow_community_extensions": False,
        "allow_persistent_secrets": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "max_expression_depth": most_nested,
        "python_enable_replacements": False,
        "temp_directory": "" if folder is None else str(folder),
        "threads": threads,
    }
    if limits is not None:
        config["memory_limit"] = f"{limits.memory_bytes // _MIB}MiB"
    with require_headroom("a session of DuckDB", size=QUERY_BYTES):
        import duckdb

        connection = duckdb.connect(config=config)
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET enable_progress_bar = false")  # a slow statement would write to standard output
    # This pass answers min and max from the bounds of one file; of floats, which may be NaN, it makes NaN and -0.0.
    connection.execute("SET disabled_optimizers = 'statistics_propagation'")
    connection.execute("SET parquet_metadata_cache = true")  # a query is bound several times, with all of its files
    if limits is not None and folder is not None:
        # Among the settings of `connect` DuckDB takes this one and does not keep it.
        connection.execute(f"SET max_temp_directory_size = '{-(-limits.spill_bytes // _MIB)}MiB'")
    if files:  # each by its name, and by the pattern that matches nothing else
        names = [text for path in files for text in {str(path), literally(path)}]
        connection.execute("SET allowed_paths = ?", [names])
    connection.execute("SET enable_external_access = false")
    if limits is not None:  # last, for it also ends what is said before
        connection.execute(f"SET max_execution_time = {max(1, round(limits.seconds * 1000))}")
    connection.execute("SET lock_configuration = true")
    return connection


def literally(path: Path) -> str:
    """Return the path as a pattern that matches nothing else: DuckDB expands `*`, `?` and `[` in file names."""
    return re.sub(r"[*?[]", r"[\g<0>]", str(path))


def of_the_caller(database: Path | None, *, folder: Path, memory_bytes: int) -> duckdb.DuckDBPyConnection:
    """Return a DuckDB for a query that the caller wrote over files of theirs, with the rights that they have.

    It reads what the query names: files, and the `database`, which it cannot change. It uses so much memory, and
    spills to the `folder`; what it installs, and settings of the caller's own DuckDB, are not looked at.
    Raises DuckDB's own error for a database that it cannot open.
    """
    import duckdb

    config: dict[str, str | bool | int | float | list[str]] = {
        "python_enable_replacements": False,
        "temp_directory": str(folder),
        "memory_limit": f"{memory_bytes // _MIB}MiB",
    }
    connection = duckdb.connect(
        ":memory:" if database is None else str(database), read_only=database is not None, config=config
    )
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET enable_progress_bar = false")
    return connection
