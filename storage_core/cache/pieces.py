"""Pieces of immutable objects on the local disk: one sparse file per object, in which each piece is where it is there.

A piece is there when the bytes in its place have the checksum that the log says, or what the log vouches for: a footer,
a name. So what is damaged, cut, half written or not there is the same: it is fetched again and written anew. Two
processes that write one piece write the same bytes. No failure of the cache is one of the read.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import logging
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import xxhash

from storage_core.cache.bounded_folder import LARGEST, BoundedFolder, begin_unused, bounded_folder, touch
from storage_core.process import OwnLock
from storage_core.settings.cache import CacheSettings
from storage_core.system_errors import cause

_logger = logging.getLogger(__name__)

_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_IN_THE_WAY = (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EEXIST, errno.EACCES)  # a link, a folder, a pipe
_NOT_ELSEWHERE = ("file", "memory")

Data = memoryview | bytes


@dataclass(frozen=True, slots=True)
class Piece:
    """The bytes from `start` to `end` (exclusive) of an object, of which `checksum_of` is `checksum`.

    Without an `end` those to the end of the object; it is in one piece then, for nothing else says how long it is.
    """

    start: int
    end: int | None
    checksum: str
    checksum_of: Callable[[Data], str] = xxhash.xxh3_64_hexdigest

    def is_of(self, data: Data) -> bool:
        """Whether these are its bytes."""
        return self.checksum_of(data) == self.checksum


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """Pieces that were found, that were not, the bytes found, and how often the folder failed, for good or at times."""

    hits: int = 0
    misses: int = 0
    bytes: int = 0
    failures: int = 0

    def __add__(self, other: CacheCounts) -> CacheCounts:
        """Return both together."""
        return CacheCounts(
            self.hits + other.hits,
            self.misses + other.misses,
            self.bytes + other.bytes,
            self.failures + other.failures,
        )

    def __sub__(self, earlier: CacheCounts) -> CacheCounts:
        """Return what came after."""
        return self + CacheCounts(-earlier.hits, -earlier.misses, -earlier.bytes, -earlier.failures)


class CacheMeter:
    """What became of pieces, counted from any number of threads."""

    def __init__(self) -> None:
        self._lock = OwnLock()
        self._counts = CacheCounts()

    @property
    def counts(self) -> CacheCounts:
        """So far."""
        return self._counts

    def add(self, counts: CacheCounts) -> None:
        """Add these."""
        with self._lock:
            self._counts += counts


class CachedPieces:
    """The cache as one reader uses it, who counts. Threads may share one.

    With `most_bytes`, what is read after so many bytes is neither kept nor noted as used: no read takes more of the
    cache, and one that is repeated finds its beginning.
    """

    def __init__(
        self, folder: BoundedFolder | None, *, meter: CacheMeter | None = None, most_bytes: int | None = None
    ) -> None:
        self._folder = folder
        self._meter = meter or CacheMeter()
        self._left = most_bytes
        self._lock = OwnLock()

    def of_a_read(self) -> CachedPieces:
        """Return the same cache for one read, which is kept up to a quarter of the bound, and counted here as well."""
        if self._folder is None:
            return self
        return CachedPieces(self._folder, meter=self._meter, most_bytes=self._folder.most_bytes // LARGEST)

    @property
    def counts(self) -> CacheCounts:
        """What became of the pieces so far, of all reads of this cache together."""
        return self._meter.counts

    def read(self, uri: str, path: str, checksum: str, pieces: Sequence[Piece]) -> list[bytes | None]:
        """Return of each piece the bytes that have its checksum, else None.

        `uri` is that of the store, `checksum` fixes the bytes of the object `path` there. Nothing is kept of stores
        in memory and on a local disk.
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
        """Keep these pieces, each of which has its checksum, as far as there is room; say nothing where it fails.

        They go before all that was used, unless they count as `used` already.
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
        """Return the bytes of a piece; of those that `fetch` returns the caller verifies that they are the right ones.

        They are kept, as `write` does, if they have the checksum of the piece. Raises what `fetch` raises.
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
        """Whether a read may still keep something, which has used up so many bytes more afterwards."""
        with self._lock:
            may_keep = self._may_keep()
            if self._left is not None:
                self._left -= size
            return may_keep


NOT_CACHED: Final = CachedPieces(None)
"""A cache that keeps nothing."""


def cached_pieces(settings: CacheSettings) -> CachedPieces:
    """Return the cache of these settings, which shares with others of this process what it knows of the folder."""
    return CachedPieces(bounded_folder(settings))


def _is_elsewhere(uri: str) -> bool:
    return uri.partition("://")[0] not in _NOT_ELSEWHERE


def _name(uri: str, path: str, checksum: str) -> str:
    text = f"{uri}\0{path}\0{checksum}".encode()
    return f"{hashlib.blake2b(text, digest_size=16).hexdigest()}.split"


@contextmanager
def _opened(folder: int, name: str, flags: int) -> Iterator[int]:
    """Yield the file. What has its name and is none of ours is not there, and makes way for one that is written."""
    try:
        file = _open_own(folder, name, flags)
    except OSError as error:
        if error.errno not in _IN_THE_WAY:
            raise
        if not flags & os.O_CREAT:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from error
        _remove(folder, name)
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
    raise OSError(errno.EEXIST, "a name of the cache is taken by something else")


def _remove(folder: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except OSError:
        shutil.rmtree(name, ignore_errors=True, dir_fd=folder)


def _found(file: int, piece: Piece, most_bytes: int) -> bytes | None:
    ends = os.fstat(file).st_size
    end = ends if piece.end is None else piece.end
    if end > ends or end - piece.start > most_bytes:  # as nothing is that was written
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
            elif before.st_size:  # what is written is not used yet
                os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
            else:
                begin_unused(file)


def _write_at(file: int, data: Data, start: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(file, rest, start)
        rest, start = rest[written:], start + written


def _warned(folder: BoundedFolder, error: OSError) -> int:
    """Say once per process that the folder failed, and return how many failures that is."""
    _warn_once(os.getpid(), str(folder.path), cause(error))
    return 1


@functools.lru_cache(maxsize=64)
def _warn_once(process: int, folder: str, failure: str) -> None:  # noqa: ARG001  # once per process
    _logger.warning("%s: the cache is left out, which costs requests and nothing else: %s", folder, failure)
