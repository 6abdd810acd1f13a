"""What the Java of Spark writes to standard error, without the JDK's warnings about Spark's own use of it.

`WARNING: Using incubator modules` and its like are no matter of the person at the terminal. All else passes as it
comes, also a progress bar, which ends no line.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

WARNING = b"WARNING: "
_STDERR = 2
_MOST_BYTES = 65_536


@contextmanager
def without_warnings() -> Iterator[None]:
    """Processes that are started in the block, and write to standard error after it, write without those lines."""
    sys.stderr.flush()
    read, written = os.pipe()
    ours = os.dup(_STDERR)
    os.dup2(written, _STDERR)
    os.close(written)
    threading.Thread(target=_forward, args=(read, ours), name="jvm-messages", daemon=True).start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(ours, _STDERR)


def _forward(read: int, to: int) -> None:
    held = b""
    while data := os.read(read, _MOST_BYTES):
        *lines, held = (held + data).splitlines(keepends=True)
        if held.endswith(b"\n") or not (WARNING.startswith(held) or held.startswith(WARNING)):
            lines, held = [*lines, held], b""
        with suppress(OSError):  # nobody reads any more, and Java must not wait for it
            os.write(to, b"".join(each for each in lines if not each.startswith(WARNING)))
    os.close(read)
    os.close(to)
