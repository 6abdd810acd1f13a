"""The GraphQL queries of Dagster's UI, from the JavaScript that the webserver sends to browsers."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from graphql import FragmentSpreadNode, Node, parse, print_ast, visit
from graphql.language import ExecutableDefinitionNode, Visitor

_TEXT = re.compile(r"""(["'])\\n\s*(?:query|fragment) \w+(?:(?!\1)[^\\]|\\.)*\1""")


class _Spreads(Visitor):
    """Collects the names of the fragments that a definition uses."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def enter_fragment_spread(self, node: FragmentSpreadNode, *_args: object) -> None:
        self.names.append(node.name.value)


@dataclass(frozen=True, slots=True)
class Queries:
    """All queries and fragments, with their names as keys."""

    definitions: Mapping[str, ExecutableDefinitionNode]

    @classmethod
    def of_the_webserver(cls) -> Self:
        """Read the queries of the installed webserver."""
        import dagster_webserver

        found: dict[str, ExecutableDefinitionNode] = {}
        for file in sorted((Path(dagster_webserver.__file__).parent / "webapp").rglob("*.js")):
            for text in _TEXT.finditer(file.read_text(encoding="utf-8")):
                for each in parse(ast.literal_eval(text.group())).definitions:
                    if isinstance(each, ExecutableDefinitionNode) and each.name:
                        found.setdefault(each.name.value, each)
        return cls(found)

    def text(self, name: str) -> str:
        """Return a query with the fragments that it needs."""
        wanted, done = [name], dict[str, Node]()
        while wanted:
            if (each := wanted.pop()) not in done:
                done[each] = self.definitions[each]
                spreads = _Spreads()
                visit(done[each], spreads)
                wanted += spreads.names
        return "\n".join(print_ast(each) for each in done.values())
