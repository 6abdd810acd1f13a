"""The definition of an index, and its form in `metaData.configuration` (docs/architecture/indexes.md)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, cast, get_args

from storage_core.base.arguments import checked_fields
from storage_core.base.errors import InvalidInput
from storage_core.base.text import choice_of, did_you_mean, quoted
from storage_core.data.settings.setting import (
    NAMES_SCHEMA,
    Form,
    column_names,
    each_of,
    from_json,
    json_object,
    json_text,
)

INDEX_PREFIX = "tidemark.index."

IndexKind = Literal["fulltext", "bitmap", "vector", "primary_key"]

INDEX_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", re.ASCII)


@checked_fields
@dataclass(frozen=True, slots=True)
class IndexDefinition:
    """One index of a table: its name, its kind, and the columns that it covers, in order."""

    name: str
    kind: IndexKind
    columns: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise `InvalidInput` for an unknown kind, an invalid name and an index without a column."""
        kinds = get_args(IndexKind)
        if self.kind not in kinds:
            raise InvalidInput(choice_of(f"index {self.name!r}: kind", self.kind, kinds), at=("kind",))
        if not INDEX_NAME.fullmatch(self.name):
            raise InvalidInput(f"{self.name!r} is not a name of an index. Use 1 to 63 letters, digits, '_' and '-'")
        if isinstance(cast("object", self.columns), str):
            raise InvalidInput(f"index {self.name!r}: columns is {quoted(self.columns)}. Give a tuple of names")
        if not self.columns:
            raise InvalidInput(f"index {self.name!r} covers no column. Name at least one column")

    def require_key(self, primary_key: Sequence[str]) -> None:
        """Raise `InvalidInput` if a table with this key cannot have this index of the kind `primary_key`."""
        if self.kind != "primary_key":
            return
        if not primary_key:
            raise InvalidInput(
                f"index {self.name!r}: kind primary_key needs a table with a primary_key. "
                "Declare a primary_key, or another kind"
            )
        if self.columns != tuple(primary_key):
            wanted = f"Name the columns of the table's primary_key in this order: {list(primary_key)}"
            raise InvalidInput(
                f"index {self.name!r}: an index of the kind primary_key cannot have the columns "
                f"{list(self.columns)}. {wanted}"
            )
        if self.options:
            raise InvalidInput(
                f"index {self.name!r}: kind primary_key has no options, found {sorted(self.options)}. Leave them out"
            )

    @property
    def key(self) -> str:
        """The configuration entry that contains the definition."""
        return INDEX_PREFIX + self.name

    def to_text(self) -> str:
        """Return the value of the entry `key`."""
        return json_text({"kind": self.kind, "columns": list(self.columns), "options": dict(self.options)})

    @staticmethod
    def from_text(key: str, text: str) -> IndexDefinition:
        """Return the definition that the entry `key` contains. Raises `InvalidInput` with the name of the entry."""
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


# Options of vector indexes.

Metric = Literal["l2", "cosine", "dot"]
Quantization = Literal["rotated", "none", "scalar", "product"]

OPTIONS = ("metric", "quantization", "nprobe", "recall_floor", "retrain_imbalance_threshold")


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorOptions:
    """The options with which a vector index is built and searched.

    Attributes:
        metric: The measure of distance.
        quantization: The number of bits that a segment stores for each dimension. `rotated` rotates the embeddings and
            stores a code of 2 bits and a code of 8 bits. `scalar` stores 8 bits. `product` stores one byte for several
            dimensions. `none` stores all 32 bits.
        nprobe: The number of clusters that a search reads. By default, a search reads as many clusters as are needed
            for a fixed share of the rows (`index.vector.reader.probes`).
        recall_floor: The lowest recall (0 to 1) that passes the check. If it is None, the check never fails.
        retrain_imbalance_threshold: The maximum ratio of the largest cluster to the smallest cluster. A segment above
            this ratio is trained again. If it is None, no segment is trained again.
    """

    metric: Metric = "l2"
    quantization: Quantization = "rotated"
    nprobe: int | None = None
    recall_floor: float | None = None
    retrain_imbalance_threshold: float | None = None

    @staticmethod
    def of(index: str, options: Mapping[str, str]) -> VectorOptions:
        """Return the options of the index with this name. Raises `InvalidInput` with the invalid option."""
        unknown = sorted(options.keys() - {*OPTIONS})
        if unknown:
            raise _refused(
                index, f"unknown option {unknown[0]!r}. The options of a vector index are {', '.join(OPTIONS)}"
            )
        return VectorOptions(
            metric=cast("Metric", _among(index, options, "metric", get_args(Metric))),
            quantization=cast("Quantization", _among(index, options, "quantization", get_args(Quantization))),
            nprobe=_probes(index, options),
            recall_floor=_number(index, options, "recall_floor", (0.0, 1.0)),
            retrain_imbalance_threshold=_number(index, options, "retrain_imbalance_threshold", (1.0, math.inf)),
        )

    @property
    def content(self) -> dict[str, str]:
        """The options that change the content of a segment."""
        return {"metric": self.metric, "quantization": self.quantization}


def move_vector_options(index: Mapping[str, object]) -> Mapping[str, object]:
    """Return the mapping of an index. The options of a vector index are moved into `options`.

    Raises:
        InvalidInput: An option is given twice.
    """
    if index.get("kind") != "vector":
        return index
    own = {name: index[name] for name in OPTIONS if name in index}
    options = index.get("options", {})
    if not isinstance(options, Mapping):
        return index
    if twice := sorted(own.keys() & options.keys()):
        raise InvalidInput(f"index {index.get('name')!r}: the option {twice[0]!r} is given twice. Give it once")
    return {**{name: value for name, value in index.items() if name not in own}, "options": {**options, **own}}


def _among(index: str, options: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    found = options.get(name, str(getattr(VectorOptions(), name)))
    if found not in choices:
        raise _refused(index, choice_of(name, found, choices))
    return found


def _probes(index: str, options: Mapping[str, str]) -> int | None:
    text = options.get("nprobe")
    if text is not None and not (text.isascii() and text.isdigit() and 1 <= int(text) < 2**31):
        raise _refused(index, f"nprobe is {text!r}. Write a number of clusters, at least 1")
    return None if text is None else int(text)


def _number(index: str, options: Mapping[str, str], name: str, span: tuple[float, float]) -> float | None:
    text = options.get(name)
    if text is None:
        return None
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not span[0] <= found <= span[1]:
        raise _refused(index, f"{name} is {text!r}. Write a number from {span[0]:g} to {span[1]:g}")
    return found


def _refused(index: str, reason: str) -> InvalidInput:
    return InvalidInput(f"index {index!r}: {reason}", index=index)


# The form of the setting.


def _read(given: object) -> tuple[IndexDefinition, ...]:
    """Return the definitions in a list of records or mappings, or in the JSON text of a list."""
    given = from_json(given, "Give a JSON list of objects with name, kind, columns and optional options")
    if not isinstance(given, list | tuple):
        raise InvalidInput(f"indexes is {quoted(given)}. Write a list with a name, a kind and columns for each index")
    return tuple(each_of(_definition, given))


def _definition(index: object) -> IndexDefinition:
    """Return the definition of a mapping. The options of a vector index may be on the same level as its kind."""
    if isinstance(index, IndexDefinition):
        return index
    if not isinstance(index, Mapping):
        raise InvalidInput(f"an index is {index!r}. Write a mapping with name, kind and columns")
    given = move_vector_options(index)
    known = ("name", "kind", "columns", "options")
    if unknown := [each for each in given if each not in known]:
        likely = did_you_mean(unknown[0], known) or ". Give name, kind, columns and options"
        raise InvalidInput(f"index {quoted(given.get('name', ''))}: unknown entry {quoted(unknown[0])}{likely}")
    if lacking := [each for each in known[:3] if each not in given]:
        raise InvalidInput(f"index {quoted(given.get('name', ''))} lacks {lacking[0]!r}. Give name, kind and columns")
    name, columns, options = str(given["name"]), given["columns"], given.get("options", {})
    if not isinstance(columns, list | tuple) or not isinstance(options, Mapping):
        wrong, wanted = ("options", "mapping") if isinstance(columns, list | tuple) else ("columns", "list")
        raise InvalidInput(f"index {name!r}: {wrong} is {quoted(given[wrong])}. Write a {wanted}")
    texts = {str(key): str(value) for key, value in options.items()}
    kind = cast("IndexKind", str(given["kind"]))  # `IndexDefinition` checks the kind
    return IndexDefinition(name, kind, tuple(str(column) for column in columns), texts)


def _shown(index: IndexDefinition) -> dict[str, object]:
    return {"name": index.name, "kind": index.kind, "columns": list(index.columns), "options": dict(index.options)}


_OPTION: Final = {"type": ["string", "number", "boolean"]}
_FIELDS: Final = {
    "name": {"type": "string"},
    "kind": {"enum": list(get_args(IndexKind))},
    "columns": NAMES_SCHEMA,
    "options": {"type": "object", "additionalProperties": _OPTION},
    **dict.fromkeys(OPTIONS, _OPTION),
}
INDEXES: Final = Form(
    _read,
    lambda found: [_shown(each) for each in found],
    str,  # each index is an entry of its own in the log
    lambda key, text: (IndexDefinition.from_text(key, text),),
    {
        "type": "array",
        "items": {
            "type": "object",
            "properties": _FIELDS,
            "required": ["name", "kind", "columns"],
            "additionalProperties": False,
        },
    },
)
