"""What may name an object in any store, checked before the first request (lessons 80 and 81)."""

from __future__ import annotations

import re

from storage_core.errors import InvalidInput

TEMPORARY_FOLDER = ".tmp"

_MAX_KEY_BYTES = 1024
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\\\\\ud800-\udfff]")


def check_key(key: str) -> str:
    """Return `key` when it names an object inside the root.

    Raises `InvalidInput` for the empty key, an absolute one, empty segments, `.` and `..`, control characters,
    backslashes, lone surrogates, more than 1,024 bytes, and the store's own temporary folder.
    """
    if not is_safe_key(key):
        raise InvalidInput(f"{key!r} cannot name an object: keys are relative paths inside the table", key=key)
    return key


def check_prefix(prefix: str) -> str:
    """Return `prefix` when keys can start with it; it may be empty and may end anywhere. Raises `InvalidInput`."""
    complete = prefix == "" or is_safe_key(prefix + "x")
    if not complete or ".." in prefix.split("/"):
        raise InvalidInput(f"{prefix!r} cannot start a key: keys are relative paths inside the table", prefix=prefix)
    return prefix


def check_range(key: str, start: int, end: int) -> None:
    """Return when `start` to `end` is a range of bytes. Raises `InvalidInput`."""
    if start < 0 or end < start:
        raise InvalidInput(f"{key}: {start} to {end} is not a range of bytes", key=key, start=start, end=end)


def is_safe_key(key: str) -> bool:
    """Return whether `check_key` accepts the key."""
    segments = key.split("/")
    if any(segment in ("", ".", "..") for segment in segments) or segments[0] == TEMPORARY_FOLDER:
        return False
    return not _FORBIDDEN.search(key) and len(key.encode()) <= _MAX_KEY_BYTES


def why_unsafe(key: str) -> str:
    """Return what keeps a name, which `is_safe_key` refuses, from being a key."""
    if re.search("[\ud800-\udfff]", key):
        return "its name is not UTF-8"
    if len(key.encode()) > _MAX_KEY_BYTES:
        return f"its name is longer than {_MAX_KEY_BYTES} bytes"
    if "\\" in key:
        return "its name has a backslash in it"
    return "its name has a control character in it" if _FORBIDDEN.search(key) else "its name is no relative path"
