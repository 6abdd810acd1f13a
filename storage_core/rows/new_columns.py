"""Which columns a table can be given: names and types that every reader can use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from storage_core.errors import InvalidInput
from storage_core.formats.arrow_stream import DEEPEST
from storage_core.rows.change_columns import CHANGE_COLUMNS


def require_new_columns(fields: Iterable[pa.Field]) -> None:
    """Return when new columns can be called so, and can hold values of their types. Raises `InvalidInput`.

    A struct needs fields whose names differ in more than case, as columns do. Tables keep the columns that they have.
    """
    for field in fields:
        try:
            require_names([field.name])
            _require_type(field.type, field.name, 1)
        except UnicodeDecodeError as error:
            raise InvalidInput("the name of a column or field is not valid UTF-8. Choose another name") from error


def _require_type(type_: pa.DataType, path: str, level: int) -> None:
    if level > DEEPEST:
        raise InvalidInput(
            f"column {path.partition('.')[0]!r} nests deeper than {DEEPEST} types. Use fewer levels",
            column=path.partition(".")[0],
        )
    if pa.types.is_struct(type_):
        _require_fields(list(type_.fields), path)
        children = [(field.name, field.type) for field in type_.fields]
    elif pa.types.is_map(type_):
        children = [("key", type_.key_type), ("value", type_.item_type)]
    elif pa.types.is_nested(type_) and type_.num_fields == 1:
        children = [("element", type_.field(0).type)]
    else:
        return
    for name, child in children:
        _require_type(child, f"{path}.{name}", level + 1)


def _require_fields(fields: Sequence[pa.Field], path: str) -> None:
    column = path.partition(".")[0]
    if not fields:
        raise InvalidInput(
            f"the struct {path!r} has no fields. Give it a field, or leave the column out", column=column
        )
    seen: dict[str, str] = {}
    for field in fields:
        if not field.name.isprintable() or not field.name.strip():
            raise InvalidInput(
                f"{field.name!r} cannot name a field of {path!r}: it is blank or unprintable. Choose another name",
                column=column,
            )
        folded = field.name.casefold()
        if folded in seen:
            raise InvalidInput(
                f"the fields {seen[folded]!r} and {field.name!r} of {path!r} differ at most in case. Rename one",
                column=column,
            )
        seen[folded] = field.name


def require_names(names: Sequence[object]) -> None:
    """Return when new columns can be called so. Raises `InvalidInput`.

    Tables keep columns that they have by now, whatever those are called. A declaration refuses every name that starts
    with `_`; here only those that reads of changes give their own columns are refused.
    """
    for name in names:
        why = None
        if not isinstance(name, str):
            why = "it is no text"
        elif not name.isprintable() or not name.strip():
            why = "it is blank or unprintable"
        elif name.casefold() in CHANGE_COLUMNS:
            why = "reads give it a meaning"
        if why:
            raise InvalidInput(f"{name!r} cannot name a column: {why}; choose another name", column=name)
