"""Parquet files from foreign writers: files with small differences, identified by the hash of all bytes."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 10
START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


def file_of(number: int) -> pa.Table:
    """Return ten rows whose columns differ by file: their types, order, letter case, and presence."""
    first = number * ROWS
    columns: dict[str, pa.Array] = {
        "n": pa.array(range(first, first + ROWS), pa.int32() if number % 3 else pa.int64()),
        "AT" if number % 7 == 1 else "at": pa.array(
            [START + dt.timedelta(minutes=number)] * ROWS, pa.timestamp("us" if number % 2 else "ms", "UTC")
        ),
        "share": pa.array([row / 4 for row in range(ROWS)], pa.float32() if number % 5 == 1 else pa.float64()),
    }
    if number % 4:
        columns["host"] = pa.array([f"h{row % 3}" for row in range(ROWS)]).dictionary_encode()
    if number % 6 == 5:
        columns = dict(reversed(columns.items()))
    required = number % 2 == 0
    fields = [pa.field(name, each.type, nullable=not (required and name == "n")) for name, each in columns.items()]
    return pa.table(list(columns.values()), schema=pa.schema(fields))


def land(folder: Path, files: int) -> None:
    """Write this many files in two levels of folders, next to files that an import ignores."""
    for number in range(files):
        place = folder / f"{number % 3}" / f"{number:05}.parquet"
        place.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(file_of(number), place)
    (folder / "_SUCCESS").write_text("")
    (folder / "notes.txt").write_text("not a table\n")


def expected(files: int) -> list[dict[str, object]]:
    """Return the rows that the imported table should have for this many files, sorted by `n`."""
    rows: list[dict[str, object]] = []
    for number in range(files):
        for row in file_of(number).to_pylist():
            plain = {name.lower(): value for name, value in row.items()}
            rows.append({name: plain.get(name) for name in ("n", "at", "share", "host")})
    return rows


def hashes(folder: Path) -> Mapping[str, str]:
    """Return the SHA-256 of every file below a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
