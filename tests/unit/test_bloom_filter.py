"""Bloom filters have no false negatives and few false positives.

The size of a filter depends on the number of keys (lesson 24).
"""

from __future__ import annotations

import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.base.errors import Corrupt, Unsupported
from storage_core.data.formats import key_hashes as bloom
from storage_core.data.formats.key_hashes import Hashes, key_hashes

STORED = [16294208416658607535, 6517859028267526135, 5818349205131900139]


def _hashes(values: pa.Array | pa.ChunkedArray) -> Hashes:
    return key_hashes(pa.table({"k": values}), ["k"])


@given(st.lists(st.text(max_size=12), min_size=1, max_size=200))
def test_no_key_that_went_in_is_denied(keys: list[str]) -> None:
    hashes = _hashes(pa.array(keys))
    assert bloom.build_bloom(hashes).may_contain(hashes).all()


@pytest.mark.parametrize("count", [1, 100, 8_000, 100_000])
def test_false_positives_stay_rare_at_any_size(count: int) -> None:
    inside = _hashes(pa.array([f"key-{number}" for number in range(count)]))
    outside = _hashes(pa.array([f"other-{number}" for number in range(100_000)]))
    guard = bloom.build_bloom(inside)
    assert guard.may_contain(inside).all()
    assert guard.may_contain(outside).mean() < 0.002


def test_the_size_follows_the_number_of_keys() -> None:
    sizes = [len(bloom.build_bloom(np.arange(count, dtype=np.uint64)).to_bytes()) for count in (1, 1_000, 100_000)]
    assert sizes[0] < 100
    assert 2 * 1_000 <= sizes[1] <= 2 * 1_000 * 2 + 64
    assert 2 * 100_000 <= sizes[2] <= 2 * 100_000 * 2 + 64


def test_a_filter_comes_back_as_it_was_written() -> None:
    guard = bloom.build_bloom(_hashes(pa.array(["a", "b"])))
    found = bloom.from_bytes(guard.to_bytes(), "here")
    assert found.keys == 2
    assert (found.words == guard.words).all()


def test_the_stored_bytes_never_change() -> None:
    guard = bloom.build_bloom(_hashes(pa.array(["a", "bc", ""])))
    assert guard.to_bytes().hex() == (
        "544d424c4f4f4d010300000000000000a380c5dad7878a01"
        "1400100000090100a00000020600002008800200100400080844000000001408"
    )


@pytest.mark.parametrize("position", [0, 9, 17, 30, 55])
def test_a_damaged_filter_is_an_error_and_never_an_answer(position: int) -> None:
    data = bytearray(bloom.build_bloom(_hashes(pa.array(["a"]))).to_bytes())
    data[position] ^= 1
    if position == 9:
        # The count of keys is only information and affects no decision.
        assert bloom.from_bytes(bytes(data), "here").may_contain(_hashes(pa.array(["a"]))).all()
        return
    with pytest.raises((Corrupt, Unsupported), match="here"):
        bloom.from_bytes(bytes(data), "here")


def test_a_torn_filter_is_corrupt() -> None:
    data = bloom.build_bloom(_hashes(pa.array(["a"]))).to_bytes()
    for length in range(len(data)):
        with pytest.raises(Corrupt, match="here"):
            bloom.from_bytes(data[:length], "here")


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (pa.array([1, -5], pa.int8()), pa.array([1, -5], pa.int64())),
        (pa.array([1.5, -0.0], pa.float32()), pa.array([1.5, 0.0], pa.float64())),
        (pa.array(["é", ""]), pa.array(["é", ""], pa.large_string())),
        (pa.array(["é", ""]), pa.array(["é", ""]).dictionary_encode()),
        (pa.array(["x", "é", ""])[1:], pa.array(["é", ""])),
        (pa.chunked_array([["a"], ["b"]]), pa.chunked_array([["a", "b"]])),
    ],
    ids=["integer width", "float width and zero", "text layout", "dictionary", "slice", "chunks"],
)
def test_equal_keys_have_equal_hashes(left: pa.Array, right: pa.Array) -> None:
    assert _hashes(left).tolist() == _hashes(right).tolist()


def test_the_columns_of_a_key_do_not_run_into_each_other() -> None:
    rows = pa.table({"a": ["x", "xy", ""], "b": ["yz", "z", "xyz"]})
    assert len(set(key_hashes(rows, ["a", "b"]).tolist())) == 3
    assert len(set(key_hashes(rows, ["b", "a"]).tolist()) | set(key_hashes(rows, ["a", "b"]).tolist())) == 6


@pytest.mark.parametrize(
    "values",
    [
        pa.array([0, 1, 2**40], pa.timestamp("us", tz="UTC")),
        pa.array([0, 1, 20_000], pa.date32()),
        pa.array([True, False]),
        pa.array([b"", b"\x00", b"\x00\x00"], pa.binary()),
        pa.array(["1.00", "2.00"]).cast(pa.decimal128(10, 2)),
    ],
    ids=["timestamp", "date", "bool", "binary", "decimal"],
)
def test_keys_of_every_type_are_told_apart(values: pa.Array) -> None:
    assert len(set(_hashes(values).tolist())) == len(values)


def test_texts_of_several_mebibytes_hash_as_each_does_alone() -> None:
    texts = [f"{number} " * (number * 317 % 5_000) for number in range(300)]
    assert sum(map(len, texts)) > 2 * 2**20
    assert _hashes(pa.array(texts)).tolist() == [int(_hashes(pa.array([text]))[0]) for text in texts]


def test_hashing_one_long_key_takes_no_memory_in_proportion() -> None:
    """Hashing once needed about forty times the memory of the key: 700 MB for a key of 17 MB."""
    rows = pa.table({"k": ["a", "k" * (8 * 2**20), "b"]})
    tracemalloc.start()
    try:
        found = key_hashes(rows, ["k"])
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    finally:
        tracemalloc.stop()
    assert found.tolist() == [key_hashes(rows.slice(at, 1), ["k"])[0] for at in range(3)]


def test_hashes_are_those_that_are_stored() -> None:
    """The stored hashes are those that the first release wrote."""
    assert _hashes(pa.array(["", "a", "é" * 700_000])).tolist() == STORED
