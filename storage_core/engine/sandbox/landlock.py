"""No right to write: Linux keeps a process from writing, whatever runs in it (Landlock)."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # on every architecture
_ASK_VERSION, _PATH_BENEATH, _NO_NEW_PRIVILEGES = 1, 1, 38
# write, remove (folder, file), make (device, folder, file, socket, pipe, block device, link); then refer and truncate
_WRITING = 1 << 1 | sum(1 << bit for bit in range(4, 13))
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_TCP = 0b11


def give_up_writing(writable: Path) -> None:
    """Give up, for this thread and those that it starts, all writing but beneath `writable`. Raises `OSError`.

    Call it before any other thread starts.
    """
    version = _version()
    if version < 1:
        return
    rights = _WRITING | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    # The records grew with the versions of the kernel, which takes the length of what it knows.
    handled = struct.pack("=QQ", rights, _TCP) if version >= 4 else struct.pack("=Q", rights)
    rules = _call(_CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), 0)
    try:
        _allow_below(rules, rights, writable)
        if _libc().prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
        _call(_RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)


def _allow_below(rules: int, rights: int, writable: Path) -> None:
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
