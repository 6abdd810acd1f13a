"""Lines and files made up or damaged: each line is one row or one rejection that names file, line and reason.

Hypothesis draws lines of NDJSON and CSV, true and broken ones mixed, and damages files of every format. What would end
the process by its memory has a process of its own, in `tests/integration/test_landed_bombs.py`.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import resource
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from storage_core.ingest.landing import LandedFile, LandingFormat, LandingSpec
from storage_core.ingest.parse import parse_blocks
from storage_core.ingest.rejection import Parsed, RejectedLine
from tests.scale import scaled

SCHEMA = pa.schema([("a", pa.int64()), ("s", pa.string()), ("m", pa.map_(pa.string(), pa.string()))])
TYPED = pa.schema([("a", pa.int64()), ("s", pa.string())])
# Lines of a case, which are a file: the price of a file is what bounds the number of cases.
LINES = 40
ROOM_BYTES = 700 * 2**20

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
    """Read the bytes as a landed file. Whatever they are, this raises nothing."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "f").write_bytes(data)
        return list(
            parse_blocks(LandedFile("f", len(data), folder), LandingSpec(uri=folder, format=format_), schema, None)
        )


def accounts(blocks: list[Parsed]) -> tuple[int, list[RejectedLine]]:
    """How many rows there are, and what was rejected: each with file and reason, and no line twice."""
    rejected = [line for block in blocks for line in block.rejected]
    assert all(each.file == "f" and each.reason for each in rejected)
    if blocks and blocks[-1].unreadable:
        assert [each.line for each in blocks[-1].rejected] == [None]
        return 0, list(blocks[-1].rejected)
    numbers = [each.line for each in rejected]
    assert None not in numbers
    assert len(set(numbers)) == len(numbers)
    return sum(block.rows.num_rows for block in blocks), rejected


@pytest.fixture(scope="module", autouse=True)
def bounded() -> object:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < ROOM_BYTES, f"hostile files took {grown:,} bytes"


@settings(max_examples=scaled(50), deadline=None)
@given(written=st.lists(lines, min_size=LINES, max_size=LINES), zipped=st.booleans())
def test_every_line_of_json_is_one_row_or_one_rejection(written: list[bytes], zipped: bool) -> None:
    data = b"\n".join(written)
    # The file's own rule: a byte order mark is taken off, a CR before an LF too, and an empty line is none.
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
    """Whether it is a line that anybody would take: an integer that fits, and text."""
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


def _parquet() -> bytes:
    target = io.BytesIO()
    pq.write_table(pa.table({"a": [*range(200)], "s": ["x" * (n % 7) for n in range(200)]}, TYPED), target)
    return target.getvalue()


def _json() -> bytes:
    return b"".join(b'{"a":%d,"s":"x"}\n' % number for number in range(200))


def _csv() -> bytes:
    return b"a,s\n" + b"".join(b"%d,x\n" % number for number in range(200))


SOUND: dict[str, tuple[LandingFormat, Callable[[], bytes]]] = {
    "parquet": ("parquet", _parquet),
    "gzipped json": ("ndjson", lambda: gzip.compress(_json())),
    "gzipped csv": ("csv", lambda: gzip.compress(_csv())),
    "json": ("ndjson", _json),
    "csv": ("csv", _csv),
}
damages = st.lists(
    st.tuples(
        st.floats(0, 1, exclude_max=True),
        st.sampled_from(["flip", "cut", "put", "twice"]),
        st.binary(min_size=1, max_size=4),
    ),
    min_size=1,
    max_size=3,
)


def _damaged(data: bytes, where: float, how: str, put: bytes) -> bytes:
    at = int(where * len(data))
    if how == "cut":
        return data[:at]
    if how == "twice":
        return data[:at] + data[at // 2 :]
    if how == "put":
        return data[:at] + put + data[at:]
    return data[:at] + bytes([data[at] ^ put[0] or 255]) + data[at + 1 :] if data else data


@pytest.mark.parametrize("name", SOUND)
@settings(max_examples=scaled(20), deadline=None)
@given(damage=damages)
@example(damage=[(0.0, "cut", b"x")])
def test_a_damaged_file_is_rejected_whole_or_line_by_line_and_raises_nothing(
    name: str, damage: list[tuple[float, str, bytes]]
) -> None:
    format_, make = SOUND[name]
    data = make()
    for each in damage:
        data = _damaged(data, *each)
    rows, rejected = accounts(read(data, format_, TYPED))
    if name == "json":
        assert rows + len(rejected) == sum(1 for line in data.replace(b"\r\n", b"\n").split(b"\n") if line)
