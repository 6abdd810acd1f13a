"""What native code needs of the machine to work, asked for before it does."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from storage_core.system_errors import typed

QUERY_BYTES: Final = 512 * 2**20
"""The address space that a query takes beside what every use of native code takes: its threads, and their heaps."""

_FILES = 8
_SIZE = 256 * 2**20


@contextmanager
def require_headroom(subject: str, *, size: int = 0, reserved: int = 0) -> Iterator[None]:
    """Do as `typed` does, and refuse before native code meets what the system will refuse it.

    DuckDB, Arrow, DataFusion and tantivy end the process where they get no file, thread or address space. So as much
    as they take to work is asked for first, with `size` bytes more for the data, and given back; no page of it is used.
    `reserved` are bytes of address space that are taken and mostly never used: they may exceed the machine's memory.
    The files of the data are not among it: those they open by themselves, and report.
    """
    with typed(subject, with_file=True):
        _require(files=_FILES, size=_SIZE + size, reserved=reserved)
        yield


def _require(*, files: int, size: int, reserved: int) -> None:
    with (
        mmap.mmap(-1, size, access=mmap.ACCESS_COPY),
        # Private and not writable, so the system counts it as address space alone, and never as memory.
        mmap.mmap(-1, max(1, reserved), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ),
    ):
        pass
    held: list[int] = []
    try:
        held.extend(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(files))
    finally:
        for each in held:
            os.close(each)
