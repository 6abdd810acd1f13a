"""Files of a Delta table as its log names them, and a log of some of them alone, for Spark to read.

Delta reads a table, not files: vectors, renamed columns and values of partitions are in the log. So the files of some
versions are given to it as a table of their own, an excerpt: one version file that names them where they lie, as a
shallow clone does (Delta's protocol, "Add File and Remove File": a path may be absolute).
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import unquote

from storage_core.errors import InvalidInput
from storage_core.formats.delta_log import encode, unz85
from storage_core.settings.json_text import json_text

CHANGE_TYPE: Final = "_change_type"
"""The column by which a file of the change feed tells what became of a row."""

_MAPPING = "delta.columnMapping."
_OF_READERS = (_MAPPING, "delta.typeChanges")
_UUID_CHARACTERS = 20
_NOT_OF_FILES = frozenset({"v2Checkpoint", "vacuumProtocolCheck"})
"""Reader features of how a log is kept, which an excerpt has no use for."""

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DeltaFile:
    """A data file at an absolute URI, less the rows that its vector hides: one thing of a table, with both."""

    uri: str
    vector: str | None = None
    """The descriptor of the deletion vector, as JSON with an absolute path."""
    size: int | None = field(default=None, compare=False)
    partition_values: Json | None = field(default=None, compare=False)

    @property
    def objects(self) -> list[str]:
        """The URIs of the objects that reading it needs."""
        vector = None if self.vector is None else json.loads(self.vector)
        return [self.uri, *([vector["pathOrInlineDv"]] if vector and vector["storageType"] == "p" else [])]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSchema:
    """What reading files needs of a table besides: its columns as Spark's JSON, partitions, and how both are mapped."""

    text: str
    partition_columns: tuple[str, ...] = ()
    mapping: Mapping[str, str] = field(default_factory=dict)
    reader_version: int = 1
    features: tuple[str, ...] = ()

    def with_change_type(self) -> DeltaSchema:
        """Return the columns of a file of the change feed."""
        schema = json.loads(self.text)
        metadata: dict[str, object] = {}
        last = self.mapping.get(f"{_MAPPING}maxColumnId")
        if self.mapping:
            metadata = {f"{_MAPPING}id": int(last or 0) + 1, f"{_MAPPING}physicalName": CHANGE_TYPE}
        schema["fields"] += [{"name": CHANGE_TYPE, "type": "string", "nullable": True, "metadata": metadata}]
        # By name: the files of the feed have no id for this column.
        own = {f"{_MAPPING}mode": "name", f"{_MAPPING}maxColumnId": str(int(last or 0) + 1)}
        mapping = {**self.mapping, **own} if self.mapping else {}
        return replace(self, text=json_text(schema), mapping=mapping)

    def physical_names(self) -> dict[str, str]:
        """Return the names of the columns by those that they have in files, which stay when a column is renamed."""
        fields = json.loads(self.text)["fields"]
        return {each["metadata"].get(f"{_MAPPING}physicalName", each["name"]): each["name"] for each in fields}


def mapping_of(configuration: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a Delta table that say how its columns are named in files; none where as they are."""
    found = {name: value for name, value in configuration.items() if name.startswith(_MAPPING)}
    return found if found.get(f"{_MAPPING}mode", "none") != "none" else {}


def data_file(root: str, action: Json) -> DeltaFile:
    """Return the file of an `add`, `remove` or `cdc` action of the table at this URI."""
    vector = action.get("deletionVector")
    return DeltaFile(
        _absolute(root, action["path"]),
        None if vector is None else json.dumps(_absolute_vector(root, vector), sort_keys=True),
        action.get("size"),
        action.get("partitionValues"),
    )


def excerpt(schema: DeltaSchema, files: Iterable[DeltaFile]) -> bytes:
    """Return the first version file of a Delta table that consists of these files. No request.

    Raises `InvalidInput` for a file of which the log does not tell the values of partitions.
    """
    lines: list[Json] = [
        {"protocol": _protocol(schema)},
        {
            "metaData": {
                "id": str(uuid.uuid5(uuid.NAMESPACE_OID, schema.text)),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json_text(_readable(json.loads(schema.text))),
                "partitionColumns": list(schema.partition_columns),
                "configuration": dict(schema.mapping),
                "createdTime": 0,
            }
        },
        *({"add": _add(schema, each)} for each in files),
    ]
    return encode(lines)


def key_of(root: str, uri: str) -> str | None:
    """Return the key of an object in the store of a table at `root`; None where it lies elsewhere."""
    return unquote(uri.removeprefix(f"{root}/")) if uri.startswith(f"{root}/") else None


def _readable(kind: Any) -> Any:
    """A type without what writers keep of columns, which would ask for features of theirs: whether null, defaults, …"""
    match kind:
        case {"type": "struct", "fields": fields}:
            return {"type": "struct", "fields": [_readable_field(each) for each in fields]}
        case {"type": "array", "elementType": element}:
            return {**kind, "elementType": _readable(element)}
        case {"type": "map", "keyType": key, "valueType": value}:
            return {**kind, "keyType": _readable(key), "valueType": _readable(value)}
        case _:
            return kind


def _readable_field(field: Json) -> Json:
    metadata = {name: each for name, each in field["metadata"].items() if name.startswith(_OF_READERS)}
    return {"name": field["name"], "type": _readable(field["type"]), "nullable": True, "metadata": metadata}


def _add(schema: DeltaSchema, file: DeltaFile) -> Json:
    if file.partition_values is None and schema.partition_columns:
        raise InvalidInput(
            f"{file.uri}: the Delta log removes this file of a partitioned table and does not tell its partition; "
            "land from a copy of the table, which writes its log anew",
            file=file.uri,
        )
    vector = {} if file.vector is None else {"deletionVector": json.loads(file.vector)}
    return {
        "path": file.uri,
        "partitionValues": dict(file.partition_values or {}),
        "size": file.size or 0,
        "modificationTime": 0,
        "dataChange": True,
        **vector,
    }


def _protocol(schema: DeltaSchema) -> Json:
    version = schema.reader_version
    if version < 3:
        return {"minReaderVersion": version, "minWriterVersion": 2 if version == 1 else 5}
    features = sorted({*schema.features} - _NOT_OF_FILES)
    return {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}


def _absolute(root: str, path: str) -> str:
    return path if "://" in path or path.startswith("file:/") else f"{root}/{path}"


def _absolute_vector(root: str, vector: Json) -> Json:
    if vector["storageType"] != "u":
        return vector
    text = vector["pathOrInlineDv"]
    prefix, name = text[:-_UUID_CHARACTERS], uuid.UUID(bytes=unz85(text[-_UUID_CHARACTERS:]))
    path = f"{root}/{prefix}{'/' if prefix else ''}deletion_vector_{name}.bin"
    return {**vector, "storageType": "p", "pathOrInlineDv": path}
