"""Declaration files: YAML with line numbers. Each file is read and checked completely.

`parse_yaml` returns every scalar as text, and the line of every field. `load_as` creates a declaration from a file. A
Dagster component has no declaration file. The component passes the text of its declaration (`text_of`) instead of a
path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from storage_core.base.errors import InvalidInput, NotFound
from storage_core.base.text import did_you_mean, fitted, shortened, without_locations
from storage_core.change.declaration_parts import AUTOMATION, AutomationDeclaration, Closed
from storage_core.data.settings.setting import place_of

MOST_BYTES: Final = 2**18
MOST_DEPTH: Final = 32
MOST_NODES: Final = 100_000

_BRACKET = re.compile(rb"[\[\]{}]")
_PLAIN_TAGS = tuple(f"tag:yaml.org,2002:{each}" for each in ("str", "int", "float", "bool", "null", "seq", "map"))


@dataclass(frozen=True, slots=True)
class LocatedYaml:
    """A parsed document. `value` contains only mappings, lists and text. `root` is the node tree of the document."""

    value: object
    root: yaml.Node

    def line_of(self, path: tuple[str | int, ...]) -> int:
        """Return the line (from 1) of the field at `path`, or of its nearest ancestor in the document."""
        node, line = self.root, self.root.start_mark.line
        for part in path:
            step = _child(node, part)
            if step is None:
                break
            line, node = step
        return line + 1


def parse_yaml(data: bytes, where: str, needs: str = "at least a name, a uri and columns") -> LocatedYaml:
    """Return the single document in `data`. The time is linear in the size of `data`.

    Args:
        data: Content of the file.
        where: Name of the file. Errors start with `where:line`.
        needs: The required content of the file, for the error about an empty file.

    Raises:
        InvalidInput: The data has a syntax error, is empty, or contains several documents. Or a field occurs twice in a
            mapping (YAML itself would use the last value). Or a tag requests an object. Or the document is too large or
            too deep, possibly because of its aliases.
    """
    try:
        _refuse_depth_and_size(data)
        loader = _BoundedLoader(data)
        root = loader.get_single_node()
        if root is None:
            raise InvalidInput(f"{where}:1: the file is empty. Write {needs}", file=where)
        _refuse_repeated_fields(root, where)
        return LocatedYaml(loader.construct_document(root), root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise InvalidInput(f"{where}:{line}: not valid YAML: {_yaml_fault(error)}", file=where, line=line) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = (
            str(error) if type(error) is yaml.YAMLError else "the file has characters that UTF-8 or YAML does not have"
        )
        raise InvalidInput(f"{where}:1: not valid YAML: {reason}. Correct the file", file=where, line=1) from error


_YAML_FAULTS: Final = (
    ("'\\t'", "a tab is used for indentation. Use spaces"),
    ("expected ',' or ']'", "a list begins with [ and has no end. Write ] after the last value of the list"),
    ("expected ',' or '}'", "a mapping begins with { and has no end. Write } after the last value of the mapping"),
    (
        "mapping values are not allowed",
        "a : is not allowed here. Quote a value that contains a :, and check the indentation",
    ),
    ("could not find expected ':'", "a field has no : after its name. Write the field as name: value"),
    ("unexpected end of stream", "a quote is not closed. Close it"),
    (
        "expected <block end>",
        "the indentation differs from the lines before. Give all fields of a mapping the same indentation",
    ),
    ("expected a single document", "the file has several documents. Keep one document, and remove the lines ---"),
    ("undefined alias", "a value begins with *, so it is an alias of an unknown anchor. Quote the value"),
    ("cannot start any token", "a value begins with a character that needs quotes. Quote the value"),
    ("escape character", "a text in double quotes has a \\ that is not an escape. Use single quotes"),
    ("but found another document", "the file has several documents. Keep one document, and remove the lines ---"),
)
"""Common faults in YAML: a part of the parser's message, and our message for the fault."""


def _yaml_fault(error: yaml.MarkedYAMLError) -> str:
    """Return our message for the fault. The errors of `_refused_at` already contain our message."""
    texts = [each for each in (error.problem, error.context) if each]
    if isinstance(error, yaml.scanner.ScannerError | yaml.parser.ParserError | yaml.composer.ComposerError):
        known = (said for part, said in _YAML_FAULTS if any(part in each for each in texts))
        return next(
            known, "the line does not follow the rules of YAML. Check the quotes, brackets and indentation of the line"
        )
    return str(error.problem)


class _BoundedLoader(yaml.BaseLoader):
    """Composes nodes up to the depth `MOST_DEPTH` and the number `MOST_NODES`. An alias counts as a copy of its node.

    These limits also bound the cost of the validation and of its messages.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._depth = 0
        self._weights: dict[int, tuple[int, int]] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]  # the stubs do not describe this method
        if getattr(event, "tag", None) not in (None, "!", *_PLAIN_TAGS):
            raise _refusal(event, "a tag that creates an object is not allowed. Write text, lists and mappings only")
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise _refusal(event, f"nested deeper than {MOST_DEPTH}")
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is not None and id(node) not in self._weights:
            self._weights[id(node)] = self._weigh(node, event)
        return node

    def _weigh(self, node: yaml.Node, event: yaml.Event) -> tuple[int, int]:
        """Return the number of nodes and the depth of the tree at this node, computed from its children."""
        if isinstance(node, yaml.ScalarNode):
            return 1, 1
        if isinstance(event, yaml.AliasEvent):
            raise _refusal(event, "an alias that contains itself")
        pairs = node.value if isinstance(node, yaml.MappingNode) else [(each,) for each in node.value]
        inside = [self._weights[id(child)] for pair in pairs for child in pair]
        nodes, depth = 1 + sum(each for each, _ in inside), 1 + max((each for _, each in inside), default=0)
        if nodes > MOST_NODES or depth > MOST_DEPTH:
            raise _refusal(
                event,
                f"the aliases of the file expand to more than {MOST_NODES} values, or nest deeper than {MOST_DEPTH}",
            )
        return nodes, depth


def _refusal(event: yaml.Event, problem: str) -> yaml.MarkedYAMLError:
    return _refused_at(event.start_mark.line if event.start_mark else 0, problem)


def _refused_at(line: int, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=yaml.error.Mark("", 0, line, 0, None, 0))


def _refuse_depth_and_size(data: bytes) -> None:
    """Raise `InvalidInput` for too large or too deep data, before the scanner reads the text.

    For each bracket, the YAML scanner needs more time if more brackets are open.
    """
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
    seen: set[int] = set()  # an alias is the same node, so each node is visited once
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
                f"{where}:{line}: not valid YAML: the name of a field must be text. Write it as name: value",
                file=where,
                line=line,
            )
        earlier = first.get(key.value)
        first[key.value] = line
        if earlier is not None:
            field = without_locations(key.value)
            raise InvalidInput(
                f"{where}:{line}: field `{fitted(field, 80)}`: given twice, first on line {earlier}. Keep one",
                file=where,
                line=line,
                field=field,
            )


MOST_PROBLEMS = 100

Model = TypeVar("Model", bound=Closed)


def load_as(model: type[Model], path: str | Path) -> Model:
    """Return the declaration in a file, or in a text that `text_of` returned.

    Raises:
        InvalidInput: The message has one line per problem: `<file>:<line>: field `<name>`: <what is wrong>`. It
            contains all problems that can be found at once, up to 100.
        NotFound: The file does not exist.
    """
    if is_text(path):
        return load_text(model, str(path), "the declaration")
    where = str(path)
    try:
        with Path(path).open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise NotFound(
            f"{where}: the declaration cannot be read: {error.strerror}. Correct the path", file=where
        ) from error
    return _parsed(model, data, where)


def load_optional(model: type[Model], file: Path) -> Model:
    """Return the declaration in the file. If the file is missing or empty, return the defaults. Raises as `load_as`."""
    try:
        with file.open("rb") as lines:
            says_nothing = all(not line.strip() or line.lstrip().startswith(b"#") for line in lines)
    except FileNotFoundError:
        return model()
    except OSError:
        return load_as(model, file)  # raises the error with the reason
    return model() if says_nothing else load_as(model, file)


def read_automation(root: Path) -> AutomationDeclaration:
    """Return the automation declaration in this folder, or the defaults if there is no file. Raises as `load_as`."""
    return load_optional(AutomationDeclaration, root / AUTOMATION)


def is_text(given: str | Path) -> bool:
    """Return whether the argument is the text of a declaration (see `text_of`), and not a path."""
    return str(given).startswith("{")


def text_of(fields: Mapping[str, object]) -> str:
    """Return the text of a declaration with these fields.

    Fields with the value None are omitted. Raises `InvalidInput`.
    """
    try:
        return json.dumps(_present(fields), ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"a declaration has text, numbers, lists and mappings: {error}") from error


def load_text(model: type[Model], text: str, where: str) -> Model:
    """Return the declaration in a text.

    Error messages use `where` as the name of the text. Raises `InvalidInput` as `load_as` does.
    """
    return _parsed(model, text.encode(errors="surrogatepass"), where)


def _present(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(name): _present(each) for name, each in value.items() if each is not None}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_present(each) for each in value]
    return value


def _parsed(model: type[Model], data: bytes, where: str) -> Model:
    document = parse_yaml(data, where)
    try:
        return model.model_validate(document.value)
    except ValidationError as error:
        found = error.errors(include_url=False)
        problems = [_problem(each, document, where, model) for each in found[:MOST_PROBLEMS]]
        if len(found) > MOST_PROBLEMS:
            problems.append(f"{where}: and {len(found) - MOST_PROBLEMS} more problems")
    # The new error does not chain the pydantic error. The pydantic error contains values, and a value may be secret.
    raise InvalidInput("\n".join(problems), file=where)


def _problem(error: ErrorDetails, document: LocatedYaml, where: str, model: type[Closed]) -> str:
    cause = error.get("ctx", {}).get("error")
    way = (*error["loc"], *(place_of(cause) if isinstance(cause, InvalidInput) else ()))
    field = without_locations(".".join(str(each) for each in way if each != "[key]")) or "(file)"
    return f"{where}:{document.line_of(way)}: {_what_is_wrong(error, f'field `{field}`', model)}"


_WANTED: Final = (
    (("model_", "dict_", "mapping_", "dataclass_"), "a mapping"),
    (("list_", "tuple_", "set_", "iterable_"), "a list"),
    (("string_type",), "a text"),
    (("int_",), "a whole number"),
    (("float_", "decimal_"), "a number"),
    (("bool_",), "true or false"),
)
"""The kinds of values that fields need. Each entry has prefixes of pydantic error types and the required kind."""
_BOUNDS: Final = {
    "greater_than_equal": ("ge", "Give {} or more"),
    "greater_than": ("gt", "Give more than {}"),
    "less_than_equal": ("le", "Give {} or less"),
    "less_than": ("lt", "Give less than {}"),
}


def _what_is_wrong(error: ErrorDetails, field: str, model: type[Closed]) -> str:
    kind, found = error["type"], error["input"]
    match kind:
        case "missing":
            return f"{field} is missing. Add it"
        case "extra_forbidden":
            known = _known_fields(model, error["loc"][:-1])
            return f"unknown {field}{did_you_mean(error['loc'][-1], known) or _choices(known)}"
        case "model_type" if not error["loc"]:
            required = [name for name, each in model.model_fields.items() if each.is_required()]
            least = f" with at least {', '.join(required[:-1])} and {required[-1]}" if required else ""
            return f"the file is {_found(found)}. Write a mapping{least}"
        case "value_error":
            return _of_a_value(field, without_locations(str(error["ctx"]["error"])))
        case "literal_error" | "enum":
            return f"{field} is {_found(found)}. Give {error['ctx']['expected'].replace(chr(39), '')}"
        case "too_short":
            return f"{field} is empty. Give at least one value"
        case _ if kind in _BOUNDS:
            name, advice = _BOUNDS[kind]
            return f"{field} is {_found(found)}. {advice.format(error['ctx'][name])}"
        case _:
            wanted = next((each for starts, each in _WANTED if kind.startswith(starts)), None)
            advice = f"Write {wanted}" if wanted else "See docs/declarations.md for the values of this field"
            return f"{field} is {_found(found)}. {advice}"


def _choices(known: Sequence[str]) -> str:
    return f". The fields here are {', '.join(known)}" if known else ". Check its spelling"


def _of_a_value(field: str, text: str) -> str:
    """Return the message about a value. If the text begins with the name of the field, the name is not repeated."""
    name = field.removeprefix("field `").removesuffix("`")
    if text.startswith(f"{name} is "):
        return f"{field}{text.removeprefix(name)}"
    return f"{field}: {text.removeprefix(f'{name}: ')}"


def _known_fields(model: type[Closed], way: Sequence[str | int]) -> list[str]:
    """Return the fields of the mapping at this place of a declaration, or no fields if the mapping is unknown."""
    fields = model.model_fields
    for part in way:
        if isinstance(part, int):
            continue  # the elements of a list have the fields that are already found
        annotation = fields[part].annotation if part in fields else None
        inner = [each for each in _parts(annotation) if hasattr(each, "model_fields")]
        if not inner:
            return []
        fields = inner[0].model_fields
    return list(fields)


def _parts(annotation: object) -> Iterator[Any]:
    """Yield an annotation and all annotations inside it, such as the elements of a list."""
    yield annotation
    for each in get_args(annotation):
        yield from _parts(each)


def _found(value: object) -> str:
    return shortened(without_locations(repr(value)), 80)
