"""The folders of a partition in the key of a split: `column=value`, as the log's protocol has them."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

import xxhash

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""The folder of rows whose value is null, as in Hive."""

_LONGEST_NAME = 64
_LONGEST_VALUE = 128
_SEGMENT = re.compile(r"[A-Za-z0-9_.%~-]+=[A-Za-z0-9_.%~-]*", re.ASCII)


def partition_folder(name: str, value: str | None) -> str:
    """Return the folder of one partition column: percent-encoded, or the checksum of a text that cannot be a folder.

    Different names and values have different folders. A text is `~` and its xxh3-128 where its encoded form is too
    long for a file system, would be taken for the folder of null, or leads out of the table once it is decoded.
    """
    return f"{_encoded(name, _LONGEST_NAME) or _checksum(name)}={folder_value(value)}"


def folder_value(value: str | None) -> str:
    """Return the value as its folder has it, behind the equals sign."""
    return NULL_PARTITION if value is None else _encoded(value, _LONGEST_VALUE, behind="=")


def is_partition_folder(text: str) -> bool:
    """Return whether `partition_folder` may have made the text."""
    return _SEGMENT.fullmatch(text) is not None


def _encoded(text: str, longest: int, *, behind: str = "") -> str:
    found = quote(text, safe="").replace("~", "%7E")
    if len(found) <= longest and found != NULL_PARTITION and not _leads_elsewhere(behind + text):
        return found
    return _checksum(text)


def _checksum(text: str) -> str:
    return f"~{xxhash.xxh3_128_hexdigest(text.encode())}"


def _leads_elsewhere(text: str) -> bool:
    """Whether somebody who decodes the text, however often, finds a step to another folder in it."""
    while True:
        if text.startswith(("/", "\\")) or not {".", ".."}.isdisjoint(re.split(r"[/\\]", text)):
            return True
        decoded = unquote(text)
        if decoded == text:
            return False
        text = decoded
