"""Names that people give, and that become parts of keys and of what a command is asked for."""

from __future__ import annotations

import re

from storage_core.formats.keys.parts import matching

_TAG_NAME = re.compile(r"[a-z][a-z0-9._-]{0,62}", re.ASCII)
_TABLE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}", re.ASCII)


def validate_table_name(name: str) -> str:
    """Return `name` when it is a legal table name. Raises `InvalidInput` that says what is legal."""
    return matching(_TABLE_NAME, name, "a table name (1 to 63 of a-z 0-9 _ -, not starting with _ or -)")


def validate_tag_name(name: str) -> str:
    """Return `name` when it is a legal tag name: no number or time reads like one. Raises `InvalidInput`."""
    return matching(_TAG_NAME, name, "a tag name (1 to 63 of a-z 0-9 . _ -, starting with a letter)")
