"""YAML with line numbers: every scalar as text, and the line on which any field of the document stands."""

from __future__ import annotations

from dataclasses import dataclass

import yaml

from storage_core.errors import InvalidInput


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
    """Return the one document in `data`.

    Raises `InvalidInput` that starts with `where:line` for a syntax error, an empty document, several documents, and a
    field given twice in one mapping (which YAML itself would let the last one win).
    """
    try:
        loader = yaml.BaseLoader(data)
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
        earlier = first.setdefault(str(key.value), line)
        if earlier != line:
            raise InvalidInput(
                f"{where}:{line}: field `{key.value}`: given twice, first on line {earlier}; keep one",
                file=where,
                line=line,
                field=str(key.value),
            )
