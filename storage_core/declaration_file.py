"""A file that declares something: read whole, checked completely, each problem with its file, line and field.

What a component of Dagster declares has no file: it is text, which a job takes in the place of a file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from storage_core.declaration_parts import Closed
from storage_core.errors import InvalidInput, NotFound
from storage_core.foreign_text import shortened, without_locations
from storage_core.formats import located_yaml

MOST_PROBLEMS = 100

Model = TypeVar("Model", bound=Closed)


def load_as(model: type[Model], path: str | Path) -> Model:
    """Return what one file declares, or the text of `text_of`.

    Raises `InvalidInput` with one line per problem, `<file>:<line>: field `<name>`: <what is wrong>`, as many problems
    as can be seen at once, and a hundred at most; `NotFound` when there is no such file.
    """
    if is_text(path):
        return load_text(model, str(path), "the declaration")
    where = str(path)
    try:
        with Path(path).open("rb") as file:
            data = file.read(located_yaml.MOST_BYTES + 1)
    except OSError as error:
        raise NotFound(f"{where}: the declaration cannot be read: {error.strerror}", file=where) from error
    return _parsed(model, data, where)


def load_optional(model: type[Model], file: Path) -> Model:
    """Return what the file declares, the defaults of `model` where there is none or it says nothing. As `load_as`."""
    try:
        with file.open("rb") as lines:
            says_nothing = all(not line.strip() or line.lstrip().startswith(b"#") for line in lines)
    except FileNotFoundError:
        return model()
    except OSError:
        return load_as(model, file)  # which says why
    return model() if says_nothing else load_as(model, file)


def is_text(given: str | Path) -> bool:
    """Return whether this is a declaration itself, as `text_of` writes it, and not the path of its file."""
    return str(given).startswith("{")


def text_of(fields: Mapping[str, object]) -> str:
    """Return the text of a declaration with these fields; what is None is left out. Raises `InvalidInput`."""
    try:
        return json.dumps(_present(fields), ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"a declaration has text, numbers, lists and mappings: {error}") from error


def load_text(model: type[Model], text: str, where: str) -> Model:
    """Return what a text declares; errors call it `where`. Raises `InvalidInput` as `load_as` does."""
    return _parsed(model, text.encode(errors="surrogatepass"), where)


def _present(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(name): _present(each) for name, each in value.items() if each is not None}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_present(each) for each in value]
    return value


def _parsed(model: type[Model], data: bytes, where: str) -> Model:
    document = located_yaml.parse(data, where)
    try:
        return model.model_validate(document.value)
    except ValidationError as error:
        found = error.errors(include_url=False)
        problems = [_problem(each, document, where, model) for each in found[:MOST_PROBLEMS]]
        if len(found) > MOST_PROBLEMS:
            problems.append(f"{where}: and {len(found) - MOST_PROBLEMS} more problems")
    # Not from the error itself: it holds the values, and there may be a secret in them.
    raise InvalidInput("\n".join(problems), file=where)


def _problem(error: ErrorDetails, document: located_yaml.LocatedYaml, where: str, model: type[Closed]) -> str:
    field = without_locations(".".join(str(part) for part in error["loc"])) or "(file)"
    return f"{where}:{document.line_of(error['loc'])}: field `{field}`: {_what_is_wrong(error, model)}"


def _what_is_wrong(error: ErrorDetails, model: type[Closed]) -> str:
    match error["type"]:
        case "missing":
            return "is missing; add it"
        case "extra_forbidden":
            return "is not a field that a declaration has; check its spelling"
        case "model_type" if not error["loc"]:
            required = [name for name, each in model.model_fields.items() if each.is_required()]
            least = f" with at least {', '.join(required[:-1])} and {required[-1]}" if required else ""
            return f"a declaration is a mapping{least}; found {_found(error['input'])}"
        case "value_error":
            return without_locations(str(error["ctx"]["error"]))
        case _:
            return f"{error['msg']}; found {_found(error['input'])}"


def _found(value: object) -> str:
    return shortened(without_locations(repr(value)), 80)
