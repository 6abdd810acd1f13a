"""Values of `metaData.configuration`, which are texts: to them and back. Errors name the key."""

from __future__ import annotations

import json
from typing import cast

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted


def json_text(value: object) -> str:
    """Return the value as JSON without blanks, not escaped to ASCII."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def json_value(key: str, text: str) -> object:
    """Return the parsed JSON value of a configuration entry; `InvalidInput` names the key when it does not parse."""
    try:
        return cast("object", json.loads(text))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"table configuration {key!r}: not JSON ({error}): {quoted(text)}", key=key) from error


def json_object(key: str, text: str) -> dict[str, object]:
    """Return the parsed JSON object of a configuration entry. Raises `InvalidInput` naming the key for all else."""
    value = json_value(key, text)
    if not isinstance(value, dict):
        raise InvalidInput(f"table configuration {key!r}: expected a JSON object, found {quoted(text)}", key=key)
    return value


def column_names(key: str, value: object) -> tuple[str, ...]:
    """Return the names in a parsed list of them. Raises `InvalidInput` naming the key."""
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidInput(f"table configuration {key!r}: expected a list of column names, found {value!r}", key=key)
    return tuple(value)


def whole_numbers(key: str, text: str) -> tuple[int, ...]:
    """Return the numbers in a list of them. Raises `InvalidInput` naming the key."""
    value = json_value(key, text)
    if not isinstance(value, list) or not all(type(each) is int for each in value):
        raise InvalidInput(f"table configuration {key!r}: expected a list of whole numbers, found {text!r}", key=key)
    return tuple(value)


def whole_number(key: str, text: str) -> int:
    """Return the number in a configuration entry. Raises `InvalidInput` naming the key."""
    try:
        return int(text)
    except ValueError as error:
        raise InvalidInput(f"table configuration {key!r}: expected a whole number, found {text!r}", key=key) from error
