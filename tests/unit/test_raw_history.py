"""A raw log is read as the union of its stores, from the last distributed chunk, and with a table's schema."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from storage_core.base.errors import InvalidInput, Unavailable
from storage_core.data.formats.keys import ChunkKey, raw_chunk_key
from storage_core.data.formats.raw_chunk import RECORD_COLUMNS, RawChunk, RawColumns, decode_chunk, encode_chunk
from storage_core.data.formats.raw_fields import decode_fields, encode_fields
from storage_core.data.rows.fold import FIELDS, OPERATION, record_schema
from storage_core.store.contract import IfAbsent, ObjectStore
from storage_core.store.memory import MemoryStore
from storage_core.write.distribution.work import Terms, left
from storage_core.write.raw_log.history import (
    CLOSED_AFTER_MS,
    Damage,
    Gap,
    MissingChunks,
    RawChunkRef,
    read_columns,
    union,
)
from storage_core.write.raw_log.read import typed_records
from storage_core.write.raw_log.records import RawLimits, RawRecord
from storage_core.write.raw_log.writer import RawLog
from tests.support.clock import START_MS, ManualClock
from tests.support.copies import copy_of
from tests.support.damage import Damage as Harm
from tests.support.damage import damage
from tests.support.fault_store import FaultStore, GetFault, ListFault
from tests.support.ids import SeededIds

SECOND = 1_000


def writer(store: ObjectStore, clock: ManualClock, *, seed: int = 1) -> RawLog:
    return RawLog([store], clock=clock, ids=SeededIds(seed), limits=RawLimits(segment_ms=SECOND))


def filled(chunks: int = 6, *, per_segment: int = 2, seed: int = 1, start: int = START_MS) -> tuple[MemoryStore, str]:
    """Make a store with chunks of two records each, and return it with the writer's id."""
    store, clock = MemoryStore(f"filled-{seed}"), ManualClock(start)
    log = writer(store, clock, seed=seed)
    for number in range(1, chunks + 1):
        log.append("t", [{"n": 2 * number - 1}, {"n": 2 * number}])
        if number % per_segment == 0:
            clock.now += SECOND
    return store, log.writer_id


def keys(store: ObjectStore) -> list[str]:
    return sorted(info.key for info in store.list(""))


def numbers(*stores: ObjectStore) -> list[int]:
    chunks = (each for each in union(stores).read() if isinstance(each, RawColumns))
    return [decode_fields(text)["n"] for chunk in chunks for text in chunk.records.column("fields").to_pylist()]


def gaps(*stores: ObjectStore) -> list[tuple[int, int | None]]:
    return [(each.first, each.last) for each in union(stores).verify().gaps]


# The union.


def test_stores_that_each_miss_something_add_up() -> None:
    whole, _ = filled()
    stores = [copy_of(whole, name) for name in "abc"]
    every = keys(whole)
    for store, lost in zip(stores, (every[:3], every[2:5], [*every[:2], *every[3:]]), strict=True):
        store.delete(lost)
    assert numbers(*stores) == [*range(1, 13)]
    assert union(stores).verify().gaps == ()
    assert [dict(each.copies) for each in union(stores).segments()] == [
        {"memory://a": 0, "memory://b": 2, "memory://c": 0},
        {"memory://a": 1, "memory://b": 0, "memory://c": 1},
        {"memory://a": 2, "memory://b": 1, "memory://c": 0},
    ]


@pytest.mark.parametrize("harm", [each for each in Harm if each is not Harm.SWAP])
def test_a_copy_that_is_not_whole_is_healed_by_another_store(harm: Harm) -> None:
    whole, _ = filled()
    broken = copy_of(whole, "broken")
    for key in keys(whole):
        damage(broken, key, harm, seed=len(key))
    assert numbers(broken, whole) == [*range(1, 13)]


def test_chunks_that_changed_places_are_told_apart() -> None:
    store, _ = filled()
    first, second = keys(store)[:2]
    damage(store, first, Harm.SWAP, other=second)
    assert gaps(store) == [(1, 4)]
    assert numbers(store) == [*range(5, 13)]


def test_what_no_store_has_is_a_gap_by_sequence_number() -> None:
    store, writer_id = filled()
    every = keys(store)
    store.delete([every[0], every[2], every[3]])
    assert gaps(store) == [(1, 2), (5, 8)]
    assert numbers(store) == [3, 4, 9, 10, 11, 12]
    assert union([store]).missing == [
        MissingChunks(writer=writer_id, first=1, last=1),
        MissingChunks(writer=writer_id, first=3, last=4),
    ]


def test_a_torn_tail_ends_its_segment_and_says_that_nobody_knows_how_much_it_held() -> None:
    store, writer_id = filled()
    damage(store, keys(store)[-1], Harm.TRUNCATION)
    found = [*union([store]).read()]
    assert isinstance(found[-2], Damage)
    assert "memory://filled-1" in found[-2].reasons[0]
    assert found[-1] == Gap(writer=writer_id, first=11, last=None)
    assert numbers(store) == [*range(1, 11)]


def test_a_torn_chunk_before_a_whole_one_is_a_gap_of_known_length() -> None:
    store, _ = filled()
    damage(store, keys(store)[3], Harm.EMPTY)
    assert gaps(store) == [(7, 8)]


def test_a_folder_that_was_renamed_by_hand_counts_once_and_in_its_place() -> None:
    store, writer_id = filled()
    for key in keys(store)[2:4]:
        renamed = key.replace(f"{START_MS + SECOND}.", f"{START_MS + 500}.")
        store.put(renamed, store.get(key).data, IfAbsent())
    assert numbers(store) == [*range(1, 13)]
    store.delete([raw_chunk_key(ChunkKey(segment_ms=START_MS + SECOND, writer=writer_id, number=n)) for n in (3, 4)])
    assert numbers(store) == [*range(1, 13)]


def test_the_order_is_by_segment_start_then_writer_then_number() -> None:
    store, _ = filled(4, seed=1)
    later, _ = filled(4, seed=2, start=START_MS + 500)
    both = copy_of(store, "both")
    for key in keys(later):
        both.put(key, later.get(key).data, IfAbsent())
    found = [(ref.segment_ms - START_MS, ref.number) for ref in union([both]).chunks]
    assert found == [(0, 1), (0, 2), (500, 1), (500, 2), (1000, 3), (1000, 4), (1500, 3), (1500, 4)]
    assert numbers(both) == numbers(store, later)


def test_records_that_two_chunks_of_a_writer_both_hold_come_once() -> None:
    store, writer_id = filled(2)
    (first, second) = (decode_chunk(store.get(key).data, key) for key in keys(store))
    overlapping = RawChunk(
        key=ChunkKey(segment_ms=START_MS, writer=writer_id, number=3),
        first=3,
        records=(*second.records, *first.records),
    )
    store.put(raw_chunk_key(overlapping.key), encode_chunk(overlapping), IfAbsent())
    assert numbers(store) == [1, 2, 3, 4, 1, 2]
    chunks = (each for each in union([store]).read() if isinstance(each, RawColumns))
    ids = [each for chunk in chunks for each in chunk.records.column("record_id").to_pylist()]
    assert len(set(ids)) == len(ids) == 6


def test_a_listing_that_was_overtaken_makes_no_gap() -> None:
    store, writer_id = filled(6)
    key = raw_chunk_key(ChunkKey(segment_ms=START_MS + SECOND, writer=writer_id, number=3))
    data = store.get(key).data
    store.delete([key])
    watched: list[str] = []

    def appears(kind: str, _: str) -> None:
        watched.append(kind)
        if kind == "head" and watched.count("head") == 1:
            store.put(key, data, IfAbsent())

    found = union([FaultStore(store, watch=appears)])
    assert found.missing == []
    assert found.verify().records == 12


def test_a_cut_listing_of_a_long_log_is_completed_by_looking_again() -> None:
    store, _ = filled(400, per_segment=100)
    faulty = FaultStore(store, page_keys=50, seed=3)
    faulty.on("list", "live/", ListFault.CUT)
    other = copy_of(store, "other")
    other.delete(keys(other)[:350])
    found = union([faulty, other])
    assert found.missing == []
    assert found.verify().records == 800


def test_a_store_that_does_not_answer_is_named_and_the_others_go_on() -> None:
    store, _ = filled()
    silent = FaultStore(copy_of(store, "silent"))
    silent.on("list", "", ListFault.REFUSED)
    found = union([silent, store])
    assert found.unreachable == ("memory://silent",)
    assert found.verify().records == 12
    silent.on("list", "", ListFault.REFUSED)
    with pytest.raises(Unavailable, match="no store of the raw log answers"):
        union([silent])


def test_a_chunk_that_only_a_silent_store_may_have_is_no_gap() -> None:
    store, _ = filled()
    silent = FaultStore(copy_of(store, "silent"))
    store.delete(keys(store)[1:2])
    found = union([silent, store])
    silent.on("get", "live/", *[GetFault.REFUSED] * 12)
    with pytest.raises(Unavailable, match="No other store has a complete copy"):
        found.verify()


def test_an_empty_log_is_an_empty_history() -> None:
    found = union([MemoryStore("empty")])
    assert (found.chunks, found.segments(), found.missing, found.verify().records) == ([], [], [], 0)


# Closing and distribution.


def test_a_segment_is_closed_by_a_newer_one_or_by_its_age() -> None:
    store, _ = filled(5)
    found = union([store])
    assert [each.segment_ms - START_MS for each in found.closed_segments(START_MS + 3 * SECOND)] == [0, 1000]
    late = START_MS + 2 * SECOND + CLOSED_AFTER_MS
    assert len(found.closed_segments(late - 1)) == 2
    assert len(found.closed_segments(late)) == 3


def test_distribution_goes_on_where_it_stopped_and_takes_closed_segments_only() -> None:
    store, writer_id = filled(5)
    plan = left(union([store]), {}, Terms(), now_ms=START_MS)
    assert [each.number for each in plan.chunks] == [1, 2, 3, 4]
    assert plan.offsets == {writer_id: 4}
    again = left(union([store]), plan.offsets, Terms(), now_ms=START_MS)
    assert (again.chunks, again.offsets) == ((), plan.offsets)
    rest = left(union([store]), plan.offsets, Terms(), now_ms=START_MS + CLOSED_AFTER_MS * 2)
    assert [each.number for each in rest.chunks] == [5]


def test_a_chunk_that_comes_into_a_segment_that_counted_as_closed_is_distributed_next() -> None:
    store, _ = filled(1)
    late = START_MS + CLOSED_AFTER_MS
    plan = left(union([store]), {}, Terms(), now_ms=late)
    more, _ = filled(2)
    after = left(union([copy_of(more, "more"), store]), plan.offsets, Terms(), now_ms=late)
    assert [each.number for each in after.chunks] == [2]


def test_distribution_waits_before_a_missing_chunk_until_it_is_given_up() -> None:
    store, writer_id = filled(6)
    missing = MissingChunks(writer=writer_id, first=2, last=3)
    backup = copy_of(store, "backup")
    store.delete(keys(store)[1:3])
    late = START_MS + CLOSED_AFTER_MS * 2
    held = left(union([store]), {}, Terms(), now_ms=late)
    assert ([each.number for each in held.chunks], held.held, held.given_up) == ([1], (missing,), ())
    healed = left(union([store, backup]), held.offsets, Terms(), now_ms=late)
    assert [each.number for each in healed.chunks] == [2, 3, 4, 5, 6]
    passed = left(union([store]), held.offsets, Terms(give_up_to={writer_id: 3}), now_ms=late)
    assert ([each.number for each in passed.chunks], passed.held, passed.given_up) == ([4, 5, 6], (), (missing,))
    assert left(union([store, backup]), passed.offsets, Terms(), now_ms=late).chunks == ()


def test_a_chunk_that_is_damaged_everywhere_counts_as_missing_once_a_task_found_it_so() -> None:
    store, writer_id = filled(6)
    damage(store, keys(store)[2], Harm.EMPTY)
    late = START_MS + CLOSED_AFTER_MS * 2
    plan = left(union([store]), {}, Terms(), now_ms=late)
    assert isinstance(read_columns([store], plan.chunks[2]), Damage)
    found = frozenset({(writer_id, 3)})
    held = left(union([store]), {}, Terms(damaged=found), now_ms=late)
    assert ([each.number for each in held.chunks], held.offsets) == ([1, 2], {writer_id: 2})
    passed = left(union([store]), {}, Terms(damaged=found, give_up_to={writer_id: 3}), now_ms=late)
    assert [each.number for each in passed.chunks] == [1, 2, 4, 5, 6]
    assert passed.given_up == (MissingChunks(writer=writer_id, first=3, last=3),)


def test_nothing_is_given_up_while_a_store_does_not_answer() -> None:
    store, writer_id = filled(6)
    silent = FaultStore(copy_of(store, "silent"))
    silent.on("list", "", ListFault.REFUSED)
    with pytest.raises(Unavailable, match="memory://silent"):
        left(union([store, silent]), {}, Terms(give_up_to={writer_id: 3}), now_ms=START_MS)


def test_a_task_reads_a_chunk_as_columns_by_what_the_plan_says_in_json() -> None:
    store = MemoryStore("task")
    log = RawLog([store], clock=ManualClock(), ids=SeededIds(1))
    log.append_many(
        [RawRecord(table="t", fields={"n": 1}), RawRecord(table="u", fields={}, operation="delete", key="k")]
    )
    (ref,) = left(union([store]), {}, Terms(), now_ms=START_MS + CLOSED_AFTER_MS).chunks
    chunk = read_columns([store], RawChunkRef.from_json(json.loads(json.dumps(ref.to_json()))))
    assert isinstance(chunk, RawColumns)
    found = chunk.records
    assert found.schema == RECORD_COLUMNS
    assert found.to_pylist() == [
        {
            "record_id": f"{log.writer_id}:1",
            "timestamp_ms": START_MS,
            "table": "t",
            "key": None,
            "operation": "put",
            "fields": '{"n":1}',
        },
        {
            "record_id": f"{log.writer_id}:2",
            "timestamp_ms": START_MS,
            "table": "u",
            "key": "k",
            "operation": "delete",
            "fields": "{}",
        },
    ]


def test_a_chunk_without_a_sound_copy_names_every_copy() -> None:
    store, _ = filled(1)
    other = copy_of(store, "other")
    (ref,) = union([store]).chunks
    damage(store, ref.keys[0], Harm.EMPTY)
    other.delete(ref.keys)
    found = read_columns([store, other], ref)
    assert isinstance(found, Damage)
    assert [each.partition(": ")[0] for each in found.reasons] == ["memory://filled-1", "memory://other"]


# Records under a schema.

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("day", pa.date32()),
        pa.field("blob", pa.binary()),
        pa.field("tags", pa.map_(pa.string(), pa.int32())),
        pa.field("list", pa.list_(pa.int8())),
    ]
)
INSTANT = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)


def _typed(*given: RawRecord, key: tuple[str, ...] = ("id",), merged_maps: tuple[str, ...] = ()) -> Any:
    store = MemoryStore("typed")
    RawLog([store], clock=ManualClock(), ids=SeededIds(1)).append_many(given)
    (chunk,) = union([store]).read()
    assert isinstance(chunk, RawColumns)
    return typed_records(chunk.records, SCHEMA, key=key, merged_maps=merged_maps)


def test_records_become_records_of_the_table() -> None:
    whole = {
        "id": 1,
        "name": "a",
        "price": Decimal("1.5"),
        "at": INSTANT,
        "day": INSTANT.date(),
        "blob": b"\x00",
        "tags": {"x": 1},
        "list": [1, None],
    }
    found = _typed(
        RawRecord(table="t", fields=whole),
        RawRecord(table="t", fields={"id": 2, "name": None}, operation="patch"),
        RawRecord(table="t", fields={"id": 3}, operation="delete"),
        RawRecord(table="t", fields={"id": 4}, operation="reset"),
    )
    assert found.rejected == ()
    assert found.records.schema == record_schema(SCHEMA)
    rows = found.records.to_pylist(maps_as_pydicts="strict")
    assert {name: rows[0][name] for name in whole} == whole
    assert [row[OPERATION] for row in rows] == [0, 1, 2, 3]
    assert [row[FIELDS] for row in rows] == [None, ["id", "name"], None, None]
    assert [each.rpartition(":")[2] for each in found.ids.to_pylist()] == ["1", "2", "3", "4"]


def test_text_that_spells_a_moment_a_date_or_a_decimal_is_one() -> None:
    found = _typed(
        RawRecord(table="t", fields={"id": 1, "at": "2024-05-01T14:00:00+02:00", "price": "-7.25"}),
        RawRecord(table="t", fields={"id": 2, "at": "2024-05-01 12:00", "day": "2024-05-01"}),
    )
    assert found.rejected == ()
    assert found.records.column("at").to_pylist() == [INSTANT, INSTANT]
    assert found.records.column("price").to_pylist() == [Decimal("-7.25"), None]
    assert found.records.column("day").to_pylist() == [None, dt.date(2024, 5, 1)]


@pytest.mark.parametrize(
    ("fields", "operation", "why"),
    [
        ({"id": 9, "surname": 1}, "put", "'surname': not a column"),
        ({"id": "9"}, "put", "column 'id': a value does not fit the type int64"),
        ({"id": 9.5}, "put", "column 'id'"),
        ({"id": True}, "put", "column 'id'"),
        ({"name": "x"}, "put", "'id': a value is required"),
        ({"id": None}, "patch", "'id': a value is required"),
        ({}, "delete", "the column is part of the key"),
        ({"id": 9, "name": 1}, "put", "column 'name'"),
        ({"id": 9, "price": 1.555}, "put", "column 'price'"),
        ({"id": 9, "price": 1e300}, "put", "column 'price'"),
        ({"id": 9, "price": Decimal("1e-999999999")}, "put", "column 'price'"),
        ({"id": 9, "price": Decimal("1e-77")}, "put", "column 'price'"),
        ({"id": 9, "price": True}, "put", "column 'price'"),
        ({"id": 9, "price": "1.555"}, "put", "column 'price'"),
        ({"id": 9, "price": "1e3"}, "put", "column 'price'"),
        ({"id": 9, "at": "yesterday"}, "put", "column 'at'"),
        ({"id": 9, "at": "2024-13-01T00:00"}, "put", "column 'at'"),
        ({"id": 9, "at": 1}, "put", "column 'at'"),
        ({"id": 9, "day": INSTANT}, "put", "column 'day'"),
        ({"id": 9, "tags": {"x": "y"}}, "put", "column 'tags'"),
        ({"id": 9, "tags": 1}, "put", "column 'tags'"),
        ({"id": 9, "list": [300]}, "put", "column 'list'"),
        ({"id": 9, "list": {"a": 1}}, "put", "column 'list'"),
    ],
)
def test_a_record_that_does_not_fit_is_rejected_with_its_reason_and_stops_no_other(
    fields: dict[str, Any], operation: Any, why: str
) -> None:
    found = _typed(
        RawRecord(table="t", fields={"id": 1}),
        RawRecord(table="t", fields=fields, operation=operation, key="k"),
        RawRecord(table="t", fields={"id": 3}),
    )
    assert found.records.column("id").to_pylist() == [1, 3]
    (rejected,) = found.rejected
    assert why in rejected.reason
    assert (rejected.record_id.rpartition(":")[2], rejected.operation, rejected.key) == ("2", operation, "k")
    assert rejected.fields == encode_fields(fields)


def test_the_digits_of_a_json_number_are_the_value_of_a_decimal_and_the_nearest_float_of_a_float() -> None:
    digits, wide = "12345678901234567.123", pa.decimal128(38, 10)
    schema = pa.schema(
        [
            ("d", wide),
            ("f", pa.float64()),
            ("map", pa.map_(pa.string(), wide)),
            ("list", pa.list_(wide)),
            ("struct", pa.struct([("d", wide), ("f", pa.float64())])),
            ("keys", pa.map_(pa.decimal128(3, 1), pa.float64())),
        ]
    )
    text = (
        f'{{"d":{digits},"f":{digits},"map":{{"a":{digits}}},"list":[{digits},1e3],'
        f'"struct":{{"d":{digits},"f":{digits}}},"keys":{{"$map":[[1.50,{digits}]]}}}}'
    )
    store = MemoryStore("typed")
    fields = decode_fields(text)
    RawLog([store], clock=ManualClock(), ids=SeededIds(1)).append_many([RawRecord(table="t", fields=fields)])
    (chunk,) = union([store]).read()
    assert isinstance(chunk, RawColumns)
    found = typed_records(chunk.records, schema)
    assert found.rejected == ()
    (row,) = found.records.select(schema.names).to_pylist()
    exact, near = Decimal(digits), float(digits)
    assert row == {
        "d": exact,
        "f": near,
        "map": [("a", exact)],
        "list": [exact, Decimal(1000)],
        "struct": {"d": exact, "f": near},
        "keys": [(Decimal("1.5"), near)],
    }


def test_fields_that_are_none_of_the_raw_log_are_rejected() -> None:
    record = pa.Table.from_pylist(
        [{"record_id": "w:1", "timestamp_ms": 1, "table": "t", "key": None, "operation": "put", "fields": '{"id":{'}],
        schema=RECORD_COLUMNS,
    )
    (rejected,) = typed_records(record, SCHEMA).rejected
    assert "not valid JSON of a raw log" in rejected.reason


def test_a_schema_that_no_table_could_have_is_the_callers_fault() -> None:
    with pytest.raises(InvalidInput):
        typed_records(RECORD_COLUMNS.empty_table(), pa.schema([pa.field(OPERATION, pa.int8())]))


def test_a_patch_lays_the_entries_of_a_merged_map_over_those_that_are_there() -> None:
    patches: list[dict[str, Any]] = [{"id": 1, "tags": {"x": 1}}, {"id": 1, "tags": None}, {"id": 1, "name": "a"}]
    given = [RawRecord(table="t", fields=each, operation="patch") for each in patches]
    given.append(RawRecord(table="t", fields={"id": 1, "tags": {"x": 1}}))
    found = _typed(*given, merged_maps=("tags",))
    assert found.records.column(FIELDS).to_pylist() == [["id", "merge:tags"], ["id", "tags"], ["id", "name"], None]
    assert _typed(*given).records.column(FIELDS).to_pylist()[0] == ["id", "tags"]
    assert found.written_ms.to_pylist() == [START_MS] * 4
