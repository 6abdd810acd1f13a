"""Random or damaged lines and files: each line becomes one row, or one rejection with file, line and reason.

Hypothesis draws mixed valid and invalid lines of NDJSON and CSV. A separate process damages files of every format, in
some cases before the compression of the file. The process then reads the damaged files.
`tests/integration/test_landed_bombs.py` tests the memory limits of files.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import random
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import cramjam
import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.write.ingest.batch import parse_blocks
from storage_core.write.ingest.convert import Parsed, RejectedLine
from storage_core.write.ingest.landing import TYPED as TYPED_FORMATS
from storage_core.write.ingest.landing import LandedFile, LandingFormat, LandingSpec
from tests.support.hostile_worker import survives, work
from tests.support.scale import scaled

SCHEMA = pa.schema([("a", pa.int64()), ("s", pa.string()), ("m", pa.map_(pa.string(), pa.string()))])
PATTERN = r"^(?P<a>\d+) (?P<s>.*)$"
TYPED = pa.schema([("a", pa.int64()), ("s", pa.string())])
# Lines per case. A case has many lines, because each case must read a whole file.
LINES = 40

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["9" * 5000, "1e999999999", "\u0000", "\x1b[2J", "\ufeff", " ", "inf", "-"]),
)
nested = st.recursive(scalars, lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=3), each))
names = st.sampled_from(["a", "a", "s", "m", "b", "", "A", "\x00", "a\n", "a.b", "~1", "$"])
objects = st.lists(st.tuples(names, nested), max_size=4).map(
    lambda fields: "{" + ",".join(f"{json.dumps(name)}:{json.dumps(value)}" for name, value in fields) + "}"
)
true_lines = st.builds(lambda a, s: json.dumps({"a": a, "s": s}), st.integers(-(2**63), 2**63 - 1), st.text(max_size=5))
repeated = st.builds(
    lambda n, s: "{" + ",".join([s] * n) + "}", st.integers(1, 300), st.sampled_from(['"a":1', '"b":[]'])
)
deep = st.builds(lambda n, s: '{"s":' + s * n, st.integers(1, 3000), st.sampled_from(["[", '{"x":', '["']))
long_numbers = st.integers(1, 5000).map(lambda n: '{"a":' + "1" * n + "}")
broken = st.sampled_from(['{"s":"\\ud800"}', '{"a":1}{"a":2}', '{"a":1', "[]", "null", "nan", '{"a":01}', "\ufeff{}"])
texts = st.one_of(true_lines, true_lines, objects, repeated, deep, long_numbers, broken)
lines = st.one_of(
    texts.map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.binary(max_size=20).map(lambda data: data.replace(b"\n", b"")),
)


def read(data: bytes, format_: LandingFormat, schema: pa.Schema = SCHEMA) -> list[Parsed]:
    """Read the bytes as a landed file. The function raises no error for any bytes."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "f").write_bytes(data)
        spec = LandingSpec(uri=folder, format=format_, pattern=PATTERN if format_ == "pattern" else None)
        return list(parse_blocks(LandedFile("f", len(data), folder), spec, schema, None))


def accounts(blocks: list[Parsed]) -> tuple[int, list[RejectedLine]]:
    """Return the number of rows, and the rejections.

    Assert that each rejection has a file and a reason, and that no two rejections have the same line.
    """
    rejected = [line for block in blocks for line in block.rejected]
    assert all(each.file == "f" and each.reason for each in rejected)
    if blocks and blocks[-1].unreadable:
        assert [each.line for each in blocks[-1].rejected] == [None]
        return 0, list(blocks[-1].rejected)
    numbers = [each.line for each in rejected]
    assert None not in numbers
    assert len(set(numbers)) == len(numbers)
    return sum(block.rows.num_rows for block in blocks), rejected


@settings(max_examples=scaled(50), deadline=None)
@given(written=st.lists(lines, min_size=LINES, max_size=LINES), zipped=st.booleans())
def test_every_line_of_json_is_one_row_or_one_rejection(written: list[bytes], zipped: bool) -> None:
    data = b"\n".join(written)
    # The rule for files: a byte order mark and a CR before an LF are removed, and an empty line does not count.
    expected = [each.removesuffix(b"\r") for each in data.removeprefix(b"\xef\xbb\xbf").split(b"\n")[:-1]]
    expected.append(data.removeprefix(b"\xef\xbb\xbf").split(b"\n")[-1])
    numbers = {number for number, line in enumerate(expected, 1) if line}
    rows, rejected = accounts(read(gzip.compress(data) if zipped else data, "ndjson"))
    bad = {each.line for each in rejected}
    assert bad <= numbers
    assert rows == len(numbers) - len(bad)
    for number, line in enumerate(expected, 1):
        if number in numbers and _is_true(line):
            assert number not in bad


def _is_true(line: bytes) -> bool:
    """Return True for a line that every parser accepts. The accepted line contains an integer in range, and text."""
    try:
        found = json.loads(line, object_pairs_hook=list)
    except (ValueError, RecursionError):
        return False
    shape = [(name, type(value)) for name, value in found] if isinstance(found, list) and len(found) == 2 else None
    return shape == [("a", int), ("s", str)] and -(2**63) <= found[0][1] < 2**63 and _is_unicode(found[1][1])


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= each <= "\udfff" for each in text)


fields = st.sampled_from(["1", "x", "", " ", '"', "9" * 400, "\x00", "\x1b[2J", ",", "a\nb", "é"])


@settings(max_examples=scaled(20), deadline=None)
@given(records=st.lists(st.lists(fields, min_size=1, max_size=4), min_size=1, max_size=LINES))
def test_every_record_of_csv_is_one_row_or_one_rejection(records: list[list[str]]) -> None:
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerows([["a", "s"], *records])
    rows, rejected = accounts(read(target.getvalue().encode(), "csv", TYPED))
    assert rows + len(rejected) == len(records)
    for number, record in enumerate(records, 2):
        fits = len(record) == 2 and record[0] == "1"
        assert (number in {each.line for each in rejected}) != (fits or (len(record) == 2 and record[0] == ""))


def _parquet(codec: str) -> bytes:
    target = io.BytesIO()
    rows = pa.table({"a": [*range(200)], "s": ["x" * (n % 7) for n in range(200)]}, TYPED)
    pq.write_table(rows, target, compression=codec)
    return target.getvalue()


def _avro(codec: str) -> bytes:
    target = io.BytesIO()
    fields = [{"name": "a", "type": ["null", "long"]}, {"name": "s", "type": ["null", "string"]}]
    rows = [{"a": n, "s": "x" * (n % 7)} for n in range(200)]
    schema = fastavro.parse_schema({"type": "record", "name": "r", "fields": fields})
    fastavro.writer(target, schema, rows, codec=codec, sync_interval=500)
    return target.getvalue()


def _arrow(codec: str | None) -> bytes:
    target = io.BytesIO()
    rows = pa.table({"a": [*range(200)], "s": ["x" * (n % 7) for n in range(200)]}, TYPED)
    with pa.ipc.new_file(target, TYPED, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(rows, max_chunksize=50)
    return target.getvalue()


def _json() -> bytes:
    return b"".join(b'{"a":%d,"s":"x"}\n' % number for number in range(200))


def _csv() -> bytes:
    return b"a,s\n" + b"".join(b"%d,x\n" % number for number in range(200))


def _log() -> bytes:
    return b"".join(b"%d x\n" % number for number in range(200))


def _members(data: bytes) -> bytes:
    """Return two consecutive gzip members that together decompress to one text."""
    half = len(data) // 2
    return gzip.compress(data[:half]) + gzip.compress(data[half:])


def _zstd(data: bytes) -> bytes:
    compressed: bytes = pa.compress(data, codec="zstd", asbytes=True)
    return compressed


def _lz4(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "lz4") as stream:
        stream.write(data)
    compressed: bytes = sink.getvalue().to_pybytes()
    return compressed


def _snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress(data))


SOUND: dict[str, tuple[LandingFormat, bytes]] = {
    **{f"{codec} parquet": ("parquet", _parquet(codec)) for codec in ("none", "snappy", "gzip", "zstd", "lz4")},
    **{f"{codec} avro": ("avro", _avro(codec)) for codec in ("null", "deflate", "snappy", "zstandard")},
    **{f"{codec} arrow": ("arrow", _arrow(codec)) for codec in (None, "lz4", "zstd")},
    "json": ("ndjson", _json()),
    "array": ("json", b"[" + _json().replace(b"\n", b",\n") + b"]"),
    "csv": ("csv", _csv()),
    "log": ("pattern", _log()),
}
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "members": _members,
    "zstd": _zstd,
    "bzip2": bz2.compress,
    "xz": partial(lzma.compress, preset=0),
    "lz4": _lz4,
    "snappy": _snappy,
}


def _damaged(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data)) if data else 0
    put = chance.randbytes(chance.randint(1, 4))
    match chance.choice(["flip", "cut", "put", "twice", "claim"]):
        case "cut":
            return data[:at]
        case "twice":
            return data[:at] + data[at // 2 :]
        case "put":
            return data[:at] + put + data[at:]
        case "claim":  # a length or an offset beyond the end, in either byte order
            number = chance.choice([2**31 - 1, 2**32 - 1, 2**24, 0])
            return data[:at] + number.to_bytes(4, chance.choice(["little", "big"])) + data[at + 4 :]
        case _:
            return data[:at] + bytes([data[at] ^ put[0] or 255]) + data[at + 1 :] if data else data


def judge(chance: random.Random) -> str | None:
    """Damage a text or its compressed form, and read it. The result is rows and rejections, and no error is raised."""
    name = chance.choice([*SOUND])
    format_, data = SOUND[name]
    packed = "plain" if format_ in TYPED_FORMATS else chance.choice([*PACKED])
    inside, outside = chance.choice([(1, 0), (3, 0), (0, 1), (0, 3), (1, 1)])
    for _ in range(inside):
        data = _damaged(data, chance)
    lines = sum(1 for line in data.replace(b"\r\n", b"\n").split(b"\n") if line)
    data = PACKED[packed](data)
    for _ in range(outside):
        data = _damaged(data, chance)
    rows, rejected = accounts(read(data, format_, TYPED))
    if name == "json" and outside == 0 and rows + len(rejected) != lines:
        return f"{rows} rows and {len(rejected)} rejections of {lines} lines"
    return None


def test_a_damaged_file_is_rejected_whole_or_line_by_line_and_raises_nothing() -> None:
    survives("tests.property.test_hostile_landed_files", scaled(800))


if __name__ == "__main__":
    work(judge)
