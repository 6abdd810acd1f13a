"""A footer that would crash Arrow is an error, and a valid footer is accepted without reading a page."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage_core.base.errors import Corrupt
from storage_core.data.formats.parquet_footer import require_valid_chunks
from storage_core.write.ingest.parquet_files import parquet_blocks

ROWS = pa.table({"a": [1, None, 3], "tags": [["x"], ["y", "z"], None]})


def written() -> bytes:
    target = io.BytesIO()
    pq.write_table(ROWS, target, row_group_size=2)
    return target.getvalue()


def unsound() -> bytes:
    """Return the file with one flipped bit in its footer. The flipped bit makes the length of a histogram wrong."""
    data = written()
    footer = range(len(data) - 8 - int.from_bytes(data[-8:-4], "little"), len(data) - 8)
    for bit in range(footer.start * 8, footer.stop * 8):
        flipped = bytes(each ^ (1 << bit % 8) * (at == bit // 8) for at, each in enumerate(data))
        try:
            require_valid_chunks(pq.read_metadata(io.BytesIO(flipped)), len(flipped))
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if "histogram size mismatch" in str(error):
                return flipped
    raise AssertionError("no bit does")


def test_a_sound_footer_is_taken_and_no_page_is_read() -> None:
    data = written()
    require_valid_chunks(pq.read_metadata(io.BytesIO(data)), len(data))


def test_a_histogram_that_does_not_fit_its_column_ends_python_and_not_us() -> None:
    data = unsound()
    ask = """
import io, sys, pyarrow.parquet as pq
found = pq.read_metadata(io.BytesIO(sys.stdin.buffer.read()))
for group in map(found.row_group, range(found.num_row_groups)):
    list(map(group.column, range(group.num_columns)))
"""
    ended = subprocess.run([sys.executable, "-c", ask], input=data, capture_output=True, check=False)
    assert ended.returncode < 0, "else the look is needed no more"
    with pytest.raises(OSError, match="histogram size mismatch"):
        require_valid_chunks(pq.read_metadata(io.BytesIO(data)), len(data))


def test_such_a_landed_file_is_rejected(tmp_path: Path) -> None:
    landed = tmp_path / "x.parquet"
    landed.write_bytes(unsound())
    with landed.open("rb") as stream, pytest.raises(Corrupt, match="not a whole Parquet file"):
        list(parquet_blocks("x.parquet", stream, ROWS.schema))
