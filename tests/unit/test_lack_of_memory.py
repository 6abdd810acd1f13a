"""A lack of memory is always `Unavailable` with advice, whichever library reports it."""

from __future__ import annotations

import errno
import mmap
from collections.abc import Callable
from functools import partial

import duckdb
import pyarrow as pa
import pytest

from storage_core.base.errors import InvalidInput, Unavailable, of_the_system, out_of_memory, typed
from storage_core.base.process import check_free_resources

TOO_MUCH = 2**60
QUOTED = "Out of Memory Error (os error 12) memory allocation of 8 bytes"


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
    with pytest.raises(Unavailable, match=r"^t: Cannot allocate memory. Give the process more memory"), typed("t"):
        ask(TOO_MUCH)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("Out of Memory Error"[1:]),
        OSError("corrupt"),
        pa.ArrowInvalid("x"),
        InvalidInput(f"the value {QUOTED}"),
        InvalidInput(QUOTED),
        ValueError(f"the value {QUOTED}"),
        pa.ArrowInvalid(f"the value {QUOTED}"),
        OSError(f"Conversion Error: the value {QUOTED}"),
        duckdb.BinderException(f"Binder Error: {QUOTED}"),
    ],
    ids=repr,
)
def test_what_is_wrong_with_the_bytes_is_no_lack_of_memory(error: Exception) -> None:
    assert not out_of_memory(error)
    assert not of_the_system(error)


@pytest.mark.parametrize("text", ['Io(Os { code: 24, kind: Uncategorized, message: "x" })', "Open: (os error 24)"])
def test_what_rust_has_as_text_only_is_typed_by_its_number(text: str) -> None:
    assert not out_of_memory(Exception(text))
    with pytest.raises(Unavailable, match=r"Too many open files\. Raise the limit of open files") as raised, typed("t"):
        raise Exception(text)  # noqa: TRY002  # DataFusion's own class
    assert raised.value.context["errno"] == errno.EMFILE


def test_duckdbs_text_is_all_that_a_stream_keeps_of_its_lack_of_memory() -> None:
    assert out_of_memory(OSError("Out of Memory Error: failed to allocate"))


def test_an_error_of_ours_passes_whatever_it_quotes() -> None:
    for block in (typed("t"), check_free_resources("t")):
        with pytest.raises(InvalidInput), block:
            raise InvalidInput(QUOTED)
