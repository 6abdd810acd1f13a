"""What a landed file holds, as one number: xxh3-64 of its bytes, taken while they are read for their rows.

A file that is replaced by another of its name and size is noticed by it (decision 0052).
"""

from __future__ import annotations

import io
from typing import Any, BinaryIO, cast

import xxhash

_READ_BYTES = 8 * 2**20


class ContentHash:
    """Hashes a file while somebody reads it, in whatever order; `value` is known once `finish` has returned."""

    def __init__(self) -> None:
        self.value: int | None = None
        self._hasher = xxhash.xxh3_64()
        self._hashed = 0

    def watched(self, file: BinaryIO) -> BinaryIO:
        """Return the file as one whose reads are hashed."""
        return cast("BinaryIO", _Watched(file, self))

    def take(self, position: int, data: memoryview) -> None:
        """Hash what of the bytes at `position` follows right after those hashed already; the rest is read later."""
        known = self._hashed - position
        if 0 <= known < len(data):
            self._hasher.update(data[known:])
            self._hashed = position + len(data)

    def finish(self, file: BinaryIO) -> int:
        """Read and hash what nobody has read, and return the `value` that is settled then: a signed 64-bit number."""
        file.seek(self._hashed)
        while chunk := file.read(_READ_BYTES):
            self._hasher.update(chunk)
            self._hashed += len(chunk)
        self.value = int.from_bytes(self._hasher.digest(), "big", signed=True)
        return self.value


class _Watched(io.RawIOBase):
    def __init__(self, file: BinaryIO, content: ContentHash) -> None:
        super().__init__()
        self._file, self._content = file, content

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return self._file.seek(offset, whence)

    def read(self, size: int = -1, /) -> bytes:
        position = self._file.tell()
        data = self._file.read(size)
        self._content.take(position, memoryview(data))
        return data

    def readinto(self, buffer: Any, /) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def mark_of(etag: str) -> str:
    """Return a short text for an ETag, whatever a store writes into its own: 16 hexadecimal digits."""
    return xxhash.xxh3_64_hexdigest(etag.encode())


def as_hex(value: int) -> str:
    """Return a content as people know checksums: 16 hexadecimal digits."""
    return f"{value % 2**64:016x}"
