"""Memory that is lacking is one thing to the caller, whoever says so: `Unavailable`, with what to do."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from functools import partial

import duckdb
import pyarrow as pa
import pytest

from storage_core.errors import Unavailable
from storage_core.os_errors import of_the_system, out_of_memory, typed

TOO_MUCH = 2**60


def _duckdb(_: int) -> None:
    with duckdb.connect(config={"memory_limit": "1MB", "temp_directory": ""}) as connection:
        connection.sql("select list(range) from range(10000000)").fetchall()


def _thread(_: int) -> None:
    raise RuntimeError("can't start new thread")


def _rust(size: int) -> None:
    raise RuntimeError(f"memory allocation of {size} bytes failed")


@pytest.mark.parametrize(
    "ask",
    [bytearray, pa.allocate_buffer, partial(mmap.mmap, -1), _duckdb, _thread, _rust],
    ids=["Python", "Arrow", "the system", "DuckDB", "a thread", "Rust"],
)
def test_whoever_lacks_memory_the_error_is_one(ask: Callable[[int], object]) -> None:
    with pytest.raises(Unavailable, match=r"^t: Cannot allocate memory; give the process more memory"), typed("t"):
        ask(TOO_MUCH)


@pytest.mark.parametrize("error", [ValueError("Out of Memory Error"[1:]), OSError("corrupt"), pa.ArrowInvalid("x")])
def test_what_is_wrong_with_the_bytes_is_no_lack_of_memory(error: Exception) -> None:
    assert not out_of_memory(error)
    assert not of_the_system(error)
