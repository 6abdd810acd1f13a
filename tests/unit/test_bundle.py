"""A bundle returns exactly what was packed, or a typed error (lessons 60 and 61)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from storage_core.base.errors import Corrupt, InvalidInput, NotFound, Unsupported
from storage_core.data.formats.bundle import (
    Bundle,
    Expected,
    checksum,
    pack_bundle,
    read_directory,
    unpack_bundle,
    verify_part,
)

PARTS = {"meta.json": b'{"segments": []}', "abc.idx": bytes(range(256)), "empty": b""}


def packed(identity: str = "one", parts: dict[str, bytes] = PARTS) -> Bundle:
    return pack_bundle(parts, identity=identity, properties={"index": "text"})


def expected_of(bundle: Bundle, identity: str = "one") -> Expected:
    return Expected(
        where="_indices/text/one.seg",
        identity=identity,
        size=len(bundle.data),
        footer_offset=bundle.footer_offset,
        xxh3=bundle.xxh3,
    )


def test_every_part_comes_back_as_it_was_packed() -> None:
    bundle = packed()
    assert {name: bytes(data) for name, data in unpack_bundle(bundle.data, expected_of(bundle)).items()} == PARTS


def test_the_same_parts_give_the_same_bytes() -> None:
    assert packed() == packed()


def test_the_layout_is_the_one_of_the_specification() -> None:
    bundle = pack_bundle({"a": b"xyz"}, identity="id", properties={})
    directory = (
        b'{"identity":"id","properties":{},"parts":[{"name":"a","offset":8,"length":3,"xxh3":"%s"}]}'
        % checksum(b"xyz").encode()
    )
    assert bundle.footer_offset == 11
    assert bundle.data[:11] == b"TIDEMKB1xyz"
    assert bundle.data[11:-20] == directory
    assert bundle.data[-20:-16] == len(directory).to_bytes(4, "little")
    assert bundle.data[-16:-8] == int(checksum(directory + b"TIDEMKB1"), 16).to_bytes(8, "little")
    assert bundle.data[-8:] == b"TIDEMKB1"


def test_one_range_gives_the_directory_and_one_more_each_part() -> None:
    bundle = packed()
    directory = read_directory(bundle.data[bundle.footer_offset :], expected_of(bundle))
    assert directory.properties == {"index": "text"}
    part = directory.part("abc.idx")
    data = bundle.data[part.offset : part.offset + part.length]
    verify_part(data, part, "here")
    assert data == PARTS["abc.idx"]
    with pytest.raises(NotFound, match="no part 'other'"):
        directory.part("other")


def test_every_flipped_bit_of_the_object_is_corrupt() -> None:
    bundle = packed()
    for position in range(len(bundle.data) * 8):
        damaged = bytearray(bundle.data)
        damaged[position // 8] ^= 1 << (position % 8)
        with pytest.raises(Corrupt, match=r"one\.seg"):
            unpack_bundle(bytes(damaged), expected_of(bundle))


def test_every_flipped_bit_of_the_footer_is_corrupt_to_a_ranged_reader() -> None:
    bundle = packed()
    tail = bundle.data[bundle.footer_offset :]
    for position in range(len(tail) * 8):
        damaged = bytearray(tail)
        damaged[position // 8] ^= 1 << (position % 8)
        with pytest.raises(Corrupt, match=r"one\.seg"):
            read_directory(bytes(damaged), expected_of(bundle))


def test_every_truncation_is_corrupt() -> None:
    bundle = packed()
    for length in range(len(bundle.data)):
        with pytest.raises(Corrupt, match="bytes, expected"):
            unpack_bundle(bundle.data[:length], expected_of(bundle))
    tail = bundle.data[bundle.footer_offset :]
    for length in range(len(tail)):
        with pytest.raises(Corrupt, match="footer has"):
            read_directory(tail[:length], expected_of(bundle))


def test_another_sound_bundle_under_the_key_is_corrupt_even_of_equal_size() -> None:
    ours, other = packed("one"), packed("two")
    assert len(ours.data) == len(other.data)
    with pytest.raises(Corrupt, match="checksum of the object"):
        unpack_bundle(other.data, expected_of(ours))
    with pytest.raises(Corrupt, match="is bundle 'two', expected 'one'"):
        read_directory(other.data[other.footer_offset :], expected_of(ours))


def test_a_part_swapped_for_another_is_corrupt() -> None:
    bundle = packed(parts={"a": b"123", "b": b"456"})
    directory = read_directory(bundle.data[bundle.footer_offset :], expected_of(bundle))
    with pytest.raises(Corrupt, match="checksum of part 'a'"):
        verify_part(b"456", directory.part("a"), "here")
    with pytest.raises(Corrupt, match="has 2 bytes, expected 3"):
        verify_part(b"45", directory.part("a"), "here")


@pytest.mark.parametrize("name", ["../escape", "/absolute", ".hidden", "", "a/b", "a\x00b", ".."])
def test_a_part_name_that_could_leave_its_directory_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="part name"):
        packed(parts={name: b""})


def test_a_directory_that_names_such_a_part_is_corrupt_although_its_checksums_hold() -> None:
    bundle = packed(parts={"aaaaaaa": b"1"})
    forged = pack_bundle({"aaaaaaa": b"1"}, identity="one", properties={"index": "text"}).data.replace(
        b"aaaaaaa", b"../evil"
    )
    body = forged[bundle.footer_offset : -20] + b"TIDEMKB1"
    forged = forged[:-16] + int(checksum(body), 16).to_bytes(8, "little") + forged[-8:]
    with pytest.raises(Corrupt, match="is not valid"):
        unpack_bundle(forged, replace(expected_of(bundle), xxh3=checksum(forged)))


def test_a_newer_version_is_unsupported_and_not_corrupt() -> None:
    bundle = packed()
    newer = bundle.data.replace(b"TIDEMKB1", b"TIDEMKB2")
    with pytest.raises(Unsupported, match="Upgrade"):
        unpack_bundle(newer, replace(expected_of(bundle), xxh3=checksum(newer)))
