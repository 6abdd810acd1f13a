"""Pieces read by ranges: one range for pieces close to each other, and a check of each piece."""

from __future__ import annotations

import pytest
import xxhash

from storage_core.base.errors import Corrupt
from storage_core.split.fetch import Pieces, near
from storage_core.store.pieces import NOT_CACHED, Piece

DATA = bytes(range(256)) * 4


def piece(start: int, end: int) -> Piece:
    return Piece(start, end, xxhash.xxh3_64_hexdigest(DATA[start:end]))


def test_spans_that_lie_near_each_other_are_one_range() -> None:
    spans = [(0, 10), (15, 20), (26, 30), (30, 40)]
    assert near(spans, 5) == [(0, 20), (26, 40)]
    assert near(spans, 6) == [(0, 40)]
    assert near(spans, 6, most_bytes=20) == [(0, 20), (26, 40)]
    assert near([], 5) == []


def test_each_piece_has_its_bytes_and_ranges_are_fetched_once() -> None:
    fetched = list[tuple[int, int]]()

    def fetch(start: int, end: int) -> bytes:
        fetched.append((start, end))
        return DATA[start:end]

    wanted = [piece(3, 10), piece(12, 12), piece(12, 40), piece(500, 600)]
    found = Pieces("s3://b", "k", "1", NOT_CACHED, fetch).read(wanted, gap_bytes=8, at_once=2)
    assert found == [DATA[each.start : each.end] for each in wanted]
    assert sorted(fetched) == [(3, 40), (500, 600)]


def test_bytes_with_another_checksum_are_corrupt_and_the_error_says_where_and_what_to_do() -> None:
    pieces = Pieces("s3://b", "k", "1", NOT_CACHED, lambda start, end: bytes(end - start), advice="build it again")
    with pytest.raises(Corrupt, match=r"k: expected xxh3-64 .* of the bytes 7 to 9, found .*. Build it again"):
        pieces.read([piece(7, 9)], gap_bytes=0, at_once=1)
