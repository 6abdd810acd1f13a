"""Functions of region expressions whose result can be far larger than their arguments.

`repeat('x', 2000000000)` is two gigabytes, which no limit of DuckDB sees: what one call makes of one batch of rows is
outside its own accounting, and nothing interrupts it. So how much such a function may make is written out in the text,
as a number, and the numbers of one text multiplied stay small.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from storage_core.engine.functions import words
from storage_core.engine.tree import Node, arguments, refused

T = TypeVar("T")
_WHAT = "region expression"
_PADDING = frozenset({"lpad", "rpad"})
_BY_FORMAT = frozenset({"format", "printf"})
_WIDTH = re.compile(r"[0-9]+")
_WIDTH_FROM_ARGUMENTS = re.compile(r"%[^%a-zA-Z]*\*|\{[^{}]*\{")
_PUT_IN: Mapping[str, int] = {"replace": 2, "regexp_replace": 2, "overlay": 1}
"""The argument that is put into the first, as often as it matches."""
_LONGER: Mapping[str, int] = {
    "base64": 2,
    "bin": 8,
    "hex": 2,
    "regexp_escape": 2,
    "split": 4,
    "str_split": 4,
    "string_split": 4,
    "to_base64": 2,
    "to_binary": 8,
    "to_hex": 2,
    "url_encode": 3,
}
"""How many times longer than their argument the texts of these are."""
_SHORT = words("""
    ascii bit_length char_length character_length contains ends_with instr len length length_grapheme md5 md5_number
    octet_length ord position prefix sha1 sha256 starts_with strlen strpos suffix unicode
""")
"""What these make of a text is as short as a row."""


def check_growth(tree: Any, text: str, *, most: int) -> None:
    """Return when all values that the functions of a tree make of one row are bounded by `most` times the row.

    A row counts as one, for it has eight bytes at least; a text that is written out as its length in those. A value is
    as long as all of its arguments, times what its function makes of them. Raises `InvalidInput`.
    """
    made = _Made(text)
    made.by(tree)
    if made.of_all > most:
        raise refused(text, _WHAT, f"it makes {made.of_all} of one value where {most} are the most")


@dataclass(slots=True)
class _Made:
    text: str
    of_all: int = 0

    def by(self, node: Any) -> int:
        """The length of what a node makes."""
        if isinstance(node, list):
            return sum(map(self.by, node))
        if not isinstance(node, dict):
            return 0
        match node.get("class"):
            case "COLUMN_REF":
                return 1
            case "CONSTANT":
                return _units(len((_text(node) or "").encode()))
            case "FUNCTION":
                length = self._call(str(node["function_name"]).lower(), arguments(node))
                self.of_all += length
                return length
        return sum(map(self.by, node.values()))

    def _call(self, name: str, given: Sequence[Node]) -> int:
        lengths = [self.by(each) for each in given]
        if name in _PADDING and len(given) > 1:
            return lengths[0] + _units(4 * self._said(name, _number(given[1])))  # bytes of a character, at most
        if name == "repeat" and len(given) > 1:
            return lengths[0] * self._said(name, _number(given[1]))
        if name == "concat_ws":
            return len(lengths) * sum(lengths[:1]) + sum(lengths[1:])
        if name in _BY_FORMAT and given:
            return self._formatted(name, _text(given[0]), sum(lengths))
        if name in _PUT_IN and len(given) > _PUT_IN[name]:
            size = len(self._said(name, _text(given[_PUT_IN[name]])).encode())
            taken_out = _text(given[1]) if name == "replace" else None
            # An expression may match between any two characters; a text is at least as long as what is taken out.
            return sum(lengths) * (-(-size // len(taken_out.encode())) if taken_out else size + 1)
        return 1 if name in _SHORT else sum(lengths) * _LONGER.get(name, 1)

    def _formatted(self, name: str, template: str | None, length: int) -> int:
        found = self._said(name, template)
        if _WIDTH_FROM_ARGUMENTS.search(found):
            self._said(name, None)
        parts = found.count("{") + found.count("%")
        return length * max(1, parts) + _units(sum(_whole(each) for each in _WIDTH.findall(found)))

    def _said(self, name: str, found: T | None) -> T:
        if found is None:
            raise refused(self.text, _WHAT, f"how much {name} makes must be written out in it")
        return found


def _units(size: int) -> int:
    """Bytes as rows, of which each has eight at least."""
    return -(-size // 8)


def _whole(digits: str) -> int:
    return int(digits) if len(digits) < 20 else 10**20


def _number(node: Node) -> int | None:
    """A whole number that is written out; the sign is not looked at."""
    while node["class"] == "FUNCTION" and node["function_name"] == "-" and len(node["arguments"]) == 1:
        node = node["arguments"][0]["expression"]
    literal = node.get("literal") or {}
    text = str(literal.get("text", ""))
    return _whole(text) if literal.get("kind") == "INTEGER" and text.isdecimal() else None


def _text(node: Node) -> str | None:
    literal = node.get("literal") or {}
    return str(literal["text"]) if literal.get("kind") == "STRING" else None
