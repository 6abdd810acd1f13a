"""The memory of a read from a remote store does not grow with the table.

The test measures the memory in a separate process over HTTP.
"""

from __future__ import annotations

from uuid import uuid4

import pytest

from benchmarks.read_memory import READS, peaks, rows_of, table_of
from tests.support.s3_server import S3Server

ROWS = rows_of(60_000, is_dense=False)
FEW, MANY = 30, 180
BOUND = 320 * 2**20
"""The memory for prefetched data and the engine. A table of `MANY` splits needs no more than a table of `FEW`."""


@pytest.fixture(scope="module")
def uris(_s3_server: S3Server) -> dict[int, str]:
    """Make tables with splits that are small in storage and large in memory."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _s3_server.environment.items():
            patch.setenv(name, value)
        return {splits: table_of(_s3_server.uri(f"large/{uuid4()}"), ROWS, splits).uri for splits in (FEW, MANY)}


@pytest.mark.parametrize("read", READS)
def test_the_memory_of_a_read_does_not_grow_with_the_table(
    uris: dict[int, str], s3_server: S3Server, read: str
) -> None:
    assert s3_server.endpoint
    assert MANY * ROWS.nbytes > 10**9
    for splits, uri in uris.items():
        found = peaks(uri, read)
        assert found["rows"] == splits * ROWS.num_rows + (read == "latest")
        assert found["peak"] - found["before"] < BOUND, splits
        assert found["worker"] < BOUND, splits
