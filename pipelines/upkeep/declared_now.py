"""What files declare now: a run loads them anew, and cannot begin if one of its assets is no longer declared.

So where somebody changes files while a code server runs, the upkeep sensor asks for no run of a table that no file
declares now, and one whose assets are other ones than were loaded shares no run, which would not begin for others.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from assets.partitions import span_of
from pipelines.jobs import assets_of_jobs
from pipelines.tables import read_tables
from storage_core.declaration import TableDeclaration


def has_same_assets(one: TableDeclaration, other: TableDeclaration) -> bool:
    """Return whether two declarations of a table are of the same assets and partitions."""
    return one == other or (assets_of_jobs([one]) == assets_of_jobs([other]) and span_of(one) == span_of(other))


_Stamps = Mapping[Path, tuple[int, int]]


class DeclaredNow:
    """The tables that the files of a folder declare, read again when one of these changed. For one thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stamps: _Stamps | None = None
        self._declared: Mapping[str, TableDeclaration] = {}

    def read(self) -> Mapping[str, TableDeclaration]:
        """Return the sound declarations by name. Looks at each file, and reads all of them where one has changed."""
        stamps = self._look()
        if stamps != self._stamps:
            found = read_tables(self._folder)
            self._stamps, self._declared = stamps, {each.declaration.name: each.declaration for each in found.tables}
        return self._declared

    def _look(self) -> _Stamps:
        found = {}
        for path in self._folder.glob("*.yaml"):
            try:
                about = path.stat()
            except OSError:  # gone, or not readable: reading it says so
                continue
            found[path] = (about.st_mtime_ns, about.st_size)
        return found
