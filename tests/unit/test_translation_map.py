"""A packed translation map of row positions is read unchanged. A changed byte, count or row is detected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pyroaring import BitMap

from storage_core.base.errors import Corrupt
from storage_core.data.formats import bundle
from storage_core.data.formats.bundle import Bundle, Expected, TranslationMap, pack_translation, unpack_translation

ID = "0f8fad5b-d9cb-469f-a165-70867728950e"

# Input 0 has rows 0 to 3 without row 1. Input 1 has rows 0 to 2. The outputs have 2 and 4 rows.
MOVED = TranslationMap((4, 3), (2, 4), np.array([0, 1, 1, 0, 0, 1], np.uint8), (BitMap([1]), BitMap()))
COUNTS = (1, 2, 1, 2)


def expected(packed: Bundle) -> Expected:
    return Expected("here", ID, len(packed.data), packed.footer_offset, packed.xxh3)


def read(packed: Bundle, **other: Any) -> TranslationMap:
    said: Mapping[str, Sequence[int]] = {"inputs": (4, 3), "outputs": (2, 4), "moved": COUNTS}
    return unpack_translation(packed.data, expected(packed), **{**said, **other})


def forged(parts: Mapping[str, bytes]) -> Bundle:
    return bundle.pack_bundle(parts, identity=ID, properties={})


def test_a_translation_comes_back_as_it_was_packed() -> None:
    packed = pack_translation(MOVED, identity=ID)
    found = read(packed)
    assert packed == pack_translation(MOVED, identity=ID)
    assert found.order.tolist() == MOVED.order.tolist()
    assert (found.dropped, found.input_rows, found.output_rows) == (MOVED.dropped, (4, 3), (2, 4))
    assert found.moved.ravel().tolist() == list(COUNTS)


def test_rows_are_found_where_they_went() -> None:
    moved, positions = MOVED.places(0, np.arange(4))
    assert (moved.tolist(), positions.tolist()) == ([0, 2, 3], [0, 3, 4])
    moved, positions = MOVED.places(1, np.array([2, 0]))
    assert (moved.tolist(), positions.tolist()) == ([0, 1], [5, 1])
    assert MOVED.places(0, np.array([1, 9]))[0].tolist() == []


def test_more_inputs_than_a_byte_can_number_take_two() -> None:
    order = np.arange(300, dtype=np.uint16)[::-1].copy()
    wide = TranslationMap((1,) * 300, (300,), order, (BitMap(),) * 300)
    found = read(pack_translation(wide, identity=ID), inputs=(1,) * 300, outputs=(300,), moved=(1,) * 300)
    assert found.order.tolist() == order.tolist()


def test_runs_take_next_to_nothing_and_any_order_at_most_its_entropy() -> None:
    rows = 100_000
    runs = np.repeat(np.arange(10, dtype=np.uint8), rows // 10)
    mixed = np.random.default_rng(1).permutation(runs)
    sizes = [
        len(pack_translation(TranslationMap((rows // 10,) * 10, (rows,), order, (BitMap(),) * 10), identity=ID).data)
        for order in (runs, mixed)
    ]
    assert sizes[0] < 500
    assert sizes[1] < 0.45 * rows  # log2(10) bits are 0.415 bytes


def test_a_flipped_bit_anywhere_is_found() -> None:
    packed = pack_translation(MOVED, identity=ID)
    for place in range(len(packed.data)):
        data = bytearray(packed.data)
        data[place] ^= 1
        with pytest.raises(Corrupt):
            unpack_translation(bytes(data), expected(packed), inputs=(4, 3), outputs=(2, 4), moved=COUNTS)


@pytest.mark.parametrize(
    "other",
    [
        {"moved": (2, 1, 1, 2)},
        {"inputs": (5, 3)},
        {"inputs": (4, 2)},
        {"outputs": (3, 3)},
        {"outputs": (2, 5)},
        {"inputs": (4, 3, 1), "moved": (1, 2, 1, 2, 0, 0)},
        {"inputs": (7,), "moved": (2, 4)},
    ],
)
def test_what_the_log_says_otherwise_is_found(other: Mapping[str, Sequence[int]]) -> None:
    with pytest.raises(Corrupt):
        read(pack_translation(MOVED, identity=ID), **other)


@pytest.mark.parametrize(
    "wrong",
    [
        replace(MOVED, order=np.array([0, 0, 1, 0, 1, 1], np.uint8)),
        replace(MOVED, order=np.array([0, 1, 1, 0, 0, 2], np.uint8)),
        replace(MOVED, order=np.roll(MOVED.order, -1)),  # shifted by one row, into the next output
        replace(MOVED, dropped=(BitMap([1, 2]), BitMap())),
        replace(MOVED, dropped=(BitMap(), BitMap())),
        replace(MOVED, dropped=(BitMap([4]), BitMap())),
        replace(MOVED, dropped=(BitMap(), BitMap([1]))),
    ],
)
def test_a_sound_object_with_another_content_is_found_by_its_counts(wrong: TranslationMap) -> None:
    with pytest.raises(Corrupt, match="not the translation of the log"):
        read(pack_translation(wrong, identity=ID))


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"order.zst": b""},
        {"order.zst": b"no zstd"},
        {"order.zst": pack_translation(MOVED, identity=ID).data, "other": b""},
    ],
)
def test_parts_that_nobody_writes_are_refused(parts: Mapping[str, bytes]) -> None:
    with pytest.raises(Corrupt):
        read(forged(parts))


# The rows of `MOVED`, but the rows of an input are not in their input order. Row 1 of input 0 is in no output.
GATHERED = TranslationMap((4, 3), (2, 4), MOVED.order, rows=np.array([3, 0, 2, 0, 2, 1]))


def test_rows_that_were_sorted_anew_are_found_where_they_went() -> None:
    packed = pack_translation(GATHERED, identity=ID)
    found = read(packed)
    assert found.rows is not None
    assert found.rows.tolist() == [3, 0, 2, 0, 2, 1]
    moved, positions = found.places(0, np.arange(6))
    assert (moved.tolist(), positions.tolist()) == ([0, 2, 3], [3, 4, 0])
    moved, positions = found.places(1, np.array([2, 1, 0]))
    assert (moved.tolist(), positions.tolist()) == ([0, 1, 2], [2, 5, 1])


@pytest.mark.parametrize("rows", [[3, 0, 2, 3, 2, 1], [4, 0, 2, 0, 2, 1], [3, 0, 3, 0, 2, 1], [3, 0, 2, 0, 2, 0]])
def test_a_row_that_is_in_two_places_or_in_none_is_refused(rows: list[int]) -> None:
    with pytest.raises(Corrupt, match="not the translation of the log"):
        read(pack_translation(replace(GATHERED, rows=np.array(rows)), identity=ID))
