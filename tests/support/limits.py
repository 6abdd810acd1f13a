"""What a process may use of the machine, lowered for a block or for good: files, address space, sizes of files."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def limited(kind: int, amount: int) -> Iterator[None]:
    """The process may use so much inside the block: what follows fails like any call that the system refuses."""
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (amount, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


def confine(amount: int) -> None:
    """The process may use so much address space from now on."""
    resource.setrlimit(resource.RLIMIT_AS, (amount, amount))


def open_files(count: int) -> tuple[int, int]:
    """The limit with which the process may open this many files more."""
    free = os.dup(0)
    os.close(free)
    return resource.RLIMIT_NOFILE, free + count


def address_space(size: int) -> tuple[int, int]:
    """The limit with which the process may take this many bytes more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return resource.RLIMIT_AS, pages * resource.getpagesize() + size
