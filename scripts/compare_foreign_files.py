"""Import every file below a folder of foreign files, and compare the rows with the rows of a second reader.

python -m scripts.compare_foreign_files FOLDER

Each Parquet file is imported twice: as a file in a folder, and as a landed file. Delta tables and Arrow
IPC files are imported once. Imports reject Avro files. The second reader depends on the format of the file:

- Parquet: the second reader is DuckDB. If DuckDB's result differs, pyarrow also reads the file.
- Delta tables: the second reader is delta-rs.
- Arrow IPC: the second reader is pyarrow.

The program downloads nothing, and it changes nothing below the folder. The exit code is 1 if a row is wrong, or if an
error has no class of `storage_core.base.errors`.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

import tidemark as tm
from storage_core.base.errors import TidemarkError
from storage_core.write.ingest.batch import parse_file
from storage_core.write.ingest.landing import LandingSpec, discover

EQUAL, REFUSED, UNTYPED, WRONG, UNCHECKED = "equal", "typed refusal", "untyped", "wrong", "no second reader"
PARQUET, ARROW, AVRO = (".parquet", ".parq"), (".arrow", ".arrows", ".feather", ".arrow_file", ".stream"), (".avro",)

Read = Callable[[], pa.Table]
Doors = dict[str, tuple[Read, Sequence[Callable[[Path], pa.Table]]]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one kind of import, for one file or Delta table. If the rows are equal, `why` is empty."""

    place: str
    door: str
    result: str
    why: str = ""


def main(folder: str) -> int:
    """Print the counts, the rejections by reason, and each failure.

    Return 1 if a row is wrong, or if an import fails with an error that is not a Tidemark error.
    """
    outcomes = list(compared(Path(folder)))
    counts = Counter((each.door, each.result) for each in outcomes)
    for result in (EQUAL, REFUSED, UNTYPED, WRONG, UNCHECKED):
        by_door = ", ".join(f"{door}: {count}" for (door, found), count in sorted(counts.items()) if found == result)
        print(f"{result:17}{sum(each.result == result for each in outcomes):6}  {by_door}".rstrip())
    reasons: dict[str, list[Outcome]] = {}
    for each in outcomes:
        if each.why:
            reasons.setdefault(f"{each.result}: {_general(each.why)}", []).append(each)
    for reason, found in sorted(reasons.items()):
        print(f"\n{len(found)} x {reason}\n  such as {found[0].place} ({found[0].door}): {found[0].why}")
    return int(any(each.result in (UNTYPED, WRONG) for each in outcomes))


def compared(folder: Path) -> Iterator[Outcome]:
    """Yield the results of every file and Delta table below a folder.

    A separate process reads each file or Delta table, because a read may crash.
    """
    places = sorted(_places(folder))
    pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
    for place in places:
        try:
            yield from pool.submit(_outcomes, folder, place).result()
        except BrokenProcessPool:
            yield Outcome(str(place.relative_to(folder)), "any", UNTYPED, "the process ended")
            pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
    pool.shutdown()


def equal_rows(ours: pa.Table, theirs: pa.Table) -> bool:
    """Return whether two tables have the same rows in any order. Two values can be equal even if their types differ."""
    ours = ours.rename_columns([each.casefold() for each in ours.column_names])
    theirs = theirs.rename_columns([each.casefold() for each in theirs.column_names])
    if ours.num_rows != theirs.num_rows or set(ours.column_names) != set(theirs.column_names):
        return False
    names = sorted(ours.column_names)
    try:
        first, second = (_texts(each.select(names)) for each in (ours, theirs))
    except (OverflowError, ValueError):  # a time outside Python's calendar
        first, second = (_texts(_counted_times(each.select(names))) for each in (ours, theirs))
    return first == second


def _texts(rows: pa.Table) -> list[str]:
    return plain_texts(rows.to_pylist())


def plain_texts(rows: Iterable[Any]) -> list[str]:
    """Return a text per row, in order. Equal rows have equal texts, even if readers use different types."""
    return sorted(repr(_plain(row)) for row in rows)


def _counted_times(rows: pa.Table) -> pa.Table:
    """Return the rows. Each timestamp column becomes a column of microseconds since 1970."""
    for index, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type):
            times = rows.column(index).cast(pa.timestamp("us", field.type.tz), safe=False)
            rows = rows.set_column(index, field.name, times.cast(pa.int64()))
    return rows


def _places(folder: Path) -> Iterator[Path]:
    if (folder / "_delta_log").is_dir():
        yield folder
        return
    for each in folder.iterdir():
        if each.is_dir():
            yield from _places(each)
        elif each.name.lower().endswith((*PARQUET, *ARROW, *AVRO)):
            yield each


def _outcomes(folder: Path, place: Path) -> list[Outcome]:
    name = str(place.relative_to(folder))
    with tempfile.TemporaryDirectory(prefix="tidemark-compare-") as scratch:
        if place.is_dir():
            doors: Doors = {"import of Delta": (_imported(Path(scratch), place), [_by_delta_rs])}
        elif place.name.lower().endswith(ARROW):
            doors = {"import of Arrow": (lambda: _imported_arrow(Path(scratch), place), [by_pyarrow])}
        else:
            alone = Path(scratch, "in")
            alone.mkdir()
            kind = ".avro" if place.name.lower().endswith(AVRO) else ".parquet"
            shutil.copyfile(place, alone / f"file{kind}")
            doors = {"import of Parquet": (_imported(Path(scratch), alone), [by_duckdb, by_parquet_of_arrow])}
            if kind == ".parquet":
                doors["landing of Parquet"] = (lambda: _landed(alone), [by_duckdb, by_parquet_of_arrow])
        return [
            Outcome(name, door, *_result(ours, [partial(each, place) for each in theirs]))
            for door, (ours, theirs) in doors.items()
        ]


def _result(ours: Read, theirs: Sequence[Read]) -> tuple[str, str]:
    try:
        rows = ours()
    except TidemarkError as error:
        return REFUSED, f"{error.kind}: {error}"
    except Exception as error:  # noqa: BLE001  # the program looks for untyped errors
        return UNTYPED, f"{type(error).__name__}: {error}"
    why = (UNCHECKED, "")
    for read in theirs:
        try:
            expected = read()
        except Exception as error:  # noqa: BLE001  # the other library has other limits
            why = (why[0], why[1] or f"{type(error).__name__}: {error}")
            continue
        if equal_rows(rows, expected):
            return EQUAL, ""
        why = (WRONG, _difference(rows, expected))
    return why


def _imported(scratch: Path, source: Path) -> Read:
    def read() -> pa.Table:
        tm.Table.import_from(str(scratch / "table"), source)
        return tm.Table.open(str(scratch / "table")).scan().to_arrow()

    return read


def _imported_arrow(scratch: Path, place: Path) -> pa.Table:
    rows = by_pyarrow(place)
    tm.Table.import_from(str(scratch / "table"), rows, name="arrow")
    return tm.Table.open(str(scratch / "table")).scan().to_arrow()


def _landed(folder: Path) -> pa.Table:
    """Return the rows that a table ingests from the landed file. The table has the columns of the file.

    Raises `InvalidInput` for the first rejection.
    """
    from storage_core.interop.import_files import folder_of

    spec = LandingSpec(uri=folder.resolve().as_uri(), format="parquet")
    landed = discover(spec)
    try:
        schema = folder_of(str(folder)).schema
    except TidemarkError:
        if not landed:  # the file is empty
            raise
        schema = pa.schema({"any": pa.int64()})  # a file that cannot be imported may still land in a table
    found = parse_file(landed[0], spec, schema, None)
    if found.rejected:
        raise tm.errors.InvalidInput(found.rejected[0].reason)
    return found.rows


def by_duckdb(place: Path) -> pa.Table:
    """Read a Parquet file with DuckDB, and return the rows."""
    return duckdb.read_parquet(str(place), hive_partitioning=False).to_arrow_table()


def by_parquet_of_arrow(place: Path) -> pa.Table:
    """Read a Parquet file with Arrow, and return the rows."""
    return pq.read_table(place, partitioning=None, coerce_int96_timestamp_unit="us")


def _by_delta_rs(place: Path) -> pa.Table:
    from deltalake import DeltaTable

    return pa.table(DeltaTable(place).to_pyarrow_table())


def by_pyarrow(place: Path) -> pa.Table:
    """Return the rows of an Arrow file or stream."""
    with pa.memory_map(str(place)) as file:
        try:
            return pa.ipc.open_file(file).read_all()
        except pa.ArrowInvalid:
            file.seek(0)
            return pa.ipc.open_stream(file).read_all()


def _plain(value: Any) -> Any:
    """Return a value with the same text for all readers, even if the readers use different types."""
    match value:
        case bool() | None:
            return value
        case dict():
            return sorted((name, _plain(each)) for name, each in value.items())
        case list() | tuple():
            return [_plain(each) for each in value]
        case dt.datetime():
            return (value.astimezone(dt.UTC) if value.tzinfo else value).replace(tzinfo=None).isoformat()
        case Decimal():
            return str(value.normalize() if value else Decimal(0))
        case float():
            return "NaN" if math.isnan(value) else value
        case UUID():
            return str(value)
        case bytes():  # some readers treat binary values as text
            return value.decode(errors="surrogateescape")
    return value


def _difference(ours: pa.Table, theirs: pa.Table) -> str:
    first, second = (_texts(_counted_times(each)) for each in (ours, theirs))
    one, other = next(((a, b) for a, b in zip(first, second, strict=False) if a != b), ("", ""))
    return f"{ours.num_rows} rows, expected {theirs.num_rows}; {one[:200]}, expected {other[:200]}"


def _general(why: str) -> str:
    """Return a reason without the names and numbers of its file, so that equal reasons can be counted."""
    return re.sub(r"'[^']*'|/\S+|\d+", "…", why.splitlines()[0])[:160]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
