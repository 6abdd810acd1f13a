"""Forged version files cause a typed error that names key and line, within bounded memory.

Design lessons 80 and 82.
"""

from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, get_args
from urllib.parse import unquote

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.base.errors import Corrupt, InvalidInput, TidemarkError, Unsupported
from storage_core.data.formats.keys import version_key
from storage_core.data.rows.sort_order import SortOrder
from storage_core.log import codec
from storage_core.log.actions import Action, Add, Protocol
from storage_core.log.deletion_vector import (
    VectorStorage,
    encode,
    from_json,
    inline,
    is_safe_path,
    rows_of,
    stored,
    to_json,
)
from storage_core.log.split_columns import conform, table_of
from storage_core.split.context import SplitContext
from storage_core.split.read import open_split
from storage_core.split.writer import sort_and_write
from storage_core.store.contract import IfAbsent
from storage_core.store.memory import MemoryStore
from tests.support.ids import SeededIds
from tests.support.log_tables import log_on, metadata, split

WHERE = "_transaction_log/00000000000000000007.json"
MIB = 2**20

PATH = "splits/all/a.parquet"
VECTOR = json.loads(to_json(inline([1])))
ACTIONS: Mapping[str, dict[str, Any]] = {
    "commitInfo": {
        "commitId": "c", "operation": "o", "timestamp": 1, "version": 1, "jobRunId": "r", "metrics": {"rows": 1},
    },
    "protocol": {"minReaderVersion": 4, "minWriterVersion": 4, "readerFeatures": ["a"], "writerFeatures": ["a"]},
    "metaData": {
        "id": "i", "schemaString": "{}", "partitionColumns": ["a"], "configuration": {"k": "v"},
        "format": {"provider": "tidemark"}, "name": "n", "description": "d", "createdTime": 1,
    },
    "add": {
        "path": PATH, "size": 1, "modificationTime": 1, "partitionValues": {"a": "b"}, "dataChange": True, "stats": "s",
        "minValues": {"a": "b"}, "maxValues": {"a": "b"}, "numRecords": 9, "hasFooterOffsets": True,
        "footerStartOffset": 1, "footerEndOffset": 1, "splitTags": ["a"], "numMergeOps": 1, "docMappingRef": "r",
        "docMappingJson": "{}", "uncompressedSizeBytes": 1, "windowStart": -1, "windowSeconds": 1, "sortSchema": "s",
        "sourceId": "s", "partitionId": "p", "minRowKey": "[]", "maxRowKey": "[]", "nullCounts": {"a": 1}, "xxh3": "f",
        "footerXxh3": "f",
        "columnRegexes": {"a": "^b$"}, "deletionVector": VECTOR,
    },
    "remove": {"path": PATH, "deletionTimestamp": 1, "dataChange": True, "partitionValues": {"a": "b"}, "size": 1},
    "mergeskip": {
        "path": PATH, "skipTimestamp": 1, "reason": "r", "operation": "o", "retryAfter": 1, "skipCount": 1,
    },
    "txn": {"appId": "a", "version": 1, "lastUpdated": 1},
    "removeTxn": {"appId": "a"},
    "fence": {"resource": "r", "token": 1},
    "mergedGenerations": {"region": "r", "generation": 1},
    "indexSegment": {
        "index": "i", "kind": "k", "path": PATH, "covers": ["a"], "size": 1, "xxh3": "f", "footerOffset": 1,
        "numRecords": 1, "details": {"a": 1}, "origins": ["b"], "coveredRows": [1], "coveredOrigins": [["b"]],
    },
    "removeIndexSegment": {"index": "i", "path": PATH},
    "translation": {
        "path": PATH, "inputs": ["a", "b"], "inputRows": [2, 1], "outputs": ["c"], "movedRows": [1, 1], "size": 1,
        "xxh3": "f", "footerOffset": 1,
    },
    "removeTranslation": {"path": PATH},
}  # fmt: skip

# Invalid values for each JSON type of a field. A careless reader would accept some of these invalid values.
WRONG: Mapping[type, list[object]] = {
    str: [1, True, 1.5, [], {}, ["a"]],
    int: ["1", True, 1.0, 1e300, [], {}, 2**63, -(2**63) - 1, 10**4000],
    bool: [0, 1, "true", [], {}],
    list: ["a", 1, {}, [1], ["a", None], [["a"]], [{}], [True]],
    dict: ["a", 1, [], [["a", "b"]]],
}
WRONG_COUNTS: list[object] = ["a", 1, {}, ["a"], [1, None], [[1]], [-1], [2**63], [True], [1.0]]
WRONG_LISTS: list[object] = ["a", 1, {}, ["a"], [1], [["a"], None], [[1]], [[["a"]]], [{}], [True]]
_NO_METRICS: tuple[object, ...] = (None, [], -1, {}, 2**63)
WRONG_INSIDE: Mapping[str, list[object]] = {
    "text": [{"a": 1}, {"a": {"b": "c"}}, {"a": ["b"]}, {"a": True}, {"a": 1.5}],
    "count": [{"a": "1"}, {"a": 1.0}, {"a": -1}, {"a": 2**63}, {"a": {}}, {"a": True}],
    "vector": [
        {},
        {"storage": 1},
        *({**VECTOR, key: value} for key in VECTOR for value in _NO_METRICS),
    ],
}
MAPS = {
    "partitionValues": "text", "minValues": "text", "maxValues": "text", "configuration": "text",
    "nullCounts": "count", "columnRegexes": "text", "deletionVector": "vector",
}  # fmt: skip


def _wrong_fields() -> list[tuple[str, str, object]]:
    found: list[tuple[str, str, object]] = []
    for action, body in ACTIONS.items():
        for field, value in body.items():
            first = type(value[0]) if isinstance(value, list) else type(value)
            is_list = isinstance(value, list)
            kind = {int: WRONG_COUNTS, list: WRONG_LISTS}.get(first) if is_list else None
            kind = kind or WRONG[type(value)]
            wrong = [*kind, *WRONG_INSIDE.get(MAPS.get(field, ""), [])]
            found += [(action, field, each) for each in wrong]
    return found


def test_the_cases_name_every_action_and_every_field() -> None:
    assert set(ACTIONS) == {kind.NAME for kind in get_args(Action)}
    for kind in get_args(Action):
        assert set(ACTIONS[kind.NAME]) == set(kind.__dataclass_fields__) - {"NAME"}


@pytest.mark.parametrize("name", ACTIONS)
def test_an_action_with_every_field_is_read_and_written_as_it_is(name: str) -> None:
    line = json.dumps({name: ACTIONS[name]})
    assert json.loads(codec.encode_line(codec.decode_line(line, WHERE))) == {name: ACTIONS[name]}


def test_a_value_that_a_field_cannot_hold_is_named_by_key_line_and_field() -> None:
    cases = _wrong_fields()
    assert len(cases) > 400
    for action, field, value in cases:
        text = json.dumps({"txn": ACTIONS["txn"]}) + "\n" + json.dumps({action: {**ACTIONS[action], field: value}})
        with pytest.raises(Corrupt, match=f"{field}|leads out of the table|an int") as caught:
            codec.decode_version(text.encode(), WHERE)
        assert f"{WHERE}, line 2" in str(caught.value), (action, field, value)
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("field", "counts", "named"),
    [
        ("inputRows", [2], "1 and 2 counts for 2 inputs and 1 outputs"),
        ("movedRows", [1, 1, 0], "2 and 3 counts"),
        ("movedRows", [1, 2], "2 rows of b moved, but it has 1 rows"),
    ],
)
def test_counts_of_a_translation_that_contradict_each_other_are_refused(
    field: str, counts: list[int], named: str
) -> None:
    with pytest.raises(Corrupt, match=named):
        codec.decode_line(json.dumps({"translation": {**ACTIONS["translation"], field: counts}}), WHERE)


@pytest.mark.parametrize("name", ACTIONS)
def test_a_null_is_a_field_that_is_left_out(name: str) -> None:
    for field in ACTIONS[name]:
        without = json.dumps({name: {key: value for key, value in ACTIONS[name].items() if key != field}})
        null = json.dumps({name: {**ACTIONS[name], field: None}})
        assert _read(null) == _read(without)
        assert not isinstance(_read(null), str) or "incomplete" in str(_read(null))


def _read(line: str) -> Action | str:
    """Return the action, or the error text."""
    try:
        return codec.decode_line(line, WHERE)
    except Corrupt as error:
        return str(error)


def test_a_null_inside_a_map_is_an_entry_that_is_left_out() -> None:
    body = {**ACTIONS["add"], "minValues": {"a": None, "b": "c"}, "nullCounts": {"a": None}, "partitionValues": {}}
    action = codec.decode_line(json.dumps({"add": body}), WHERE)
    assert isinstance(action, Add)
    assert (action.minValues, action.nullCounts, action.partitionValues) == ({"b": "c"}, {}, {})


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('{"txn":{"appId":"a","appId":"b","version":1}}', "'appId' occurs twice"),
        ('{"txn":{"appId":"a","version":1},"txn":{"appId":"a","version":2}}', "'txn' occurs twice"),
        ('{"txn":{"appId":"a","version":1,"later":{"x":1,"x":2}}}', "'x' occurs twice"),
        ('{"commitInfo":{"commitId":"c","operation":"o","timestamp":NaN}}', "NaN is not a JSON number"),
        ('{"txn":{"appId":"a","version":Infinity}}', "Infinity is not a JSON number"),
        ('{"txn":{"appId":"a","version":1e999}}', "txn.version is inf"),
        ('{"commitInfo":{"commitId":"c","operation":"o","timestamp":1,"metrics":{"a":[-1e999]}}}', "not finite"),
        ('{"txn":{"appId":"a\\ud800","version":1}}', "lone surrogate"),
        ('{"txn":{"appId":"a\\uDfff","version":1}}', "lone surrogate"),
        ('{"add":{"path":"a\\ud83d","size":1,"modificationTime":1}}', "lone surrogate"),
        ('{"txn":{"appId":"a\nb","version":1}}', "not JSON"),
        ('{"txn":{"appId":"a","version":' + "9" * 100_000 + "}}", "not JSON"),
        ('{"txn":{"appId":"a","version":1}} {}', "not JSON"),
        ('{"txn":null}', "not an object"),
        ('{"txn":[]}', "not an object"),
        ("{}", "one action per line"),
        ("[" * 100_000, "not JSON"),
        ('{"later":' * 100_000, "not JSON"),
        ('{"txn":{"appId":"a","version":1,"later":' + "[" * 100_000, "not JSON"),
        ('{"indexSegment":' + json.dumps(ACTIONS["indexSegment"])[:-1].replace('{"a": 1}', "[" * 40 + "]" * 40) + "}}",
         "indexSegment.details"),
        ('{"commitInfo":{"commitId":"c","operation":"o","timestamp":1,"metrics":{"a":' + "[" * 33 + "]" * 33 + "}}}",
         "nested deeper than 32 levels"),
    ],
)  # fmt: skip
def test_json_that_two_readers_could_take_for_two_things_is_refused(line: str, named: str) -> None:
    with pytest.raises(Corrupt, match=named) as caught:
        codec.decode_line(line, f"{WHERE}, line 3")
    assert f"{WHERE}, line 3" in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_whole_characters_beyond_16_bits_are_read_however_they_are_written() -> None:
    escaped = codec.decode_line('{"txn":{"appId":"\\ud83c\\udf0a","version":1}}', WHERE)
    assert escaped == codec.decode_line('{"txn":{"appId":"🌊","version":1}}', WHERE)


def test_an_unknown_action_is_named_and_cut_short() -> None:
    with pytest.raises(Unsupported, match="unknown action 'xxxx") as caught:
        codec.decode_line(json.dumps({"x" * 10_000: {}}), WHERE)
    assert len(str(caught.value)) < 1000


def test_an_unknown_kind_of_vector_needs_a_newer_release() -> None:
    body = {**ACTIONS["add"], "deletionVector": {**VECTOR, "storage": "bitset"}}
    with pytest.raises(Unsupported, match=r"deletionVector\.storage 'bitset'"):
        codec.decode_line(json.dumps({"add": body}), WHERE)


# Paths.


@pytest.mark.parametrize(
    "path",
    [
        "", ".", "..", "/", "/etc/passwd", "../x", "a/../x", "a/..", "a//b", "a/", "./a", "a/./b", "~\x00",
        "s3://bucket/x", "s3:bucket/x", "file:/etc/passwd", "file:///etc/passwd", "C:/x", "C:x", "http:x", "abfss:a/b",
        "\\\\host\\x", "a\\..\\x", "a\nb", "a\rb", "a\tb", "a\x1bb", "a\x7fb", "a\x85b", "a\u2028b", "a\u202eb",
        "%2e%2e/x", "%2E%2E/x", "a/%2e%2e/x", ".%2e/x", "..%2fx", "a%2f..%2fx", "%252e%252e/x", "%25252e./x",
        "%2fetc/passwd", "%5c%5chost", "a%5c..%5cx", "\ud800", "a\udfff/b", ".tmp/x", "x" * 1025, "é" * 600,
    ],
)  # fmt: skip
def test_a_path_that_could_lead_out_of_the_table_is_refused_in_every_action(path: str) -> None:
    assert not is_safe_path(path)
    for name, body in ACTIONS.items():
        if "path" not in body:
            continue
        with pytest.raises(Corrupt, match=r"leads out of the table|surrogate") as caught:
            codec.decode_line(json.dumps({name: {**body, "path": path}}), f"{WHERE}, line 3")
        assert f"{WHERE}, line 3" in str(caught.value)
    vector = {**VECTOR, "storage": "key", "path": path}
    with pytest.raises(Corrupt, match=r"leads out of the table|surrogate"):
        codec.decode_line(json.dumps({"add": {**ACTIONS["add"], "deletionVector": vector}}), WHERE)


@pytest.mark.parametrize(
    "path", ["_tags.json", version_key(0), "_gc/boundary.json", "_mem_wal/r/wal/1.arrow", "quarantine/a/b.json"]
)
def test_a_file_of_the_tables_own_machinery_is_no_split(path: str) -> None:
    for name in ("add", "remove", "indexSegment"):
        with pytest.raises(Corrupt, match="or its data"):
            codec.decode_line(json.dumps({name: {**ACTIONS[name], "path": path}}), WHERE)
    files = table_of([split("a")])
    position = files.schema.get_field_index("path")
    with pytest.raises(Corrupt, match="or its data"):
        conform(files.set_column(position, files.schema.field(position), pa.array([path])), WHERE)


@pytest.mark.parametrize(
    "path",
    [
        "splits/all/0198c1b2-0000-4000-8000-000000000001.parquet", "splits/-900/a.parquet", "date=2024-01-01/splits/a",
        "time=2024-01-01 10%3A00%3A00/a.split", "a=x%2Fy/b", "url=https%3A%2F%2Fexample.org/b", "p=100%/b", "a=%0A/b",
        "a=%25/b", "a..b/c", "...", "time=10:00/b", "größe=ü/b", "日付=今日/b", "x" * 1024,
    ],
)  # fmt: skip
def test_paths_of_logs_out_there_are_read(path: str) -> None:
    assert is_safe_path(path)


@given(st.text(max_size=30) | st.from_regex(r"[a./%2eEfF5cC\\:=]{0,12}", fullmatch=True))
def test_a_path_that_is_read_stays_inside_whoever_decodes_it(path: str) -> None:
    if not is_safe_path(path):
        return
    for _ in range(len(path) + 1):
        segments = path.replace("\\", "/").split("/")
        assert ".." not in segments
        assert not path.startswith(("/", "\\"))
        path = unquote(path)


# Size.


def _peak(read: Callable[[], object]) -> int:
    """Return the peak memory of Python while `read` runs until it raises `Corrupt`."""
    tracemalloc.start()
    try:
        with pytest.raises(Corrupt) as caught:
            read()
        assert WHERE in str(caught.value)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _gzip(block: bytes, times: int) -> bytes:
    stream = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join([*(stream.compress(block) for _ in range(times)), stream.flush()])


def test_a_bomb_that_is_one_line_holds_one_line_at_most() -> None:
    bomb = _gzip(b" " * MIB, 100)
    assert len(bomb) < MIB
    assert _peak(lambda: codec.decode_version(bomb, WHERE)) < 40 * MIB


def test_a_bomb_of_many_lines_holds_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_EXPANDED_BYTES", 32 * MIB)
    assert _peak(lambda: codec.decode_version(_gzip((b" " * 4095 + b"\n") * 256, 40), WHERE)) < 2 * MIB


def test_a_file_of_nothing_but_newlines_ends_at_the_cap_of_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_LINES", 100_000)
    assert _peak(lambda: codec.decode_version(_gzip(b"\n" * MIB, 4), WHERE)) < 8 * MIB
    monkeypatch.setattr(codec, "MAX_LINES", 3)
    assert codec.decode_version(b"\n\n", WHERE) == []
    with pytest.raises(Corrupt, match="more than 3 lines"):
        codec.decode_version(b"\n\n\n", WHERE)


def test_a_bomb_inside_a_bomb_is_not_opened_twice() -> None:
    inner = _gzip(b" " * MIB, 10)
    with pytest.raises(Corrupt, match=r"not JSON|UTF-8"):
        codec.decode_version(gzip.compress(inner), WHERE)


def test_very_many_members_cost_no_memory_and_end() -> None:
    member = gzip.compress(b"")
    assert codec.decode_version(member * 20_000, WHERE) == []
    assert _peak(lambda: codec.decode_version(member * 20_000 + member[:-1], WHERE)) < 2 * MIB


def test_a_length_that_the_bytes_do_not_have_is_damage_and_no_allocation() -> None:
    honest = gzip.compress(b"{}")
    claims = honest[:-4] + (2**32 - 1).to_bytes(4, "little")
    assert _peak(lambda: codec.decode_version(claims, WHERE)) < MIB
    vector = replace(inline([1]), size=10 * 2**30)
    assert _peak(lambda: rows_of(vector, None, WHERE)) < MIB
    everything = replace(inline([1]), cardinality=2**32)
    assert _peak(lambda: rows_of(everything, None, WHERE)) < MIB


@pytest.mark.parametrize("size", [10 * 2**30, 2**63 - 1, 0, 7])
def test_a_split_that_is_not_as_long_as_the_log_says_is_damage_and_no_allocation(size: int) -> None:
    store = MemoryStore("t")
    rows = pa.table({"a": [1, 2, 3]})
    context = SplitContext(table_id="t", schema=rows.schema, order=SortOrder((), ""))
    [add] = sort_and_write(store, rows, context=context, ids=SeededIds(1), now_ms=1)
    tracemalloc.start()
    try:
        for whole in (True, False):
            with pytest.raises(Corrupt, match=add.path):
                open_split(store, replace(add, size=size), whole=whole)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


def test_a_line_at_the_cap_is_read_across_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    line = codec.encode_line(codec.decode_line(json.dumps({"txn": {"appId": "x" * 300_000, "version": 1}}), WHERE))
    monkeypatch.setattr(codec, "MAX_LINE_BYTES", len(line))
    found = codec.decode_version(gzip.compress(f"{line}\n{line}".encode()), WHERE)
    assert len(found) == 2
    monkeypatch.setattr(codec, "MAX_LINE_BYTES", len(line) - 1)
    with pytest.raises(Corrupt, match="a line of more than"):
        codec.decode_version(line.encode(), WHERE)


# Random changes.

Read = TypeVar("Read")


def _typed(read: Callable[[], Read]) -> Read | str:
    """Return the result or the message of the typed error. Any other error fails the test."""
    try:
        return read()
    except (Corrupt, Unsupported) as error:
        return str(error)


_ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from([PATH, "..", "key"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(
    name=st.sampled_from(sorted(ACTIONS)),
    changes=st.lists(st.tuples(st.integers(0, 30), _ANYTHING), max_size=3),
)
def test_whatever_a_line_says_it_is_refused_by_type_or_can_be_written_again(
    name: str, changes: list[tuple[int, object]]
) -> None:
    body = dict(ACTIONS[name])
    for position, value in changes:
        body[sorted(body)[position % len(body)]] = value
    read = _typed(partial(codec.decode_line, json.dumps({name: body}), WHERE))
    if isinstance(read, str):
        assert WHERE in read
    else:
        assert codec.decode_version(codec.encode_version([read]), WHERE) == [read]


@given(st.binary(max_size=200))
def test_whatever_a_version_file_holds_it_is_refused_by_type(data: bytes) -> None:
    for content in (data, gzip.compress(data), b"\x01\x01" + gzip.compress(data), b"\x1f\x8b" + data):
        read = _typed(partial(codec.decode_version, content, WHERE))
        assert not isinstance(read, str) or WHERE in read


@pytest.mark.parametrize(
    "changed",
    [
        {"schemaString": "[" * 100_000},
        {"schemaString": '{"type":"struct","fields":null}'},
        {"schemaString": '{"type":"struct","fields":[{"name":1,"type":"string"}]}'},
        {"schemaString": '{"type":"struct","fields":[{"name":"\\ud800","type":"string"}]}'},
        {"schemaString": '{"type":"struct","fields":[{"name":"a","type":"string"},{"name":"a","type":"long"}]}'},
        {"schemaString": '{"type":"struct","fields":[{"name":"a","type":"decimal(' + "9" * 5000 + ',1)"}]}'},
        {"configuration": {"tidemark.primaryKey": "[" * 100_000}},
        {"configuration": {"tidemark.windowSeconds": "9" * 5000}},
        {"configuration": {"tidemark.index.x": '{"kind":[],"columns":["text"]}'}},
    ],
)
def test_a_table_whose_metadata_nobody_can_read_is_refused_before_anything_is_written(changed: dict[str, Any]) -> None:
    store = MemoryStore("t")
    hostile = replace(metadata(), **changed)
    store.put(version_key(0), codec.encode_version([Protocol(writerFeatures=("tidemark",)), hostile]), IfAbsent())
    log = log_on(store)
    with pytest.raises(TidemarkError):
        log.commit(log.snapshot(), [split("a")], operation="APPEND")
    assert log.snapshot().version == 0
    sound = log_on(MemoryStore("u"))
    sound.create(metadata())
    with pytest.raises(InvalidInput):
        sound.commit(sound.snapshot(), [hostile], operation="CONFIGURE")
    assert sound.snapshot().version == 0


# Deletion vectors.


@given(st.sets(st.integers(0, 2**32 - 1), max_size=50) | st.integers(0, 200_000).map(lambda n: set(range(n))))
def test_a_vector_gives_back_its_rows_inline_and_by_key(rows: set[int]) -> None:
    for vector, data in ((inline(rows), None), (stored("_vectors/a", encode(rows)), encode(rows))):
        assert from_json(to_json(vector), WHERE) == vector
        assert set(rows_of(vector, data, WHERE)) == rows
        assert vector.cardinality == len(rows)
    assert encode(sorted(rows)) == encode(sorted(rows, reverse=True))


@pytest.mark.parametrize("rows", [[-1], [2**32], ["1"]])
def test_rows_that_no_split_has_are_refused(rows: list[int]) -> None:
    with pytest.raises(InvalidInput, match="whole numbers from 0 to 4294967295"):
        inline(rows)


@pytest.mark.parametrize("text", ["", "null", "[]", "{", '"x"', "[" * 100_000, "{}"])
def test_text_that_is_no_vector_is_corrupt(text: str) -> None:
    with pytest.raises(Corrupt, match="here"):
        from_json(text, "here")


def test_the_bytes_of_a_vector_are_compared_with_everything_it_says() -> None:
    data = encode([1, 5, 70_000])
    vector = stored("_vectors/a", data)
    for position in range(len(data)):
        flipped = data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
        with pytest.raises(Corrupt, match="expected xxh3-64"):
            rows_of(vector, flipped, "here")
    for end in range(len(data)):
        with pytest.raises(Corrupt, match=f"expected {len(data)} bytes, found {end}"):
            rows_of(vector, data[:end], "here")
    with pytest.raises(InvalidInput, match=r"stored at '_vectors/a'\. Read it first"):
        rows_of(vector, None, "here")
    with pytest.raises(InvalidInput, match="leads out of the table"):
        stored("../a", data)


@given(st.binary(max_size=120))
def test_bytes_that_are_no_bitmap_are_corrupt_even_when_every_metric_fits(data: bytes) -> None:
    try:
        vector = stored("_vectors/a", data)
    except Corrupt:
        return
    assert vector.storage is VectorStorage.KEY
    assert len(rows_of(vector, data, "here")) == vector.cardinality
