"""A stream whose reader does not know that somebody looks at what it reads: to hash it, to count it, to refuse it."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, BinaryIO, cast

Look = Callable[[int, bytes], None]
"""Takes the position where a read begins, and its bytes."""


def watched(stream: BinaryIO, look: Look, *, seekable: bool = True) -> BinaryIO:
    """Return the stream as one that shows each read to `look` first; what `look` raises, the read raises.

    Without `seekable` it says that it only goes forwards: a stream that is expanded would begin anew.
    """
    return cast("BinaryIO", _Watched(stream, look, seekable=seekable))


class _Watched(io.RawIOBase):
    def __init__(self, stream: BinaryIO, look: Look, *, seekable: bool) -> None:
        super().__init__()
        self._stream, self._look, self._seekable = stream, look, seekable

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._seekable

    def tell(self) -> int:
        return self._stream.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        if not self._seekable:
            raise io.UnsupportedOperation("seek")
        return self._stream.seek(offset, whence)

    def read(self, size: int = -1, /) -> bytes:
        position = self._stream.tell()
        data = self._stream.read(size)
        self._look(position, data)
        return data

    def readinto(self, buffer: Any, /) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
