"""The values that an open table caches between searches, such as open segments.

`Searchers` keeps open full-text searchers. One searcher opens all segments of an index as one tantivy index. Many
searches use the same searcher. Each search has a list of the parts that it needs. A part is a segment, or rows that are
indexed during a search. The files of a part are copied only once, into a folder of this process. Therefore a change in
the segment cache cannot damage files that are mapped into memory. If a search needs more parts, it copies these parts
and opens another searcher over all parts.
"""

from __future__ import annotations

import logging
import shutil
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from threading import Lock
from typing import Final, Protocol

from storage_core.base.errors import Corrupt, Unavailable
from storage_core.base.process import HomeProcess, scratch, scratch_folder
from storage_core.data.settings.index import IndexDefinition
from storage_core.index import damage, segments
from storage_core.index.segments import Coverage, compute_coverage
from storage_core.index.text_files import Searcher, open_searcher
from storage_core.log.snapshot import Snapshot
from storage_core.read.unmerged_records import LogRuns
from storage_core.read.verified_files import VerifiedFiles
from storage_core.store.meter import prefetch
from storage_core.store.pieces import KeptValues

_logger = logging.getLogger(__name__)

KEPT_BYTES: Final = 2 * 2**30
"""The maximum size in bytes of the copied files per table. The copies are in the temporary folder.

An index of about fifty million lines fits into this limit. If an index is larger, its copies are not kept.
"""

FETCHED_BYTES: Final = 2**26
"""Maximum size in bytes of segments that are fetched concurrently and held in memory."""

_FETCHED_AT_ONCE: Final = 8
_MOST_PARTS: Final = 4096  # Linux allows a process 65,530 mapped files. Each part of a searcher has six mapped files.
_PREFIX: Final = "searchers"

_Key = tuple[str, ...]


class Part(Protocol):
    """The files of an index over some rows."""

    @property
    def name(self) -> str:
        """A text that identifies the content of the files for a given index definition."""
        ...

    @property
    def segment_bytes(self) -> int | None:
        """The size of the segment in bytes if the files come from a segment.

        It is None if the files were built for a search.
        """
        ...

    def directory(self) -> Path:
        """Return the directory with the files. Safe for threads."""
        ...


@dataclass(slots=True)
class _Copies:
    """Copies of the files of searcher parts. The key is the name of the part. The copies are in a folder that is
    removed with this object.
    """

    parts: dict[str, tuple[Path, int]] = field(default_factory=dict)
    closing: ExitStack = field(default_factory=ExitStack)
    numbers: count[int] = field(default_factory=count)
    _folder: Path | None = None

    @property
    def folder(self) -> Path:
        if self._folder is None:
            self._folder = self.closing.enter_context(scratch_folder(_PREFIX))
        return self._folder

    def add(self, name: str, source: Path) -> None:
        with scratch("a copy of an index segment"):
            target = self.folder / str(next(self.numbers))
            try:
                shutil.copytree(source, target)
            except BaseException:
                shutil.rmtree(target, ignore_errors=True)
                raise
        self.parts[name] = (target, _size(target))

    def keep_only(self, names: Collection[str]) -> None:
        for name in self.parts.keys() - set(names):
            shutil.rmtree(self.parts.pop(name)[0], ignore_errors=True)


class Searchers:
    """The most recently used open searchers of the full-text indexes of one table. Threads may share an instance.

    The folder with the copies is removed together with this object. If a process is killed, the next process removes
    the folder.
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._begin()

    def _begin(self) -> None:
        self._home = HomeProcess()
        self._looking, self._opening = Lock(), Lock()
        self._open: dict[_Key, Searcher] = {}  # the least recently used searcher is the first
        self._copies = _Copies()
        weakref.finalize(self, self._copies.closing.close)

    @contextmanager
    def searcher(self, definition: IndexDefinition, parts: Sequence[Part], scratch: Path) -> Iterator[Searcher]:
        """Yield a searcher over the parts. The order of the parts is kept.

        `scratch` is a folder. It should be on the same file system as the parts. If the block raises `Corrupt`, all
        cached searchers are dropped.

        Raises:
            Corrupt: The files are not an index.
            Unavailable: The machine lacks a resource. If a part is new, the errors of `Part.directory` are raised, too.
        """
        if not self._home.is_here:  # A process that `fork()` made has no folder, and its locks may stay locked.
            self._begin()
        fingerprint = segments.fingerprint_of(definition)
        named = {f"{fingerprint} {part.name}": part for part in parts}
        found = self._found(tuple(named))
        if found is None:
            with self._opening:
                found = self._found(tuple(named)) or self._opened(definition, named, scratch)
        try:
            yield found
        except Corrupt:
            with self._opening, self._looking:
                self._open.clear()
                self._copies.keep_only(())
            raise

    def _found(self, key: _Key) -> Searcher | None:
        with self._looking:
            found = self._open.pop(key, None)
            if found is not None:
                self._open[key] = found
            return found

    def _opened(self, definition: IndexDefinition, named: Mapping[str, Part], scratch: Path) -> Searcher:
        missing = {name: part for name, part in named.items() if name not in self._copies.parts}
        new = dict(zip(missing, _directories([*missing.values()]), strict=True))
        with damage.reading(f"index {definition.name!r}"):
            is_kept = self._copied(new, named)
            copies = {name: path for name, (path, _) in self._copies.parts.items()}
            found = [copies[name] if name in copies else new[name] for name in named]
            opened = open_searcher(found, definition, self._copies.folder if is_kept else scratch)
        if is_kept:
            with self._looking:
                self._open[tuple(named)] = opened
        return opened

    def _copied(self, new: Mapping[str, Path], names: Collection[str]) -> bool:
        """Copy the new parts, and remove the least recently used parts.

        Returns False if the new parts are not kept, because the parts exceed the limit or the disk is full. A searcher
        still works after the removal of its copies, because its files are mapped into memory.
        """
        sizes = {name: size for name, (_, size) in self._copies.parts.items()}
        sizes |= {name: _size(directory) for name, directory in new.items()}
        if sum(sizes[name] for name in names) > self._kept_bytes:
            return False
        with self._looking:
            while self._open and self._is_too_much(names, sizes):
                self._open.pop(next(iter(self._open)))
            self._copies.keep_only({*names, *chain.from_iterable(self._open)})
        try:
            for name, directory in new.items():
                self._copies.add(name, directory)
        except Unavailable as error:
            _logger.warning("a searcher is not kept: %s", error)
            return False
        return True

    def _is_too_much(self, names: Collection[str], sizes: Mapping[str, int]) -> bool:
        size = sum(sizes[name] for name in {*names, *chain.from_iterable(self._open)})
        return size > self._kept_bytes or len(names) + sum(map(len, self._open)) > _MOST_PARTS


def _directories(parts: Sequence[Part]) -> Iterator[Path]:
    """Yield the directories of the parts. The order of the parts is kept.

    Segments are fetched concurrently, but other parts are built one after the other.
    """

    def weight(part: Part) -> int:
        return FETCHED_BYTES if part.segment_bytes is None else part.segment_bytes

    return prefetch(lambda part: part.directory(), parts, _FETCHED_AT_ONCE, weight=weight, most=FETCHED_BYTES)


def _size(directory: Path) -> int:
    return sum(each.stat().st_size for each in directory.iterdir())


READER_BYTES = 2**30
"""Maximum size in bytes of open vector segments per table: files and decoded codes."""


@dataclass(slots=True)
class SearchCache:
    """A cache of open searchers, open vector segments, decoded pages and filter results.

    The cache also contains the numbers of the WAL entries at which runs end (`LogRuns`).

    All values are immutable and limited in size. The cache key of a value contains the path and checksum of an object,
    so later versions share the value. Safe for threads.
    """

    verified: VerifiedFiles = field(default_factory=VerifiedFiles)
    searchers: Searchers = field(default_factory=Searchers)
    values: KeptValues = field(default_factory=KeptValues)
    readers: KeptValues = field(default_factory=lambda: KeptValues(READER_BYTES))
    runs: LogRuns = field(default_factory=LogRuns)
    _covered: tuple[Snapshot, dict[str, Coverage]] | None = None

    def coverage(self, snapshot: Snapshot, definition: IndexDefinition) -> Coverage:
        """Return the coverage of the snapshot by the index.

        Computed once per snapshot and definition. Makes no request.
        """
        covered = self._covered
        if covered is None or covered[0] is not snapshot:
            covered = self._covered = snapshot, {}
        found = covered[1].get(definition.name)
        if found is None or found.definition != definition:
            found = covered[1][definition.name] = compute_coverage(snapshot, definition)
        return found
