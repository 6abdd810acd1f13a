"""Compressed text files: each codec gives the rows of the plain text, or rejects the whole file with a reason."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
import zlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import cramjam
import pyarrow as pa
import pytest

from storage_core.base.errors import Corrupt
from storage_core.write.ingest import landing
from storage_core.write.ingest.batch import parse_blocks, parse_file
from storage_core.write.ingest.compression import Codec, open_decompressed
from storage_core.write.ingest.convert import Parsed
from storage_core.write.ingest.landing import LandedFile, LandingSpec

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SCHEMA = pa.schema([("a", pa.int64()), ("s", pa.string())])
ROWS: list[dict[str, Any]] = [{"a": number, "s": f"{number * 2654435761 % 2**32:x}"} for number in range(3_000)]
TEXT = {
    "ndjson": b"".join(b'{"a": %d, "s": "%s"}\n' % (each["a"], str(each["s"]).encode()) for each in ROWS),
    "csv": b"a,s\n" + b"".join(b"%d,%s\n" % (each["a"], str(each["s"]).encode()) for each in ROWS),
    "pattern": b"".join(b"%d %s\n" % (each["a"], str(each["s"]).encode()) for each in ROWS),
}


def with_checksum(data: bytes) -> bytes:
    return zstd.compress(data, options={zstd.CompressionParameter.checksum_flag: 1})


def lz4(data: bytes) -> bytes:
    stream = cramjam.lz4.Compressor(content_checksum=True)
    stream.compress(data)
    return bytes(stream.finish())


def snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress(data))


CODECS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "Zstandard": with_checksum,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "LZ4": lz4,
    "Snappy": snappy,
}
SKIPPED = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"
"""A frame that Zstandard and LZ4 skip."""


def landed(folder: Path, data: bytes, name: str = "a.file") -> LandedFile:
    (folder / name).write_bytes(data)
    return LandedFile(name, len(data), folder.resolve().as_uri())


def spec_of(file: LandedFile, form: str) -> LandingSpec:
    pattern = r"(?P<a>\d+) (?P<s>\w+)" if form == "pattern" else None
    return LandingSpec(uri=file.uri, format=form, pattern=pattern)  # type: ignore[arg-type]


def parsed(folder: Path, data: bytes, form: str = "ndjson") -> Parsed:
    file = landed(folder, data)
    return parse_file(file, spec_of(file, form), SCHEMA, None)


def whole_reason(found: Parsed) -> str:
    [only] = found.rejected
    assert (only.line, found.rows.num_rows) == (None, 0)
    return only.reason


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("form", TEXT)
def test_a_compressed_file_gives_the_rows_of_its_text_under_any_name(tmp_path: Path, codec: str, form: str) -> None:
    found = parsed(tmp_path, CODECS[codec](TEXT[form]), form)
    assert found.rejected == ()
    assert found.rows.to_pylist() == ROWS


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("block_bytes", [9_000, 2**25])
def test_the_streams_of_a_file_are_read_as_one_text(tmp_path: Path, codec: str, block_bytes: int) -> None:
    text, compress = TEXT["ndjson"], CODECS[codec]
    cuts = [0, 1, 40_001, 40_001, len(text)]  # a cut inside a line, and a stream without text
    data = b"".join(compress(text[start:end]) for start, end in pairwise(cuts))
    file = landed(tmp_path, data)
    blocks = [*parse_blocks(file, spec_of(file, "ndjson"), SCHEMA, None, block_bytes=block_bytes)]
    assert not any(block.rejected for block in blocks)
    assert [row for block in blocks for row in block.rows.to_pylist()] == ROWS


@pytest.mark.parametrize("codec", ["Zstandard", "LZ4"])
def test_a_skippable_frame_is_skipped(tmp_path: Path, codec: str) -> None:
    whole = CODECS[codec](TEXT["ndjson"])
    assert parsed(tmp_path, whole + SKIPPED + whole).rows.num_rows == 2 * len(ROWS)
    if codec == "Zstandard":
        assert parsed(tmp_path, SKIPPED + whole).rows.num_rows == len(ROWS)


def test_padding_between_streams_of_xz_is_skipped(tmp_path: Path) -> None:
    whole = lzma.compress(TEXT["ndjson"])
    assert parsed(tmp_path, whole + bytes(8) + whole + bytes(4)).rows.num_rows == 2 * len(ROWS)


def test_uncompressed_and_skipped_chunks_of_snappy_are_read(tmp_path: Path) -> None:
    start = b"\xff\x06\x00\x00sNaPpY"
    padding = b"\xfe\x05\x00\x00" + bytes(5) + b"\x80\x02\x00\x00ab"
    random = bytes(snappy(b'{"a": 1}\n'))  # too short to compress
    assert parsed(tmp_path, start + padding + random + padding).rows.to_pylist() == [{"a": 1, "s": None}]


@pytest.mark.parametrize("codec", [*CODECS][1:])
@pytest.mark.parametrize("damage", ["cut", "cut by a byte", "flipped", "garbage", "garbage of zeros"])
def test_a_damaged_file_is_rejected_whole(tmp_path: Path, codec: str, damage: str) -> None:
    whole = CODECS[codec](TEXT["ndjson"])
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0x55
    data = {
        "cut": whole[: len(whole) // 2],
        "cut by a byte": whole + whole[:-1],
        "flipped": bytes(flipped),
        "garbage": whole + b"garbage",
        "garbage of zeros": whole + bytes(3),
    }[damage]
    reason = whole_reason(parsed(tmp_path, data))
    faults = {"cut": ["truncated"], "cut by a byte": ["truncated"], "flipped": ["damaged"]}
    assert any(f": the {codec} data is {fault}." in reason for fault in faults.get(damage, ["damaged", "truncated"]))
    assert reason.startswith("the file cannot be used: ")
    assert reason.endswith("Land the whole file again under a new name")


@pytest.mark.parametrize("codec", CODECS)
def test_a_file_that_expands_too_far_is_rejected(tmp_path: Path, codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landing, "ANY_RATIO_BYTES", 2**20)
    monkeypatch.setattr(landing, "MOST_RATIO", 2)
    assert "the file expands to more than" in whole_reason(parsed(tmp_path, CODECS[codec](b'{"a": 1}\n' * 1_000_000)))


@pytest.mark.parametrize("inner", CODECS)
@pytest.mark.parametrize("outer", ["gzip", "Zstandard", "Snappy"])
def test_a_file_that_is_compressed_twice_is_rejected(tmp_path: Path, outer: str, inner: str) -> None:
    data = CODECS[outer](CODECS[inner](TEXT["ndjson"]))
    assert f"the file is compressed twice, with {outer} and with {inner}" in whole_reason(parsed(tmp_path, data))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x1f\x9d\x90" + bytes(50), "the file is compressed with compress"),
        (b"\x02\x21\x4c\x18" + bytes(50), "the file is compressed with the legacy format of LZ4"),
    ],
)
def test_other_compressions_are_rejected_by_name(tmp_path: Path, data: bytes, reason: str) -> None:
    assert reason in whole_reason(parsed(tmp_path, data))


def test_a_window_that_needs_too_much_memory_is_rejected(tmp_path: Path) -> None:
    frame = bytearray(zstd.compress(b'{"a": 1}\n', options={zstd.CompressionParameter.content_size_flag: 0}))
    frame[5] = (31 - 10) << 3  # set the window size of the frame to 2 GiB
    assert "the Zstandard data needs more memory than" in whole_reason(parsed(tmp_path, bytes(frame)))
    xz = bytearray(lzma.compress(b'{"a": 1}\n'))
    xz[16] = 37  # the size of the dictionary: 1.5 GiB
    end = 12 + (xz[12] + 1) * 4
    xz[end - 4 : end] = zlib.crc32(xz[12 : end - 4]).to_bytes(4, "little")
    assert "the xz data needs more memory than" in whole_reason(parsed(tmp_path, bytes(xz)))


class _Failing(io.RawIOBase):
    """A file whose second read fails."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._data = io.BytesIO(data)
        self._reads = 0

    def read(self, size: int = -1, /) -> bytes:
        self._reads += 1
        if self._reads > 1:
            raise PermissionError("the store refuses")
        return self._data.read(min(size, 100))


@pytest.mark.parametrize("codec", [*Codec])
def test_an_error_of_the_store_is_not_reported_as_damage(codec: Codec) -> None:
    data = CODECS[codec.value](TEXT["ndjson"])
    with pytest.raises(PermissionError, match="the store refuses"):
        open_decompressed(_Failing(data), codec).read()  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", [*Codec])
def test_a_reader_holds_a_part_of_the_file(codec: Codec) -> None:
    """To read some bytes of the text, the reader takes only the beginning of the file."""
    text = b"".join(b"%d %x\n" % (number, number * 2654435761 % 2**32) for number in range(200_000))
    data = lzma.compress(text, preset=0) if codec is Codec.XZ else CODECS[codec.value](text)
    file = io.BytesIO(data)
    assert open_decompressed(file, codec).read(1_000) == text[:1_000]
    assert file.tell() < len(data) / 2


def test_a_damaged_file_raises_corrupt() -> None:
    with pytest.raises(Corrupt):
        open_decompressed(io.BytesIO(b"BZh9" + bytes(100)), Codec.BZIP2).read()
