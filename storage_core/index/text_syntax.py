"""The syntax of full-text queries: the tree that tantivy reads a text as, and the tree of a text that is only words."""

from __future__ import annotations

import re
from typing import Any, cast

from storage_core.index import native_errors
from storage_core.index.text_limits import MAX_CLAUSES, Node, walk
from storage_core.index.text_terms import SHORTEST_PREFIX

_DISTANCE = re.compile("~[0-9]*$")
_PAIR = re.compile(r"\\(.)", re.DOTALL)
_STAND_INS = range(0xF0000, 0x110000)  # private characters, more than a text has


def read(text: str) -> Node:
    r"""Return tantivy's tree of a query that `check_text` let through. Raises `ValueError` for a text that is none.

    Tantivy returns one phrase for `a\*` and `a\\*`. So a character that is not in the text replaces each escaped
    backslash before it is parsed. In the tree, an unquoted literal has two backslashes for it.
    """
    import tantivy

    used = {*text}
    stand_in = next(each for each in map(chr, _STAND_INS) if each not in used)
    written = _PAIR.sub(lambda found: stand_in if found[1] == "\\" else found[0], text) if "\\\\" in text else text
    try:
        with native_errors.as_query_error():
            tree = cast("Node", tantivy.parse_query(written))
    except ValueError as error:
        raise ValueError("it has a Syntax Error") from error
    if written != text:
        for node, _, _ in walk(tree):
            _put_back(cast("dict[str, Any]", node), stand_in)
    return tree


def _put_back(node: dict[str, Any], stand_in: str) -> None:
    """Replace the stand-in of an escaped backslash in a node."""
    for name in ("field", "field_name"):
        if node.get(name):
            node[name] = node[name].replace(stand_in, "\\")
    match node["type"]:
        case "literal":
            node["phrase"] = node["phrase"].replace(stand_in, "\\\\" if node["delimiter"] == "none" else "\\")
        case "set":
            node["elements"] = [each.replace(stand_in, "\\") for each in node["elements"]]
        case "range":  # tantivy leaves both backslashes in its ends, and reads them again
            for end in (node["lower"], node["upper"]):
                if "value" in end:
                    end["value"] = end["value"].replace(stand_in, "\\\\")


def words(text: str) -> Node:
    """Return the tree for any of the words of a text: what stands between spaces, and nothing in it is an operator.

    The tokenizer of the index reads each: it makes a phrase of `can't`, and nothing of a lone `/`. A distance
    behind a word (`slip~2`) is left out, and a star (`o'n*`) makes it a prefix: not in a text of more
    words than a query may have, as each takes a millisecond to build.
    """
    found = dict.fromkeys(_DISTANCE.sub("", word) for word in text.split())
    return any_of([(_word if len(found) <= MAX_CLAUSES else literal)(word) for word in found])


def _word(text: str) -> Node:
    prefix = text.rstrip("*")
    if prefix == text or len(prefix) < SHORTEST_PREFIX:
        return literal(text)
    return {"type": "prefix", "text": prefix}


def literal(text: str) -> Node:
    """Return the node for a text as one phrase, in any column."""
    return {
        "type": "literal",
        "field_name": None,
        "phrase": text,
        "delimiter": "double_quotes",
        "slop": 0,
        "prefix": False,
    }


def any_of(nodes: list[Node]) -> Node:
    """Return the node for what any of some nodes finds."""
    return {"type": "bool", "clauses": [(None, each) for each in nodes]}
