r"""Texts of a Delta log that delta-rs misreads: a character above U+FFFF that JSON has as two `\u` escapes.

Its JSON decoder adds the two halves to another character in every second plane. Python's `json.dumps` writes such
escapes. Characters as UTF-8 are read rightly, and so is what a checkpoint in Parquet has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from storage_core.formats.keys import DELTA_PREFIX
from storage_core.objectstore.contract import ObjectStore

_WIDE = re.compile("[\U00010000-\U0010ffff]")
_ESCAPED_PAIR = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_FILE = re.compile(
    r"(?:[0-9]{20}\.)?(?P<version>[0-9]{20})"
    r"(?P<kind>\.json|\.compacted\.json|\.checkpoint(?:\.(?P<part>[0-9]{10})\.(?P<parts>[0-9]{10})|\.[0-9a-f-]{36})?"
    r"\.(?:parquet|json))",
    re.ASCII,
)
_OWN_JSON = ("stats", "tags")
"""Fields of an action that hold no part of a row or of its place: reading all rows needs none of them."""


def is_wide(text: str) -> bool:
    """Return whether the text has a character above U+FFFF."""
    return _WIDE.search(text) is not None


def log_actions(store: ObjectStore, version: int) -> Iterator[list[bytes]]:
    """Yield the lines of each JSON file of a Delta log that tells of a version, newest first.

    Files before the newest checkpoint are left out. A LIST, and a GET per file as it is needed.
    """
    found = [(each, _FILE.fullmatch(each.removeprefix(DELTA_PREFIX))) for each in _names(store)]
    files = [(key, each, int(each["version"])) for key, each in found if each is not None]
    files = [(key, each, number) for key, each, number in files if number <= version]
    checkpoints = [(each, number) for _, each, number in files if each["kind"].startswith(".checkpoint")]
    parts: dict[tuple[int, str], int] = {}
    for each, number in checkpoints:
        given = each["parts"] or f"{1:010}"
        parts[number, given] = parts.get((number, given), 0) + 1
    base = max((number for (number, given), count in parts.items() if count >= int(given)), default=-1)
    for key, each, number in sorted(files, key=lambda file: file[2], reverse=True):
        if key.endswith(".json") and (number > base or (number == base and each["kind"].startswith(".checkpoint"))):
            yield [line for line in store.get(key).data.splitlines() if line.strip()]


def has_misread_action(store: ObjectStore, version: int) -> bool:
    """Return whether delta-rs misreads the columns, a partition or a file of the table at a version."""
    return any(is_misread(line) for lines in log_actions(store, version) for line in lines)


def is_misread(line: bytes) -> bool:
    """Return whether delta-rs takes another text from an action than its JSON has."""
    if _ESCAPED_PAIR.search(line) is None:
        return False
    return _action(line) != _action(_as_delta_rs_reads(line))


def _names(store: ObjectStore) -> Iterator[str]:
    return (info.key for info in store.list(DELTA_PREFIX))


def _action(line: bytes) -> dict[str, Any]:
    action: dict[str, Any] = json.loads(line, strict=False)
    action.pop("commitInfo", None)
    for each in action.values():
        if isinstance(each, dict):
            for name in _OWN_JSON:
                each.pop(name, None)
    return action


def _as_delta_rs_reads(line: bytes) -> bytes:
    r"""The line with each escaped pair as its halves are added; one behind a backslash that is escaped is no pair."""

    def read(found: re.Match[bytes]) -> bytes:
        if found[1] is None:
            return found[0]
        high, low = int(found[1][2:6], 16), int(found[1][8:12], 16)
        return chr(0x10000 | (high - 0xD800) << 10 | (low - 0xDC00)).encode()

    return re.sub(rb"(" + _ESCAPED_PAIR.pattern + rb")|\\.", read, line)
