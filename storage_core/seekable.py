"""Files of known size that are read from somewhere else than a disk."""

from __future__ import annotations

import io


class SeekableFile(io.RawIOBase):
    """A file of `size` bytes that can be read and seeked; who extends it says what `read` returns at `position`."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.position = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position of the next read."""
        return self.position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move, at most back to the start, and return the new position."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.size}[whence]
        self.position = max(0, base + offset)
        return self.position
