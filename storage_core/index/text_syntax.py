"""The syntax of full-text queries: what tantivy reads a text as, and the same with every negation made complete.

Tantivy answers a group of clauses by what its positive clauses find. A group of negative ones only (`NOT beta`, also
inside `alpha AND NOT beta`, which it reads as two groups) finds nothing there, where logic says: all other rows. So
such a group gets a clause that matches every row and scores nothing (`+*^0`), and answers are those of set algebra.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import TypeAlias, cast

from storage_core.index import text_terms
from storage_core.index.text_limits import Node, walk

Clause: TypeAlias = tuple[str | None, Node]

_EVERY_ROW: Node = {"type": "boost", "underlying": {"type": "all"}, "boost": 0.0}
_SIGNS: dict[str | None, str] = {"must": "+", "must_not": "-", "should": "", None: ""}


def read(text: str) -> Node:
    """Return tantivy's tree of a query that `check_text` let through. Raises `ValueError` for a text that is none."""
    import tantivy

    return cast("Node", tantivy.parse_query(text))


def words(text: str) -> str:
    """Return the query for any of the words of a text: what stands between spaces, and nothing in it is an operator.

    The tokenizer of the index reads each: it makes a phrase of `can't`, and nothing of a lone `/`. Tantivy refuses a
    query of several that are all nothing; `phrase` is then the one that finds nothing.
    """
    return " ".join(phrase(word) for word in text.split())


def phrase(text: str) -> str:
    """Return the query for a text as one phrase."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def complete(tree: Node, text: str) -> str:
    """Return a query that finds what logic says `text`, read as `tree`, means; most texts are that query already.

    `check_tree` let the tree through. Scores stay the same. Raises `ValueError` for what cannot be written down again.
    """
    if not any(_only_excludes(node) for node, _, _ in walk(tree)):
        return text
    wanted = _completed(tree)
    again = written(wanted)
    if _comparable(read(again)) != _comparable(wanted):
        raise ValueError(f"it cannot be combined with NOT: tantivy reads {again} in another way")
    return again


def _only_excludes(node: Node) -> bool:
    return node["type"] == "bool" and {occur for occur, _ in node["clauses"]} == {"must_not"}


def _completed(node: Node) -> Node:
    match node["type"]:
        case "bool":
            clauses = _unlike([(occur, _completed(child)) for occur, child in node["clauses"]])
            if _only_excludes(node):
                clauses = [("must", _EVERY_ROW), *clauses]
            return clauses[0][1] if len(clauses) == 1 else {**node, "clauses": clauses}
        case "boost":
            return {**node, "underlying": _completed(node["underlying"])}
        case _:
            return node


def _unlike(clauses: Sequence[Clause]) -> list[Clause]:
    """The clauses without repetitions: of `(+a +a)` tantivy would leave `+a`, without the group around it."""
    kept: dict[str, Clause] = {}
    for occur, child in clauses:
        kept.setdefault(repr((occur or "should", _comparable(child))), (occur, child))
    return list(kept.values())


def written(node: Node) -> str:
    """The node as text of its own, that can stand behind a sign."""
    match node["type"]:
        case "bool":
            return f"({' '.join(_SIGNS[occur] + written(child) for occur, child in node['clauses'])})"
        case "boost":
            inner = written(node["underlying"])
            return f"{f'({inner})' if '^' in inner else inner}^{Decimal(repr(node['boost'])):f}"
        case "all":
            return "*"
        case "literal":
            if text_terms.term_of(node) is not None:
                return f"{_field(node['field_name'])}{node['phrase']}"
            slop = f"~{node['slop']}" if node["slop"] else ""
            return f"{_field(node['field_name'])}{phrase(node['phrase'])}{slop}"
        case "range":
            return f"{_field(node['field'])}{_low(node['lower'])} TO {_high(node['upper'])}"
        case "set":
            return f"{_field(node['field'])} IN [{' '.join(map(phrase, node['elements']))}]"
        case kind:
            raise ValueError(f"{kind!r} cannot be combined with NOT")


def _field(name: str | None) -> str:
    return "" if name is None else f"{name}:"


def _low(limit: Node) -> str:
    return f"{'{' if limit['type'] == 'exclusive' else '['}{limit.get('value', '*')}"


def _high(limit: Node) -> str:
    return f"{limit.get('value', '*')}{'}' if limit['type'] == 'exclusive' else ']'}"


def _comparable(node: Node) -> object:
    """The tree without what makes no difference: how a phrase was quoted, and that no sign means "should"."""
    match node["type"]:
        case "bool":
            return [(occur or "should", _comparable(child)) for occur, child in node["clauses"]]
        case "boost":
            return (node["boost"], _comparable(node["underlying"]))
        case _:
            return {name: value for name, value in node.items() if name != "delimiter"}
