"""YAML with line numbers: every scalar as text, and the line on which any field of the document stands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import yaml

from storage_core.errors import InvalidInput
from storage_core.foreign_text import fitted, without_locations

MOST_BYTES: Final = 2**18
MOST_DEPTH: Final = 32
MOST_NODES: Final = 100_000

_BRACKET = re.compile(rb"[\[\]{}]")
_PLAIN_TAGS = tuple(f"tag:yaml.org,2002:{each}" for each in ("str", "int", "float", "bool", "null", "seq", "map"))


@dataclass(frozen=True, slots=True)
class LocatedYaml:
    """A parsed document. `value` holds mappings, lists and text only; `root` is its node tree."""

    value: object
    root: yaml.Node

    def line_of(self, path: tuple[str | int, ...]) -> int:
        """Return the line (from 1) of the field at `path`, or of its nearest ancestor that the document has."""
        node, line = self.root, self.root.start_mark.line
        for part in path:
            step = _child(node, part)
            if step is None:
                break
            line, node = step
        return line + 1


def parse(data: bytes, where: str) -> LocatedYaml:
    """Return the one document in `data`, in time linear in its size.

    Raises `InvalidInput` that starts with `where:line` for a syntax error, an empty document, several documents, a
    field given twice in one mapping (which YAML itself would let the last one win), tags that ask for an object, and
    documents that are too large, too deep, or grow too large by their aliases.
    """
    try:
        _refuse_depth_and_size(data)
        loader = _BoundedLoader(data)
        root = loader.get_single_node()
        if root is None:
            raise InvalidInput(f"{where}:1: the file is empty; write at least a name, a uri and columns", file=where)
        _refuse_repeated_fields(root, where)
        return LocatedYaml(loader.construct_document(root), root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise InvalidInput(f"{where}:{line}: not valid YAML: {error.problem}", file=where, line=line) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInput(f"{where}:1: not valid YAML: {reason}", file=where, line=1) from error


class _BoundedLoader(yaml.BaseLoader):
    """Composes nodes no deeper than `MOST_DEPTH`, and no more than `MOST_NODES`, each alias counted as what it names.

    What is bounded here is bounded for everything that walks the value later: validation, and its messages.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._depth = 0
        self._weights: dict[int, tuple[int, int]] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]  # the stubs say nothing of it
        if getattr(event, "tag", None) not in (None, "!", *_PLAIN_TAGS):
            raise _refusal(event, "a tag that asks for an object; write text, lists and mappings only")
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise _refusal(event, f"nested deeper than {MOST_DEPTH}")
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is not None and id(node) not in self._weights:
            self._weights[id(node)] = self._weigh(node, event)
        return node

    def _weigh(self, node: yaml.Node, event: yaml.Event) -> tuple[int, int]:
        """How many nodes there are in this one, and how deep: of each child that is known before it."""
        if isinstance(node, yaml.ScalarNode):
            return 1, 1
        if isinstance(event, yaml.AliasEvent):
            raise _refusal(event, "an alias of what it stands in")
        pairs = node.value if isinstance(node, yaml.MappingNode) else [(each,) for each in node.value]
        inside = [self._weights[id(child)] for pair in pairs for child in pair]
        nodes, depth = 1 + sum(each for each, _ in inside), 1 + max((each for _, each in inside), default=0)
        if nodes > MOST_NODES or depth > MOST_DEPTH:
            raise _refusal(event, f"more than {MOST_NODES} values, or nested deeper than {MOST_DEPTH}, by its aliases")
        return nodes, depth


def _refusal(event: yaml.Event, problem: str) -> yaml.MarkedYAMLError:
    return _refused_at(event.start_mark.line if event.start_mark else 0, problem)


def _refused_at(line: int, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=yaml.error.Mark("", 0, line, 0, None, 0))


def _refuse_depth_and_size(data: bytes) -> None:
    """Raise before the scanner sees the text: its work on a bracket grows with the brackets that are open."""
    if len(data) > MOST_BYTES:
        raise yaml.YAMLError(f"larger than {MOST_BYTES} bytes")
    open_brackets = 0
    for bracket in _BRACKET.finditer(data):
        open_brackets = max(0, open_brackets + (1 if bracket[0] in b"[{" else -1))
        if open_brackets > MOST_DEPTH:
            raise _refused_at(data.count(b"\n", 0, bracket.start()), f"nested deeper than {MOST_DEPTH}")


def _child(node: yaml.Node, part: str | int) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(part):
                return key.start_mark.line, value
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part].start_mark.line, node.value[part]
    return None


def _refuse_repeated_fields(root: yaml.Node, where: str) -> None:
    seen: set[int] = set()  # an alias is the same node again: a document of aliases costs no more than its text
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            _refuse_repeated_keys(node, where)
            waiting.extend(value for _, value in node.value)
        elif isinstance(node, yaml.SequenceNode):
            waiting.extend(node.value)


def _refuse_repeated_keys(mapping: yaml.MappingNode, where: str) -> None:
    first: dict[str, int] = {}
    for key, _ in mapping.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise InvalidInput(
                f"{where}:{line}: not valid YAML: the name of a field must be text", file=where, line=line
            )
        earlier = first.get(key.value)
        first[key.value] = line
        if earlier is not None:
            field = without_locations(key.value)
            raise InvalidInput(
                f"{where}:{line}: field `{fitted(field, 80)}`: given twice, first on line {earlier}; keep one",
                file=where,
                line=line,
                field=field,
            )
