"""The bytes of the Delta log follow the protocol of Delta."""

from __future__ import annotations

import pytest
from pyroaring import BitMap, BitMap64

from storage_core.base.errors import Corrupt
from storage_core.data.formats import mirrors
from storage_core.data.formats.mirrors import Shown


def test_text_of_base_85_is_that_of_its_specification() -> None:
    words = bytes([0x86, 0x4F, 0xD2, 0x6F, 0xB5, 0x59, 0xF7, 0x5B])
    assert mirrors.z85(words) == "HelloWorld"


@pytest.mark.parametrize("rows", [[0], [3, 4, 7, 11, 18, 29], range(70_000), [1, 2**32 - 1]])
def test_a_deletion_vector_is_delta_s_number_and_a_roaring_bitmap_of_64_bits(rows: list[int]) -> None:
    bitmap = BitMap(rows)
    found = mirrors.vector(bytes(bitmap.serialize()), len(bitmap))
    data = (1681511377).to_bytes(4, "little") + bytes(BitMap64(rows).serialize())
    padded = data + bytes(-len(data) % 4)
    assert found == {
        "storageType": "i",
        "pathOrInlineDv": mirrors.z85(padded),
        "sizeInBytes": len(data),
        "cardinality": len(bitmap),
    }


def test_a_commit_reads_back_what_it_says_of_itself_and_its_files_by_their_keys() -> None:
    shown = Shown(
        table_id="t",
        version=7,
        after=None,
        published_at_ms=5,
        id="i",
        features=("deletionVectors",),
        metadata="m",
        widened=("n",),
        encoding=mirrors.ENCODING,
    )
    hidden = mirrors.vector(bytes(BitMap([1]).serialize()), 1)
    data = mirrors.encode_delta(
        [
            {"commitInfo": {"timestamp": 1, mirrors.OWN: shown.to_json()}},
            {"metaData": {"schemaString": "{}"}},
            {"remove": {"path": mirrors.path_of("a=%2F/b c.parquet")}},
            {"add": {"path": mirrors.path_of("d.parquet"), "deletionVector": hidden}},
        ]
    )
    read = mirrors.decode_delta(data, 3, "here")
    assert read.shown == shown
    assert read.removed == {"a=%2F/b c.parquet"}
    assert read.added == {"d.parquet": hidden}
    assert read.schema == "{}"


def test_what_a_commit_says_of_itself_keeps_its_form() -> None:
    text = (
        b'{"commitInfo":{"tidemark":{"tableId":"t","version":7,"after":null,"publishedAtMs":5,"id":"i",'
        b'"features":["deletionVectors"],"metadata":"m","widened":["n"]}}}\n'
    )
    shown = mirrors.decode_delta(text, 0, "here").shown
    assert shown is not None
    assert mirrors.encode_delta([{"commitInfo": {mirrors.OWN: shown.to_json()}}]) == text


@pytest.mark.parametrize("data", [b"[]\n", b"{", b'{"add":{}}', b'{"commitInfo":{"tidemark":{}}}'])
def test_what_is_no_commit_is_corrupt_and_named(data: bytes) -> None:
    with pytest.raises(Corrupt, match="there: not a commit of a Delta log"):
        mirrors.decode_delta(data, 0, "there")


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"version":-1}', b'{"version":"1"}'])
def test_a_hint_that_says_nothing_is_none(data: bytes) -> None:
    assert mirrors.decode_delta_hint(data) is None
