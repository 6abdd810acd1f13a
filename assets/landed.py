"""Which windows the files that wait in a landing place have rows for: read from the files, recorded nowhere."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from storage_core.declaration import TableDeclaration
from storage_core.errors import NotFound
from storage_core.ingest.landing import LandedFile, LandingSpec, discover
from storage_core.ingest.parse import parse_blocks
from storage_core.ingest.progress import FileProgress, Window, progress
from storage_core.log.snapshot import Snapshot
from storage_core.rows.windows import window_starts

# What one look may read. Files after that wait for the next look, when those before them are in the table.
MOST_FILES = 100
MOST_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Waiting:
    """A file of which something is left to do. `left` are the windows of its valid rows that are not in yet.

    With nothing left, one run for any window that is not in `done` settles the file: it has no valid row, it changed
    after it was ingested, or several runs at once took a part each.
    """

    file: LandedFile
    left: frozenset[Window]
    done: frozenset[Window]


def waiting_files(snapshot: Snapshot | None, spec: LandingSpec) -> list[tuple[LandedFile, FileProgress]]:
    """Return the files that are neither all in nor rejected as they are, by path. One LIST per 1,000 files."""
    files = discover(spec)
    known = progress(snapshot.txns if snapshot else {}, files)
    return [(file, known[file.path]) for file in files if not known[file.path].is_settled(file.size)]


def look(declaration: TableDeclaration, snapshot: Snapshot | None, spec: LandingSpec) -> Iterator[Waiting]:
    """Yield the waiting files with the windows they have rows for. Reads at most 100 files or 256 MiB, but one file."""
    seen_bytes = 0
    for file, known in waiting_files(snapshot, spec)[:MOST_FILES]:
        if seen_bytes and seen_bytes + file.size > MOST_BYTES:
            return
        seen_bytes += file.size
        try:
            windows = frozenset() if known.has_changed(file.size) else _windows_in(file, spec, declaration)
        except NotFound:  # taken away since it was listed
            continue
        yield Waiting(file, windows - known.windows, known.windows)


def fingerprint(files: Iterable[LandedFile]) -> str:
    """Return a short text that is equal for the same files at the same sizes, in any order."""
    names = sorted(f"{file.path}\0{file.size}" for file in files)
    return hashlib.sha256("\0\0".join(names).encode()).hexdigest()[:16]


def _windows_in(file: LandedFile, spec: LandingSpec, declaration: TableDeclaration) -> frozenset[Window]:
    column, seconds = declaration.time_column, declaration.window
    if column is None or seconds is None:
        return frozenset()
    found: set[Window] = set()
    for block in parse_blocks(file, spec, declaration.schema(), column):
        if block.unreadable:
            return frozenset()
        found.update(window_starts(block.rows.column(column), seconds).unique().to_pylist())
    return frozenset(found)
