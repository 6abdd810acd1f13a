"""Functions of region expressions whose result can be far larger than their arguments.

`repeat('x', 2000000000)` is two gigabytes, which no limit of DuckDB sees: what one call makes of one batch of rows is
outside its own accounting, and nothing interrupts it. So how much such a function may make is written out in the text,
as a number, and the numbers of one text multiplied stay small.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from storage_core.engine.tree import Node, arguments, refused

_BY_NUMBER = frozenset({"repeat", "lpad", "rpad"})
"""Their second argument says how much becomes of the others."""
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


def check_growth(nodes: Iterable[Node], text: str, what: str, *, most: int) -> None:
    """Return when what the functions in these nodes make of their arguments is bounded by `most`, all taken together.

    Raises `InvalidInput`.
    """
    grown = 1
    for node in nodes:
        if node.get("class") != "FUNCTION":
            continue
        name = str(node["function_name"]).lower()
        times = _factor(name, arguments(node))
        if times is None:
            raise refused(text, what, f"how much {name} makes must be written out in it")
        grown *= max(1, times)
        if grown > most:
            raise refused(text, what, f"it makes {grown} of one value where {most} are the most")


def _factor(name: str, given: Sequence[Node]) -> int | None:
    """Return how many times longer than its arguments the value is; None where the text does not say."""
    if name in _BY_FORMAT:
        template = _text(given[0]) if given else ""
        if template is None or _WIDTH_FROM_ARGUMENTS.search(template):
            return None
        return sum(_whole(each) for each in _WIDTH.findall(template)) + template.count("{") + template.count("%")
    if name in _BY_NUMBER:
        return _number(given[1]) if len(given) > 1 else 1
    if name in _PUT_IN:
        put_in = _text(given[_PUT_IN[name]]) if len(given) > _PUT_IN[name] else ""
        taken_out = _text(given[1]) if name == "replace" and len(given) > 1 else None
        if put_in is None:
            return None
        size = len(put_in.encode())
        # An expression may match between any two characters; a text is at least as long as what is taken out.
        return -(-size // len(taken_out.encode())) if taken_out else size + 1
    return _LONGER.get(name, 1)


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
