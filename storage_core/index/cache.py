"""Unpacked segments in a bounded folder that processes share, safe against what becomes of it meanwhile.

An entry is a directory that is filled under a temporary name and then renamed. It is there when each of its files has
the checksum that was taken when it was filled. Who uses it has hard links of his own to its files: another process may
evict it meanwhile. What it holds never changes: entries are named by segment id and checksum, or by split and index
definition.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import pyarrow as pa
import xxhash
from pyroaring import BitMap

from storage_core.cache.bounded_folder import IN_CACHE, BoundedFolder, begin_unused, bounded_folder, touch
from storage_core.formats.bundle import checksum
from storage_core.formats.translation_map import TranslationMap
from storage_core.index import segments
from storage_core.index.places import read_map
from storage_core.log.actions import Add, IndexSegment, Translation
from storage_core.objectstore.contract import ObjectStore
from storage_core.private_folder import make_folders
from storage_core.process import OwnLock
from storage_core.scratch import scratch_folder
from storage_core.settings.cache import USUAL_BYTES, CacheSettings
from storage_core.settings.index import IndexDefinition

_CHECKSUMS = ".checksums.json"
_MAP = "map"
_BLOCK = 2**20


class SegmentCache:
    """Directories of unpacked segment files, and of the same files built for splits that no segment covers yet.

    What it returns is in `root` and goes with it; in `kept` is what other searches find again.
    """

    def __init__(self, root: Path | Callable[[], Path], kept: BoundedFolder | None) -> None:
        """`root` may be what makes it, once it is needed: a search for what is in memory needs none."""
        self._root = root
        self._lock = OwnLock()
        self._kept = kept
        self._numbers = count()

    @property
    def root(self) -> Path:
        """Where it is."""
        with self._lock:
            if not isinstance(self._root, Path):
                self._root = self._root()
            return self._root

    def segment(self, store: ObjectStore, segment: IndexSegment) -> Path:
        """Return the directory with the segment's files. One GET when it is not cached, verified against the log."""
        name = f"{segments.segment_id(segment)}-{segment.xxh3}"
        return self._entry(name, lambda: segments.load(store, segment))

    def gap(
        self,
        store: ObjectStore,
        add: Add,
        definition: IndexDefinition,
        schema: pa.Schema,
        *,
        rows: BitMap | None = None,
    ) -> Path:
        """Return the directory with the files that a segment over split `add`, or these rows of it, would have.

        Built from the rows by the same builder when it is not cached: one GET of the split.
        """
        part = "" if rows is None else f"\n{checksum(rows.serialize())}"
        built_as = checksum(f"{add.path}\n{add.xxh3}\n{segments.fingerprint_of(definition)}{part}".encode())
        name = f"gap-{PurePosixPath(add.path).stem}-{built_as}"
        chosen = None if rows is None else [*rows]
        return self._entry(name, lambda: segments.build(store, add, definition, schema, rows=chosen))

    def translation(self, store: ObjectStore, translation: Translation) -> TranslationMap:
        """Return the map of a translation. One GET when it is not cached. Raises `Corrupt`, `NotFound`."""

        def fetched() -> dict[str, bytes]:
            data = store.get(translation.path).data
            read_map(data, translation)
            return {_MAP: data}

        name = f"{PurePosixPath(translation.path).stem}-{translation.xxh3}"
        return read_map((self._entry(name, fetched) / _MAP).read_bytes(), translation)

    def built(self, name: str, source: str, files: Callable[[], Mapping[str, bytes | memoryview]]) -> Path:
        """Return the directory with these files, which are made once: `source` is text that fixes what is in them."""
        return self._entry(f"{name}-{checksum(source.encode())}", files)

    def passing(self, files: Mapping[str, bytes | memoryview]) -> Path:
        """Return a directory with these files."""
        filled = self._new()
        filled.mkdir()
        for name, data in files.items():
            (filled / name).write_bytes(data)
        return filled

    def _entry(self, name: str, files: Callable[[], Mapping[str, bytes | memoryview]]) -> Path:
        found = None if self._kept is None else self._linked(self._kept.path / name)
        if found is not None:
            return found
        filled = self.passing(files())
        if self._kept is not None:
            with suppress(OSError):  # it is found by this search all the same
                self._keep(filled, name, self._kept)
        return filled

    def _new(self) -> Path:
        return self.root / str(next(self._numbers))

    def _linked(self, entry: Path) -> Path | None:
        """Links to the files of an entry that is what it was filled with; None where it is not, or is gone."""
        linked = self._new()
        try:
            with _opened(entry / _CHECKSUMS) as file:
                expected = json.load(file)
            linked.mkdir()
            for each in entry.iterdir():
                if each.name != _CHECKSUMS:
                    _link(each, linked / each.name)
            if expected == _contents(linked, entry.name):
                touch(entry)
                return linked
        except (OSError, ValueError, RecursionError):
            pass
        shutil.rmtree(linked, ignore_errors=True)
        return None

    def _keep(self, filled: Path, name: str, kept: BoundedFolder) -> None:
        contents = _contents(filled, name)
        with kept.room_for(each.stat().st_size for each in filled.iterdir()) as has_room:
            if not has_room:
                return
            again = self._new()
            shutil.copytree(filled, again, copy_function=_link)
            (again / _CHECKSUMS).write_text(json.dumps(contents))
            begin_unused(again)
            target = kept.path / name
            if os.path.lexists(target):  # damaged, and a rename does not replace it
                target.rename(self._new())
            again.rename(target)


@contextmanager
def open_cache(directory: Path | None) -> Iterator[SegmentCache]:
    """A cache in `directory`, or, for None, in a temporary one that goes at the end; either is created when needed.

    It keeps as much there as a cache may take, by the environment.
    """
    kept = None
    if directory is not None:
        usual = CacheSettings.of(os.environ)
        kept = bounded_folder(CacheSettings(folder=directory, most_bytes=usual.most_bytes or USUAL_BYTES))
    with ExitStack() as stack:

        def made() -> Path:
            if directory is not None:
                make_folders(directory)
            return stack.enter_context(scratch_folder("segments" if directory is None else IN_CACHE, directory))

        yield SegmentCache(made, kept)


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target, follow_symlinks=False)


def _contents(directory: Path, name: str) -> dict[str, object]:
    """What an entry of this name with these files says of itself. Raises `OSError` for what is no file."""
    return {"entry": name, "files": {each.name: _checksum(each) for each in sorted(directory.iterdir())}}


def _checksum(file: Path) -> str:
    digest = xxhash.xxh3_64()
    with _opened(file) as opened:
        while block := opened.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _opened(file: Path) -> BinaryIO:
    return os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
