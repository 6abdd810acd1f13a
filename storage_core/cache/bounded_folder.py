"""A folder of entries that are on disk below a bound, the last used; all processes of a user may share it.

Nothing but the entries themselves says what is there: no index that could be torn, no lock that could stay behind. An
entry is a file, or a folder of files, and is used last when it was modified last. Others are removed by any process,
whole, at any time: a reader of a file that is removed reads on, and a reader of a folder has links of its own to its
files.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from storage_core.private_folder import make_folders
from storage_core.process import OwnLock
from storage_core.settings.cache import CacheSettings

LARGEST: Final = 4
"""What is written at once, and what one read keeps, is at most this part of the bound: a quarter."""

IN_CACHE: Final = "tmp"
"""What `storage_core.scratch` is asked for where entries are filled."""

TEMPORARY: Final = f"tidemark-{IN_CACHE}-"
"""How the name of a folder begins in which entries are filled, or removed."""

_LISTED = 64  # a process lists the folder when it wrote this part of the bound
_FULL = 8  # and leaves this part of it free: room for what eight processes write until they list again
_BLOCKS_BYTES = 8192  # what a piece may take beside its bytes, which need not begin or end with a block
_UNUSED_NS = 10 * 365 * 24 * 3600 * 10**9
_TOUCHED_NS = 60 * 10**9
_FILE = re.compile(r"[0-9a-f]{32}\.split", re.ASCII)
_OF_FILES = re.compile(rf"{TEMPORARY}.+|.+-[0-9a-f]{{16}}", re.ASCII)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """An entry, or a folder that is filled to become one: when it was used, its name, and the bytes that it takes."""

    used_ns: int
    name: str
    size_bytes: int
    is_folder: bool


class BoundedFolder:
    """The entries in `path`, which take at most `most_bytes`. Threads and processes may share one.

    Errors are those of the system, `OSError`: of a cache they are no reason to fail.
    """

    def __init__(self, path: Path, most_bytes: int) -> None:
        self.path = path
        self.most_bytes = most_bytes
        self._lock = OwnLock()
        self._pending = 0
        self._unlisted = most_bytes  # so that the first write lists

    @contextmanager
    def opened(self, *, create: bool = False) -> Iterator[int]:
        """Yield a descriptor of the folder. Raises `PermissionError` where others may write into it.

        A link to a folder is not followed, for its maker may turn it.
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
                reason = "it is a link, which is not followed; name the folder that it leads to (TIDEMARK_CACHE_DIR)"
                raise NotADirectoryError(errno.ENOTDIR, reason) from error
            raise
        try:
            found = os.fstat(descriptor)
            if found.st_uid != os.geteuid() or found.st_mode & 0o022:
                raise PermissionError(errno.EACCES, "other users may write into the folder of the cache")
            yield descriptor
        finally:
            os.close(descriptor)

    def entries(self) -> list[Entry]:
        """Return the entries, the one not used for the longest time first. One listing; none without the folder."""
        try:
            with self.opened() as folder:
                return sorted(_entries(folder))
        except FileNotFoundError:
            return []

    @contextmanager
    def room_for(self, sizes: Iterable[int]) -> Iterator[bool]:
        """Yield whether pieces of so many bytes may be written in the block, for which there is room then.

        Where this process wrote a 64th of the bound since it looked last, it lists the folder and removes the entries
        that were not used for the longest time. So the bound is held by eight processes that write at once; each one
        more may pass it by a 64th, and by what is larger than that.
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
        """Remove entries until they take so many bytes at most, and return how many bytes those took.

        Left are folders that somebody fills.
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
        """Remove every entry and return how many bytes they took."""
        return self.shrink(-1)


@functools.lru_cache(maxsize=16)
def bounded_folder(settings: CacheSettings) -> BoundedFolder | None:
    """Return the one object of this process for the folder of a cache; None where there is no cache."""
    return BoundedFolder(settings.folder, settings.most_bytes) if settings.folder and settings.is_on else None


def begin_unused(entry: int | Path) -> None:
    """Set the time of a new entry so that it goes before all that were used since they were written."""
    now = time.time_ns() - _UNUSED_NS
    os.utime(entry, ns=(now, now))


def touch(entry: int | Path) -> None:
    """Note that an entry was used; nothing where that was noted within a minute."""
    if time.time_ns() - os.stat(entry).st_mtime_ns > _TOUCHED_NS:  # noqa: PTH116  # of a descriptor too
        os.utime(entry)


def _entries(folder: int) -> Iterator[Entry]:
    with os.scandir(folder) as found:
        for each in found:
            with suppress(FileNotFoundError):
                status = each.stat(follow_symlinks=False)
                is_folder = stat.S_ISDIR(status.st_mode)
                if not (_OF_FILES if is_folder else _FILE).fullmatch(each.name):
                    continue  # nobody knows whose it is
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
    """Whether the entry is gone, by this process or another."""
    try:
        if not entry.is_folder:
            os.unlink(entry.name, dir_fd=folder)
            return True
        if entry.name.startswith(TEMPORARY):
            return False  # storage_core.scratch removes it when its lock is free
        moved = f"{TEMPORARY}{secrets.token_hex(4)}.locked"
        os.rename(entry.name, moved, src_dir_fd=folder, dst_dir_fd=folder)
    except FileNotFoundError:
        return True
    shutil.rmtree(moved, ignore_errors=True, dir_fd=folder)
    return True
