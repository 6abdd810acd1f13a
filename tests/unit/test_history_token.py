"""Tokens: an encoded token decodes to the same value, and any other text causes a typed error."""

from __future__ import annotations

import base64
import json
import string
from dataclasses import replace

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from storage_core.base.errors import InvalidInput, Unsupported
from storage_core.data.formats.history_token import (
    HistoryToken,
    InBase,
    InGenerations,
    InRaw,
    InTail,
    RawPosition,
    RawRun,
    RegionPosition,
    decode,
    encode,
)

NUMBERS = st.integers(0, 2**63 - 1)
MARKS = st.builds(RegionPosition, region=st.text(), manifest=NUMBERS, flushed=NUMBERS, first=NUMBERS, last=NUMBERS)
RUNS = st.lists(st.builds(RawRun, writer=st.text(), first=NUMBERS, last=NUMBERS), max_size=3).map(tuple)
RAW = st.builds(
    RawPosition,
    name=st.text(),
    rounds=st.lists(RUNS, max_size=2).map(tuple),
    further=st.dictionaries(st.text(), st.dictionaries(st.text(), NUMBERS, max_size=2), max_size=2),
)
PLACES = st.one_of(
    st.builds(InBase, st.text(), NUMBERS),
    st.builds(InGenerations, st.just(0), NUMBERS, NUMBERS, NUMBERS),
    st.builds(InTail, st.just(0), NUMBERS, NUMBERS),
)
TOKENS = st.builds(
    HistoryToken,
    table_id=st.text(),
    version=NUMBERS,
    consistency=st.text(),
    regions=st.lists(MARKS, min_size=1, max_size=3).map(tuple),
    place=PLACES,
    restarts=NUMBERS,
)
WITH_RAW = st.builds(
    replace,
    TOKENS,
    raw=st.lists(RAW, min_size=1, max_size=2).map(tuple),
    place=PLACES | st.builds(InRaw, st.just(0), NUMBERS),
)
TOKEN = HistoryToken(
    table_id="t",
    version=3,
    consistency="latest",
    regions=(RegionPosition(region="r", manifest=4, flushed=2, first=7, last=9),),
    place=InGenerations(0, 2, 1, 5),
)
ALPHABET = string.ascii_letters + string.digits + "-_"


def with_checksum(content: bytes) -> str:
    return base64.urlsafe_b64encode(content + xxhash.xxh3_64_digest(content)).decode().rstrip("=")


def body() -> dict[str, object]:
    encoded = encode(TOKEN)
    data = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
    found: dict[str, object] = json.loads(data[1:-8])
    return found


@given(TOKENS | WITH_RAW)
def test_what_was_encoded_comes_back(token: HistoryToken) -> None:
    text = encode(token)
    assert decode(text) == token
    assert set(text) <= set(ALPHABET)


def test_the_bytes_of_a_token_are_those_of_this_format() -> None:
    text = b'{"t":"t","v":3,"c":"latest","r":[["r",4,2,7,9]],"p":[1,0,2,1,5],"n":0}'
    assert encode(TOKEN) == with_checksum(b"\x01" + text)
    chunks = RawPosition(name="raw", rounds=((RawRun(writer="w", first=3, last=5),),), further={"r": {"w": 4}})
    raw = b',"w":[["raw",[[["w",3,5]]],{"r":{"w":4}}]]}'
    place = text.replace(b"[1,0,2,1,5]", b"[3,0,7]")[:-1]
    assert encode(replace(TOKEN, raw=(chunks,), place=InRaw(0, 7))) == with_checksum(b"\x02" + place + raw)


def test_a_character_that_is_another_one_missing_or_too_many_is_refused() -> None:
    text = encode(TOKEN)
    for at, found in enumerate(text):
        other = ALPHABET[(ALPHABET.index(found) + 1) % len(ALPHABET)]
        for damaged in (text[:at] + other + text[at + 1 :], text[:at] + text[at + 1 :], text[:at] + "A" + text[at:]):
            if damaged != text:
                with pytest.raises(InvalidInput, match="begin without a token"):
                    decode(damaged)


@pytest.mark.parametrize("text", ["", "A", "é", "a b", "=", "\n", "AAAA", "x" * 10_000])
def test_text_that_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="not a history token"):
        decode(text)


def test_a_token_of_a_newer_release_is_unsupported() -> None:
    with pytest.raises(Unsupported, match="format 3, this release reads up to 2"):
        decode(with_checksum(b"\x03anything"))


@pytest.mark.parametrize(
    "change",
    [
        {"v": -1},
        {"v": "3"},
        {"v": True},
        {"v": 2**63},
        {"t": 1},
        {"r": [["r", 1]]},
        {"r": []},
        {"r": [[1, 1, 1, 1, 1]]},
        {"p": []},
        {"p": [3, 0]},
        {"p": [0, "w=1/x"]},
        {"p": [0, 1, "x"]},
        {"p": [1, 1, 2, 1, 5]},
        {"p": [2, 0, 1.5, 0]},
        {"p": [2, 0, 1, 0, 0]},
        {"n": None},
        {"p": [3, 0, 0]},
        {"w": [["raw", [[["w", 1]]], {}]]},
        {"w": [["raw", [[["w", 1, -1]]], {}]]},
        {"w": [["raw", [], []]]},
        {"w": [["raw", [], {"r": 1}]]},
    ],
)
def test_a_checksummed_token_that_none_of_us_made_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match="not a history token"):
        decode(with_checksum(b"\x01" + json.dumps({**body(), **change}).encode()))
    with pytest.raises(InvalidInput, match="not a history token"):
        decode(with_checksum(b"\x01" + b"[" * 100_000))


def test_places_of_one_region_are_told_from_those_of_another() -> None:
    two = replace(TOKEN, regions=(*TOKEN.regions, replace(TOKEN.regions[0], region="s")))
    assert decode(encode(replace(two, place=InTail(1, 8, 0)))).place == InTail(1, 8, 0)
