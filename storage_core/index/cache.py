"""A local cache of unpacked segments, safe against concurrent processes and against a crash while it is filled.

An entry is a directory that is filled under a temporary name and then renamed, so it exists completely or not at all.
What it holds never changes: entries are named by segment id and checksum, or by split and index definition. Nothing
here is evicted; the directory can be deleted whenever no search runs, and costs a refetch.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

import pyarrow as pa

from storage_core.formats.bundle import checksum
from storage_core.index import segments
from storage_core.log.actions import Add, IndexSegment
from storage_core.objectstore.contract import ObjectStore
from storage_core.settings.index import IndexDefinition

_SIZES = ".sizes.json"


class SegmentCache:
    """Directories of unpacked segment files, and of the same files built for splits that no segment covers yet."""

    def __init__(self, directory: Path) -> None:
        """Use `directory`, which is created when missing; several processes may use it at once."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._root = directory

    @property
    def root(self) -> Path:
        """The directory; on its file system the files of entries can be linked."""
        return self._root

    def segment(self, store: ObjectStore, segment: IndexSegment) -> Path:
        """Return the directory with the segment's files. One GET when it is not cached, verified against the log."""
        name = f"{segments.segment_id(segment)}-{segment.xxh3}"
        return self._entry(name, lambda: segments.load(store, segment))

    def gap(self, store: ObjectStore, add: Add, definition: IndexDefinition, schema: pa.Schema) -> Path:
        """Return the directory with the files that a segment over split `add` would have.

        Built from the rows by the same builder when it is not cached: one GET of the split.
        """
        built_as = checksum(f"{add.path}\n{add.xxh3}\n{segments.fingerprint_of(definition)}".encode())
        name = f"gap-{PurePosixPath(add.path).stem}-{built_as}"
        return self._entry(name, lambda: segments.build(store, add, definition, schema))

    def built(self, name: str, source: str, files: Callable[[], Mapping[str, bytes | memoryview]]) -> Path:
        """Return the directory with these files, which are made once: `source` is text that fixes what is in them."""
        return self._entry(f"{name}-{checksum(source.encode())}", files)

    @contextmanager
    def passing(self, files: Mapping[str, bytes | memoryview]) -> Iterator[Path]:
        """A directory with these files, on the cache's file system, that is gone at the end."""
        with tempfile.TemporaryDirectory(prefix="tmp-", dir=self._root) as temporary:
            filled = Path(temporary) / "filled"
            _fill(filled, files)
            yield filled

    def _entry(self, name: str, files: Callable[[], Mapping[str, bytes | memoryview]]) -> Path:
        target = self._root / name
        if _intact(target):
            return target
        with tempfile.TemporaryDirectory(prefix="tmp-", dir=self._root) as temporary:
            scratch = Path(temporary)
            filled = scratch / "filled"
            _fill(filled, files())
            # An entry that a power failure left half on disk moves aside first: a rename cannot replace it.
            if target.exists() and not _intact(target):
                with suppress(FileNotFoundError):  # another process has just done so
                    target.rename(scratch / "damaged")
            try:
                filled.rename(target)
            except OSError:
                # Another process was faster; the names fix the content, so its entry is as good as ours.
                if not _intact(target):
                    raise
        return target


@contextmanager
def open_cache(directory: Path | None) -> Iterator[SegmentCache]:
    """A cache in `directory`, or, for None, in a temporary one that is removed at the end."""
    if directory is not None:
        yield SegmentCache(directory)
        return
    with tempfile.TemporaryDirectory(prefix="tidemark-segments-") as temporary:
        yield SegmentCache(Path(temporary))


def _fill(directory: Path, files: Mapping[str, bytes | memoryview]) -> None:
    directory.mkdir()
    for name, data in files.items():
        (directory / name).write_bytes(data)
    sizes = {name: len(data) for name, data in files.items()}
    (directory / _SIZES).write_text(json.dumps(sizes))


def _intact(entry: Path) -> bool:
    """Whether every file has the size it was written with: what a crash of the machine damages is the length."""
    try:
        sizes = json.loads((entry / _SIZES).read_text())
        return all((entry / name).stat().st_size == size for name, size in sizes.items())
    except (FileNotFoundError, NotADirectoryError, ValueError, AttributeError, TypeError, RecursionError):
        return False
