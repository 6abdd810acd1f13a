"""The fast path of landed text gives the same rows and rejections as the exact path.

The result of a batch is the rows and rejections of all its files.

The exact path is the same code without `cast_text` and `read_plain`.
"""

from __future__ import annotations

import gzip
import json
import re
import tempfile
from collections.abc import Callable
from functools import reduce
from io import BytesIO
from operator import or_
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.data.rows.schema import to_schema_string
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Metadata
from storage_core.log.log import TransactionLog
from storage_core.split.context import context_of
from storage_core.split.read import read_split
from storage_core.store.local import LocalStore
from storage_core.write.ingest import batch, convert, text_files
from storage_core.write.ingest.convert import BLOCK_BYTES, Parsed, RowFormat
from storage_core.write.ingest.drift import NO_DRIFT, DriftRule, column_type
from storage_core.write.ingest.json_lines import read_plain
from storage_core.write.ingest.landing import LandingSpec, discover, is_unchanged
from tests.support.ids import SeededIds
from tests.support.rejected_lines import rejected_lines
from tests.support.scale import scaled

SCHEMA = pa.schema(
    [
        pa.field("i", pa.int32()),
        pa.field("l", pa.int64(), nullable=False),
        pa.field("f", pa.float32()),
        pa.field("g", pa.float64()),
        pa.field("b", pa.bool_()),
        pa.field("s", pa.string()),
        pa.field("d", pa.date32()),
        pa.field("t", pa.timestamp("us", "UTC")),
        pa.field("n", pa.timestamp("us")),
        pa.field("x", pa.decimal128(9, 2)),
        pa.field("v", pa.list_(pa.float32(), 2)),
    ]
)

numbers = st.sampled_from([
    "0", "-0", "7", "007", "+7", "-7", "2147483647", "2147483648", "9223372036854775807", "9223372036854775808",
    "1.5", "1.", ".5", "-0.0", "1e3", "1E+3", "1e-400", "1e400", "3.4028236e38", "16777217", "0.1",
    "123456789012345678", "0x1F", "1_000", " 1", "1 ", "nan", "inf", "-Infinity", "Infinity",
    "1.005", "1234567.89", "12345678.9", "1.250", "",
])  # fmt: skip
times = st.sampled_from([
    "2026-01-01T10:00:00Z", "2026-01-01 10:00:00", "2026-01-01T10:00:00.123456Z", "2026-01-01T10:00:00.1234567Z",
    "2026-01-01T10:00:00.Z", "2026-01-01", "2026-01-01T10:00", "2026-01-01T10:00Z", "2026-01-01T24:00:00Z",
    "2026-01-01T10:00:60Z", "2026-02-29", "2024-02-29T00:00:00Z", "0000-01-01", "0001-01-01",
    "9999-12-31T23:59:59.999999", "2026-01-01T10:00:00+02:00", "2026-01-01T10:00:00z", "2026-1-1", "20260101",
    "1767225600", "yesterday", "", "2026-01-01t10:00:00Z", "2026-01-01T10:00:00,5Z", "2026-01-01T1:00:000Z",
    "-026-01-01", "2026-01-01T10:00:00.5",
])  # fmt: skip
words = st.sampled_from(["true", "false", "t", "TRUE", "no", "1", "NA", "-", "\u0000", "é\u0301", "x" * 300, ""])
texts = st.one_of(numbers, times, words, st.text(max_size=6), st.none())
null_values = st.sampled_from([(), ("NA",), ("-", "NA"), ("0",), ("true", "7")])


def _exactly(work: Callable[[], Parsed]) -> Parsed:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convert, "cast_text", lambda *_: None)
        patch.setattr(text_files, "read_plain", lambda *_: None)
        return work()


def _assert_equal(found: Parsed, exact: Parsed) -> None:
    assert found.rejected == exact.rejected
    assert found.drift == exact.drift
    assert found.rows.schema.equals(exact.rows.schema)
    assert list(map(repr, found.rows.to_pylist())) == list(map(repr, exact.rows.to_pylist()))


@settings(max_examples=scaled(60), deadline=None)
@given(rows=st.lists(st.lists(texts, min_size=10, max_size=10), min_size=1, max_size=30), nulls=null_values)
def test_columns_of_text_become_the_same_values_or_reasons(
    rows: list[list[str | None]], nulls: tuple[str, ...]
) -> None:
    schema = SCHEMA.remove(10)
    raw = pa.table(
        {name: pa.array([row[index] for row in rows], pa.string()) for index, name in enumerate(schema.names)}
    )
    target = RowFormat(schema, "t", null_values=nulls)
    found = convert.convert(raw, target)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convert, "cast_text", lambda *_: None)
        exact = convert.convert(raw, target)
    assert found.reasons.equals(exact.reasons)
    fits = exact.reasons.is_null()
    ours, theirs = (each.rows.filter(fits).cast(schema) for each in (found, exact))
    assert list(map(repr, ours.to_pylist())) == list(map(repr, theirs.to_pylist()))


json_numbers = st.sampled_from([
    "0", "-0", "7", "2147483648", "9223372036854775808", "1.5", "1.50", "-0.0", "1e3", "1E2", "1e400", "0.1", "1e28",
    "123456789012345678901234567890", "12.345", "1234567.89", "NaN", "Infinity", "-Infinity", "01", "+1", "1.", "nan",
])  # fmt: skip
json_values = st.one_of(
    json_numbers,
    st.one_of(times, words, st.text(max_size=4)).map(json.dumps),
    st.sampled_from(
        ["null", "true", "false", "[]", "{}", "[1,2]", "[1,null]", "[1.5,1e60]", "[0,0]", '["1","2"]', "[1]"]
    ),
    st.sampled_from(['"\\ud800"', '"\\ud83d\\ude00"', '"\\u0041"', '"a\tb"', '"', "'x'", "tru"]),
)
fields = st.lists(
    st.tuples(st.sampled_from([*SCHEMA.names, "l", "l", "l", "z", "\\u006c"]), json_values), max_size=5
).map(lambda found: "{" + ",".join(f'"{name}":{value}' for name, value in found) + "}")
plain = st.builds(
    lambda number, text: json.dumps({"l": number, "s": text, "t": "2026-01-01T10:00:00Z"}, separators=(",", ":")),
    st.integers(-(2**63), 2**63 - 1),
    st.text(max_size=5),
)
broken = st.sampled_from(
    [
        "",
        "  ",
        "null",
        "[]",
        '{"l":1}{"l":2}',
        '{"l":1',
        '{"l":{}',
        "}",
        '{"l":1},',
        ' {"l":1}',
        '{"l":1} ',
        "{}",
        "{}{}",
    ]
)
lines = st.lists(st.one_of(plain, plain, plain, fields, broken), min_size=1, max_size=60)
rules = st.builds(
    lambda rule, is_settled: rule.settled() if is_settled else rule,
    st.builds(
        DriftRule.parse,
        st.sampled_from(["quarantine", "ignore", "add", "column:s"]),
        st.sampled_from(["quarantine", "widen"]),
    ),
    st.booleans(),
)


@settings(max_examples=scaled(60), deadline=None)
@given(lines=lines, nulls=null_values, nonzero=st.booleans(), end=st.sampled_from(["", "\n", "\r\n"]), rule=rules)
def test_lines_of_json_become_the_same_rows_or_rejections(
    lines: list[str], nulls: tuple[str, ...], nonzero: bool, end: str, rule: DriftRule
) -> None:
    data = ("\n".join(lines) + end).encode("utf-8", "surrogatepass")
    target = RowFormat(SCHEMA, "t", null_values=nulls, nonzero=frozenset({"v"} if nonzero else ()), drift=rule)

    def read() -> Parsed:
        return _read(data, target)

    _assert_equal(read(), _exactly(read))


def _read(data: bytes, target: RowFormat) -> Parsed:
    blocks = list(text_files.ndjson_blocks("a", BytesIO(data), target, block_bytes=BLOCK_BYTES))
    rows = pa.concat_tables([target.schema.empty_table(), *(each.rows for each in blocks)])
    drift = reduce(or_, (each.drift for each in blocks), NO_DRIFT)
    return Parsed(rows, tuple(line for each in blocks for line in each.rejected), drift=drift)


NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
new_values = st.one_of(
    json_numbers,
    st.one_of(times, words, st.text(max_size=4)).map(json.dumps),
    st.sampled_from(
        ["null", "true", "false", "[1,2]", '{"a":null}', "9007199254740993", "-9223372036854775808", "1.0"]
    ),
)
new_lines = st.lists(
    st.lists(st.tuples(st.sampled_from("yz"), new_values), max_size=2, unique_by=lambda each: each[0]), max_size=12
)


@settings(max_examples=scaled(60), deadline=None)
@given(found=new_lines, nulls=null_values)
def test_the_columns_for_new_fields_hold_every_value(
    found: list[list[tuple[str, str]]], nulls: tuple[str, ...]
) -> None:
    """A second reading with the new columns rejects no line that the first reading accepted."""
    texts = [
        "{" + ",".join([f'"l":{row}', *(f'"{name}":{text}' for name, text in each)]) + "}"
        for row, each in enumerate(found, 1)
    ]
    data = "\n".join(texts).encode()
    schema = pa.schema([pa.field("l", pa.int64())])
    first = _read(data, RowFormat(schema, null_values=nulls, drift=DriftRule.parse("add", "quarantine")))
    columns = [pa.field(name, column_type(type_)) for name, (_, type_) in first.drift.fields.items()]
    grown = pa.schema([*schema, *columns])
    target = RowFormat(grown, null_values=nulls, drift=DriftRule.parse("add", "quarantine").settled())
    second = _read(data, target)
    assert {each.line for each in second.rejected} <= {each.line for each in first.rejected}
    assert second.drift == NO_DRIFT
    _assert_equal(second, _exactly(lambda: _read(data, target)))
    by_line = {row["l"]: row for row in second.rows.to_pylist()}
    for row, each in enumerate(found, 1):
        for name, text in each if row in by_line else ():
            if NUMBER.fullmatch(text) and text not in nulls:
                value = by_line[row][name]
                kind = type(value)  # text and long keep every digit
                assert value == kind(text)


@settings(max_examples=scaled(25), deadline=None)
@given(files=st.lists(lines, min_size=1, max_size=4), nulls=null_values)
def test_lines_of_several_files_become_the_rows_and_rejections_of_each_file(
    files: list[list[str]], nulls: tuple[str, ...]
) -> None:
    target = RowFormat(SCHEMA, "t", null_values=nulls)
    data = ["\n".join(each).encode("utf-8", "surrogatepass") + b"\n\xff\n" for each in files]
    blocks = [(f"{number}", block) for number, each in enumerate(data) for block in convert.read_lines(BytesIO(each))]
    for number, found in enumerate(text_files.json_rows(blocks, target)):
        stream = BytesIO(data[number])
        (alone,) = text_files.ndjson_blocks(f"{number}", stream, target, block_bytes=BLOCK_BYTES)
        _assert_equal(found, alone)
        assert found.numbers.tolist() == alone.numbers.tolist()
        assert {line.file for line in found.rejected} == {f"{number}"}


def test_plain_lines_take_the_fast_path() -> None:
    lines = [
        '{"l":1}',
        '{"l":"1"}',
        '{"l":3,"t":"2026-01-01T10:00:00Z","v":[1,2]}',
        '{"l":4,"x":1e2}',
        '{"l":5,"t":"no"}',
    ]
    found = read_plain(pa.array(lines), RowFormat(SCHEMA))
    assert found is not None
    assert found.marked.tolist() == [False, True, False, True, True]
    assert found.rows.column("l").to_pylist() == [1, 3]


def test_a_line_with_a_new_field_sends_few_other_lines_to_the_exact_path() -> None:
    lines = ['{"l":1}'] * 1_000
    lines[500] = '{"l":1,"z":1}'
    found = read_plain(pa.array(lines), RowFormat(SCHEMA))
    assert found is not None
    assert found.marked[500]
    assert int(found.marked.sum()) <= 16


HOUR = 3600
landed = st.lists(st.lists(st.integers(0, 3 * HOUR), min_size=1, max_size=8), min_size=1, max_size=5)


@settings(max_examples=scaled(25), deadline=None)
@given(files=landed, pending=st.sampled_from([1, 2**30]), collected=st.sampled_from([1, 200, 2**30]))
def test_a_batch_writes_the_rows_of_its_files_and_few_splits(
    files: list[list[int]], pending: int, collected: int
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        root = Path(folder)
        (root / "landing").mkdir()
        log = TransactionLog(LocalStore(root / "table"), ids=SeededIds(1))
        schema = pa.schema([pa.field("at", pa.timestamp("us", "UTC"), nullable=False), pa.field("id", pa.int64())])
        config = TableConfig(time_column="at", window_seconds=HOUR).to_configuration()
        log.create(Metadata(id="t", schemaString=to_schema_string(schema), configuration=config))
        for number, seconds in enumerate(files):
            found = [
                f'{{"at":"1970-01-01T{each // HOUR:02}:{each // 60 % 60:02}:{each % 60:02}Z","id":{number * 100 + at}}}'
                for at, each in enumerate(seconds)
            ]
            (root / "landing" / f"{number}.ndjson").write_text("\n".join([*found, "bad"]))
        snapshot = log.snapshot()
        works = batch.plan(snapshot, spec := LandingSpec(uri=str(root / "landing"), format="ndjson"), discover(spec))
        patch.setattr(batch, "MOST_PENDING_BYTES", pending)
        patch.setattr(batch, "MOST_COLLECTED_BYTES", collected)
        result = batch.execute_batch(log.store, works, context=context_of(snapshot), ids=SeededIds(2), now_ms=1)
        assert batch.BatchResult.from_json(result.to_json()) == result
        log.commit(snapshot, result.actions, operation="INGEST")
        after = log.snapshot()
        splits = list(after.splits.values())
        tables = [read_split(log.store, add, ["id"]) for add in splits]
        ids = sorted(each for table in tables for each in table.column("id").to_pylist())
        assert ids == sorted(n * 100 + at for n, seconds in enumerate(files) for at in range(len(seconds)))
        assert result.rows_out == len(ids)
        assert result.rows_in == len(ids) + len(files)
        assert len(list(rejected_lines(log.store))) == len(files)
        if pending == collected == 2**30:
            assert len(splits) == len({second // HOUR for seconds in files for second in seconds})
        assert batch.plan(after, spec, discover(spec)) == []


def test_files_that_cannot_be_read_together_are_rejected_or_read_alone(tmp_path: Path) -> None:
    (tmp_path / "landing").mkdir()
    lines = [f'{{"id": {number}}}' for number in range(10)]
    whole = gzip.compress("\n".join(["bad", *lines[2:4], *["\n" * 2**20] * 20, "bad"]).encode())
    contents = {
        "a.ndjson": "\n".join([*lines[:2], "bad"]).encode(),
        "b.ndjson.gz": whole,
        "c.ndjson.gz": whole[: len(whole) // 2],
        "d.ndjson": b"\n".join([b"\xff", *(each.encode() for each in lines[4:])]),
        "e.ndjson": b"",
    }
    for name, data in contents.items():
        (tmp_path / "landing" / name).write_bytes(data)
    log = TransactionLog(LocalStore(tmp_path / "table"), ids=SeededIds(1))
    log.create(Metadata(id="t", schemaString=to_schema_string(pa.schema([("id", pa.int64())])), configuration={}))
    snapshot = log.snapshot()
    works = batch.plan(snapshot, spec := LandingSpec(uri=str(tmp_path / "landing"), format="ndjson"), discover(spec))
    result = batch.execute_batch(log.store, works, context=context_of(snapshot), ids=SeededIds(2), now_ms=1)
    log.commit(snapshot, result.actions, operation="INGEST")
    (add,) = log.snapshot().splits.values()
    assert sorted(read_split(log.store, add, ["id"]).column("id").to_pylist()) == list(range(10))
    numbers = [(each["source"], each["line"]) for each in rejected_lines(log.store)]
    assert sorted(numbers, key=str) == [
        ("a.ndjson", 3),
        ("b.ndjson.gz", 1),
        ("b.ndjson.gz", 4 + 20 * 2**20 + 20),
        ("c.ndjson.gz", None),
        ("d.ndjson", 1),
    ]


def test_a_file_that_changes_during_the_read_has_no_row_in_a_shared_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "landing").mkdir()
    for name in "abc":
        (tmp_path / "landing" / f"{name}.ndjson").write_text(f'{{"id": {ord(name)}}}\n')
    log = TransactionLog(LocalStore(tmp_path / "table"), ids=SeededIds(1))
    schema = pa.schema([("id", pa.int64())])
    log.create(Metadata(id="t", schemaString=to_schema_string(schema), configuration={}))
    snapshot = log.snapshot()
    works = batch.plan(snapshot, spec := LandingSpec(uri=str(tmp_path / "landing"), format="ndjson"), discover(spec))
    real = is_unchanged
    monkeypatch.setattr(batch, "is_unchanged", lambda file: file.path != "b.ndjson" and real(file))
    result = batch.execute_batch(log.store, works, context=context_of(snapshot), ids=SeededIds(2), now_ms=1)
    log.commit(snapshot, result.actions, operation="INGEST")
    monkeypatch.setattr(batch, "is_unchanged", real)
    (add,) = log.snapshot().splits.values()
    assert sorted(read_split(log.store, add, ["id"]).column("id").to_pylist()) == [ord("a"), ord("c")]
    assert [each.landed.path for each in batch.plan(log.snapshot(), spec, discover(spec))] == ["b.ndjson"]


def test_work_is_divided_into_batches_of_consecutive_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "landing").mkdir()
    for number, size in enumerate([3, 3, 3, 50, 1, 1]):
        (tmp_path / "landing" / f"{number}.ndjson").write_bytes(b"x" * size)
    log = TransactionLog(LocalStore(tmp_path / "table"), ids=SeededIds(1))
    log.create(Metadata(id="t", schemaString=to_schema_string(pa.schema([("id", pa.int64())])), configuration={}))
    works = batch.plan(
        log.snapshot(), spec := LandingSpec(uri=str(tmp_path / "landing"), format="ndjson"), discover(spec)
    )
    monkeypatch.setattr(batch, "BATCH_BYTES", (1, 6))
    parts = [[each.landed.size for each in part] for part in batch.batches(works, 100)]
    assert parts == [[3], [3], [3], [50], [1], [1]]
    parts = [[each.landed.size for each in part] for part in batch.batches(works, 2)]
    assert parts == [[3, 3], [3], [50], [1, 1]]
    assert [[each.landed.size for each in part] for part in batch.batches(works[:3], 2)] == [[3], [3, 3]]
    assert batch.batches([], 2) == []
