"""Where the encoded bytes of a split wait for its last row: in memory, or those of a large one on disk.

A split is put into the store whole, and may have hundreds of megabytes: decision 0066.
"""

from __future__ import annotations

import mmap
import os
import weakref
from contextlib import AbstractContextManager

import pyarrow as pa

from storage_core.scratch import scratch, scratch_folder
from storage_core.system_errors import typed

_WHAT = "the bytes of a split"


class Sink:
    """Bytes that are appended to `stream`, are read back all together, and may get another end then.

    On disk they are in a file without a name in the folder for temporary files, so that nothing is left of them
    whatever happens; they are read back through a mapping, which the system may drop and read again.
    """

    __slots__ = ("__weakref__", "_close", "_descriptor", "stream")

    def __init__(self, *, on_disk: bool) -> None:
        self.stream: pa.NativeFile = pa.BufferOutputStream()
        self._descriptor: int | None = None
        if on_disk:
            with scratch(_WHAT), scratch_folder("split") as folder:
                path = folder / "split"
                self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                self._close = weakref.finalize(self, os.close, self._descriptor)
                self.stream = pa.OSFile(str(path), "wb")

    @property
    def size(self) -> int:
        """The number of bytes so far."""
        return int(self.stream.tell())

    def writing(self) -> AbstractContextManager[None]:
        """Within it what fails at the file, or for want of memory, is `Unavailable`, and says why."""
        return typed(_WHAT) if self._descriptor is None else scratch(_WHAT)

    def finish(self) -> pa.Buffer:
        """Return all bytes; nothing can be appended to `stream` afterwards."""
        if self._descriptor is None:
            return self.stream.getvalue()
        with self.writing():
            self.stream.close()
            return _mapped(self._descriptor)

    def with_end(self, kept: pa.Buffer, end: bytes) -> pa.Buffer:
        """Return `kept`, the first of the bytes that `finish` returned, and `end` behind them. Done once, at last."""
        with self.writing():
            if self._descriptor is None:
                whole = pa.allocate_buffer(kept.size + len(end))
                memory = pa.FixedSizeBufferWriter(whole)
                memory.write(kept)
                memory.write(end)
                return whole
            with os.fdopen(self._descriptor, "r+b", closefd=False) as file:
                file.truncate(kept.size)
                file.seek(kept.size)
                file.write(end)
            whole = _mapped(self._descriptor)
        self._close()
        return whole


def _mapped(descriptor: int) -> pa.Buffer:
    return pa.py_buffer(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
