"""The object store contract on a directory of a local file system (docs/architecture/object-store.md).

Each call of the contract is here; what it does to files is in `local_files`, what lists them in `local_listing`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import assert_never

from storage_core.clock import Clock, SystemClock
from storage_core.errors import Corrupt, InvalidInput, NotFound, NotWritten, Unavailable
from storage_core.objectstore.contract import (
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
)
from storage_core.objectstore.key_safety import check_key, check_prefix, check_range
from storage_core.objectstore.local_files import (
    exclusive,
    open_folder,
    open_object,
    remove_abandoned,
    stat_object,
    temporary_file,
)
from storage_core.objectstore.local_listing import etag_of, object_info, walk
from storage_core.system_errors import REFUSED, not_written, typed, unavailable


@dataclass(slots=True)
class _Attempt:
    """One put. `in_doubt` says that what fails now leaves open what is at the key after a loss of power."""

    in_doubt: bool = False

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """Run the system call that puts the object in place: from there on there is doubt, unless it was refused."""
        self.in_doubt = True
        try:
            yield
        except OSError as error:
            self.in_doubt = error.errno not in REFUSED
            raise

    def conflict(self, folder: int) -> Conflict:
        """Return that something else is there, once that is durable: it may be ours, of an attempt before."""
        self.in_doubt = True
        os.fsync(folder)
        return Conflict()


class LocalStore:
    """A directory as an object store; safe for any number of threads and processes of one machine.

    Create-only is `link()` of a finished, fsynced file, which fails when the name exists. Compare-and-swap compares and
    renames under a lock file. A reader therefore sees whole objects only. Nothing is created before the first put.
    No symlink below the root is followed: `InvalidInput`. Emptied folders stay; they hold no object.
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
        """Return the whole object and the ETag of exactly these bytes. Raises `NotFound`, `Corrupt` when cut short."""
        with self._opened(key) as (descriptor, status):
            return Blob(_read(descriptor, 0, status.st_size, key), etag_of(status))

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return bytes `start` to `end` (exclusive). Raises `NotFound`; `Corrupt` when the object is shorter."""
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
        """Write one object; `Committed` means that file and folders are fsynced, `Conflict` that the folders are.

        Raises `NotWritten` when the system refuses before the object is in place (full disk, permissions); a failure
        after that, which only the last fsync can meet, is `OutcomeUnknown`.
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
            raise InvalidInput(f"{key}: an object has the name of one of its folders", key=key) from error
        except NotWritten:
            raise
        except Unavailable as error:
            raise NotWritten(f"{error.found}; nothing was written", **error.context) from error
        except (OSError, MemoryError) as error:
            if attempt.in_doubt:
                return OutcomeUnknown(f"what is in place could not be made durable: {unavailable(key, error).found}")
            raise not_written(key, error) from error

    def make_durable(self, key: str) -> None:
        """Fsync the folder of the object, and those above it that were not yet. Raises `Unavailable`."""
        folder_segments, _ = _split(key)
        with (
            suppress(NotFound),
            typed(key),
            open_folder(self._root, folder_segments, key=key, create=False, durable=self._durable_folders) as folder,
        ):
            os.fsync(folder)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield the objects whose key starts with `prefix`; temporary files, locks and symlinks are not objects."""
        found = walk(self._root, "", check_prefix(prefix), start_after or "")
        return (each for each in found if isinstance(each, ObjectInfo))

    def browse(self) -> Iterator[ObjectInfo | Unnamed]:
        """Yield every object, and all that is none: odd names, symlinks, pipes, sockets, devices. None is opened."""
        return walk(self._root, "", "", "")

    def delete(self, keys: Sequence[str]) -> Mapping[str, str | None]:
        """Delete objects, durably, with one fsync per folder; an illegal key raises `InvalidInput` before all that."""
        folders = {key: tuple(_split(key)[0]) for key in keys}
        failed = {key: self._delete(key) for key in keys}
        unsettled = {folder: self._fsync_folder(folder) for folder in set(folders.values())}
        return {key: failed[key] or unsettled[folders[key]] for key in keys}

    def local_path(self, key: str) -> Path | None:
        """Return the object's own file; None when there is no such object. Raises `InvalidInput` for a symlink."""
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
        """Make it durable that names have gone, also those that were gone before: an earlier fsync may have failed."""
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
