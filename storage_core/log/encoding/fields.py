"""Typed reading of the fields of an action: a value of another type than the field's never gets past here.

The rules are derived from the records' own annotations, once per record. Reading is the hot path of opening a log, so
a field that is as it should be costs a lookup and a comparison of types.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from storage_core.errors import Corrupt
from storage_core.foreign_text import quoted
from storage_core.log import deletion_vector

MAX_DEPTH = 32
MIN_INT64, MAX_INT64 = -(2**63), 2**63 - 1
MAX_TIME_MS = 253_402_300_799_999
"""The end of the year 9999: what follows cannot be shown as a date."""

# Sizes and counts; every other whole number may be negative. `numMergeOps` has 32 bits in the Avro state; `timestamp`
# is the time of a commit, which must leave room for the commits that follow.
_RANGES: Mapping[str, tuple[int, int]] = {
    "numMergeOps": (0, 2**31 - 1),
    "timestamp": (0, MAX_TIME_MS),
    **dict.fromkeys(
        (
            "size",
            "numRecords",
            "footerStartOffset",
            "footerEndOffset",
            "footerOffset",
            "uncompressedSizeBytes",
            "minReaderVersion",
            "minWriterVersion",
        ),
        (0, MAX_INT64),
    ),
}

_TEXT: frozenset[type] = frozenset({str})
_COUNT: frozenset[type] = frozenset({int})
_NULL: frozenset[type] = frozenset({type(None)})


class _Misfit(Exception):  # noqa: N818  # never leaves this module
    """What is wrong with the value of a field."""


class Rule(NamedTuple):
    """What a field may hold: the type that JSON gives it, the range of a whole number, and a closer look."""

    expected: type[Any]
    low: int
    high: int
    look: Callable[[Any], Any] | None


Rules = Mapping[str, Rule]


def rules_of(kind: type[Any]) -> Rules:
    """Return the rule of every field of a record, from its annotation."""
    # Annotations are text here (postponed evaluation), which is all that is needed.
    return {each.name: _rule(each.name, str(each.type).removesuffix(" | None")) for each in fields(kind)}


def read_fields(name: str, rules: Rules, body: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the values of the known fields of an action; unknown fields and nulls are left out.

    Raises `Corrupt` naming `where` and the field for a value of another type or out of range, `Unsupported` for a
    deletion vector of an unknown storage kind.
    """
    values: dict[str, Any] = {}
    for field, value in body.items():
        rule = rules.get(field)
        if rule is None or value is None:
            continue
        expected, low, high, look = rule
        # The exact type: bool is an int to Python and never one to the protocol.
        if type(value) is not expected or (expected is int and not low <= value <= high):
            raise Corrupt(f"{where}: {name}.{field} is {_wrong(rule, value)}", key=where, field=field)
        if look is not None:
            try:
                value = look(value)  # noqa: PLW2901  # one name for one value
            except _Misfit as misfit:
                raise Corrupt(f"{where}: {name}.{field} {misfit}", key=where, field=field) from None
        values[field] = value
    vector = values.get("deletionVector")
    if vector is not None:
        values["deletionVector"] = deletion_vector.from_object(vector, where)
    return values


def _rule(name: str, annotation: str) -> Rule:
    low, high = _RANGES.get(name, (MIN_INT64, MAX_INT64))
    expected, look = _KINDS[annotation]
    return Rule(expected, low, high, look)


def _wrong(rule: Rule, value: object) -> str:
    expected = f"int from {rule.low} to {rule.high}" if rule.expected is int else rule.expected.__name__
    return f"{quoted(value)}; expected {expected}"


def _texts(value: list[Any]) -> tuple[str, ...]:
    if value and set(map(type, value)) != _TEXT:
        raise _Misfit("is a list with a value that is no text; expected texts only")
    return tuple(value)


def _text_lists(value: list[Any]) -> tuple[tuple[str, ...], ...]:
    if not all(type(each) is list for each in value):
        raise _Misfit("is a list with a value that is no list; expected lists of texts")
    return tuple(_texts(each) for each in value)


def _counts(value: list[Any]) -> tuple[int, ...]:
    if value and (set(map(type, value)) != _COUNT or not 0 <= min(value) <= max(value) <= MAX_INT64):
        raise _Misfit(f"is a list with a value that is no count; expected whole numbers from 0 to {MAX_INT64}")
    return tuple(value)


def _text_map(value: dict[str, Any]) -> dict[str, str]:
    return value if not value or set(map(type, value.values())) == _TEXT else _without_nulls(value, _TEXT, "text")


def _count_map(value: dict[str, Any]) -> dict[str, int]:
    if value and set(map(type, value.values())) != _COUNT:
        value = _without_nulls(value, _COUNT, "whole number")
    if value and not 0 <= min(value.values()) <= max(value.values()) <= MAX_INT64:
        raise _Misfit(f"holds a count outside 0 to {MAX_INT64}")
    return value


def _without_nulls(value: dict[str, Any], kinds: frozenset[type], wanted: str) -> dict[str, Any]:
    """A null is a value that is not known: the same as no entry."""
    if not set(map(type, value.values())) <= kinds | _NULL:
        wrong = next(key for key, each in value.items() if each is not None and type(each) not in kinds)
        raise _Misfit(f"holds {quoted(value[wrong])} under {quoted(wrong)}; expected a {wanted}")
    return {key: each for key, each in value.items() if each is not None}


def _json_object(value: dict[str, Any]) -> dict[str, Any]:
    """Free-form JSON, bounded so that nothing that handles it later can fail on it."""
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        nested: list[object] = []
        for each in level:
            match each:
                case dict():
                    nested.extend(each.values())
                case list():
                    nested.extend(each)
                case float() if not math.isfinite(each):
                    raise _Misfit("holds a number that is not finite")
                case _:
                    pass
        if not nested:
            return value
        level = nested
    raise _Misfit(f"is nested deeper than {MAX_DEPTH} levels")


_KINDS: Mapping[str, tuple[type[Any], Callable[[Any], Any] | None]] = {
    "str": (str, None),
    "int": (int, None),
    "bool": (bool, None),
    "tuple[str, ...]": (list, _texts),
    "tuple[int, ...]": (list, _counts),
    "tuple[tuple[str, ...], ...]": (list, _text_lists),
    "Mapping[str, str]": (dict, _text_map),
    "Mapping[str, int]": (dict, _count_map),
    "Mapping[str, Any]": (dict, _json_object),
    "DeletionVector": (dict, None),
}
