"""Where a reader takes the files of a segment from: memory, or an object by ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from storage_core.formats import bundle
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.prefetch import all_of

Range = tuple[int, int]

GAP_BYTES = 64 * 2**10
"""Pieces no farther apart are fetched by one request: it would take about as long to ask twice."""

REQUEST_BYTES = 8 * 2**20
_AT_ONCE = 32


class Parts(Protocol):
    """The files of one segment."""

    def whole(self, names: Sequence[str]) -> Mapping[str, memoryview]:
        """Return these files, which are verified. Raises `NotFound` and `Corrupt`."""
        ...

    def read(self, name: str, ranges: Sequence[Range]) -> Sequence[memoryview]:
        """Return ranges of a file, ascending, which are not verified. Raises `NotFound`."""
        ...


class InMemory:
    """Files that are in memory, and were verified as a whole."""

    def __init__(self, files: Mapping[str, bytes | memoryview]) -> None:
        self._files = files

    def whole(self, names: Sequence[str]) -> Mapping[str, memoryview]:
        """Return these files."""
        return {name: memoryview(self._files[name]) for name in names}

    def read(self, name: str, ranges: Sequence[Range]) -> Sequence[memoryview]:
        """Return ranges of a file."""
        view = memoryview(self._files[name])
        return [view[start:end] for start, end in ranges]


class Ranged:
    """Files of a bundle that is read by ranges: its directory once, files whole or in parts.

    Requests: one for the directory, one for files that lie together, and one per piece of neighbouring ranges; those of
    a call are made at once.
    """

    def __init__(self, store: ObjectStore, expected: bundle.Expected) -> None:
        """Fetch the directory. One ranged GET. Raises `Corrupt`, `NotFound`, `Unsupported`."""
        self._store, self._where = store, expected.where
        tail = store.get_range(expected.where, expected.footer_offset, expected.size)
        self._directory = bundle.read_directory(tail, expected)

    def whole(self, names: Sequence[str]) -> Mapping[str, memoryview]:
        """Return these files, each compared with its checksum."""
        parts = sorted((self._directory.part(name) for name in names), key=lambda each: each.offset)
        found = self._fetched([(each.offset, each.offset + each.length) for each in parts])
        for part, data in zip(parts, found, strict=True):
            bundle.verify_part(data, part, self._where)
        return {part.name: data for part, data in zip(parts, found, strict=True)}

    def read(self, name: str, ranges: Sequence[Range]) -> Sequence[memoryview]:
        """Return ranges of a file."""
        offset = self._directory.part(name).offset
        return self._fetched([(offset + start, offset + end) for start, end in ranges])

    def _fetched(self, ranges: Sequence[Range]) -> list[memoryview]:
        runs = _joined(ranges)
        pieces = all_of(lambda run: self._store.get_range(self._where, *run), runs, _AT_ONCE)
        found, at = list[memoryview](), 0
        for start, end in ranges:
            while end > runs[at][1]:
                at += 1
            begin = runs[at][0]
            found.append(memoryview(pieces[at][start - begin : end - begin]))  # a copy: a part does not hold the rest
        return found


def _joined(ranges: Sequence[Range]) -> list[Range]:
    """The ranges, ascending, with those put together that lie near each other."""
    found: list[Range] = []
    for start, end in ranges:
        near = found and start - found[-1][1] <= GAP_BYTES and end - found[-1][0] <= REQUEST_BYTES
        if near:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found
