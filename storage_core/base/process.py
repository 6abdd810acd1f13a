"""The current process: its identity, locks, private folders and temporary files.

- **Identity**: a writer or lease belongs to the process that opened it. A writer or lease does not belong to a copy
  that fork() makes of this process (decision 0011). `HomeProcess` detects that a process is a copy made by fork().
- **Headroom**: `check_free_resources` runs before native code. `check_free_resources` checks that the system grants the
  files and the address space that the native code needs.
- **Private folders**: only this user can write to a private folder. The folders contain data that a process trusts
  later: programs, settings, tokens, cached bytes.
- **Temporary files**: only the function `scratch_folder` creates temporary files. Each temporary folder has a lock.
  With the lock, a later process can recognize and remove the folders of a killed process.
- **Lease holders**: `holder_of` returns a text that identifies the holder of a lease. With this text, other processes
  can recognize a dead holder.

The text of a lease holder is `<run>@<host>/<boot>/<process namespace>/<process id>/<start of the process>`. The holder
is dead if its process belonged to this machine and process namespace and no longer exists. Other processes then do not
wait until the lease of the dead holder expires. A process cannot check a holder on another machine or in another
namespace, so the lease of that holder must expire first. If the check gives a wrong result, work is repeated but no row
is lost. The log fences a holder that lost its lease.
"""

from __future__ import annotations

import fcntl
import functools
import mmap
import os
import shutil
import socket
import stat
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import ClassVar, Final

from storage_core.base.errors import CopiedProcess, Unavailable, cause, failure_of, named_file, typed
from storage_core.base.text import capitalized

# The identity of the process.


class _Forks:
    """The number of forks between the first process and this process.

    A process id alone does not identify a process, because the system may reuse the id.
    """

    # This state is mutable at module level, because it describes the process.
    numbers = count(1)
    seen = 0
    locks: ClassVar[weakref.WeakSet[OwnLock]] = weakref.WeakSet()

    @classmethod
    def note(cls) -> None:
        cls.seen = next(cls.numbers)
        for each in cls.locks:
            each.renew()


os.register_at_fork(after_in_child=_Forks.note)


class OwnLock:
    """A lock between the threads of one process.

    In a copy of the process by fork(), the lock is free, because the copy does not have the other threads.
    """

    def __init__(self) -> None:
        self.renew()
        _Forks.locks.add(self)

    def renew(self) -> None:
        """Replace the lock with a free lock. The holder of the old lock may be a thread that no longer exists."""
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        """Wait for the lock and take it."""
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        """Release the lock."""
        self._lock.release()


def _identity() -> tuple[int, int]:
    return os.getpid(), _Forks.seen


@dataclass(frozen=True, slots=True)
class HomeProcess:
    """The process in which this object was created.

    The comparison with the current process needs no lock and no request.
    """

    identity: tuple[int, int] = field(default_factory=_identity)

    @property
    def is_here(self) -> bool:
        """True if the current process created this object. False in a copy by fork()."""
        return self.identity == _identity()

    def require(self, what: str, advice: str) -> None:
        """Raise `CopiedProcess` for `what` unless the current process created this object."""
        if not self.is_here:
            raise CopiedProcess(
                f"{what} belongs to process {self.identity[0]}. This process {os.getpid()} is a copy of that "
                f"process, made by fork(). Nothing was done here. {capitalized(advice)}",
                expected=self.identity[0],
                found=os.getpid(),
            )


# Headroom for native code.

QUERY_BYTES: Final = 512 * 2**20
"""The address space that a query needs for its threads and their heaps, in bytes.

Besides this address space, every use of native code needs `_SIZE` bytes.
"""

_FILES = 8
_SIZE = 256 * 2**20


@contextmanager
def check_free_resources(subject: str, *, size: int = 0, reserved: int = 0) -> Iterator[None]:
    """Raise `Unavailable` before native code runs, if the system would refuse a resource that the code needs.

    DuckDB, Arrow, DataFusion and tantivy end the process if the system refuses a file, a thread or address space.
    Therefore this function first tests whether it can get the files and the address space, and releases them
    immediately. The function does not touch the requested memory, so it uses no memory page. The function does not
    request descriptors for data files, because the libraries report an error if they cannot open a data file. For
    errors inside the block, the function raises the same errors as `typed`.

    Args:
        subject: The name in the error.
        size: The additional bytes that the data needs.
        reserved: The bytes of address space that are reserved but mostly not used. They may exceed the machine's
            memory.
    """
    with typed(subject, with_file=True):
        _require(files=_FILES, size=_SIZE + size, reserved=reserved)
        yield


def _require(*, files: int, size: int, reserved: int) -> None:
    with (
        mmap.mmap(-1, size, access=mmap.ACCESS_COPY),
        # The mapping is private and not writable, so the system counts it as address space and not as memory.
        mmap.mmap(-1, max(1, reserved), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ),
    ):
        pass
    held: list[int] = []
    try:
        held.extend(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) for _ in range(files))
    finally:
        for each in held:
            os.close(each)


# Private folders.

_OF_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def make_folders(path: Path) -> None:
    """Create the folder and each missing parent with access for this user only, regardless of the umask."""
    missing = [each for each in (path, *path.parents) if not os.path.lexists(each)]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)


def private_folder(path: Path) -> Path:
    """Return the folder. Create the folder if it is missing. Raises the `Unavailable` errors of `require_private`."""
    try:
        make_folders(path)
    except OSError as error:
        raise Unavailable(f"the folder {path} cannot be made ({error.strerror}). Make the folder.") from error
    require_private(path)
    return path


def require_private(path: Path) -> None:
    """Raise `Unavailable` unless the file or folder belongs to this user or root, and only its owner can write.

    A symbolic link is refused, too.
    """
    try:
        found = path.lstat()
    except OSError as error:
        raise Unavailable(f"{path} cannot be read ({error.strerror}). Make the path readable for this user.") from error
    if stat.S_ISLNK(found.st_mode):
        raise Unavailable(f"{path} is a link, and its owner could change the target. Remove the link.")
    if found.st_uid not in (0, os.geteuid()):
        raise Unavailable(f"{path} belongs to another user. Remove the path, or choose another folder.")
    if found.st_mode & _OF_OTHERS:
        raise Unavailable(
            f"other users can write to {path}. Remove the path, or choose a folder that only this user can write to."
        )


def open_own(path: Path, flags: int) -> int:
    """Return a descriptor of the file. Create a missing file for this user only. Do not follow a symbolic link."""
    return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


# Temporary files.

_LOCKED = ".locked"
_OURS = "tidemark-"
"""The prefix of the names of all temporary folders."""


@contextmanager
def scratch(what: str) -> Iterator[None]:
    """Raise `Unavailable` if the system refuses an operation on temporary files.

    The error contains the folder of the temporary files, and explains how to choose another folder.
    """
    try:
        yield
    except (OSError, MemoryError) as error:
        failure = failure_of(error)
        found = f"{what} in the folder of temporary files: {cause(failure)}. To use another folder, set TMPDIR"
        raise Unavailable(found + named_file(failure), errno=failure.errno) from error


@contextmanager
def scratch_folder(what: str, parent: Path | None = None) -> Iterator[Path]:
    """Yield a new folder for this user only, and remove it at the end.

    The process has a lock on each of its folders. The kernel releases the locks when the process ends. The folders of a
    killed process remain on the disk. When a later process of the same user creates a folder in the same parent folder,
    the later process removes all unlocked folders.

    Args:
        what: A part of the folder's name.
        parent: The folder in which the new folder is created. None stands for the folder of temporary files.

    Raises:
        Unavailable: The folder cannot be created. If the folder cannot be removed, no error is raised.
    """
    path, lock = locked_folder(what, parent)
    home = HomeProcess()
    try:
        yield path
    finally:
        if home.is_here:  # after a fork(), the copied process keeps the folder
            _remove(path)
        os.close(lock)


def locked_folder(what: str, parent: Path | None = None) -> tuple[Path, int]:
    """Return a new folder and the lock of this folder. The folder has the properties of a `scratch_folder` folder.

    The lock is a file descriptor, which several processes may have. When all these processes have ended, the next
    process removes the folder.
    """
    with scratch("a folder"):
        place = tempfile.gettempdir() if parent is None else str(parent)
        _remove_abandoned_once(os.getpid(), place)
        return _made(f"{_OURS}{what}-", place)


def remove_abandoned(parent: Path | None = None) -> None:
    """Remove the folders of this user's killed processes from the temporary files, or from `parent`."""
    with suppress(OSError):
        _remove_abandoned(tempfile.gettempdir() if parent is None else str(parent))


def _made(prefix: str, place: str) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, suffix=_LOCKED, dir=place))  # 0700
        lock = _lock(path)
        if lock is not None:
            if path.exists():
                return path, lock
            os.close(lock)  # another process removed the folder just before this process locked it


@functools.lru_cache(maxsize=64)
def _remove_abandoned_once(process: int, folder: str) -> None:  # noqa: ARG001  # once per process
    with suppress(OSError):
        _remove_abandoned(folder)


def _remove_abandoned(folder: str) -> None:
    for path in Path(folder).glob(f"{_OURS}*????????{_LOCKED}"):
        with suppress(OSError):
            if path.lstat().st_uid == os.geteuid() and (lock := _lock(path)) is not None:
                _remove(path)
                os.close(lock)


def _remove(path: Path) -> None:
    """Remove the folder. Try again if a library's thread created a file in the folder at the same time.

    After tantivy has opened an index, a thread of tantivy reloads the index once. The reload creates a lock file.
    """
    for _ in range(2):
        if path.exists():
            shutil.rmtree(path, ignore_errors=True)


def _lock(folder: Path) -> int | None:
    """Return the descriptor that locks the folder.

    Return None if another process has the lock or the folder no longer exists.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return descriptor


# Lease holders.

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")
_ENDED = "ZX"  # states of an ended process whose parent has not yet read its exit status


def holder_of(run_id: str | None, process: int | None = None) -> str:
    """Return the text of a lease holder.

    The text identifies the run and a process of this machine. By default, the process is the current process.
    """
    number = os.getpid() if process is None else process
    return f"{run_id or 'by hand'}@{_place()}/{number}/{_start_of(number)}"


def is_dead(holder: str) -> bool:
    """Return True if the holder was a process of this machine and has ended.

    Return False if the function cannot determine whether the holder has ended.
    """
    place, _, started = holder.rpartition("@")[2].rpartition("/")
    place, _, process = place.rpartition("/")
    return bool(started) and process.isdecimal() and place == _place() and _start_of(int(process)) != started


def process_in(holder: str) -> str:
    """Return a readable text with the process and the machine of a holder."""
    host, *_, process, _ = holder.rpartition("@")[2].split("/")
    return f"process {process} on {host}"


def _place() -> str:
    """Return the host, its boot id, and the process namespace."""
    try:
        return f"{socket.gethostname()}/{_BOOT_ID.read_text().strip()}/{_NAMESPACE.readlink()}"
    except OSError:
        return f"{socket.gethostname()}/unknown/unknown"


def _start_of(process: int) -> str:
    """Return the time at which a process started, in ticks since the machine started.

    The result is empty if the process does not exist or the system does not report the time.
    """
    try:
        # The process name is in brackets and may contain any character. After the name, field 1 is the state and field
        # 20 is the start time.
        after_name = Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return "" if after_name[0] in _ENDED else after_name[19]
    except (OSError, IndexError):
        return ""
