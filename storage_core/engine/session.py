"""Confined DuckDB sessions, and the types of their columns and answers.

No other module opens DuckDB. A session reads only the files that the caller gives to it. A session has no network, no
extension that is not built in, and no access to Python's variables. A session spills only to a private folder with a
random name, or does not spill. (DuckDB lets every query read and write its `temp_directory`, which would be `.tmp` in
the working directory.) External access is turned off and the configuration is locked before any text of a user is
parsed. In DuckDB, the permission to read a file includes the permission to write it (decision 0024). Therefore
`statement` checks the text, and `sandbox` runs it.

`reject_lossy_types` refuses DuckDB types that Arrow data cannot represent exactly. `UHUGEINT` becomes a signed number,
`TIMETZ` loses its zone, and `BIT`, `BIGNUM` and `VARIANT` become internal bytes. The Arrow data does not show which
type a column had. Therefore the function checks DuckDB's own types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from storage_core.base.errors import InvalidInput
from storage_core.base.limits import QueryLimits
from storage_core.base.process import QUERY_BYTES, check_free_resources
from storage_core.base.text import quoted

if TYPE_CHECKING:
    import duckdb
    import duckdb.sqltypes


# Types of columns.

_CHANGED: Final = {
    "bignum": "VARCHAR",
    "bit": "VARCHAR",
    "time with time zone": "VARCHAR",
    "uhugeint": "VARCHAR",
    "variant": "JSON",
}
"""The ids of the lossy types. The value of each id is a type. The caller can cast to this type without a loss."""

_NESTED: Final = frozenset({"array", "list", "map", "struct", "tuple", "union"})


def reject_lossy_types(answer: duckdb.DuckDBPyRelation) -> None:
    """Raise `InvalidInput` for a column if Arrow data cannot represent its type or a type inside it exactly."""
    for name, type_ in zip(answer.columns, answer.types, strict=True):
        for each in _all(type_):
            if each.id in _CHANGED:
                shown = "TIMETZ" if each.id.startswith("time") else each.id.upper()
                raise InvalidInput(
                    f"column {quoted(name)} has values of DuckDB's type {shown}, which Arrow data does not keep. "
                    f"Cast the values in the query, for example to {_CHANGED[each.id]}.",
                    column=name,
                )


def _all(type_: duckdb.sqltypes.DuckDBPyType) -> Iterator[duckdb.sqltypes.DuckDBPyType]:
    """Yield the type and the types inside of it."""
    yield type_
    if type_.id in _NESTED:
        for _, child in type_.children:
            if not isinstance(child, int | list):  # an integer child of an array type is the length of the array
                yield from _all(child)


_NAMES: Final[Mapping[pa.DataType, str]] = {
    pa.string(): "VARCHAR",
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.date32(): "DATE",
}


def sql_type(type_: pa.DataType) -> str | None:
    """Return the SQL name of a type. Return None for binary and nested types."""
    if type_ in _NAMES:
        return _NAMES[type_]
    if pa.types.is_timestamp(type_):
        return "TIMESTAMPTZ" if type_.tz else "TIMESTAMP"
    if pa.types.is_decimal(type_):
        return f"DECIMAL({type_.precision}, {type_.scale})"
    return None


# Sessions.

_MIB = 2**20


def session(
    limits: QueryLimits | None = None,
    *,
    files: Sequence[Path] = (),
    folder: Path | None = None,
    threads: int = 2,
    most_nested: int = 1000,
) -> duckdb.DuckDBPyConnection:
    """Return a confined in-memory DuckDB in UTC, which can open only `files`.

    Without `limits`, the defaults of DuckDB for time and memory apply. Without `folder`, the session does not spill.
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
    with check_free_resources("a session of DuckDB", size=QUERY_BYTES):
        import duckdb

        connection = duckdb.connect(config=config)
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET enable_progress_bar = false")  # the progress bar would write to standard output
    # The pass `statistics_propagation` computes min and max from the bounds of one file. For float columns, which may
    # contain NaN, the pass `statistics_propagation` returns NaN and -0.0 instead of the right values.
    connection.execute("SET disabled_optimizers = 'statistics_propagation'")
    connection.execute("SET parquet_metadata_cache = true")  # without a cache, DuckDB reads the metadata several times
    if limits is not None and folder is not None:
        # DuckDB accepts this setting in `connect` but does not keep it.
        connection.execute(f"SET max_temp_directory_size = '{-(-limits.spill_bytes // _MIB)}MiB'")
    if files:  # allow each file by its name, and by its name with escaped `*`, `?` and `[`
        names = [text for path in files for text in {str(path), literally(path)}]
        connection.execute("SET allowed_paths = ?", [names])
    connection.execute("SET enable_external_access = false")
    if limits is not None:  # set last, because the limit also applies to the statements of this function
        connection.execute(f"SET max_execution_time = {max(1, round(limits.seconds * 1000))}")
    connection.execute("SET lock_configuration = true")
    return connection


def literally(path: Path) -> str:
    """Return a pattern that matches only this path. DuckDB expands `*`, `?` and `[` in file names."""
    return re.sub(r"[*?[]", r"[\g<0>]", str(path))


def of_the_caller(database: Path | None, *, folder: Path, memory_bytes: int) -> duckdb.DuckDBPyConnection:
    """Return a DuckDB session with the rights of the caller, for the caller's own query and files.

    Raises DuckDB's own error for a database that cannot be opened. Extensions that the query installs are not
    checked, and the settings of the caller's own DuckDB are not read.

    Args:
        database: A database file that the query may read and cannot change. The query may read other files, too.
        folder: The folder that the session spills to.
        memory_bytes: The memory limit.
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
