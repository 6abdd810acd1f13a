"""Functions whose result can be far larger than their arguments.

`repeat('x', 2000000000)` is two gigabytes, which no limit of DuckDB sees. What one call makes of one batch of rows is
outside DuckDB's own accounting, and nothing interrupts it. So how much such a function may make is written out in the
text, as a number, and the numbers of one text multiplied stay small.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from storage_core.engine.functions import COPYING
from storage_core.engine.tree import Node, arguments, refused

MOST_COPIES = 4
_BY_NUMBER: Mapping[str, int] = {
    "repeat": 1,
    "lpad": 1,
    "rpad": 1,
    "list_resize": 1,
    "array_resize": 1,
    "bitstring": 1,
    "equi_width_bins": 2,
    "approx_top_k": 1,
    "reservoir_quantile": 2,
    "lttb": 2,
}
"""The argument that says how much becomes of the others."""
SERIES = frozenset({"range", "generate_series"})
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
_SPLITTING = frozenset({"split", "str_split", "string_split"})


def check_growth(nodes: Iterable[Node], text: str, what: str, *, most: int) -> None:
    """Return when what the functions in these nodes make of their arguments is bounded by `most`, all taken together.

    Of one SELECT without others in it: layers are `layers`' to count. Raises `InvalidInput`.
    """
    grown = 1
    for node in nodes:
        if node.get("class") != "FUNCTION":
            continue
        name = str(node["function_name"]).lower()
        times = factor(name, arguments(node), strict=True)
        if times is None:
            raise refused(text, what, f"how much {name} makes must be written out in it")
        grown *= max(1, times)
        if grown > most:
            raise refused(text, what, f"it makes {grown} of one value where {most} are the most")


def check_copies(tree: Any, text: str, what: str) -> None:
    """Return when few macros that copy their arguments stand within each other. Raises `InvalidInput`."""
    waiting = [(tree, 0)]
    while waiting:
        node, around = waiting.pop()
        if isinstance(node, dict):
            around += str(node.get("function_name")).lower() in COPYING
            if around > MOST_COPIES:
                names = ", ".join(sorted(COPYING))
                raise refused(text, what, f"at most {MOST_COPIES} of these stand within each other: {names}")
            waiting.extend((each, around) for each in node.values())
        elif isinstance(node, list):
            waiting.extend((each, around) for each in node)


def factor(name: str, given: Sequence[Node], *, strict: bool = False) -> int | None:
    """Return how many times longer than its arguments the value is; None where the text does not say.

    Splitting, which makes many small texts of one, counts with `strict` only.
    """
    if name in SERIES:
        ends = [_number(each) for each in given]
        return None if None in ends else 2 * max((abs(each or 0) for each in ends), default=0)
    if name in _BY_FORMAT:
        template = _text(given[0]) if given else ""
        if template is None or _WIDTH_FROM_ARGUMENTS.search(template):
            return None
        return sum(_whole(each) for each in _WIDTH.findall(template)) + template.count("{") + template.count("%")
    if name in _BY_NUMBER:
        return _number(given[_BY_NUMBER[name]]) if len(given) > _BY_NUMBER[name] else 1
    if name in _PUT_IN and (strict or name != "overlay"):  # which puts it in once
        put_in = _text(given[_PUT_IN[name]]) if len(given) > _PUT_IN[name] else ""
        taken_out = _text(given[1]) if name == "replace" and len(given) > 1 else None
        if put_in is None:
            return None
        size = len(put_in.encode())
        # An expression may match between any two characters; a text is at least as long as what is taken out.
        return -(-size // len(taken_out.encode())) if taken_out else size + 1
    return _LONGER.get(name, 1) if strict or name not in _SPLITTING else 1


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
