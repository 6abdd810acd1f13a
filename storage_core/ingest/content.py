"""What a landed file holds, as one number: xxh3-64 of its bytes, taken while they are read for their rows.

A file that is replaced by another of its name and size is noticed by it (decision 0052).
"""

from __future__ import annotations

from typing import BinaryIO

import xxhash

from storage_core.ingest.watched_stream import watched

_READ_BYTES = 8 * 2**20


class ContentHash:
    """Hashes a file while somebody reads it, in whatever order; `value` is known once `finish` has returned."""

    def __init__(self) -> None:
        self.value: int | None = None
        self._hasher = xxhash.xxh3_64()
        self._hashed = 0

    def watched(self, file: BinaryIO) -> BinaryIO:
        """Return the file as one whose reads are hashed."""
        return watched(file, self.take)

    def take(self, position: int, data: bytes) -> None:
        """Hash what of the bytes at `position` follows right after those hashed already; the rest is read later."""
        known = self._hashed - position
        if 0 <= known < len(data):
            self._hasher.update(memoryview(data)[known:])
            self._hashed = position + len(data)

    def finish(self, file: BinaryIO) -> int:
        """Read and hash what nobody has read, and return the `value` that is settled then: a signed 64-bit number."""
        file.seek(self._hashed)
        while chunk := file.read(_READ_BYTES):
            self._hasher.update(chunk)
            self._hashed += len(chunk)
        self.value = int.from_bytes(self._hasher.digest(), "big", signed=True)
        return self.value


def etag_hash(etag: str) -> str:
    """Return a short text for an ETag, whatever a store writes into its own: 16 hexadecimal digits."""
    return xxhash.xxh3_64_hexdigest(etag.encode())


def as_hex(value: int) -> str:
    """Return a content as people know checksums: 16 hexadecimal digits."""
    return f"{value % 2**64:016x}"


def from_hex(text: str) -> int:
    """Return the content that `as_hex` wrote, a signed number."""
    return (int(text, 16) + 2**63) % 2**64 - 2**63
