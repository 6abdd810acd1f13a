"""An object store in a directory of a local file system (docs/architecture/object-store.md).

`LocalStore` implements the contract. The functions before this class are the file system operations that the class
uses.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import uuid
from collections.abc import Iterator, Mapping, MutableSet, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import assert_never

from storage_core.base.clock import Clock, SystemClock
from storage_core.base.errors import (
    REFUSED,
    Corrupt,
    InvalidInput,
    NotFound,
    NotWritten,
    TidemarkError,
    Unavailable,
    not_written,
    typed,
    unavailable,
)
from storage_core.store.contract import (
    TEMPORARY_FOLDER,
    Blob,
    Committed,
    Conflict,
    IfAbsent,
    IfMatch,
    ObjectInfo,
    OutcomeUnknown,
    Overwrite,
    PutMode,
    PutResult,
    Unnamed,
    check_key,
    check_prefix,
    check_range,
    is_safe_key,
    why_unsafe,
)

# File system operations of the local store. The operations follow no symlink. The operations report an object as
# durable only after an fsync.
#
# Every path is opened segment by segment, relative to the parent folder, with O_NOFOLLOW. So a symlink anywhere below
# the root is refused. The path is refused even if somebody replaces a folder with a symlink between the check and the
# use of the folder.


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_LOCK_TIMEOUT_MS = 30_000
_LOCK_POLL_MS = 2.0
_ABANDONED_AFTER_MS = 24 * 3600 * 1000


DurableFolders = MutableSet[tuple[str, ...]]
"""A set of folders, each as the segments of its path.

The names of these folders and of all their parent folders are durable.
"""


@contextmanager
def open_folder(
    root: Path, segments: Sequence[str], *, key: str, create: bool, durable: DurableFolders | None = None
) -> Iterator[int]:
    """Yield a descriptor of the folder `segments` below `root`. With `create`, missing folders are created.

    Args:
        durable: The folders that are known to be durable. If given, the names of the folder and of all its parents are
            made durable. This includes names that already existed, because an earlier process may have failed to make
            them durable. Each folder costs one fsync of its parent, once. The root also costs one fsync per parent
            folder.

    Raises:
        NotFound: A folder is missing, or a file has its name. The error names `key`.
        InvalidInput: A folder is a symlink.
        Unavailable: The system refuses.
        OSError: An fsync failed.
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

    Raises `NotFound`, `InvalidInput` for a symlink, and `Unavailable` if the system refuses to open the file.
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
    """Close the descriptor and ignore errors, because durable data was already fsynced."""
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
    """Return the metadata of any object with this name, or None if there is no such object. Raises `Unavailable`.

    For a symlink, the result is the metadata of the link itself.
    """
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unavailable(key, error) from error


def list_folder(folder: int, key: str) -> list[str]:
    """Return the names in the folder, in any order. Raises `Unavailable` for `key`."""
    with typed(key or "."):
        return os.listdir(folder)


@contextmanager
def temporary_file(root: Path, data: bytes | memoryview, newer_than_ns: int | None = None) -> Iterator[tuple[int, str]]:
    """Yield the folder descriptor and the name of a durable file with `data`.

    The name is removed at the end of the block.

    Args:
        newer_than_ns: If given, the file's modification time is later than this time. File systems round times to ticks
            of some milliseconds, but two states of an object must have different times.
    """
    # The name does not come from `Ids`, because `Ids` with the same seed would return the same name again. No result
    # contains the name.
    name = f"{uuid.uuid4()}.part"
    with open_folder(root, [TEMPORARY_FOLDER], key=TEMPORARY_FOLDER, create=True) as folder:
        try:
            _write_durably(folder, name, data, newer_than_ns)
            yield folder, name
        finally:
            # If the file remains, it is removed a day later. A failed removal must not turn a successful put into an
            # error.
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)


@contextmanager
def exclusive(root: Path, key: str, clock: Clock) -> Iterator[None]:
    """Hold the lock of `key`. The lock excludes all other threads and processes that use this root.

    The lock is a file that its holder locks with `flock` and unlinks at the end. The kernel releases the lock of a dead
    process, so another process can then take the lock file over. The kernel never releases the lock of a paused
    process. A lock with an age limit could be taken from a paused holder. Raises `NotWritten` after 30 seconds of
    waiting.
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
    """Remove files of killed processes from the temporary folder after one day. Return the number of removed files.

    A file that cannot be removed stays. Raises `Unavailable` if the folder cannot be listed.
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


def not_a_folder(root: Path) -> InvalidInput:
    """Return the error for a store whose location is a file."""
    return InvalidInput(f"{root} is not a folder. Give the location of a folder", root=str(root))


def _open_root(root: Path, key: str, *, create: bool) -> int:
    try:
        return os.open(root, _FOLDER)
    except FileNotFoundError as error:
        if not create:
            raise NotFound(f"{key}: no such object, because {root} does not exist", key=key) from error
    except NotADirectoryError as error:
        raise not_a_folder(root) from error
    except OSError as error:
        raise explained(error, None, str(root), key or str(root)) from error
    root.mkdir(parents=True, exist_ok=True)
    return os.open(root, _FOLDER)


def _fsync_above(root: Path, descriptor: int) -> None:
    """Make the names of the root and of its parent folders durable. The function skips folders that existed before."""
    device = os.fstat(descriptor).st_dev
    for each in root.parents:
        try:
            folder = os.open(each, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except PermissionError:
            if os.access(each, os.W_OK):
                raise
            return  # Without write permission in the parent folder, the process cannot have created a folder there.
        try:
            if os.fstat(folder).st_dev != device:
                return  # The folder below is a mount point on another device, and a put creates no mount points.
            os.fsync(folder)
        finally:
            close(folder)


def _open_child(parent: int, segment: str, key: str, *, create: bool) -> tuple[int, bool]:
    """Return a descriptor of the folder, and whether it was created."""
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
            raise NotWritten(f"{key}: another process has held its lock for 30 s. Try again later", key=key)
        clock.sleep_ms(_LOCK_POLL_MS)
        waited_ms += _LOCK_POLL_MS


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _still_named(descriptor: int, folder: int, name: str) -> bool:
    # The previous holder has unlinked the file. A lock on a file without a name does not exclude other processes.
    try:
        named = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return named.st_ino == os.fstat(descriptor).st_ino


def explained(error: OSError, folder: int | None, name: str, key: str) -> TidemarkError:
    """Return the error for the object `key` after a failed system call on `name` in a folder."""
    if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK) and _is_symlink(folder, name):
        return _symlink(key)
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENXIO):
        return NotFound(f"{key}: no such object", key=key)
    if error.errno == errno.ENAMETOOLONG:
        return InvalidInput(f"{key}: the name is longer than this file system allows. Use a shorter name", key=key)
    return unavailable(key, error)


def _is_symlink(folder: int | None, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _symlink(key: str) -> InvalidInput:
    return InvalidInput(
        f"{key}: is a symlink, which the store does not follow. Replace the symlink by its target", key=key
    )


@dataclass(slots=True)
class _Attempt:
    """The state of one put.

    Attributes:
        in_doubt: If the process fails now, the content of the key after a power failure is unknown.
    """

    in_doubt: bool = False

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """Run the system call that puts the object in place.

        After this call, the put is in doubt, unless the system refuses the call.
        """
        self.in_doubt = True
        try:
            yield
        except OSError as error:
            self.in_doubt = error.errno not in REFUSED
            raise

    def conflict(self, folder: int) -> Conflict:
        """Make the existing object durable, and return a conflict.

        The object may come from an earlier attempt of this put.
        """
        self.in_doubt = True
        os.fsync(folder)
        return Conflict()


class LocalStore:
    """A directory as an object store. Safe for any number of threads and processes on one machine.

    A create-only put calls `link()` on a complete, fsynced file. The call fails if the name exists. Compare-and-swap
    compares and renames while it holds a lock file. So a reader sees only whole objects. Nothing is created before the
    first put. A symlink below the root is never followed, and raises `InvalidInput`. Empty folders are not removed, and
    do not count as objects.
    """

    def __init__(self, root: str | Path, *, clock: Clock | None = None) -> None:
        self._root = Path(root).resolve()
        self._clock = clock or SystemClock()
        self._tidied = False
        self._durable_folders: set[tuple[str, ...]] = set()

    @property
    def uri(self) -> str:
        """The `file://` URI of the root, without a trailing slash."""
        return self._root.as_uri()

    def get(self, key: str) -> Blob:
        """Return the whole object, with the ETag of exactly these bytes.

        Raises `NotFound`, or `Corrupt` if the file is shortened during the read.
        """
        with self._opened(key) as (descriptor, status):
            return Blob(_read(descriptor, 0, status.st_size, key), etag_of(status))

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return bytes `start` to `end` (exclusive). Raises `NotFound`, or `Corrupt` if the object is shorter."""
        check_range(key, start, end)
        with self._opened(key) as (descriptor, _):
            return _read(descriptor, start, end - start, key)

    def head(self, key: str) -> ObjectInfo:
        """Return the metadata of the object. Raises `NotFound`."""
        folder_segments, name = _split(key)
        with open_folder(self._root, folder_segments, key=key, create=False) as folder:
            found = object_info(key, stat_object(folder, name, key))
        return replace(found, age_ms=self._clock.now_ms() - found.last_modified_ms)

    def put(self, key: str, data: bytes | memoryview, mode: PutMode) -> PutResult:
        """Write one object.

        `Committed` means that the file and its folders are fsynced. `Conflict` means that the folders are fsynced.

        Raises `NotWritten` if the system refuses before the object is in place, for example because the disk is full.
        After that, only the last fsync can fail, and the result is then `OutcomeUnknown`.
        """
        folder_segments, _ = _split(key)
        attempt = _Attempt()
        try:
            self._tidy()
            with open_folder(
                self._root, folder_segments, key=key, create=True, durable=self._durable_folders
            ) as folder:
                match mode:
                    case IfAbsent():
                        return self._create(folder, key, data, attempt)
                    case IfMatch(etag):
                        with exclusive(self._root, key, self._clock):
                            return self._replace(folder, key, data, attempt, expected=etag)
                    case Overwrite():
                        with exclusive(self._root, key, self._clock):
                            return self._replace(folder, key, data, attempt, expected=None)
                    case _:
                        assert_never(mode)
        except NotFound as error:
            raise InvalidInput(
                f"{key}: one of its folders has the name of an existing object. Rename one of them", key=key
            ) from error
        except NotWritten:
            raise
        except Unavailable as error:
            raise NotWritten(f"{error.found}. Nothing was written", **error.context) from error
        except (OSError, MemoryError) as error:
            if attempt.in_doubt:
                return OutcomeUnknown(
                    f"the object was written, but is perhaps not durable: {unavailable(key, error).found}"
                )
            failed = not_written(f"{key} in {self.uri}", error)
            raise failed.reworded(failed.found, key=key) from error

    def make_durable(self, key: str) -> None:
        """Fsync the folder of the object, and the parent folders that are not yet durable. Raises `Unavailable`."""
        folder_segments, _ = _split(key)
        with (
            suppress(NotFound),
            typed(key),
            open_folder(self._root, folder_segments, key=key, create=False, durable=self._durable_folders) as folder,
        ):
            os.fsync(folder)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield the objects whose key starts with `prefix`. Temporary files, locks and symlinks are not objects."""
        found = walk(self._root, "", check_prefix(prefix), start_after or "")
        return (each for each in found if isinstance(each, ObjectInfo))

    def browse(self) -> Iterator[ObjectInfo | Unnamed]:
        """Yield every object and every other entry: invalid names, symlinks, pipes, sockets and devices.

        Nothing is opened.
        """
        return walk(self._root, "", "", "")

    def delete(self, keys: Sequence[str]) -> Mapping[str, str | None]:
        """Delete objects durably, with one fsync per folder.

        An invalid key raises `InvalidInput` before anything is deleted.
        """
        folders = {key: tuple(_split(key)[0]) for key in keys}
        failed = {key: self._delete(key) for key in keys}
        unsettled = {folder: self._fsync_folder(folder) for folder in set(folders.values())}
        return {key: failed[key] or unsettled[folders[key]] for key in keys}

    def local_path(self, key: str) -> Path | None:
        """Return the object's own file, or None if the object does not exist. Raises `InvalidInput` for a symlink."""
        try:
            self.head(key)
        except NotFound:
            return None
        return self._root / key

    @contextmanager
    def _opened(self, key: str) -> Iterator[tuple[int, os.stat_result]]:
        folder_segments, name = _split(key)
        with (
            typed(key),
            open_folder(self._root, folder_segments, key=key, create=False) as folder,
            open_object(folder, name, key) as found,
        ):
            yield found

    def _create(self, folder: int, key: str, data: bytes | memoryview, attempt: _Attempt) -> PutResult:
        name = key.rsplit("/", 1)[-1]
        with suppress(NotFound):
            stat_object(folder, name, key)
            return attempt.conflict(folder)
        with temporary_file(self._root, data) as (source, temporary):
            etag = etag_of(os.stat(temporary, dir_fd=source))
            try:
                with attempt.deciding():
                    os.link(temporary, name, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
            except FileExistsError:
                return attempt.conflict(folder)
            os.fsync(folder)
            return Committed(etag)

    def _replace(
        self, folder: int, key: str, data: bytes | memoryview, attempt: _Attempt, *, expected: str | None
    ) -> PutResult:
        name = key.rsplit("/", 1)[-1]
        try:
            status: os.stat_result | None = stat_object(folder, name, key)
        except NotFound:
            if expected is not None:
                return Conflict()
            status = None
        if status is not None and expected is not None and etag_of(status) != expected:
            return attempt.conflict(folder)
        with temporary_file(self._root, data, status.st_mtime_ns if status else None) as (source, temporary):
            etag = etag_of(os.stat(temporary, dir_fd=source))
            with attempt.deciding():
                os.rename(temporary, name, src_dir_fd=source, dst_dir_fd=folder)
            os.fsync(folder)
            return Committed(etag)

    def _delete(self, key: str) -> str | None:
        folder_segments, name = _split(key)
        try:
            with typed(key), open_folder(self._root, folder_segments, key=key, create=False) as folder:
                stat_object(folder, name, key)
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)
        except NotFound:
            return None
        except (InvalidInput, Unavailable) as error:
            return str(error)
        return None

    def _fsync_folder(self, segments: tuple[str, ...]) -> str | None:
        """Make the removal of names from a folder durable. The function also covers earlier removals, because an
        earlier fsync may have failed.
        """
        key = "/".join(segments) or "."
        try:
            with suppress(NotFound), typed(key), open_folder(self._root, segments, key=key, create=False) as folder:
                os.fsync(folder)
        except (InvalidInput, Unavailable) as error:
            return str(error)
        return None

    def _tidy(self) -> None:
        if not self._tidied:
            self._tidied = True
            remove_abandoned(self._root, self._clock.now_ms())


def _split(key: str) -> tuple[list[str], str]:
    *folders, name = check_key(key).split("/")
    return folders, name


def _read(descriptor: int, start: int, length: int, key: str) -> bytes:
    chunks: list[bytes] = []
    position, end = start, start + length
    while position < end and (chunk := os.pread(descriptor, end - position, position)):
        chunks.append(chunk)
        position += len(chunk)
    if position < end:
        raise Corrupt(f"{key}: expected bytes {start} to {end}, the object ends at {position}", key=key)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def walk(root: Path, folder_key: str, prefix: str, start_after: str) -> Iterator[ObjectInfo | Unnamed]:
    """Yield the content of a folder and its subfolders, like `LocalStore.browse`. The function opens only folders.

    Args:
        folder_key: The key of the folder with a final `/`, or empty for the root.
        prefix: Only objects whose key starts with this prefix are returned.
        start_after: Only objects whose key is greater than this key are returned.
    """
    folders: list[str] = []
    segments = folder_key.split("/")[:-1]
    with suppress(NotFound), open_folder(root, segments, key=folder_key, create=False) as folder:
        for name in sorted(list_folder(folder, folder_key)):
            key, inside = folder_key + name, folder_key + name + "/"
            is_requested = key.startswith(prefix) and key > start_after
            # Every key in the folder starts with `inside`. Suppose that `start_after` sorts after `inside` and does not
            # start with `inside`. Under these two conditions, all keys in the folder are smaller than `start_after`.
            may_hold = (inside.startswith(prefix) or prefix.startswith(inside)) and (
                inside > start_after or start_after.startswith(inside)
            )
            if key == TEMPORARY_FOLDER or not (is_requested or may_hold):
                continue
            status = what_lies(folder, name, key)
            if status is None:
                continue
            reason = _no_object(status) if is_safe_key(key) else why_unsafe(key)
            if reason is not None:
                yield Unnamed(key, reason, may_hold_more=not stat.S_ISREG(status.st_mode))
            elif not stat.S_ISDIR(status.st_mode):
                if is_requested:
                    yield object_info(key, status)
            elif may_hold:
                folders.append(inside)
    for inside in folders:
        with suppress(InvalidInput):
            yield from walk(root, inside, prefix, start_after)


def object_info(key: str, status: os.stat_result) -> ObjectInfo:
    """Return the metadata of an object from the metadata of its file."""
    return ObjectInfo(key, status.st_size, etag_of(status), status.st_mtime_ns // 1_000_000)


def etag_of(status: os.stat_result) -> str:
    """Return the ETag of a file, which changes with every put."""
    return f"{status.st_mtime_ns:x}-{status.st_ino:x}-{status.st_size:x}"


def _no_object(status: os.stat_result) -> str | None:
    """Return the reason why an entry is not an object. Return None for a regular file or a folder."""
    kind = stat.S_IFMT(status.st_mode)
    if kind in (stat.S_IFREG, stat.S_IFDIR):
        return None
    return "the path is a symlink, which is not followed" if kind == stat.S_IFLNK else "the path is not a regular file"
