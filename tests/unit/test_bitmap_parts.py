"""A reader of a bitmap segment fetches only the requested parts, verifies each part separately and caches it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pytest

from storage_core.base.errors import Corrupt, InvalidInput
from storage_core.data.formats import bundle
from storage_core.data.settings.index import IndexDefinition
from storage_core.index import bitmap, segments
from storage_core.index import segment_reader as bitmap_parts
from storage_core.index.segment_reader import BitmapParts
from storage_core.index.segments import CoveringSegments
from storage_core.log.actions import IndexSegment
from storage_core.read.bitmap import rows_that_meet
from storage_core.read.search.search_request import parse_bitmap_query
from storage_core.store.contract import IfAbsent, Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from storage_core.store.pieces import NOT_CACHED

DEFINITION = IndexDefinition("b", "bitmap", ("n", "s"))
SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
ROWS = 20_000
KEY = "_indices/b/0b7c3a52-93f5-4d7e-8f2a-000000000000.seg"


def rows() -> pa.Table:
    numbers = np.arange(ROWS) * 7919 % 1_000
    texts = pa.array([f"text {each}" if each else None for each in numbers % 20])
    return pa.table([numbers, texts], schema=SCHEMA)


def stored(files: Mapping[str, bytes]) -> tuple[MeteredStore, IndexSegment]:
    identity = KEY.rpartition("/")[2].removesuffix(".seg")
    packed = bundle.pack_bundle(files, identity=identity, properties={})
    store = MeteredStore(MemoryStore("parts"))
    store.put(KEY, packed.data, IfAbsent())
    segment = IndexSegment(
        index="b",
        kind="bitmap",
        path=KEY,
        covers=("split",),
        size=len(packed.data),
        xxh3=packed.xxh3,
        footerOffset=packed.footer_offset,
        numRecords=ROWS,
    )
    return store, segment


def found(parts: BitmapParts, store: MeteredStore, segment: IndexSegment, query: object) -> list[int]:
    wanted = [*query] if isinstance(query, dict) else []
    columns = parts.reading(store, segment, DEFINITION).columns(wanted)
    assert columns is not None
    return list(rows_that_meet(parse_bitmap_query(query, DEFINITION, SCHEMA), columns, lambda: ROWS))


def expected(query: str) -> list[int]:
    import duckdb

    table = rows().append_column("row", pa.array(np.arange(ROWS)))
    connection = duckdb.connect()
    connection.register("t", table)
    return [row for (row,) in connection.sql(f"select row from t where {query} order by row").fetchall()]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first fetch read only a small tail of the file.

    The first fetch then gets the directory and the values of both columns, but no bitmap.
    """
    monkeypatch.setattr(bitmap_parts, "TAIL_BYTES", 2**16)


QUERIES = {
    "n = 5": {"n": 5},
    "n = 5 and s is not null": {"n": 5, "s": {"is null": False}},
    "n between 3 and 5": {"n": {"between": [3, 5]}},
    "n in (1, 2, 7) and s is null": {"n": [1, 2, 7], "s": {"is null": True}},
    "s not in ('text 1', 'text 2')": {"s": {"not in": ["text 1", "text 2"]}},
    "s is null": {"s": {"is null": True}},
    "s > 'text 5' and s <> 'text 7'": {"s": {">": "text 5", "<>": "text 7"}},
    "n = -1": {"n": -1},
}


@pytest.mark.parametrize("query", QUERIES)
def test_rows_of_conditions_are_those_of_duckdb(query: str) -> None:
    store, segment = stored(bitmap.build(rows(), DEFINITION))
    assert found(BitmapParts(NOT_CACHED), store, segment, QUERIES[query]) == expected(query)


def test_values_take_one_request_and_bitmaps_one_more_with_their_bytes_alone() -> None:
    store, segment = stored(bitmap.build(rows(), DEFINITION))
    parts = BitmapParts(NOT_CACHED)
    assert not parts.holds(CoveringSegments((segment,)), ["n"])
    assert found(parts, store, segment, {"n": -1}) == []
    tail = segment.size - segment.footerOffset + 2**16
    assert (store.requests["get"], store.bytes_read) == (1, tail)
    assert parts.holds(CoveringSegments((segment,)), ["n"])
    found(parts, store, segment, {"n": 5})
    assert (store.requests["get"], store.bytes_read - tail < 200) == (2, True)
    found(parts, store, segment, {"n": [5, -1]})
    assert store.requests["get"] == 2  # it is cached


def test_a_reading_that_foretells_keeps_nothing_and_says_what_it_took() -> None:
    store, segment = stored(bitmap.build(rows(), DEFINITION))
    parts = BitmapParts(NOT_CACHED)
    readings = [parts.for_planning().reading(store, segment, DEFINITION) for _ in range(2)]
    for reading in readings:
        columns = reading.columns(["n"])
        assert columns is not None
        assert len(columns["n"].rows(np.arange(len(columns["n"].values.keys)) == 5)) == ROWS / 1_000
        assert reading.requests == 2
    assert (store.requests["get"], store.bytes_read) == (4, sum(each.read_bytes for each in readings))


def test_values_that_are_too_many_are_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bitmap_parts, "TAIL_BYTES", 1)
    store, segment = stored(bitmap.build(rows(), DEFINITION))
    reading = BitmapParts(NOT_CACHED).reading(store, segment, DEFINITION)
    assert reading.columns(["n"], most_bytes=1_000) is None
    assert store.requests["get"] == 1
    assert reading.columns(["n"], most_bytes=100_000) is not None
    assert store.requests["get"] == 2


def test_a_flipped_bit_is_corrupt_where_it_is_used_and_nowhere_else() -> None:
    sound, segment = stored(bitmap.build(rows(), DEFINITION))
    data, corrupt = sound.get(KEY).data, list[str]()
    places = [*range(8, segment.footerOffset - 2**16, 4_001), *range(segment.footerOffset - 2**14, segment.size, 401)]
    answer = expected("n = 5")
    for place in places:
        flipped = bytearray(data)
        flipped[place] ^= 1
        sound.put(KEY, bytes(flipped), Overwrite())
        try:
            assert found(BitmapParts(NOT_CACHED), sound, segment, {"n": 5}) == answer
        except Corrupt as error:
            corrupt.append(str(error))
    assert 0 < len(corrupt) < len(places)
    assert all(KEY in each for each in corrupt)


def test_a_segment_of_an_earlier_release_answers_by_whole_parts() -> None:
    files = {}
    for name, data in bitmap.build(rows(), DEFINITION).items():
        if name.startswith("values"):
            table = pa.ipc.open_file(data).read_all().drop_columns(["xxh3"])
            is_null = table.column("value").is_null().to_pylist()[-1]
            sink = pa.BufferOutputStream()
            kept = table.slice(0, table.num_rows - is_null)
            with pa.ipc.new_file(sink, kept.schema) as writer:
                writer.write_table(kept.combine_chunks())
            files[name] = sink.getvalue().to_pybytes()
            last = table.slice(table.num_rows - 1).to_pylist()[0]
            bitmaps = name.replace("values", "bitmaps").replace("arrow", "bin")
            files[bitmaps] = files[bitmaps][: last["offset"]] if is_null else files[bitmaps]
        else:
            files[name] = data
    store, segment = stored(files)
    bitmap.check(files, DEFINITION, where=KEY)
    for query, asked in QUERIES.items():
        assert found(BitmapParts(NOT_CACHED), store, segment, asked) == expected(query), query
    damaged = bytearray(store.get(KEY).data)
    damaged[100] ^= 1
    store.put(KEY, bytes(damaged), Overwrite())
    with pytest.raises(Corrupt, match="expected xxh3-64"):
        found(BitmapParts(NOT_CACHED), store, segment, {"n": 5})
    assert segments.segment_id(segment) in KEY


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ({"n": {}}, "the condition on 'n' is empty"),
        (
            {"n": {"like": 5}},
            "'like' is not a condition on 'n'. Conditions are =, <>, <, <=, >, >=, in, not in, between, is null",
        ),
        ({"n": {"between": [5]}}, "between needs two values of 'n', the least and the greatest. It has 1"),
        ({"n": {"not in": []}}, "the list of values for 'n' is empty"),
        ({"n": {"not in": [None]}}, "null is not a value of 'n'"),
        ({"n": {"is null": "yes"}}, "the value of 'is null' is 'yes'"),
        ({"n": {">": "x"}}, "'x' does not fit 'n', which has the type int64"),
        ({"n": {">": [1, 2]}}, "does not fit 'n', which has the type int64"),
    ],
)
def test_a_condition_that_is_none_is_refused_with_the_reason(query: object, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        parse_bitmap_query(query, DEFINITION, SCHEMA)
