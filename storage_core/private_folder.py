"""Folders of this user alone, for what a process believes later: programs, settings, tokens, cached bytes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from storage_core.errors import Unavailable

_OF_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def make_folders(path: Path) -> None:
    """Make the folder, and each above it that is missing, for this user alone under any umask."""
    missing = [each for each in (path, *path.parents) if not os.path.lexists(each)]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)


def private_folder(path: Path) -> Path:
    """Return the folder, made where it is missing. Raises `Unavailable` as `require_private` does."""
    try:
        make_folders(path)
    except OSError as error:
        raise Unavailable(f"the folder {path} cannot be made ({error.strerror}). Make the folder.") from error
    require_private(path)
    return path


def require_private(path: Path) -> None:
    """Raise `Unavailable` for a link, and unless the file or folder is of this user or root, who alone may write."""
    try:
        found = path.lstat()
    except OSError as error:
        raise Unavailable(f"{path} cannot be read ({error.strerror}). Make it readable for this user.") from error
    if stat.S_ISLNK(found.st_mode):
        raise Unavailable(f"{path} is a link, which its maker may turn. Remove the link.")
    if found.st_uid not in (0, os.geteuid()):
        raise Unavailable(f"{path} belongs to another user. Remove it, or choose another folder.")
    if found.st_mode & _OF_OTHERS:
        raise Unavailable(f"other users may write to {path}. Remove it, or choose a folder of this user alone.")


def open_own(path: Path, flags: int) -> int:
    """Return a descriptor of the file, made for this user alone where it is missing. A link is not followed."""
    return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
