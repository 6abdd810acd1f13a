"""The parts of keys that keys of several folders have, and how any part is checked."""

from __future__ import annotations

import re

from storage_core.errors import InvalidInput
from storage_core.settings.index import INDEX_NAME

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}", re.ASCII)


def matching(pattern: re.Pattern[str], text: str, what: str) -> str:
    """Return the text when all of it matches. Raises `InvalidInput` that says `what` was expected."""
    if not pattern.fullmatch(text):
        raise InvalidInput(f"expected {what}, found {text!r}", found=text)
    return text


def uuid(text: str) -> str:
    """Return the text when it is a lower-case UUID. Raises `InvalidInput`."""
    return matching(_UUID, text, "a lower-case UUID of 36 characters")


def index_name(text: str) -> str:
    """Return the text when it can name an index. Raises `InvalidInput`."""
    return matching(INDEX_NAME, text, "an index name (1 to 63 of A-Z a-z 0-9 _ -, starting with a letter or digit)")


def integer(text: str) -> int:
    """Return the number that a decimal text writes in its only way. Raises `InvalidInput`."""
    return int(matching(_INTEGER, text, "a decimal number without leading zeros"))
