"""A thread that cannot write: the last hedge around a query, kept by the operating system, not by DuckDB.

DuckDB has one permission for a file, to read and to write it, and no mode in which it does not write. On Linux a thread
may give up rights for itself and every thread that it starts (Landlock): a session that is opened and asked in such a
thread can make, change or remove no file outside the folder it spills to, and reach no TCP port, whatever text it runs.
Elsewhere `statement` alone stands before it (decision 0083).
"""

from __future__ import annotations

import ctypes
import math
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from storage_core.errors import Unavailable

if TYPE_CHECKING:
    import duckdb

T = TypeVar("T")

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # on every architecture
_ASK_VERSION, _PATH_BENEATH, _NO_NEW_PRIVILEGES = 1, 1, 38
# write, remove (folder, file), make (device, folder, file, socket, pipe, block device, link); then refer and truncate
_WRITING = 1 << 1 | sum(1 << bit for bit in range(4, 13))
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_TCP = 0b11
_SLICE_SECONDS = 0.25


def run_confined(
    opened: Callable[[], AbstractContextManager[duckdb.DuckDBPyConnection]],
    ask: Callable[[duckdb.DuckDBPyConnection], T],
    *,
    writable: Path | None = None,
    seconds: float | None = None,
) -> T:
    """Return what `ask` returns of the session that `opened` opens, in a thread that writes beneath `writable` only.

    Their errors are raised here. An exception that arrives while they run, such as Ctrl-C, interrupts the query, and so
    does the end of its time, which DuckDB's own limit does not count while it plans: then the error is DuckDB's of an
    interrupted query. One call of a function over one batch of rows hears no interrupt.
    """
    import duckdb

    done: Future[T] = Future()
    given_up = threading.Event()
    ended = threading.Event()  # not join(), which takes a running thread for ended when it is interrupted
    running: list[duckdb.DuckDBPyConnection] = []

    def run() -> None:
        try:
            try:
                _give_up_writing(writable)
            except OSError as error:
                raise Unavailable(f"this system keeps no thread from writing: {error}; see decision 0083") from error
            with opened() as connection:
                running.append(connection)
                _require_wanted(given_up)
                done.set_result(ask(connection))
        except BaseException as error:  # noqa: BLE001  # raised again where the answer is waited for
            done.set_exception(error)
        finally:
            ended.set()

    thread = threading.Thread(target=run, name="tidemark-query")  # no daemon: a process waits for it as it ends
    until = time.monotonic() + (math.inf if seconds is None else seconds)
    try:
        thread.start()  # which may be interrupted itself, before the thread has begun
        # In slices: a signal that arrives just before the wait begins does not wake it, and is only heard after it.
        while (left := until - time.monotonic()) > 0 and not ended.wait(min(left, _SLICE_SECONDS)):
            pass
    finally:
        given_up.set()
        # Again and again: an interrupt before the query has begun says nothing to it.
        while thread.ident is not None and not ended.is_set():
            for connection in running:
                with suppress(duckdb.ConnectionException):  # it has just ended and is closed
                    connection.interrupt()
            ended.wait(0.05)
    return done.result()


def can_be_kept() -> bool:
    """Whether this system lets a thread give up its rights."""
    return _version() > 0


def _require_wanted(given_up: threading.Event) -> None:
    import duckdb

    if given_up.is_set():
        raise duckdb.InterruptException("INTERRUPT Error: its time was over before the query began")


def _give_up_writing(writable: Path | None) -> None:
    version = _version()
    if version < 1:
        return
    rights = _WRITING | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    # The records grew with the versions of the kernel, which takes the length of what it knows.
    handled = struct.pack("=QQ", rights, _TCP) if version >= 4 else struct.pack("=Q", rights)
    rules = _call(_CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), 0)
    try:
        if writable is not None:
            _keep(rules, rights, writable)
        if _libc().prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
        _call(_RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)


def _keep(rules: int, rights: int, writable: Path) -> None:
    folder = os.open(writable, os.O_PATH | os.O_CLOEXEC)
    try:
        _call(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", rights, folder), 0)
    finally:
        os.close(folder)


def _version() -> int:
    """The version of Landlock that the kernel speaks; 0 or less where there is none."""
    if sys.platform != "linux":
        return 0
    return int(_libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _ASK_VERSION))


def _call(number: int, *arguments: object) -> int:
    found = int(_libc().syscall(number, *arguments))
    if found < 0:
        raise OSError(ctypes.get_errno(), f"system call {number}: {os.strerror(ctypes.get_errno())}")
    return found


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
