"""Which windows the files that wait in a landing place have rows for: read from the files, recorded nowhere."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from storage_core.errors import NotFound
from storage_core.ingest.landing import LandedFile, LandingSpec, discover
from storage_core.ingest.parse import parse_blocks
from storage_core.ingest.progress import FileProgress, Window, progress
from storage_core.ingest.spans import NO_WINDOWS, Durations, Span, outside
from storage_core.log.snapshot import Snapshot
from storage_core.rows.windows import window_starts

# What one look may read. The next look goes on where this one ended.
MOST_FILES = 100
MOST_BYTES = 256 * 2**20

Candidate = tuple[LandedFile, FileProgress]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedRows:
    """How the files of a landing place become rows, and in which windows these lie."""

    spec: LandingSpec
    schema: pa.Schema
    time_column: str
    window_seconds: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """A file of which something is left to do. `left` are the windows of its valid rows that are not in yet.

    With nothing left, one run for any window that is not in `done` settles the file: it has no valid row, it changed
    or was touched after it was ingested, or several runs at once took a part each.
    """

    file: LandedFile
    left: frozenset[Window]
    done: frozenset[Window]


def waiting_files(
    snapshot: Snapshot | None, spec: LandingSpec, *, window_seconds: int | None = None
) -> list[Candidate]:
    """Return the files that are neither all in nor rejected as they are, by path. One LIST per 1,000 files.

    `window_seconds` are those of the windows that the next ingest finds, by default the table's.
    """
    files = discover(spec)
    durations = NO_WINDOWS if snapshot is None else Durations.of(snapshot.config, window_seconds)
    known = progress(snapshot.txns if snapshot else {}, files, durations)
    return [(file, known[file.path]) for file in files if not known[file.path].is_settled(file)]


def from_path(candidates: Sequence[Candidate], after: str) -> list[Candidate]:
    """Return the same files, beginning with the one that follows the path `after`, and going round."""
    place = bisect_right(candidates, after, key=lambda each: each[0].path)
    return [*candidates[place:], *candidates[:place]]


def from_anywhere(candidates: Sequence[Candidate], seed: str) -> list[Candidate]:
    """Return the same files, beginning where the seed says, and going round: any file, each as likely as the others."""
    place = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8]) % max(len(candidates), 1)
    return [*candidates[place:], *candidates[:place]]


def look(candidates: Iterable[Candidate], reading: WindowedRows) -> Iterator[Waiting]:
    """Yield files with the windows they have rows for. Reads the first 100 files or 256 MiB of them, but one file."""
    seen_bytes = 0
    for number, (file, known) in enumerate(candidates):
        if number == MOST_FILES or (seen_bytes and seen_bytes + file.size > MOST_BYTES):
            return
        seen_bytes += file.size
        try:
            left_out = known.whole or known.has_changed(file.size)
            windows = frozenset() if left_out else _windows_in(file, reading, known.spans)
        except NotFound:  # taken away since it was listed
            continue
        yield Waiting(file, windows - known.windows, known.windows)


def fingerprint(files: Iterable[LandedFile]) -> str:
    """Return a short text that is equal for the same files as they lie there, in any order."""
    names = sorted(f"{file.path}\0{file.size}\0{file.etag}" for file in files)
    return hashlib.sha256("\0\0".join(names).encode()).hexdigest()[:16]


def _windows_in(file: LandedFile, reading: WindowedRows, spans: Collection[Span]) -> frozenset[Window]:
    found: set[Window] = set()
    for block in parse_blocks(file, reading.spec, reading.schema, reading.time_column):
        if block.unreadable:
            return frozenset()
        left = outside(block.rows, reading.time_column, spans)
        found.update(window_starts(left.column(reading.time_column), reading.window_seconds).unique().to_pylist())
    return frozenset(found)
