"""What lies in a directory of a local file system, as the objects of a store."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from storage_core.errors import InvalidInput, NotFound
from storage_core.objectstore.contract import ObjectInfo, Unnamed
from storage_core.objectstore.key_safety import TEMPORARY_FOLDER, is_safe_key, why_unsafe
from storage_core.objectstore.local_files import list_folder, open_folder, what_lies


def walk(root: Path, folder_key: str, prefix: str, start_after: str) -> Iterator[ObjectInfo | Unnamed]:
    """Yield what is in a folder (its key, ending in `/`; empty for the root) and below it, as `LocalStore.browse` does.

    Only what may be listed by this prefix behind `start_after`. Nothing is opened but folders.
    """
    folders: list[str] = []
    segments = folder_key.split("/")[:-1]
    with suppress(NotFound), open_folder(root, segments, key=folder_key, create=False) as folder:
        for name in sorted(list_folder(folder, folder_key)):
            key, inside = folder_key + name, folder_key + name + "/"
            is_requested = key.startswith(prefix) and key > start_after
            # Every key of a folder starts with `inside`: smaller than `start_after` unless that is in it or before.
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
    """Return the metadata of an object from that of its file."""
    return ObjectInfo(key, status.st_size, etag_of(status), status.st_mtime_ns // 1_000_000)


def etag_of(status: os.stat_result) -> str:
    """Return the ETag of a file: it changes with every put."""
    return f"{status.st_mtime_ns:x}-{status.st_ino:x}-{status.st_size:x}"


def _no_object(status: os.stat_result) -> str | None:
    """What a name stands for that is neither a regular file nor a folder."""
    kind = stat.S_IFMT(status.st_mode)
    if kind in (stat.S_IFREG, stat.S_IFDIR):
        return None
    return "it is a symlink, and none is followed" if kind == stat.S_IFLNK else "it is no regular file"
