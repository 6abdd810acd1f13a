"""The definition of an index, and its form in `metaData.configuration` (docs/architecture/indexes.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast, get_args

from storage_core.arguments import checked_fields
from storage_core.errors import InvalidInput
from storage_core.settings.json_text import column_names, json_object, json_text

INDEX_PREFIX = "tidemark.index."

IndexKind = Literal["fulltext", "bitmap", "vector", "primary_key"]

INDEX_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", re.ASCII)


@checked_fields
@dataclass(frozen=True, slots=True)
class IndexDefinition:
    """One index of a table: what it is called, what kind it is, and the columns it covers, in order."""

    name: str
    kind: IndexKind
    columns: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse an unknown kind, an unusable name and an index over no column."""
        kinds = get_args(IndexKind)
        if self.kind not in kinds:
            raise InvalidInput(f"index {self.name!r}: kind {self.kind!r} is not one of {', '.join(kinds)}")
        if not INDEX_NAME.fullmatch(self.name):
            raise InvalidInput(f"index name {self.name!r}: use 1 to 63 letters, digits, '_' and '-'")
        if not self.columns:
            raise InvalidInput(f"index {self.name!r} covers no column; name at least one")

    def require_key(self, primary_key: Sequence[str]) -> None:
        """Return unless the index is one of the primary key and a table of this key cannot have it: `InvalidInput`."""
        if self.kind != "primary_key":
            return
        if not primary_key:
            raise InvalidInput(f"index {self.name!r}: kind primary_key needs a table with a primary_key")
        if self.columns != tuple(primary_key):
            found = f"found {list(self.columns)}; name the table's primary_key, {list(primary_key)} in this order"
            raise InvalidInput(f"index {self.name!r}: columns of kind primary_key: {found}")
        if self.options:
            raise InvalidInput(f"index {self.name!r}: kind primary_key has no options, found {sorted(self.options)}")

    @property
    def key(self) -> str:
        """The configuration entry that holds the definition."""
        return INDEX_PREFIX + self.name

    def to_text(self) -> str:
        """Return the value of that entry."""
        return json_text({"kind": self.kind, "columns": list(self.columns), "options": dict(self.options)})

    @staticmethod
    def from_text(key: str, text: str) -> IndexDefinition:
        """Return the definition that the entry `key` holds. Raises `InvalidInput` naming it."""
        value = json_object(key, text)
        options = value.get("options", {})
        if not isinstance(options, dict):
            raise InvalidInput(f"table configuration {key!r}: `options` is not an object", key=key)
        return IndexDefinition(
            name=key.removeprefix(INDEX_PREFIX),
            kind=cast("IndexKind", value.get("kind")),
            columns=column_names(key, value.get("columns")),
            options={str(name): str(option) for name, option in options.items()},
        )
