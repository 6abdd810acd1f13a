"""Functions that reduce limits of a process, for a block or permanently: open files, address space, file sizes."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def limited(kind: int, amount: int) -> Iterator[None]:
    """Limit a resource of the process inside the block. The system refuses calls beyond the limit."""
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (amount, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


def confine(amount: int) -> None:
    """Limit the address space that the process may take from now on."""
    resource.setrlimit(resource.RLIMIT_AS, (amount, amount))


def open_files(count: int) -> tuple[int, int]:
    """Return the limit that lets the process open this many more files."""
    free = os.dup(0)
    os.close(free)
    return resource.RLIMIT_NOFILE, free + count


def address_space(size: int) -> tuple[int, int]:
    """Return the limit that lets the process allocate this many more bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return resource.RLIMIT_AS, pages * resource.getpagesize() + size
