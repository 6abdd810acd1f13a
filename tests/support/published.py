"""A table with a long history that is published step by step, and the rows that Delta and Iceberg readers find.

Readers that run in other environments, or in a JVM, are the programs in `tests.support.readers`.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa
from pyiceberg.table import StaticTable

from scripts.installer import ROOT, locked_python
from storage_core.change.statement import expr
from storage_core.data.formats import mirrors
from storage_core.data.formats.keys import delta_commit_key
from storage_core.data.rows.vectors import vector_type
from storage_core.table import Table
from tests.support import upkeep

NOTHING: Mapping[str, object] = MappingProxyType({})
READERS = Path(__file__).parent / "readers"
START = dt.datetime(2024, 2, 29, 10, tzinfo=dt.UTC)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
SCHEMA = pa.schema(
    [
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
        ("host", pa.string()),
        ("n", pa.int32()),
        ("x", pa.float64()),
        ("day", pa.date32()),
        ("price", pa.decimal128(9, 2)),
    ]
)
EVERY_TYPE = pa.schema(
    [
        ("b", pa.bool_()),
        ("byte", pa.int8()),
        ("short", pa.int16()),
        ("f", pa.float32()),
        ("bytes", pa.binary()),
        ("local", pa.timestamp("us")),
        ("m", pa.map_(pa.string(), pa.int64())),
        ("v", vector_type(2)),
    ]
)
"""Types that are not in `SCHEMA`.

Lists of structs are missing, because the two formats name their bounds differently.
"""

OF_EVERY_TYPE: Mapping[str, object] = MappingProxyType(
    {
        "b": True,
        "byte": 1,
        "short": -2,
        "f": 0.5,
        "bytes": b"\0x",
        "local": dt.datetime(2020, 1, 1, 3),  # noqa: DTZ001  # of no zone
        "m": [("a", 1)],
        "v": [1, 2],
    }
)
Step = Callable[[], object]
Rows = list[list[Any]]
"""Rows of JSON values, sorted: instants as microseconds, dates and decimals as text."""


def plain(rows: pa.Table) -> Rows:
    """Return the rows of an Arrow table. Large types and view types are equal to the plain types."""
    return ordered([[_plain(value) for value in row.values()] for row in rows.to_pylist()])


def ordered(rows: Sequence[Sequence[Any]]) -> Rows:
    """Return the rows in a fixed order."""
    return sorted(map(list, rows), key=json.dumps)


def _plain(value: object) -> object:
    if isinstance(value, dt.datetime):
        return (value - EPOCH) // dt.timedelta(microseconds=1)
    return value if value is None or isinstance(value, int | float | str) else str(value)


def made(table: Table, first: int, rows: int = 30, *, more: Mapping[str, object] = NOTHING) -> pa.Table:
    """Return rows with the numbers from `first` on, in three windows, with the columns of the table."""
    numbers = range(first, first + rows)
    known: dict[str, list[object]] = {
        "at": [START + dt.timedelta(minutes=n * 37 % 180, microseconds=n) for n in numbers],
        "host": [None if n % 11 == 0 else f"h{n % 5}" for n in numbers],
        "n": [*numbers],
        "x": [None if n % 13 == 0 else n / 7 for n in numbers],
        "day": [dt.date(2024, 1, 1 + n % 28) for n in numbers],
        "price": [Decimal(n) / 4 for n in numbers],
        **{name: [value] * rows for name, value in more.items()},
    }
    fields = [field for field in table.schema if field.name in known]
    return pa.table([pa.array(known[each.name], each.type) for each in fields], schema=pa.schema(fields))


def shown_versions(uri: str | Path) -> list[int]:
    """Return the table version that each Delta version shows."""
    found: list[int] = []
    while (file := Path(uri) / delta_commit_key(len(found))).exists():
        shown = mirrors.decode_delta(file.read_bytes(), len(found), file.name).shown
        assert shown is not None
        found.append(shown.version)
    return found


def history(uri: str) -> Iterator[Table]:
    """Create a table at `uri`, and yield it after each of about sixty changes. Columns are renamed only at the end."""
    settings = {"publish": "delta", "checkpoint.interval": "4"}
    table = Table.create(uri, SCHEMA, time_column="at", window="1h", sort_schema="host|timestamp/V2", settings=settings)
    numbers = count(0, 30)

    def append(**more: object) -> None:
        table.append(made(table.refresh(), next(numbers), more=more))

    def compact() -> None:
        upkeep.compact(table.refresh())

    often: list[Step] = [
        append,
        lambda: table.delete("n % 7 = 3"),
        append,
        compact,
        lambda: table.update({"host": expr("coalesce(host, '') || '!'")}, "n % 17 = 1"),
        lambda: table.delete("host = 'h2' and n % 2 = 0"),
        append,
    ]
    changes: list[list[Step]] = [
        [],
        [
            lambda: table.add_column("note", "string"),
            partial(append, note="first"),
            lambda: table.delete("note = 'first' and n % 5 = 0"),
        ],
        [  # a mirror can show these changes only after all splits are rewritten
            lambda: table.add_column("level", "int", default=7),
            partial(append, level=1),
            lambda: table.widen_column("n", "long"),
            append,
            compact,
        ],
        [lambda: table.restore(6), append, compact],
        [lambda: table.rename_column("x", "y"), partial(append, y=0.5), lambda: table.delete("y < 9")],
        [
            lambda: table.drop_column("price"),
            append,
            lambda: table.add_column("price", "string"),
            partial(append, price="dear"),
        ],
    ]
    for change in changes:
        for step in [*often, *change]:
            step()
            yield table.refresh()


def by_delta_rs(uri: str, version: int, names: Sequence[str]) -> Rows:
    """Return the rows that delta-rs finds by SQL."""
    table = deltalake.DeltaTable(uri, version=version)
    return plain(pa.table(deltalake.QueryBuilder().register("t", table).execute("SELECT * FROM t")).select([*names]))


def by_polars(uri: str, version: int, names: Sequence[str]) -> Rows:
    """Return the rows that Polars finds."""
    return plain(pl.scan_delta(uri, version=version).collect().to_arrow().select([*names]))


def by_pyiceberg(location: str, snapshot: int, names: Sequence[str]) -> Rows:
    """Return the rows that pyiceberg finds, given a metadata file."""
    return plain(StaticTable.from_metadata(location).scan(snapshot_id=snapshot).to_arrow().select([*names]))


def by_polars_as_iceberg(location: str, snapshot: int, names: Sequence[str]) -> Rows:
    """Return the rows that Polars finds with its own reader, given a metadata file."""
    shown = pl.scan_iceberg(location, snapshot_id=snapshot, reader_override="native")
    return plain(shown.collect().to_arrow().select([*names]))


def by_duckdb(format_: str, place: str, versions: Sequence[tuple[int, Sequence[str]]]) -> list[Rows]:
    """Return the rows of these columns that DuckDB finds at each version. For Iceberg, pass a metadata file."""
    return [ordered(each) for each in _by_reader("duckdb_extensions.py", format_, place, versions)]


def by_spark(uri: str, versions: Sequence[int], names: Sequence[Sequence[str]], streamed: str) -> Any:
    """Return the output of `spark_delta.py`."""
    return _printed(Path(sys.executable), "spark_delta.py", uri, versions, names, streamed)


def by_daft(format_: str, place: str, versions: Sequence[tuple[int, Sequence[str]]]) -> list[Rows]:
    """Return the rows of these columns that Daft finds at each version. For Delta, Daft reads the newest version."""
    return [ordered(each) for each in _by_reader("daft_tables.py", format_, place, versions)]


def counted_by_duckdb(expression: str, folder: Path) -> Any:
    """Return the number of rows of a `duckdb` expression, evaluated in a folder."""
    return _by_reader("duckdb_extensions.py", expression, cwd=folder)


def counted_by_spark(expression: str, folder: Path) -> Any:
    """Return the number of rows of a `spark` expression, evaluated in a folder."""
    return _printed(Path(sys.executable), "spark_delta.py", expression, cwd=folder)


def _by_reader(program: str, *arguments: object, cwd: Path = ROOT) -> Any:
    return _printed(locked_python("delta_readers"), program, *arguments, cwd=cwd)


def _printed(python: Path, program: str, *arguments: object, cwd: Path = ROOT) -> Any:
    given = [each if isinstance(each, str) else json.dumps(each) for each in arguments]
    command, environment = [str(python), str(READERS / program), *given], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=cwd, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)
