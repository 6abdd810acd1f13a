"""A segment of the primary key finds every key of its rows, and each block contains its own checksum."""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.base.errors import Corrupt, TidemarkError, Unsupported
from storage_core.data.formats.key_hashes import HashedRows, Hashes, key_hashes
from storage_core.index import primary_key
from storage_core.index.primary_key import BLOCK_KEYS, FORMAT, HEAD, KEYS, Layout
from tests.support.same_hash import keys_of_one_hash
from tests.support.scale import scaled

WHERE = "_indices/keys/s.seg"


def built(rows: pa.Table, identity: str = "a") -> dict[str, bytes | memoryview]:
    return primary_key.bound(primary_key.build(rows, rows.column_names), identity)


def numbers(count: int) -> pa.Table:
    return pa.table({"id": np.arange(count) * 7})


def found(files: dict[str, bytes | memoryview], wanted: Hashes, rows: int) -> list[int]:
    """Return the rows of some keys, reading only the blocks that contain the keys."""
    layout = Layout.of(rows, len(files[KEYS]), where=WHERE)
    size, data = layout.block_bytes, memoryview(files[KEYS])
    blocks = [
        primary_key.block(data[each * size : each * size + size], layout, "a", where=WHERE)
        for each in np.unique(layout.blocks_of(wanted)).tolist()
    ]
    keys = HashedRows.joined(blocks)
    places: list[int] = keys.rows_of(wanted).tolist()
    return places


@pytest.mark.parametrize("count", [1, 2, BLOCK_KEYS, BLOCK_KEYS + 1, 10 * BLOCK_KEYS, 100_000])
def test_each_key_is_in_the_block_that_its_hash_names(count: int) -> None:
    rows = numbers(count)
    files = built(rows)
    every = primary_key.every_key(files, "a", where=WHERE)
    assert (every.hashes[1:] >= every.hashes[:-1]).all()
    assert (key_hashes(rows, ["id"])[every.rows] == every.hashes).all()
    for row in {0, count // 3, count - 1}:
        assert found(files, key_hashes(rows.slice(row, 1), ["id"]), count) == [row]
    assert len(files[KEYS]) <= 16 * count + 64, "blocks of one length leave little room unused"


kinds = st.sampled_from(
    [
        (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
        (pa.string(), st.text(max_size=3)),
        (pa.float64(), st.floats()),
        (pa.binary(), st.binary(max_size=3)),
        (pa.date32(), st.dates(dt.date(1960, 1, 1))),
        (pa.decimal128(9, 2), st.sampled_from([Decimal("0.00"), Decimal("-7.25")])),
    ]
)


@settings(max_examples=scaled(60), deadline=None)
@given(data=st.data())
def test_all_rows_of_a_key_are_found_whatever_its_types(data: st.DataObject) -> None:
    columns = [
        pa.array(data.draw(st.lists(values, min_size=12, max_size=12)), kind)
        for kind, values in data.draw(st.lists(kinds, min_size=1, max_size=2))
    ]
    rows = pa.table(columns, names=[f"c{number}" for number in range(len(columns))])
    hashes = key_hashes(rows, rows.column_names)
    files = built(rows)
    primary_key.check(files, rows=12, identity="a", where=WHERE)
    for row in range(12):
        assert sorted(found(files, hashes[row : row + 1], 12)) == np.flatnonzero(hashes == hashes[row]).tolist()


def test_keys_chosen_for_their_hashes_take_no_more_room_than_others() -> None:
    rows = keys_of_one_hash(5 * BLOCK_KEYS)
    files = built(rows)
    assert len(files[KEYS]) == 16 + 12 * rows.num_rows
    assert Layout.of(rows.num_rows, len(files[KEYS]), where=WHERE).blocks == 1
    assert len(found(files, np.unique(key_hashes(rows, rows.column_names)), rows.num_rows)) == rows.num_rows


def test_a_key_with_a_null_is_no_key_and_keeps_no_other_from_being_found() -> None:
    rows = pa.table({"id": pa.array(["a", None, "b"])})
    files = built(rows)
    primary_key.check(files, rows=3, identity="a", where=WHERE)
    assert found(files, key_hashes(rows.slice(2), ["id"]), 3) == [2]


def test_a_block_of_another_object_is_not_taken_for_its_own() -> None:
    files = built(numbers(3_000))
    others = primary_key.bound(files, "b")
    primary_key.check(others, rows=3_000, identity="b", where=WHERE)
    with pytest.raises(Corrupt, match="checksum of a block"):
        primary_key.check(others, rows=3_000, identity="a", where=WHERE)


def test_every_damage_is_found_and_a_newer_format_is_named() -> None:
    rows = numbers(1_500)
    files = built(rows)
    for at in range(0, len(files[KEYS]), 997):
        data = bytearray(files[KEYS])
        data[at] ^= 1
        with pytest.raises(Corrupt, match="checksum of a block"):
            primary_key.check({**files, KEYS: bytes(data)}, rows=1_500, identity="a", where=WHERE)
    broken: list[dict[str, bytes | memoryview]] = [
        {KEYS: files[KEYS]},
        {**files, KEYS: files[KEYS][:-12]},
        {**files, KEYS: b""},
        {**files, HEAD: b"\x01\x00\x00\x00"},
        {**files, HEAD: bytes(files[HEAD][:4]) + (2**32 - 1).to_bytes(4, "little")},
    ]
    for each in broken:
        with pytest.raises(Corrupt, match="not the files of a primary-key segment"):
            primary_key.check(each, rows=1_500, identity="a", where=WHERE)
    with pytest.raises(Corrupt, match="the log has 1499"):
        primary_key.check(files, rows=1_499, identity="a", where=WHERE)
    newer: dict[str, bytes | memoryview] = {
        **files,
        HEAD: (FORMAT + 1).to_bytes(4, "little") + bytes(files[HEAD][4:]),
    }
    with pytest.raises(Unsupported, match="Upgrade"):
        primary_key.check(newer, rows=1_500, identity="a", where=WHERE)


@settings(max_examples=scaled(100), deadline=None)
@given(data=st.data(), rows=st.integers(0, 5), form=st.sampled_from([FORMAT, FORMAT + 1]))
def test_hostile_files_with_sound_checksums_are_a_typed_error_or_keys(
    data: st.DataObject, rows: int, form: int
) -> None:
    length = data.draw(st.sampled_from([16 + 12 * rows, 12 * rows, 2**7]))
    content = bytearray(data.draw(st.binary(min_size=length, max_size=length)))
    content[8:16] = (data.draw(st.integers(0, rows + 1))).to_bytes(4, "little") + form.to_bytes(4, "little")
    files: dict[str, bytes | memoryview] = {KEYS: bytes(content), HEAD: struct.pack("<II", FORMAT, rows)}
    try:
        every = primary_key.every_key(primary_key.bound(files, "a"), "a", where=WHERE)
    except TidemarkError as error:
        assert isinstance(error, Corrupt | Unsupported)  # noqa: PT017  # whatever else is raised fails the test
    else:
        assert sorted(every.rows.tolist()) == [*range(rows)]
