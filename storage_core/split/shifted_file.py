"""A Parquet file as Arrow is to see it: without the pages before the one that is wanted."""

from __future__ import annotations

from collections.abc import Mapping

from storage_core.seekable import SeekableFile


class ShiftedFile(SeekableFile):
    """A file in which column chunks lack some pages behind their dictionary: what follows is read in their place.

    `shifts` has, by where a chunk begins: where it ends, where its first data page is, and how many bytes are left out.
    """

    def __init__(self, data: memoryview, shifts: Mapping[int, tuple[int, int, int]]) -> None:
        """Read from `data`, the whole file."""
        super().__init__(len(data))
        self._data = data
        self._shifts = shifts

    def read(self, size: int = -1, /) -> bytes | memoryview:  # Arrow takes any buffer
        """Return so many bytes, fewer at no place; behind the end of the file they are zero."""
        start = self.position
        self.position += size
        for begin, (end, first, shift) in self._shifts.items():
            if begin <= start < end:
                before = self._data[start : min(first, self.position)]
                after = self._data[max(start, first) + shift : max(self.position, first) + shift]
                missing = size - len(before) - len(after)  # at the end of the file, behind the page
                return b"".join((before, after, bytes(missing))) if len(before) or missing else after
        return self._data[start : self.position]
