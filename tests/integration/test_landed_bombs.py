"""Landed files with false lengths or huge expansion are read, or rejected with a reason, in bounded memory.

One process with limited address space reads all these files. If the process believed a false length, it would die.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import cramjam
import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage_core.base.errors import TidemarkError
from storage_core.write.ingest import landing, parquet_files
from storage_core.write.ingest.batch import parse_blocks
from storage_core.write.ingest.landing import LandedFile, LandingFormat, LandingSpec
from tests.support.limits import confine
from tests.support.memory import grown_bytes

ROOT = Path(__file__).resolve().parents[2]
ADDRESS_SPACE = 6 * 2**30  # most of the address space is mapped and never touched
ROOM_BYTES = 1000 * 2**20
"""The additional memory that each case may use.

The case that takes the most memory is a block of 32 Mi empty lines. Each empty line takes 28 bytes: for the end of the
line, the number of the line, and a flag that keeps the line. A line of 30 MB of commas takes 520 MB, and every other
case takes less than 330 MB.
"""


SCHEMA = pa.schema(
    [
        ("a", pa.int64()),
        ("s", pa.string()),
        ("m", pa.map_(pa.string(), pa.string())),
        ("d", pa.decimal128(38, 2)),
    ]
)
LISTS = SCHEMA.append(pa.field("l", pa.list_(pa.int8())))
FLAT = pa.schema([SCHEMA.field("a"), SCHEMA.field("s")])
MILLION = 1_000_000


class Case(NamedTuple):
    """A file and its expected result. The result is a number of rows, and a part of the reason for a rejection."""

    format: LandingFormat
    make: Callable[[], bytes]
    rows: int
    reason: str | None = None
    is_whole: bool = False


def _line(text: str, rows: int, reason: str | None = None) -> Case:
    """Return a case with this line between two good lines. The good lines must always become rows."""
    return Case("ndjson", f'{{"a":1}}\n{text}\n{{"a":2}}\n'.encode, 2 + rows, reason)


def _file(format_: LandingFormat, make: Callable[[], bytes], reason: str) -> Case:
    return Case(format_, make, 0, reason, is_whole=True)


def _parquet(table: pa.Table, *, compression: str = "zstd", dictionary: bool = True) -> bytes:
    target = io.BytesIO()
    pq.write_table(table, target, compression=compression, use_dictionary=dictionary, store_schema=False)
    return target.getvalue()


def _one_text_many_times() -> bytes:
    text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(50_000, np.int32)), pa.array(["x" * 2**20]))
    return _parquet(pa.table({"s": text}))


def _one_long_list() -> bytes:
    values = pa.array(np.zeros(10 * MILLION, np.int8))
    lists = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    return _parquet(pa.table({"l": lists}))


def _avro(text: str) -> bytes:
    target = io.BytesIO()
    schema = {"type": "record", "name": "r", "fields": [{"name": "s", "type": "string"}]}
    fastavro.writer(target, fastavro.parse_schema(schema), [{"s": text}], codec="deflate")
    return target.getvalue()


def _billion_nulls() -> bytes:
    target = io.BytesIO()
    batch = pa.record_batch([pa.nulls(10**9)], ["s"])
    with pa.ipc.new_stream(target, batch.schema) as writer:
        writer.write_batch(batch)
    return target.getvalue()


def _many_columns() -> bytes:
    return _parquet(pa.table({f"c{number}": [1] for number in range(5000)}))


def _deep_schema() -> bytes:
    type_ = pa.int32()
    for _ in range(3000):
        type_ = pa.struct([("a", type_)])
    target = io.BytesIO()
    with pq.ParquetWriter(target, pa.schema([("s", type_)]), store_schema=False):
        pass
    return target.getvalue()


class _Unpickled:
    def __reduce__(self) -> tuple[object, ...]:
        return (sys.exit, (99,))


def _pickled_type() -> bytes:
    about = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(_Unpickled()),
    }
    field = pa.field("a", pa.int64(), metadata=about)
    target = io.BytesIO()
    pq.write_table(pa.table([pa.array([1, 2])], schema=pa.schema([field])), target)
    return target.getvalue()


def _footer(length: int, body: bytes = b"") -> bytes:
    return _parquet(pa.table({"a": [1]}))[:-8] + body + struct.pack("<I", length) + b"PAR1"


def _members(line: bytes) -> bytes:
    """Return a gzip file of two members, each with 20 MB of the line."""
    return gzip.compress(line * (20 * MILLION // len(line)), 6) * 2


CASES = {
    "a field 20,000 times": _line("{" + ",".join(['"a":1'] * 20_000) + "}", 0, "the field a is given twice"),
    "a field 900,000 times": _line("{" + ",".join(['"a":1'] * 900_000) + "}", 0, "the field a is given twice"),
    "a field 5,000,000 times": _line("{" + ",".join(['"a":1'] * 5 * MILLION) + "}", 0, "more than 1,000,000 values"),
    "900,000 fields": _line(
        "{" + ",".join(f'"k{each}":1' for each in range(900_000)) + "}", 0, "the field k0 is not a column"
    ),
    "nested 900,000 times": _line('{"s":' + "[" * 900_000 + "]" * 900_000 + "}", 1),
    "nested 9,000,000 times": _line(
        '{"s":' + "[" * 9 * MILLION + "]" * 9 * MILLION + "}", 0, "more than 1,000,000 values"
    ),
    "objects nested 900,000 times": _line('{"m":' + '{"x":' * 900_000 + "1" + "}" * 900_001, 0, "column m: "),
    "an integer of 5,000,000 digits": _line('{"a":' + "9" * 5 * MILLION + "}", 0, "column a: not a valid int64"),
    "a decimal of 5,000,000 digits": _line('{"d":' + "9" * 5 * MILLION + ".5}", 0, "column d: not a valid decimal"),
    "an exponent of 5,000,000 digits": _line('{"d":1e' + "9" * 5 * MILLION + "}", 0, "column d: not a valid decimal"),
    "an exponent of a billion": _line('{"d":1e999999999}', 0, "column d: not a valid decimal"),
    "a text of 30 MB": _line('{"s":"' + "x" * 30 * MILLION + '"}', 1),
    "a text of 30 MB of commas": _line('{"s":"' + "," * 30 * MILLION + '"}', 1),
    "a map with a name 900,000 times": _line(
        '{"m":{' + ",".join(['"a":"1"'] * 900_000) + "}}", 0, "column m: a name is given twice"
    ),
    "a map of 200,000 names": _line('{"m":{' + ",".join(f'"{each}":"1"' for each in range(200_000)) + "}}", 1),
    "a lone surrogate": _line('{"s":"\\ud800"}', 0, "not valid JSON"),
    "a field of control characters": _line('{"\\u001b[2J\\u0000":1}', 0, "the field \\x1b[2J\\x00 is not a column"),
    "a field of 20 MB": _line('{"' + "x" * 20 * MILLION + '":1}', 0, "x… is not a column of the table"),
    "a line for each field": Case(
        "ndjson",
        lambda: b"".join(b'{"k%d":1}\n' % each for each in range(20_000)) + b'{"a":1}\n',
        1,
        "the field k0 is not a column of the table",
    ),
    "3 MB of empty objects": Case("ndjson", lambda: b"{}\n" * MILLION, MILLION),
    "CSV of 1,000,000 columns": _file(
        "csv", lambda: b"," * MILLION + b"\n1\n", "the columns of the file are not the columns of the table"
    ),
    "CSV records of 1,000,000 columns": Case(
        "csv", lambda: b"a,s\n1,x\n" + b"," * MILLION + b"\n2,y\n", 2, "the record has 1000001 fields"
    ),
    "CSV of quotes": Case("csv", lambda: b"a,s\n1," + b'"' * 2 * MILLION + b"\n", 1),
    "gzipped spaces": _file("ndjson", lambda: gzip.compress(b" " * 40 * MILLION), "expands to more than"),
    "empty lines, gzipped": _file("ndjson", lambda: _members(b"\n"), "expands to more than"),
    "JSON arrays, nested 9,000,000 times": _file(
        "json", lambda: b"[" * 9 * MILLION + b"]" * 9 * MILLION, "has more than 1,000,000 values"
    ),
    "JSON of 10,000,000 brackets": _file("json", lambda: b"]" * 10 * MILLION, "has no opening bracket"),
    "JSON of 2,000,000 empty arrays": Case("json", lambda: b"[]" * 2 * MILLION, 0),
    "JSON of 2,000,000 empty objects": Case("json", lambda: b"{}" * 2 * MILLION, 2 * MILLION),
    "JSON with a text of 30 MB of commas": Case("json", lambda: b'[{"s":"' + b"," * 30 * MILLION + b'"},{"a":1}]', 2),
    "JSON with a text of 90 MB": _file("json", lambda: b'[{"s":"' + b"x" * 90 * MILLION, "record 1 is longer than"),
    "Avro with a block of 40 MB": _file("avro", lambda: _avro("x" * 40 * MILLION), "expands to more than"),
    "Avro with a text of 30 MB": Case("avro", lambda: _avro("x" * 30 * MILLION), 1),
    "Arrow with a billion nulls": _file("arrow", _billion_nulls, "the file expands to more than"),
    "spaces in Zstandard": _file(
        "ndjson", lambda: pa.compress(b" " * 40 * MILLION, codec="zstd", asbytes=True), "expands to more than"
    ),
    "spaces in bzip2": _file("ndjson", lambda: bz2.compress(b" " * 40 * MILLION, 1), "expands to more than"),
    "spaces in xz": _file("csv", lambda: lzma.compress(b" \n" * 20 * MILLION, preset=0), "expands to more than"),
    "spaces in LZ4": _file("ndjson", lambda: bytes(cramjam.lz4.compress(b" " * 40 * MILLION)), "expands to more than"),
    "empty lines in Snappy": Case("ndjson", lambda: bytes(cramjam.snappy.compress(b"\n" * 40 * MILLION)), 0),
    "CSV, gzipped": _file("csv", lambda: _members(b"a" * 99 + b"\n"), "expands to more than"),
    "Parquet with a text of 1 MB, 50,000 times": _file("parquet", _one_text_many_times, "expands to more than"),
    "Parquet with a list of 10,000,000": _file("parquet", _one_long_list, "Write smaller row groups"),
    "Parquet of 5,000 other columns": _file(
        "parquet", _many_columns, "the columns of the file are not the columns of the table"
    ),
    "Parquet, deep": _file("parquet", _deep_schema, "not a whole Parquet file"),
    "Parquet with a pickle for a type": Case("parquet", _pickled_type, 2),
    "Parquet with a footer of 4 GB": _file("parquet", lambda: _footer(2**32 - 1), "the footer is damaged"),
    "Parquet with a deep footer": _file(
        "parquet", lambda: _footer(60_000, b"\x1c" * 60_000), "not a whole Parquet file"
    ),
    "Parquet with a page that is huge": _file(
        "parquet", lambda: _parquet(pa.table({"s": ["x" * MILLION] * 300}), dictionary=False), "a page expands from"
    ),
}


def make(folder: str) -> None:
    """Write each case as a file.

    A process without a memory limit writes the files, so that the test measures only the reading.
    """
    for number, case in enumerate(CASES.values()):
        (Path(folder) / str(number)).write_bytes(case.make())


def measure(folder: str) -> None:
    """Read each case in this process, and print the results and the growth of the peak memory."""
    # These limits are 1/32 of the real limits for expansion and memory, so that the test takes only seconds. The size
    # of a block of lines is below these reduced limits.
    landing.ANY_RATIO_BYTES, parquet_files.MOST_VALUES = 2**25, 2**22
    confine(ADDRESS_SPACE)
    found, grown = {}, {}
    for number, (name, case) in enumerate(CASES.items()):
        landed = LandedFile(str(number), (Path(folder) / str(number)).stat().st_size, folder)

        def read(name: str = name, landed: LandedFile = landed, format_: LandingFormat = case.format) -> None:
            found[name] = _read(landed, format_)

        grown[name] = grown_bytes(read)
    sys.stdout.write(json.dumps({"found": found, "grown": grown}))


def _read(landed: LandedFile, format_: LandingFormat) -> tuple[int, bool, list[tuple[int | None, str]]]:
    rows, rejected, is_whole = 0, list[tuple[int | None, str]](), False
    schema = {"parquet": LISTS, "csv": FLAT}.get(format_, SCHEMA)
    try:
        for block in parse_blocks(landed, LandingSpec(uri=landed.uri, format=format_), schema, None):
            rows, is_whole = rows + block.rows.num_rows, block.unreadable
            rejected += [(line.line, line.reason[:300]) for line in block.rejected[: 3 - len(rejected)]]
    except TidemarkError as error:
        return rows, False, [(None, f"{error.kind}: {error}")]
    except Exception as error:  # noqa: BLE001  # the test says which case lacks a type
        return rows, False, [(None, f"untyped {type(error).__name__}: {error}"[:300])]
    return (0 if is_whole else rows), is_whole, rejected


@pytest.fixture(scope="module")
def measured() -> dict[str, object]:
    here = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_landed_bombs as t; "
    with tempfile.TemporaryDirectory() as folder:
        _, measured = (_ended(f"{here} t.{step}({folder!r})") for step in ("make", "measure"))
    found: dict[str, object] = json.loads(measured.stdout)
    return found


def _ended(code: str) -> subprocess.CompletedProcess[str]:
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_hostile_line_is_one_rejection_and_a_hostile_file_is_one(measured: dict[str, object], name: str) -> None:
    case = CASES[name]
    all_found = measured["found"]
    assert isinstance(all_found, dict)
    rows, is_whole, rejected = all_found[name]
    assert (rows, is_whole) == (case.rows, case.is_whole), rejected
    if case.reason is None:
        assert rejected == []
    else:
        line, reason = rejected[0]
        assert case.reason in reason
        assert (line is None) == case.is_whole


@pytest.mark.parametrize("name", sorted(CASES))
def test_what_they_claim_and_repeat_takes_bounded_memory(measured: dict[str, object], name: str) -> None:
    grown = measured["grown"]
    assert isinstance(grown, dict)
    assert grown[name] < ROOM_BYTES
