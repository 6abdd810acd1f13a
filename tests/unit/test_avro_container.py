"""Avro files that are truncated, state wrong sizes, or use an unsupported codec are refused before decoding."""

from __future__ import annotations

import io
import random
import subprocess
import sys
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import fastavro
import pytest

from storage_core.base.errors import Corrupt, TidemarkError, Unsupported
from storage_core.data.formats import avro
from storage_core.data.formats.avro import inspect, read_columns, read_records
from tests.support.avro_bytes import long_bytes
from tests.support.memory import grown_bytes

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}, {"name": "t", "type": "string"}]}
SYNC = b"s" * 16


def _file(codec: str, rows: int = 3000, text: str = "text") -> bytes:
    target = io.BytesIO()
    fastavro.writer(
        target,
        SCHEMA,
        [{"n": n, "t": f"{text}{n}"} for n in range(rows)],
        codec=codec,
        sync_marker=SYNC,
        sync_interval=4000,
    )
    return target.getvalue()


def _header(codec: str) -> bytes:
    whole = _file(codec, rows=1)
    return whole[: whole.index(SYNC) + len(SYNC)]


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "zstandard"])
def test_columns_and_records_of_every_codec_are_the_same(codec: str) -> None:
    data = _file(codec)
    metrics = inspect(data, "f")
    assert (metrics.codec, metrics.records) == (codec, 3000)
    assert metrics.expanded_bytes == inspect(_file("null"), "f").expanded_bytes
    assert read_columns(data, "f").to_pylist() == read_records(data, "f")


@pytest.mark.parametrize("codec", ["bzip2", "xz"])
def test_a_codec_that_we_do_not_read_is_named(codec: str) -> None:
    with pytest.raises(Unsupported, match=codec):
        inspect(_file(codec), "f")


def test_a_file_cut_anywhere_is_torn_also_between_two_blocks() -> None:
    data = _file("zstandard")
    ends = [at for at in range(len(data)) if data[at - 16 : at] == SYNC]
    assert len(ends) > 2
    for cut in {*range(0, len(data), 97), *ends[1:-1]}:
        if cut in ends:
            # A container that is cut at the end of a block is still a valid container. Only the state's count shows
            # that records are missing.
            assert inspect(data[:cut], "f").records < 3000
        else:
            with pytest.raises(Corrupt, match="f: "):
                read_columns(data[:cut], "f")


def test_damage_anywhere_is_a_typed_error_or_changes_a_value_and_nothing_else() -> None:
    chance = random.Random(7)
    for _ in range(150):
        data = bytearray(_file(chance.choice(["null", "zstandard", "snappy", "deflate"]), rows=200))
        for _ in range(chance.choice([1, 1, 20])):
            data[chance.randrange(len(data))] = chance.randrange(256)
        for read in (read_columns, read_records):
            with suppress(TidemarkError):
                read(bytes(data), "f")


def _bomb(codec: str) -> bytes:
    """Return one block of 600 MiB of zeros, compressed to at most a few hundred kilobytes."""
    if codec == "deflate":
        packer = zlib.compressobj(9, zlib.DEFLATED, -15)
        block = b"".join(packer.compress(bytes(2**20)) for _ in range(600)) + packer.flush()
    elif codec == "snappy":
        block = _varint(600 * 2**20) + b"\x00\x00" + bytes(4)
    else:
        from backports.zstd import ZstdCompressor

        stream = ZstdCompressor(level=3)
        block = b"".join(stream.compress(bytes(2**20)) for _ in range(600)) + stream.flush()
    return _header(codec) + long_bytes(10) + long_bytes(len(block)) + block + SYNC


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


@pytest.mark.parametrize("codec", ["deflate", "snappy", "zstandard"])
def test_a_block_that_expands_a_thousand_times_is_refused_in_bounded_memory(codec: str, tmp_path: Path) -> None:
    path = tmp_path / "bomb.avro"
    path.write_bytes(_bomb(codec))
    assert path.stat().st_size < 2**20
    program = f"""
from pathlib import Path
from storage_core.base.errors import Corrupt
from storage_core.data.formats.avro import read_columns
from tests.support.avro_bytes import long_bytes
from tests.support.memory import grown_bytes
data = Path({str(path)!r}).read_bytes()
def read():
    try:
        read_columns(data, "bomb")
    except Corrupt as error:
        assert "expands to more than" in str(error), error
    else:
        raise AssertionError("it was read")
print(grown_bytes(read))
"""
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) < 100 * 2**20


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (long_bytes(5) + long_bytes(10 * 2**30) + b"x", "10737418240 bytes claimed"),
        (long_bytes(2**40) + long_bytes(1) + b"\x00" + SYNC, "more than 20000000 records"),
        (long_bytes(-1) + long_bytes(1) + b"\x00" + SYNC, "claims -1 records"),
        (b"\xff" * 11, "longer than 64 bits"),
        (long_bytes(1) + long_bytes(1) + b"\x00" + b"x" * 16, "does not end with the file's mark"),
    ],
)
def test_claims_are_checked_before_anything_is_allocated(body: bytes, message: str) -> None:
    def read() -> None:
        with pytest.raises(Corrupt, match=message):
            inspect(_header("null") + body, "f")

    assert grown_bytes(read) < 50 * 2**20


def test_a_header_that_claims_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro, "MAX_HEADER_BYTES", 100)
    with pytest.raises(Corrupt, match="claimed in the header"):
        inspect(avro.MAGIC + long_bytes(1) + long_bytes(101) + b"x" * 101, "f")


RECORD = long_bytes(7) + long_bytes(1) + b"t"
_TWO = long_bytes(1) + long_bytes(2 * len(RECORD)) + 2 * RECORD + SYNC
_PART = long_bytes(1) + long_bytes(len(RECORD) + 1) + RECORD + b"\x00" + SYNC
_FEWER = long_bytes(3) + long_bytes(2 * len(RECORD)) + 2 * RECORD + SYNC
_NONE = long_bytes(0) + long_bytes(len(RECORD)) + RECORD + SYNC


@pytest.mark.parametrize("read", [read_columns, read_records])
@pytest.mark.parametrize("body", [_TWO, _PART, _FEWER, _NONE, _PART * 3, RECORD.join([b"", _TWO, _PART])])
def test_a_block_that_holds_other_than_the_records_it_claims_is_refused(
    read: Callable[[bytes, str], object], body: bytes
) -> None:
    """DataFusion never stopped reading if a block had bytes left over."""
    with pytest.raises(Corrupt, match=r"^f: "):
        read(_header("null") + body, "f")


def test_a_file_without_records_is_an_empty_table() -> None:
    found = read_columns(_header("null"), "f")
    assert (found.num_rows, found.column_names) == (0, ["n", "t"])


IN_A_COPY = """
import faulthandler, os, sys
from storage_core.base.errors import CopiedProcess
from storage_core.data.formats.avro import read_columns
from tests.unit.test_avro_container import _file
data = _file("null")
def child(expected):
    copy = os.fork()
    if copy:
        return os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])
    faulthandler.dump_traceback_later(100, exit=True)
    try:
        found = str(read_columns(data, "f").num_rows)
    except CopiedProcess as error:
        found = "copied" if "spawn" in str(error) else str(error)
    os._exit(0 if found == expected else 3)
assert child("3000") == 0
read_columns(data, "f")
sys.exit(child("copied"))
"""


def test_a_copy_of_a_process_that_read_columns_is_told_so_and_does_not_hang() -> None:
    assert subprocess.run([sys.executable, "-c", IN_A_COPY], check=False, timeout=200).returncode == 0
