"""Where a split came from, as the file itself says it: its table, and what it took the place of.

The log is the truth about which splits are live. When it is lost, files alone do not tell a compaction's output from
its inputs, which lie beside it for weeks. So every file of a rewrite names the splits it replaces with their rows, and
carries the id of the operation that it shares with the other outputs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal, cast, get_args

from storage_core.errors import Corrupt
from storage_core.split.metadata import PREFIX, json_object

Operation = Literal["append", "compact", "merge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedRange:
    """The generations that a merge took: those of `region` after `after` up to `generation`."""

    region: str
    after: int
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """What made a split. `operation_id` is shared by the outputs of one operation that were committed together.

    `replaces` are the splits that leave the table when this one joins it, with their rows (-1 where nobody counted).
    All outputs of a compaction name all of its inputs; those of a merge each name their own, so that what an operation
    replaces is the union over its outputs.
    """

    operation: Operation = "append"
    operation_id: str | None = None
    replaces: Mapping[str, int] = field(default_factory=dict)
    merged: MergedRange | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The table that a file says it belongs to: id, schema as Spark JSON, settings, and the version it was planned on.

    The version that added the file is above `planned_version`; no file can know which it became.
    """

    table_id: str
    table_schema: str
    configuration: Mapping[str, str]
    planned_version: int
    lineage: Lineage


APPENDED = Lineage()


def write_origin(origin: Origin) -> dict[str, str]:
    """Return the key-value metadata that `read_origin` turns back into an equal record."""
    lineage = origin.lineage
    merged = lineage.merged
    entries: dict[str, str | None] = {
        "table_id": origin.table_id,
        "table_schema": origin.table_schema,
        "configuration": _compact(dict(origin.configuration)),
        "planned_version": str(origin.planned_version),
        "operation": lineage.operation,
        "operation_id": lineage.operation_id,
        "replaces": _compact(dict(lineage.replaces)) if lineage.replaces else None,
        "merged": None if merged is None else _compact(asdict(merged)),
    }
    return {PREFIX + name: value for name, value in entries.items() if value is not None}


def read_origin(metadata: Mapping[str, str], where: str) -> Origin | None:
    """Return what a file says about its table, None for a file of a release that did not record it.

    Raises `Corrupt` naming `where` when the record cannot be read.
    """
    if PREFIX + "table_schema" not in metadata:
        return None
    try:
        return Origin(
            table_id=metadata[PREFIX + "table_id"],
            table_schema=metadata[PREFIX + "table_schema"],
            configuration=_texts(json_object(metadata, "configuration") or {}),
            planned_version=int(metadata[PREFIX + "planned_version"]),
            lineage=_lineage(metadata),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Corrupt(f"{where}: where the split came from cannot be read: {error!r}", key=where) from error


def _lineage(metadata: Mapping[str, str]) -> Lineage:
    operation = metadata.get(PREFIX + "operation", "append")
    if operation not in get_args(Operation):
        raise ValueError(f"unknown operation {operation!r}")
    merged = json_object(metadata, "merged")
    return Lineage(
        operation=cast("Operation", operation),
        operation_id=metadata.get(PREFIX + "operation_id"),
        replaces={path: int(rows) for path, rows in (json_object(metadata, "replaces") or {}).items()},
        merged=None
        if merged is None
        else MergedRange(
            region=str(merged["region"]), after=int(merged["after"]), generation=int(merged["generation"])
        ),
    )


def _texts(values: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items()}


def _compact(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
