"""Which paths a log entry may name: keys inside the table, spelled so that nobody can read them as anything else.

Design lessons 80 and 82. A path that fails here is refused before any store, file system or URL sees it.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

from storage_core.objectstore.key_safety import is_safe_key

MAX_LENGTH = 1024
# What nearly every path looks like; it needs no closer look.
PLAIN_PATH = r"[A-Za-z0-9_=-][A-Za-z0-9_.=-]*(?:/[A-Za-z0-9_=-][A-Za-z0-9_.=-]*)*"

# The first segment of what a table consists of besides its splits and segments.
MACHINERY = frozenset({"_transaction_log", "_mem_wal", "_gc", "_tags.json", "_probe", "_locks", "quarantine"})

_PLAIN = re.compile(PLAIN_PATH, re.ASCII)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:", re.ASCII)


def is_safe_path(path: str) -> bool:
    """Tell whether a path from a log entry stays inside the table and is printable.

    Refused, beside what no store takes as a key (`..`, absolute, empty segments, control characters, backslashes, lone
    surrogates, more than 1,024 bytes): a scheme or drive (`s3:`, `file:`, `C:`), and text that leaves the table once
    somebody decodes its percent signs, however often. Other percent signs are legal: partition folders have them.
    """
    if _PLAIN.fullmatch(path):
        return len(path) <= MAX_LENGTH
    return path.isprintable() and is_safe_key(path) and not _SCHEME.match(path) and _stays_inside_decoded(path)


def is_data_path(path: str) -> bool:
    """Tell whether a path may name a split or a segment: a safe one that is no file of the table's own machinery."""
    return is_safe_path(path) and path.partition("/")[0] not in MACHINERY


def _stays_inside_decoded(path: str) -> bool:
    while "%" in path:
        decoded = unquote(path)
        if decoded == path:
            return True
        path = decoded
        # Empty segments and control characters are legal here: a partition value may be a URL.
        if path.startswith(("/", "\\")) or not {".", ".."}.isdisjoint(re.split(r"[/\\]", path)):
            return False
    return True
