"""What the metadata of an asset or of an input says about its table; a setting that is misspelt is an error."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from dagster import MetadataValue

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.objectstore.resolve import check_location

URI, MODE, ON, CREATE = "tidemark/uri", "tidemark/mode", "tidemark/on", "tidemark/create"
AT, CONSISTENCY = "tidemark/at", "tidemark/consistency"
COLUMNS, PARTITION_EXPR = "columns", "partition_expr"
"""As Dagster's own managers of tables call them."""

DAGSTER_URI = "dagster/uri"
"""Where a step of a declared table says that its table is."""

_PREFIX = "tidemark/"
_OF_AN_ASSET, _OF_AN_INPUT = (URI, MODE, ON, CREATE), (URI, AT, CONSISTENCY)
_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", re.ASCII)

Metadata = Mapping[str, object]


class WriteMode(StrEnum):
    """How an asset is stored: behind the rows that are there, in place of its partition, or by key."""

    APPEND = "append"
    OVERWRITE = "overwrite"
    UPSERT = "upsert"


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetSettings:
    """How an asset is kept. None is the default, which the table decides."""

    uri: str | None = None
    mode: WriteMode | None = None
    on: tuple[str, ...] = ()
    create: Mapping[str, Any] | None = None
    partition_expr: str | Mapping[str, str] | None = None

    @classmethod
    def of(cls, metadata: Metadata) -> Self:
        """Return the settings in the metadata of a definition. Raises `InvalidInput` naming what is wrong."""
        given = _values(metadata, _OF_AN_ASSET)
        mode, create, on = given.get(MODE), given.get(CREATE), given.get(ON, ())
        if mode is not None and mode not in list(WriteMode):
            raise InvalidInput(f"{MODE} is one of {', '.join(WriteMode)}; found {quoted(mode)}")
        if create is not None and not isinstance(create, Mapping):
            raise InvalidInput(f"{CREATE} has the parameters of Table.create by name; found {quoted(create)}")
        columns = given.get(PARTITION_EXPR)
        if columns is not None and not isinstance(columns, str | Mapping):
            raise InvalidInput(f"{PARTITION_EXPR} is a column, or one per dimension; found {quoted(columns)}")
        return cls(
            uri=_place(given),
            mode=None if mode is None else WriteMode(str(mode)),
            on=_names(ON, on),
            create=create,
            partition_expr=columns,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSettings:
    """What of a table an input is, beside its partition."""

    uri: str | None = None
    columns: tuple[str, ...] | None = None
    at: int | str | None = None
    consistency: str | None = None

    @classmethod
    def of(cls, metadata: Metadata) -> Self:
        """Return the settings in the metadata of an input. Raises `InvalidInput` naming what is wrong."""
        given = _values(metadata, _OF_AN_INPUT)
        columns, at, consistency = given.get(COLUMNS), given.get(AT), given.get(CONSISTENCY)
        if at is not None and (isinstance(at, bool) or not isinstance(at, int | str)):
            raise InvalidInput(f"{AT} is a version, a time or a tag; found {quoted(at)}")
        return cls(
            uri=_place(given),
            columns=None if columns is None else _names(COLUMNS, columns),
            at=at,
            consistency=None if consistency is None else str(consistency),
        )


def place_of(root: str, key: Sequence[str]) -> str:
    """Return where an asset is kept that names no place: under the root, by its key. Raises `InvalidInput`."""
    for part in key:
        if not _PART.fullmatch(part):
            raise InvalidInput(
                f"the asset key {quoted('/'.join(key))} is no place of a table, for {quoted(part)} is no name of a "
                f"folder; give the asset the metadata {URI!r}"
            )
    place, mark, parameters = root.partition("?") if "://" in root else (root, "", "")  # of an s3:// URI
    return "/".join([place.rstrip("/"), *key]) + mark + parameters


def _values(metadata: Metadata, known: Sequence[str]) -> dict[str, Any]:
    """Plain values, of which ours are known."""
    found = {name: each.value if isinstance(each, MetadataValue) else each for name, each in metadata.items()}
    unknown = [name for name in found if name.startswith(_PREFIX) and name not in known]
    if unknown:
        raise InvalidInput(f"{quoted(unknown[0])} is no setting here; there are {', '.join(known)}")
    return found


def _place(given: Mapping[str, Any]) -> str | None:
    uri = given.get(URI)
    if uri is not None and not isinstance(uri, str):
        raise InvalidInput(f"{URI} is the place of a table; found {quoted(uri)}")
    return None if uri is None else check_location(uri)


def _names(setting: str, given: object) -> tuple[str, ...]:
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(each, str) for each in names):
        raise InvalidInput(f"{setting} are names of columns; found {quoted(given)}")
    return tuple(names)
