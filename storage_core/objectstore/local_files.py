"""The file system operations below the local store: no symlink is followed, and what is reported durable is.

Every path is opened segment by segment relative to the folder before it, each with O_NOFOLLOW. So a symlink anywhere
below the root is refused, also when somebody swaps a folder for one between a check and its use.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import uuid
from collections.abc import Iterator, MutableSet, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from storage_core.clock import Clock
from storage_core.errors import InvalidInput, NotFound, NotWritten, TidemarkError
from storage_core.objectstore.key_safety import TEMPORARY_FOLDER
from storage_core.system_errors import typed, unavailable

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_LOCK_TIMEOUT_MS = 30_000
_LOCK_POLL_MS = 2.0
_ABANDONED_AFTER_MS = 24 * 3600 * 1000


DurableFolders = MutableSet[tuple[str, ...]]
"""Folders, by their segments, whose own names are durable, and those of all folders above them."""


@contextmanager
def open_folder(
    root: Path, segments: Sequence[str], *, key: str, create: bool, durable: DurableFolders | None = None
) -> Iterator[int]:
    """Yield a descriptor of the folder `segments` below `root`; with `create`, missing ones are made.

    With `durable` the names of the folder and of all above it are durable then, also where they were there before:
    their maker may have failed to make them durable. It remembers it, so that a folder costs one fsync of its
    parent more, once, and the root one of each folder above it.
    Raises `NotFound` that names `key` when a folder is missing (or a file is in its place), `InvalidInput` when one is
    a symlink, `Unavailable` when the system refuses, `OSError` when an fsync fails.
    """
    descriptor = _open_root(root, key, create=create)
    try:
        if durable is not None and () not in durable:
            _fsync_above(root, descriptor)
            durable.add(())
        for depth, segment in enumerate(segments, 1):
            child, made = _open_child(descriptor, segment, key, create=create)
            parent, descriptor = descriptor, child
            try:
                if durable is not None and (made or tuple(segments[:depth]) not in durable):
                    os.fsync(parent)
                    durable.add(tuple(segments[:depth]))
            finally:
                close(parent)
        yield descriptor
    finally:
        close(descriptor)


@contextmanager
def open_object(folder: int, name: str, key: str) -> Iterator[tuple[int, os.stat_result]]:
    """Yield a descriptor of the regular file `name`, and its metadata.

    Raises `NotFound`, `InvalidInput` for a symlink, `Unavailable` when the system refuses.
    """
    try:
        descriptor = os.open(name, _READ, dir_fd=folder)
    except OSError as error:
        raise explained(error, folder, name, key) from error
    try:
        try:
            status = os.fstat(descriptor)
        except OSError as error:
            raise unavailable(key, error) from error
        if not stat.S_ISREG(status.st_mode):
            raise NotFound(f"{key}: no such object", key=key)
        yield descriptor, status
    finally:
        close(descriptor)


def close(descriptor: int) -> None:
    """Close; an error tells nothing here, since what has to be durable was fsynced before."""
    with suppress(OSError):
        os.close(descriptor)


def stat_object(folder: int, name: str, key: str) -> os.stat_result:
    """Return the metadata of the regular file `name`. Raises `NotFound`, and `InvalidInput` for a symlink."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        raise explained(error, folder, name, key) from error
    if stat.S_ISLNK(status.st_mode):
        raise _symlink(key)
    if not stat.S_ISREG(status.st_mode):
        raise NotFound(f"{key}: no such object", key=key)
    return status


def what_lies(folder: int, name: str, key: str) -> os.stat_result | None:
    """Return the metadata of whatever has this name, a link's own; None where it is gone. Raises `Unavailable`."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unavailable(key, error) from error


def list_folder(folder: int, key: str) -> list[str]:
    """Return the names in the folder, in any order. Raises `Unavailable` that names `key`."""
    with typed(key or "."):
        return os.listdir(folder)


@contextmanager
def temporary_file(root: Path, data: bytes | memoryview, newer_than_ns: int | None = None) -> Iterator[tuple[int, str]]:
    """Yield folder descriptor and name of a durable file with `data`; the name is gone afterwards.

    With `newer_than_ns` the file's modification time is later than that. File systems stamp with the kernel's tick of
    some milliseconds, and two states of one object within a tick must not look the same.
    """
    name = f"{uuid.uuid4()}.part"  # not by `Ids`: no answer has it, and a seed used twice must not give it twice
    with open_folder(root, [TEMPORARY_FOLDER], key=TEMPORARY_FOLDER, create=True) as folder:
        try:
            _write_durably(folder, name, data, newer_than_ns)
            yield folder, name
        finally:
            # What stays is removed a day later; it must not turn an object that is in place into an error.
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)


@contextmanager
def exclusive(root: Path, key: str, clock: Clock) -> Iterator[None]:
    """Hold the lock of `key` among all threads and processes that use this root.

    The lock is a file that its holder keeps `flock`ed and unlinks at the end. A lock file that a killed process left
    is stale exactly when nobody holds it, which the kernel knows and no age limit can: it is simply taken over, while
    a paused holder is never robbed. Raises `NotWritten` after 30 seconds of waiting.
    """
    name = f"{hashlib.sha256(key.encode()).hexdigest()}.lock"
    with open_folder(root, [TEMPORARY_FOLDER], key=TEMPORARY_FOLDER, create=True) as folder:
        descriptor = _acquire(folder, name, key, clock)
        try:
            yield
        finally:
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)
            close(descriptor)


def remove_abandoned(root: Path, now_ms: int) -> int:
    """Remove what killed processes left in the temporary folder more than a day ago; return how many files.

    What cannot be removed stays. Raises `Unavailable` when the folder cannot be listed.
    """
    removed = 0
    with suppress(NotFound), open_folder(root, [TEMPORARY_FOLDER], key=TEMPORARY_FOLDER, create=False) as folder:
        for name in list_folder(folder, TEMPORARY_FOLDER):
            with suppress(OSError):
                age_ms = now_ms - os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime_ns // 1_000_000
                if name.endswith(".part") and age_ms > _ABANDONED_AFTER_MS:
                    os.unlink(name, dir_fd=folder)
                    removed += 1
    return removed


def _open_root(root: Path, key: str, *, create: bool) -> int:
    try:
        return os.open(root, _FOLDER)
    except FileNotFoundError as error:
        if not create:
            raise NotFound(f"{key}: no such object; {root} does not exist", key=key) from error
    except NotADirectoryError as error:
        raise InvalidInput(f"{root} is not a folder; name a folder as the root of the table", root=str(root)) from error
    except OSError as error:
        raise explained(error, None, str(root), key) from error
    root.mkdir(parents=True, exist_ok=True)
    return os.open(root, _FOLDER)


def _fsync_above(root: Path, descriptor: int) -> None:
    """Make the root's own name durable, and that of each folder above it that may be new."""
    device = os.fstat(descriptor).st_dev
    for each in root.parents:
        try:
            folder = os.open(each, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except PermissionError:
            if os.access(each, os.W_OK):
                raise
            return  # nobody makes a folder where they may not write
        try:
            if os.fstat(folder).st_dev != device:
                return  # below a mount point, which no put has made
            os.fsync(folder)
        finally:
            close(folder)


def _open_child(parent: int, segment: str, key: str, *, create: bool) -> tuple[int, bool]:
    """Return a descriptor of the folder, and whether it had to be made."""
    try:
        return os.open(segment, _FOLDER, dir_fd=parent), False
    except FileNotFoundError as error:
        if not create:
            raise NotFound(f"{key}: no such object", key=key) from error
    except OSError as error:
        raise explained(error, parent, segment, key) from error
    with suppress(FileExistsError):
        os.mkdir(segment, dir_fd=parent)
    try:
        return os.open(segment, _FOLDER, dir_fd=parent), True
    except OSError as error:
        raise explained(error, parent, segment, key) from error


def _write_durably(folder: int, name: str, data: bytes | memoryview, newer_than_ns: int | None) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o666, dir_fd=folder)
    try:
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        status = os.fstat(descriptor)
        if newer_than_ns is not None and status.st_mtime_ns <= newer_than_ns:
            os.utime(descriptor, ns=(status.st_atime_ns, newer_than_ns + 1))
        os.fsync(descriptor)
    finally:
        close(descriptor)


def _acquire(folder: int, name: str, key: str, clock: Clock) -> int:
    waited_ms = 0.0
    while True:
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=folder)
        try:
            if _locked(descriptor) and _still_named(descriptor, folder, name):
                return descriptor
        except BaseException:
            close(descriptor)
            raise
        close(descriptor)
        if waited_ms >= _LOCK_TIMEOUT_MS:
            raise NotWritten(f"{key}: another process has held its lock for 30 s; try again later", key=key)
        clock.sleep_ms(_LOCK_POLL_MS)
        waited_ms += _LOCK_POLL_MS


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _still_named(descriptor: int, folder: int, name: str) -> bool:
    # The holder before us unlinks the name: a lock on a file that has lost it excludes nobody.
    try:
        named = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return named.st_ino == os.fstat(descriptor).st_ino


def explained(error: OSError, folder: int | None, name: str, key: str) -> TidemarkError:
    """Return what the error of a system call about `name` in a folder means for the object `key`."""
    if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK) and _is_symlink(folder, name):
        return _symlink(key)
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENXIO):
        return NotFound(f"{key}: no such object", key=key)
    if error.errno == errno.ENAMETOOLONG:
        return InvalidInput(f"{key}: longer than this file system allows", key=key)
    return unavailable(key, error)


def _is_symlink(folder: int | None, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _symlink(key: str) -> InvalidInput:
    return InvalidInput(f"{key}: a symlink; the store follows none, replace it by what it points to", key=key)
