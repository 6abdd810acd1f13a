"""Foreign Arrow streams that are nested too deeply, or that are small but claim a large content."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from storage_core.base.errors import Corrupt
from storage_core.data.formats.arrow_files import read_stream

ZEROS = pa.array(np.zeros(2**20, np.int64))


def stream(table: pa.Table, compression: str | None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def nested(levels: int) -> pa.Table:
    kind = pa.int64()
    for number in range(levels - 1):
        kind = pa.list_(kind) if number % 2 else pa.struct([("s", kind)])
    return pa.schema([("deep", kind)]).empty_table()


def test_types_are_read_to_64_levels_and_refused_beyond() -> None:
    # Arrow itself writes at most 63 levels, so a deeper type is put into the header as bytes.
    assert read_stream(stream(nested(60), None), "it", "x.arrow")[0].num_columns == 1
    with pytest.raises(Corrupt, match=r"x\.arrow: it is not an Arrow stream: a column nests deeper than 64 types"):
        read_stream(stream(nested(65), None), "it", "x.arrow")


@pytest.mark.parametrize("in_dictionary", [False, True])
def test_a_small_buffer_that_truly_becomes_a_large_one_is_refused_before_it_is_read(in_dictionary: bool) -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), ZEROS) if in_dictionary else ZEROS
    bomb = stream(pa.table({"z": column}), "zstd")
    assert len(bomb) < 10_000
    with pytest.raises(Corrupt, match=r"a buffer of \d+ bytes claims to expand to 8388608 bytes"):
        read_stream(bomb, "it", "x.arrow")


@pytest.mark.parametrize("compression", [None, "lz4"])
def test_what_a_writer_may_have_compressed_is_read(compression: str | None) -> None:
    repeated = pa.table({"text": ["the same text"] * 5000, "number": list(range(5000)), "null": pa.nulls(5000)})
    assert read_stream(stream(repeated, compression), "it", "x.arrow")[0].equals(repeated)


def test_whatever_lz4_makes_of_zeros_is_credible() -> None:
    zeros = pa.table({"z": ZEROS, "d": pa.array(["x"] * 2**20).dictionary_encode()})
    assert read_stream(stream(zeros, "lz4"), "it", "x.arrow")[0].equals(zeros)
