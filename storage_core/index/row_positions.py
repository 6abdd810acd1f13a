"""The current positions of the rows of a segment, and the cache of unpacked segments.

A segment uses the row numbers of the split over which it was built. When rows move, a translation records the new
positions, and the segment is not rewritten. `RowTranslations` follows the translations from a segment to the live
splits. A row has no position in three cases (decision 0019). A translation dropped the row, or the split of the row
left the table. In the third case, another segment covers the row and needs fewer translations to the live split than
this segment.

`store_translation` stores a translation. `SegmentCache` keeps the unpacked files of segments.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import reduce
from itertools import count
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash
from pyroaring import BitMap

from storage_core.base.clock import Ids
from storage_core.base.errors import CommitConflict, Corrupt
from storage_core.base.limits import USUAL_BYTES, CacheSettings
from storage_core.base.process import OwnLock, make_folders, scratch_folder
from storage_core.data.formats import keys
from storage_core.data.formats.bundle import Expected, TranslationMap, checksum, pack_translation, unpack_translation
from storage_core.data.rows.keys import Positions, bitmap_of, positions
from storage_core.data.settings.index import IndexDefinition
from storage_core.index import segments
from storage_core.index.segments import CoveredRows, Nearest
from storage_core.log.actions import Add, IndexSegment, Translation
from storage_core.log.coverage import by_input, members, outputs_with
from storage_core.store.contract import ObjectStore, create_once
from storage_core.store.pieces import IN_CACHE, BoundedFolder, begin_unused, bounded_folder, touch

NOWHERE = -1

MapOf = Callable[[Translation], TranslationMap]
"""A function that returns the verified map of a translation. Raises the errors of `load_map`."""

PartOf = Callable[[CoveredRows], BitMap]
"""A function that returns a bitmap of rows, for a segment that covers only a part of a split.

Raises the errors of `segments.load`.
"""


@dataclass(frozen=True, slots=True, eq=False)
class RowPositions:
    """The position of each row of a segment.

    Row `i` of the segment is row `row[i]` of the split `splits[split[i]]`. If `split[i]` is `NOWHERE`, the row is in no
    split.
    """

    splits: tuple[str, ...]
    split: npt.NDArray[np.int32]
    row: npt.NDArray[np.uint32]

    @property
    def size_bytes(self) -> int:
        """The memory of the positions in bytes."""
        return self.split.nbytes + self.row.nbytes

    @property
    def nowhere(self) -> BitMap:
        """The rows of the segment that are in no split."""
        return bitmap_of(np.flatnonzero(self.split == NOWHERE))

    def within(self, split: str) -> tuple[Positions, Positions]:
        """Return the segment's rows that are in this split, and the numbers of these rows in the split's file."""
        own = np.flatnonzero(self.split == (self.splits.index(split) if split in self.splits else len(self.splits)))
        return own, self.row[own].astype(np.int64)


def read_covered_rows(store: ObjectStore, held: CoveredRows) -> BitMap:
    """Return the rows of a split that a segment covers. The segment was built over a part of the split.

    Makes one GET. Raises the errors of `load`.
    """
    segment, member = held.segment, held.member
    return segments.part_rows(segments.load(store, segment)[member.file], segment, member)


def once(part_of: PartOf) -> PartOf:
    """Return a function that calls `part_of` only once for each part."""
    found: dict[tuple[str, str], BitMap] = {}

    def remembered(held: CoveredRows) -> BitMap:
        key = held.segment.path, held.member.split
        if key not in found:
            found[key] = part_of(held)
        return found[key]

    return remembered


def load_map(store: ObjectStore, translation: Translation) -> TranslationMap:
    """Return the map of a translation, verified against the log. Makes one GET. Raises `Corrupt` and `NotFound`."""
    return read_map(store.get(translation.path).data, translation)


def read_map(data: bytes, translation: Translation) -> TranslationMap:
    """Return the translation map in `data`, verified against the log. Raises `Corrupt`."""
    where = translation.path
    parsed = keys.parse(where)
    if parsed is None or parsed.kind is not keys.KeyKind.TRANSLATION or parsed.id is None:
        raise Corrupt(f"the log has the translation {where!r}, which is not the key of a translation", key=where)
    expected = Expected(
        where=where,
        identity=parsed.id,
        size=translation.size,
        footer_offset=translation.footerOffset,
        xxh3=translation.xxh3,
    )
    return unpack_translation(
        data,
        expected,
        inputs=translation.inputRows,
        outputs=translation.outputRows,
        moved=translation.movedRows,
    )


@dataclass(frozen=True, slots=True)
class RowTranslations:
    """The translations that map rows of segments to their current positions in live splits."""

    live: Collection[str]
    nearest: Nearest
    moved: Mapping[str, Sequence[Translation]]
    map_of: MapOf
    part_of: PartOf

    @staticmethod
    def of(
        live: Collection[str],
        segments: Collection[IndexSegment],
        translations: Collection[Translation],
        *,
        map_of: MapOf,
        part_of: PartOf,
    ) -> RowTranslations:
        """Return the paths from these segments through these translations to the splits in `live`."""
        return RowTranslations(live, Nearest.of(segments), by_input(translations), map_of, part_of)

    def translations(self, segment: IndexSegment) -> list[Translation]:
        """Return the translations that may have moved rows of the segment."""
        waiting, found = list(segment.covers), dict[str, Translation]()
        while waiting:
            split = waiting.pop()
            for each in () if split in self.live else self.moved.get(split, ()):
                if each.path not in found:
                    found[each.path] = each
                    waiting.extend(each.outputs)
        return list(found.values())

    def row_positions(self, segment: IndexSegment) -> RowPositions:
        """Return the positions of the rows of a segment.

        Memory is that of the maps and about 30 bytes per row. Raises the errors of `map_of` and `part_of`.
        """
        splits: list[str] = []
        split = np.full(segment.numRecords, NOWHERE, np.int32)
        row = np.zeros(segment.numRecords, np.uint32)
        for member in members(segment):
            if member.split not in self.live and member.split not in self.moved:
                continue
            held, rows = CoveredRows(segment, member), np.arange(member.rows)
            built = rows if member.origins is None else positions(self.part_of(held))
            for name, own, there in self._followed(member.split, member.start + rows, built, segment):
                if name not in splits:
                    splits.append(name)
                split[own], row[own] = splits.index(name), there
        return RowPositions(tuple(splits), split, row)

    def uncovered_rows(self, split: str, rows: int, segments: Collection[IndexSegment]) -> BitMap:
        """Return the rows of a live split that none of these segments covers. The split has `rows` rows."""
        covered = reduce(BitMap.__or__, (self._in(split, each) for each in segments), BitMap())
        return BitMap(range(rows)) - covered

    def _in(self, split: str, segment: IndexSegment) -> BitMap:
        return bitmap_of(self.row_positions(segment).within(split)[1])

    def _followed(
        self, split: str, own: Positions, rows: Positions, segment: IndexSegment
    ) -> Iterator[tuple[str, Positions, Positions]]:
        """Yield each live split that contains rows of the segment, with the positions of these rows.

        Each row in `own` is a row number of the segment. It is the same row as the one in `rows`, a row number of
        `split`.
        """
        waiting = [(split, own, rows)]
        while waiting:
            name, own, rows = waiting.pop()
            left = self._left(name, rows, segment)
            own, rows = own[left], rows[left]
            if name in self.live:
                yield name, own, rows
                continue
            for translation in self.moved.get(name, ()) if len(rows) else ():
                waiting.extend(self._moved(translation, name, own, rows))

    def _left(self, split: str, rows: Positions, segment: IndexSegment) -> Positions:
        """Return the indices of the elements of `rows` that no segment with fewer translations covers.

        The comparison counts the translations that each segment needs to the live splits.
        """
        whole = self.nearest.whole.get(split)
        if whole is not None:
            return np.arange(len(rows) if whole.segment.path == segment.path else 0)
        taken = BitMap()
        for part in self.nearest.parts.get(split, ()):
            if part.segment.path == segment.path:
                break
            taken |= self.part_of(part)
        return np.flatnonzero(~np.isin(rows, positions(taken))) if taken else np.arange(len(rows))

    def _moved(
        self, translation: Translation, split: str, own: Positions, rows: Positions
    ) -> Iterator[tuple[str, Positions, Positions]]:
        if not outputs_with(translation, split):
            return
        moved, positions = self.map_of(translation).places(translation.inputs.index(split), rows)
        ends = np.cumsum(translation.outputRows, dtype=np.int64)
        output = np.searchsorted(ends, positions, side="right")
        for number in np.unique(output).tolist():
            there = output == number
            first = int(ends[number]) - translation.outputRows[number]
            yield translation.outputs[number], own[moved[there]], positions[there] - first


# A cache of unpacked segments in a folder. The folder has a limited size, and several processes share it.
#
# An entry is a directory that is filled under a temporary name and then renamed. An entry is valid if each of its files
# has the checksum that was computed when the entry was filled. Each user of an entry has its own hard links to the
# files, so another process may evict the entry at any time. The name of an entry contains the segment's id and
# checksum, or the split and the index definition. Therefore the content of an entry never changes.


_CHECKSUMS = ".checksums.json"
_MAP = "map"
_BLOCK = 2**20


class SegmentCache:
    """A cache of directories with unpacked segment files.

    The cache also contains files that were built for splits without a segment.

    The returned directories are in `root` and are removed with `root`. The entries in `kept` are shared with other
    searches.
    """

    def __init__(self, root: Path | Callable[[], Path], kept: BoundedFolder | None) -> None:
        """Create the cache. `root` may be a function that creates the folder at its first use.

        A search that reads only rows in memory may need no folder.
        """
        self._root = root
        self._lock = OwnLock()
        self._kept = kept
        self._numbers = count()

    @property
    def root(self) -> Path:
        """The folder of the cache."""
        with self._lock:
            if not isinstance(self._root, Path):
                self._root = self._root()
            return self._root

    def segment(self, store: ObjectStore, segment: IndexSegment) -> Path:
        """Return the directory with the segment's files.

        Makes one GET if the segment is not cached. The content is verified against the log.
        """
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
        """Return the directory of segment files that are built on demand for the split `add` or some of its rows.

        If the files are not cached, the builder of segments builds them from the rows, with one GET of the split.
        """
        part = "" if rows is None else f"\n{checksum(rows.serialize())}"
        built_as = checksum(f"{add.path}\n{add.xxh3}\n{segments.fingerprint_of(definition)}{part}".encode())
        name = f"gap-{PurePosixPath(add.path).stem}-{built_as}"
        chosen = None if rows is None else [*rows]
        return self._entry(name, lambda: segments.build(store, add, definition, schema, rows=chosen))

    def translation(self, store: ObjectStore, translation: Translation) -> TranslationMap:
        """Return the map of a translation. Makes one GET if the map is not cached. Raises `Corrupt` and `NotFound`."""

        def fetched() -> dict[str, bytes]:
            data = store.get(translation.path).data
            read_map(data, translation)
            return {_MAP: data}

        name = f"{PurePosixPath(translation.path).stem}-{translation.xxh3}"
        return read_map((self._entry(name, fetched) / _MAP).read_bytes(), translation)

    def built(self, name: str, source: str, files: Callable[[], Mapping[str, bytes | memoryview]]) -> Path:
        """Return the directory with these files, which are built once.

        `source` is a text that identifies the content of the files.
        """
        return self._entry(f"{name}-{checksum(source.encode())}", files)

    def write_temporary(self, files: Mapping[str, bytes | memoryview]) -> Path:
        """Write these files to a new directory and return the directory. The files are not cached."""
        filled = self._new()
        filled.mkdir()
        for name, data in files.items():
            (filled / name).write_bytes(data)
        return filled

    def _entry(self, name: str, files: Callable[[], Mapping[str, bytes | memoryview]]) -> Path:
        found = None if self._kept is None else self._linked(self._kept.path / name)
        if found is not None:
            return found
        filled = self.write_temporary(files())
        if self._kept is not None:
            with suppress(OSError):  # this search can use the files even without the cache
                self._keep(filled, name, self._kept)
        return filled

    def _new(self) -> Path:
        return self.root / str(next(self._numbers))

    def _linked(self, entry: Path) -> Path | None:
        """Return a directory of links to the files of an entry, or None if the entry is damaged or does not exist."""
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
            if os.path.lexists(target):  # The entry is damaged. A rename would not replace the damaged entry.
                target.rename(self._new())
            again.rename(target)


@contextmanager
def open_cache(directory: Path | None) -> Iterator[SegmentCache]:
    """Yield a cache in `directory`, or in a temporary folder if `directory` is None.

    The folder is created when it is needed.

    The temporary folder is removed at the end. The environment sets the size limit of the cache in `directory`.
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
    except OSError:  # the file system does not support hard links
        shutil.copyfile(source, target, follow_symlinks=False)


def _contents(directory: Path, name: str) -> dict[str, object]:
    """Return the record of an entry: its name, and the checksum of each of its files.

    Raises `OSError` if a file is not regular.
    """
    return {"entry": name, "files": {each.name: _checksum(each) for each in sorted(directory.iterdir())}}


def _checksum(file: Path) -> str:
    digest = xxhash.xxh3_64()
    with _opened(file) as opened:
        while block := opened.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _opened(file: Path) -> BinaryIO:
    return os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")


_logger = logging.getLogger(__name__)


def store_translation(
    store: ObjectStore, found: TranslationMap, inputs: Sequence[str], outputs: Sequence[Add], *, ids: Ids
) -> Translation:
    """Store the map that translates rows of input splits to rows of new splits, and return its action.

    Raises:
        CommitUnknown: The store did not report whether it stored the object, and the object is not there.

    Cost:
        One PUT.
    """
    identity = ids.uuid()
    packed, key = pack_translation(found, identity=identity), keys.translation_key(identity)
    if not create_once(store, key, packed.data, advice="run the job again"):
        raise CommitConflict(
            f"{key}: an object with this translation id and other content exists. Run the job again", key=key
        )
    _logger.info("wrote translation %s of %d inputs: %d bytes", key, len(inputs), len(packed.data))
    return Translation(
        path=key,
        inputs=tuple(inputs),
        inputRows=found.input_rows,
        outputs=tuple(add.path for add in outputs),
        movedRows=tuple(found.moved.ravel().tolist()),
        size=len(packed.data),
        xxh3=packed.xxh3,
        footerOffset=packed.footer_offset,
    )
