"""Caches of a reader: pieces of immutable objects on the local disk, and values in memory.

On disk (`CachedPieces`), each object has one sparse file. In the sparse file, each piece is at the same position as in
the object. A piece is in the cache if the bytes at its position have the expected checksum. The checksum comes from the
log, or from data that the log verifies, such as a footer or a key. So a damaged, shortened or partly written piece
counts as missing. The reader then fetches the piece and writes it again. Two processes that write the same piece write
the same bytes. A failure of the cache never makes a read fail.

In memory, `KeptValues` caches decoded values by name.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import logging
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import xxhash

from storage_core.base.errors import cause
from storage_core.base.limits import CacheSettings
from storage_core.base.process import OwnLock, make_folders
from storage_core.store.contract import ObjectStore
from storage_core.store.meter import all_of

# A folder of entries with a size limit. The least recently used entries are removed. All processes of a user may share
# the folder. Only the entries define the content of the cache. The folder has no index that could be damaged, and no
# lock that could remain. An entry is a file or a folder of files. The modification time of an entry is the time of its
# last use. Any process may remove a whole entry at any time. If an entry is removed during a read, the reader can
# continue. An open file stays readable, and a reader of a folder uses its own hard links.


LARGEST: Final = 4
"""The size limit divided by this number is the maximum size of a write. One read also caches at most this size."""

IN_CACHE: Final = "tmp"
"""A part of the names of the temporary folders in which processes write cache entries. `storage_core.base.process` gets
this constant as an argument.
"""

TEMPORARY: Final = f"tidemark-{IN_CACHE}-"
"""The prefix of the names of temporary folders in which a process creates or removes cache entries."""

_LISTED = 64  # After a process has written 1/`_LISTED` of the size limit, the process lists the folder again.
_FULL = 8  # A process keeps 1/`_FULL` of the limit free, so that eight processes can write between two listings.
_BLOCKS_BYTES = 8192  # The maximum overhead of a piece on disk. A piece need not start or end at a block.
_UNUSED_NS = 10 * 365 * 24 * 3600 * 10**9
_TOUCHED_NS = 60 * 10**9
_FILE = re.compile(r"[0-9a-f]{32}\.split", re.ASCII)
_OF_FILES = re.compile(rf"{TEMPORARY}.+|.+-[0-9a-f]{{16}}", re.ASCII)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """The last use, the name and the size on disk of an entry, or of the folder of an unfinished entry."""

    used_ns: int
    name: str
    size_bytes: int
    is_folder: bool


class BoundedFolder:
    """The entries in the folder `path`, with at most `most_bytes` in total. Threads and processes may share the folder.

    Methods raise `OSError`. A failure of the cache is not a reason for a read to fail.
    """

    def __init__(self, path: Path, most_bytes: int) -> None:
        self.path = path
        self.most_bytes = most_bytes
        self._lock = OwnLock()
        self._pending = 0
        self._unlisted = most_bytes  # With this value, the first write lists the folder.

    @contextmanager
    def opened(self, *, create: bool = False) -> Iterator[int]:
        """Yield a descriptor of the folder. Raises `PermissionError` if other users may write to the folder.

        A symlink to a folder is not followed, because its owner could change its target.
        """
        try:
            descriptor = os.open(self.path, _FOLDER)
        except FileNotFoundError:
            if not create:
                raise
            make_folders(self.path)
            descriptor = os.open(self.path, _FOLDER)
        except NotADirectoryError as error:
            if self.path.is_symlink():
                reason = (
                    "it is a link, which Tidemark does not follow. Set TIDEMARK_CACHE_DIR to the target of the link"
                )
                raise NotADirectoryError(errno.ENOTDIR, reason) from error
            raise
        try:
            found = os.fstat(descriptor)
            if found.st_uid != os.geteuid() or found.st_mode & 0o022:
                raise PermissionError(errno.EACCES, "other users can write into the folder of the cache")
            yield descriptor
        finally:
            os.close(descriptor)

    def entries(self) -> list[Entry]:
        """Return the entries, the least recently used first. One listing, or none if the folder does not exist."""
        try:
            with self.opened() as folder:
                return sorted(_entries(folder))
        except FileNotFoundError:
            return []

    @contextmanager
    def room_for(self, sizes: Iterable[int]) -> Iterator[bool]:
        """Yield True if the block may write pieces of these sizes. If True, space for the pieces is reserved.

        If this process has written a 64th of the limit since its last listing, it lists the folder and removes the
        least recently used entries. So eight concurrent writers together do not exceed the limit. Each further writer
        may add a 64th of the limit, or the size of one write if that is larger.
        """
        taken = sum(each + _BLOCKS_BYTES for each in sizes)
        if taken * LARGEST > self.most_bytes:
            yield False
            return
        with self._lock:
            self._pending += taken
            self._unlisted += taken
        try:
            with self._lock:
                if self._unlisted * _LISTED > self.most_bytes:
                    self.shrink(self.most_bytes - self.most_bytes // _FULL - self._pending)
                    self._unlisted = self._pending
            yield True
        finally:
            with self._lock:
                self._pending -= taken

    def shrink(self, most_bytes: int) -> int:
        """Remove entries until they take at most `most_bytes`, and return the number of removed bytes.

        A folder that a process is still filling is not removed.
        """
        entries = self.entries()
        excess, removed = sum(each.size_bytes for each in entries) - most_bytes, 0
        if excess <= 0:
            return removed
        with self.opened() as folder:
            for each in entries:
                if excess <= removed:
                    break
                removed += each.size_bytes if _remove(folder, each) else 0
        return removed

    def clear(self) -> int:
        """Remove every entry, and return the number of removed bytes."""
        return self.shrink(-1)


@functools.lru_cache(maxsize=16)
def bounded_folder(settings: CacheSettings) -> BoundedFolder | None:
    """Return the `BoundedFolder` of a cache, or None without a cache. A process has one `BoundedFolder` per folder."""
    return BoundedFolder(settings.folder, settings.most_bytes) if settings.folder and settings.is_on else None


def begin_unused(entry: int | Path) -> None:
    """Set the time of last use of a new entry to a time in the past.

    The cache then removes this entry before all entries that were used.
    """
    now = time.time_ns() - _UNUSED_NS
    os.utime(entry, ns=(now, now))


def touch(entry: int | Path) -> None:
    """Record the use of an entry. Does nothing if a use was recorded within the last minute."""
    if time.time_ns() - os.stat(entry).st_mtime_ns > _TOUCHED_NS:  # noqa: PTH116  # of a descriptor too
        os.utime(entry)


def _entries(folder: int) -> Iterator[Entry]:
    with os.scandir(folder) as found:
        for each in found:
            with suppress(FileNotFoundError):
                status = each.stat(follow_symlinks=False)
                is_folder = stat.S_ISDIR(status.st_mode)
                if not (_OF_FILES if is_folder else _FILE).fullmatch(each.name):
                    continue  # The owner of the entry is unknown.
                taken = _taken(folder, each.name) if is_folder else status.st_blocks * 512
                yield Entry(status.st_mtime_ns, each.name, taken, is_folder)


def _taken(folder: int, name: str) -> int:
    taken = 0
    for _, _, files, within in os.fwalk(name, dir_fd=folder):
        for each in files:
            with suppress(FileNotFoundError):
                found = os.stat(each, dir_fd=within, follow_symlinks=False)
                taken += found.st_blocks * 512 // max(1, found.st_nlink)
    return taken


def _remove(folder: int, entry: Entry) -> bool:
    """Remove the entry. Return True if the entry no longer exists, even if another process removed it."""
    try:
        if not entry.is_folder:
            os.unlink(entry.name, dir_fd=folder)
            return True
        if entry.name.startswith(TEMPORARY):
            return False  # `storage_core.base.process` removes a temporary folder when the folder's lock is free.
        moved = f"{TEMPORARY}{secrets.token_hex(4)}.locked"
        os.rename(entry.name, moved, src_dir_fd=folder, dst_dir_fd=folder)
    except FileNotFoundError:
        return True
    shutil.rmtree(moved, ignore_errors=True, dir_fd=folder)
    return True


_logger = logging.getLogger(__name__)

_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_IN_THE_WAY = (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EEXIST, errno.EACCES)  # A link, a folder or a pipe.
_NOT_ELSEWHERE = ("file", "memory")

Data = memoryview | bytes


@dataclass(frozen=True, slots=True)
class Piece:
    """The bytes from `start` to `end` (exclusive) of an object, with their checksum.

    If `end` is None, the piece ends at the end of the object. The object then consists of one piece, because its length
    is not known.
    """

    start: int
    end: int | None
    checksum: str
    checksum_of: Callable[[Data], str] = xxhash.xxh3_64_hexdigest

    def is_of(self, data: Data) -> bool:
        """Return whether these are the bytes of the piece."""
        return self.checksum_of(data) == self.checksum


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """The counts of hits, misses, bytes and failures of a cache.

    Attributes:
        hits: The number of pieces that were found.
        misses: The number of pieces that were not found.
        bytes: The number of bytes that were found.
        failures: The number of temporary and permanent failures of the folder.
    """

    hits: int = 0
    misses: int = 0
    bytes: int = 0
    failures: int = 0

    def __add__(self, other: CacheCounts) -> CacheCounts:
        """Return the sum of both counts."""
        return CacheCounts(
            self.hits + other.hits,
            self.misses + other.misses,
            self.bytes + other.bytes,
            self.failures + other.failures,
        )

    def __sub__(self, earlier: CacheCounts) -> CacheCounts:
        """Return the counts since `earlier`."""
        return self + CacheCounts(-earlier.hits, -earlier.misses, -earlier.bytes, -earlier.failures)


class CacheMeter:
    """A counter of cache results. Safe for any number of threads."""

    def __init__(self) -> None:
        self._lock = OwnLock()
        self._counts = CacheCounts()

    @property
    def counts(self) -> CacheCounts:
        """The counts so far."""
        return self._counts

    def add(self, counts: CacheCounts) -> None:
        """Add these counts."""
        with self._lock:
            self._counts += counts


class CachedPieces:
    """The cache of one reader, with its own counts. Several threads may share a `CachedPieces`.

    Args:
        most_bytes: The maximum number of bytes to cache. After that, pieces are not cached, and their use is not
            recorded. So no read takes too much of the cache, and a repeated read finds its first part.
    """

    def __init__(
        self, folder: BoundedFolder | None, *, meter: CacheMeter | None = None, most_bytes: int | None = None
    ) -> None:
        self._folder = folder
        self._meter = meter or CacheMeter()
        self._left = most_bytes
        self._lock = OwnLock()

    def of_a_read(self) -> CachedPieces:
        """Return a cache object for one read. The new object and this cache use the same folder.

        The read caches at most a quarter of the limit. The counts of the read are also added to this cache.
        """
        if self._folder is None:
            return self
        return CachedPieces(self._folder, meter=self._meter, most_bytes=self._folder.most_bytes // LARGEST)

    @property
    def counts(self) -> CacheCounts:
        """The counts so far, of all reads of this cache."""
        return self._meter.counts

    def read(self, uri: str, path: str, checksum: str, pieces: Sequence[Piece]) -> list[bytes | None]:
        """Return, for each piece, the cached bytes with its checksum, or None.

        Nothing is cached for stores in memory and on a local disk.

        Args:
            uri: The URI of the store.
            path: The key of the object.
            checksum: Identifies the content of the object.
        """
        if self._folder is None or not _is_elsewhere(uri):
            return [None] * len(pieces)
        most = self._folder.most_bytes // LARGEST
        found: list[bytes | None] = []
        failed = 0
        try:
            with self._folder.opened() as folder, _opened(folder, _name(uri, path, checksum), os.O_RDONLY) as file:
                found += (_found(file, piece, most) for piece in pieces)
                if any(each is not None for each in found) and self._may_keep():
                    touch(file)
        except FileNotFoundError:
            pass
        except OSError as error:
            failed = _warned(self._folder, error)
        found += [None] * (len(pieces) - len(found))
        hits = [each for each in found if each is not None]
        self._meter.add(CacheCounts(len(hits), len(pieces) - len(hits), sum(map(len, hits)), failed))
        self._spend(sum(map(len, hits)))
        return found

    def write(
        self, uri: str, path: str, checksum: str, pieces: Sequence[tuple[Piece, Data]], *, used: bool = False
    ) -> None:
        """Write these pieces to the cache if there is space.

        The caller has verified their checksums. A failure is only counted and logged.

        Args:
            used: False if the pieces are to be removed before all entries that were used.
        """
        if self._folder is None or not _is_elsewhere(uri):
            return
        wanted = [each for each in pieces if self._spend(len(each[1]))]
        if not wanted:
            return
        try:
            with self._folder.room_for(len(data) for _, data in wanted) as has_room:
                if has_room:
                    _write(self._folder, _name(uri, path, checksum), wanted, used=used)
        except OSError as error:
            self._meter.add(CacheCounts(failures=_warned(self._folder, error)))

    def made(
        self, uri: str, path: str, checksum: str, piece: Piece, *, fetch: Callable[[], bytes], used: bool = False
    ) -> bytes:
        """Return the bytes of a piece, from the cache or from `fetch`. The caller must verify bytes from `fetch`.

        If fetched bytes have the checksum of the piece, `write` writes them to the cache. Raises the
        errors of `fetch`.
        """
        if self._folder is None or not _is_elsewhere(uri):
            return fetch()
        (data,) = self.read(uri, path, checksum, [piece])
        if data is None:
            data = fetch()
            if piece.is_of(data):
                self.write(uri, path, checksum, [(piece, data)], used=used)
        return data

    def _may_keep(self) -> bool:
        return self._left is None or self._left > 0

    def _spend(self, size: int) -> bool:
        """Return whether a read may still cache bytes.

        If so, subtract `size` from the number of bytes that the read may cache.
        """
        with self._lock:
            may_keep = self._may_keep()
            if self._left is not None:
                self._left -= size
            return may_keep


NOT_CACHED: Final = CachedPieces(None)
"""A cache that keeps nothing."""


def cached_pieces(settings: CacheSettings) -> CachedPieces:
    """Return the cache with these settings. All caches of this process share the state of the folder."""
    return CachedPieces(bounded_folder(settings))


def _is_elsewhere(uri: str) -> bool:
    return uri.partition("://")[0] not in _NOT_ELSEWHERE


def _name(uri: str, path: str, checksum: str) -> str:
    text = f"{uri}\0{path}\0{checksum}".encode()
    return f"{hashlib.blake2b(text, digest_size=16).hexdigest()}.split"


@contextmanager
def _opened(folder: int, name: str, flags: int) -> Iterator[int]:
    """Yield the file.

    If the entry of this name is not a regular file of this user, the file counts as missing. A write then replaces this
    entry.
    """
    try:
        file = _open_own(folder, name, flags)
    except OSError as error:
        if error.errno not in _IN_THE_WAY:
            raise
        if not flags & os.O_CREAT:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from error
        _remove_all(folder, name)
        file = _open_own(folder, name, flags)
    try:
        yield file
    finally:
        os.close(file)


def _open_own(folder: int, name: str, flags: int) -> int:
    file = os.open(name, flags | _OPEN, 0o600, dir_fd=folder)
    found = os.fstat(file)
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
        return file
    os.close(file)
    raise OSError(errno.EEXIST, "the cache contains a file of this name that Tidemark did not write")


def _remove_all(folder: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:
        shutil.rmtree(name, ignore_errors=True, dir_fd=folder)


def _found(file: int, piece: Piece, most_bytes: int) -> bytes | None:
    ends = os.fstat(file).st_size
    end = ends if piece.end is None else piece.end
    if end > ends or end - piece.start > most_bytes:  # This piece was never written to the cache.
        return None
    data = os.pread(file, end - piece.start, piece.start)
    return data if piece.is_of(data) else None


def _write(folder: BoundedFolder, name: str, pieces: Sequence[tuple[Piece, Data]], *, used: bool) -> None:
    with folder.opened(create=True) as place, _opened(place, name, os.O_RDWR | os.O_CREAT) as file:
        before = os.fstat(file)
        try:
            for piece, data in pieces:
                _write_at(file, data, piece.start)
                if piece.end is None:
                    os.ftruncate(file, piece.start + len(data))
        finally:
            if used:
                os.utime(file)
            elif before.st_size:  # This write does not count as a use of the entry.
                os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
            else:
                begin_unused(file)


def _write_at(file: int, data: Data, start: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(file, rest, start)
        rest, start = rest[written:], start + written


def _warned(folder: BoundedFolder, error: OSError) -> int:
    """Log once per process that the folder failed. Return 1, which is the number of failures."""
    _warn_once(os.getpid(), str(folder.path), cause(error))
    return 1


@functools.lru_cache(maxsize=64)
def _warn_once(process: int, folder: str, failure: str) -> None:  # noqa: ARG001  # once per process
    _logger.warning("%s: the cache is left out, which costs requests and nothing else: %s", folder, failure)


KEPT_BYTES: Final = 128 * 2**20
"""The maximum number of bytes of cached values per table.

This limit is enough for a million rows of 60 bytes and the hashes of their keys. A search for ten rows uses 4 MB.
"""

_SIDE_BY_SIDE = 16

_Name = tuple[object, ...]
_Value = TypeVar("_Value")


class KeptValues:
    """Cached values of at most `most_bytes` in total. The name of a value identifies its content. Safe for threads.

    If fetched bytes can be verified, the cache `cached` is used for them.
    """

    def __init__(self, most_bytes: int = KEPT_BYTES, cached: CachedPieces = NOT_CACHED) -> None:
        self.cached = cached
        self._most = most_bytes
        self._lock = OwnLock()
        self._kept: dict[_Name, tuple[object, int]] = {}  # In the order of last use.
        self._bytes = 0

    def copy(self) -> KeptValues:
        """Return a copy with the same values. Later changes of the copy do not affect the original, and vice versa."""
        other = KeptValues(self._most)
        with self._lock:
            other._kept, other._bytes = dict(self._kept), self._bytes
        return other

    def get(self, name: _Name) -> object | None:
        """Return the value, or None if it is not kept."""
        with self._lock:
            found = self._kept.pop(name, None)
            if found is None:
                return None
            self._kept[name] = found
            return found[0]

    def made(
        self, name: _Name, kind: type[_Value], make: Callable[[], _Value], size: Callable[[_Value], int]
    ) -> _Value:
        """Return the cached value of this name and kind. Without a value, cache and return the result of `make`."""
        found = self.get(name)
        if not isinstance(found, kind):
            found = make()
            self.keep(name, found, size(found))
        return found

    def made_all(
        self,
        names: Sequence[_Name],
        kind: type[_Value],
        make: Callable[[int], _Value],
        size: Callable[[_Value], int],
        *,
        at_hand: Callable[[int], _Value | None] = lambda _: None,
    ) -> list[_Value]:
        """Return the cached or computed value of each name in `names`.

        Values that are not cached are computed concurrently.

        Args:
            make: A function that takes a position in `names` and returns the value.
            at_hand: A function that takes a position in `names`. It returns the value if the value is available without
                waiting, else None. `make` is called for all other positions.
        """
        found = [self.get(name) for name in names]
        absent = [number for number, value in enumerate(found) if not isinstance(value, kind)]
        made = {number: value for number in absent if (value := at_hand(number)) is not None}
        absent = [number for number in absent if number not in made]
        made |= zip(absent, all_of(make, absent, _SIDE_BY_SIDE), strict=True)
        for number, value in made.items():
            self.keep(names[number], value, size(value))
        return [value if isinstance(value, kind) else made[number] for number, value in enumerate(found)]

    def keep(self, name: _Name, value: object, size: int) -> None:
        """Cache a value of `size` bytes unless it is too large. The least recently used values are dropped."""
        if size >= self._most:
            return
        with self._lock:
            self._bytes += size - self._kept.pop(name, (None, 0))[1]
            self._kept[name] = (value, size)
            while self._bytes > self._most:
                _, gone = self._kept.pop(next(iter(self._kept)))
                self._bytes -= gone


def is_near(store: ObjectStore, key: str, kept: KeptValues) -> bool:
    """Return whether the store's objects are files of this machine.

    The function examines an existing object. No request.

    A read of such a file does not wait, so a separate thread costs more than it saves.
    """
    return kept.made(("near", store.uri), bool, lambda: store.local_path(key) is not None, lambda _: 1)


NOTHING: Final = KeptValues(0)
"""A cache that keeps nothing."""
