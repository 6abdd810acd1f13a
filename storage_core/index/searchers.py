"""Searchers that are kept: the segments of an index, opened once as one tantivy index and asked many times.

A search names the parts it needs, segments and what is indexed on the fly. The files of a part are copied once, into a
folder that is this process's own: what becomes of the cache meanwhile does no harm to files that are mapped. A search
of more parts copies what is new, and opens all of them as another searcher.
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

from storage_core.errors import Corrupt, Unavailable
from storage_core.index import native_errors, segments
from storage_core.index.text_composed import Searcher, open_searcher
from storage_core.objectstore.prefetch import prefetch
from storage_core.process import HomeProcess
from storage_core.scratch import scratch, scratch_folder
from storage_core.settings.index import IndexDefinition

_logger = logging.getLogger(__name__)

KEPT_BYTES: Final = 2 * 2**30
"""Of copies among the temporary files, per table: an index of some fifty million lines. A larger one is not kept."""

FETCHED_BYTES: Final = 2**26
"""Of segments that are fetched side by side, so many at most in memory."""

_FETCHED_AT_ONCE: Final = 8
_MOST_PARTS: Final = 4096  # of all searchers: Linux lets a process map 65,530 files, six of them per part
_PREFIX: Final = "searchers"

_Key = tuple[str, ...]


class Part(Protocol):
    """The files of an index over some rows."""

    @property
    def name(self) -> str:
        """Text that fixes what is in the files, for one definition of the index."""
        ...

    @property
    def segment_bytes(self) -> int | None:
        """The size of the segment that the files are of; None where they are built."""
        ...

    def directory(self) -> Path:
        """Return the directory with the files. Safe for threads."""
        ...


@dataclass(slots=True)
class _Copies:
    """Copies of the files of parts, by name, in a folder that goes with them."""

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
    """Open searchers of the full-text indexes of one table, the last used. Threads may share one.

    Their folder is removed with the object; one that a killed process left behind, by the next process.
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._begin()

    def _begin(self) -> None:
        self._home = HomeProcess()
        self._looking, self._opening = Lock(), Lock()
        self._open: dict[_Key, Searcher] = {}  # the one used last is the last
        self._copies = _Copies()
        weakref.finalize(self, self._copies.closing.close)

    @contextmanager
    def searcher(self, definition: IndexDefinition, parts: Sequence[Part], scratch: Path) -> Iterator[Searcher]:
        """Yield a searcher over the parts, in their order. `scratch` is a folder, best on their file system.

        None is kept when the block finds its files to be `Corrupt`. Raises what `Part.directory` raises for a part that
        is new, `Corrupt` for files that are no index, `Unavailable` for what the machine lacks.
        """
        if not self._home.is_here:  # a copy by fork() has locks that nobody opens, and no folder
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
        with native_errors.reading(f"index {definition.name!r}"):
            is_kept = self._copied(new, named)
            copies = {name: path for name, (path, _) in self._copies.parts.items()}
            found = [copies[name] if name in copies else new[name] for name in named]
            opened = open_searcher(found, definition, self._copies.folder if is_kept else scratch)
        if is_kept:
            with self._looking:
                self._open[tuple(named)] = opened
        return opened

    def _copied(self, new: Mapping[str, Path], names: Collection[str]) -> bool:
        """Copy what is new, in place of what was not used for the longest time; only where all that is named has room.

        A searcher goes on that others use while its copies are removed: its files are mapped.
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
    """The directories of the parts, in their order: what is fetched side by side, what is built alone."""

    def weight(part: Part) -> int:
        return FETCHED_BYTES if part.segment_bytes is None else part.segment_bytes

    return prefetch(lambda part: part.directory(), parts, _FETCHED_AT_ONCE, weight=weight, most=FETCHED_BYTES)


def _size(directory: Path) -> int:
    return sum(each.stat().st_size for each in directory.iterdir())
