"""Regions and their specs as records, and the form of specs in `metaData.configuration`
(docs/architecture/ingestion.md, "Regions").

Records only: what a field computes is `region.transforms`, which values it may be computed from `region.spec`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.settings.json_text import json_text, json_value

REGIONS_KEY = "tidemark.regions"
HAND_REGIONS_KEY = "tidemark.regionsByHand"

WHOLE_TABLE_SPEC = 1
"""The region spec without fields: one region holds every key of the table."""

BY_HAND_SPEC = 0
"""In the place of a spec's id: none governs the region, which a caller made by a name. Its value is the name."""

Value: TypeAlias = bool | int | str | None
"""A field's value in the form that a region is named by: see `region.spec.canonical`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionField:
    """One value of which regions are made: a `transform` such as `bucket(4)`, or a SQL `expression` over `col0, col1…`.

    `source_ids` name the columns that it is computed from, in order; `result_type` is a Spark type as in the schema.
    """

    field_id: str
    source_ids: tuple[str, ...]
    result_type: str
    transform: str | None = None
    expression: str | None = None

    def __post_init__(self) -> None:
        """Refuse a field without a source, or with none or both of transform and expression."""
        if (self.transform is None) == (self.expression is None):
            raise InvalidInput(f"region field {self.field_id!r}: give either a transform or an expression")
        if not self.source_ids or len(set(self.source_ids)) != len(self.source_ids):
            raise InvalidInput(f"region field {self.field_id!r}: name at least one source column, each once")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionSpec:
    """How the rows of a table are divided into regions. Ids count from 1 and are never used twice.

    Without fields there is one region. Spec 1 has none: it is the spec of every table that was created without.
    """

    id: int = WHOLE_TABLE_SPEC
    fields: tuple[RegionField, ...] = ()

    def __post_init__(self) -> None:
        """Refuse an id that is none, two fields of one id, and fields in spec 1."""
        names = [each.field_id for each in self.fields]
        if not WHOLE_TABLE_SPEC <= self.id < 2**32 or (self.fields and self.id == WHOLE_TABLE_SPEC):
            raise InvalidInput(f"a region spec has an id from 2 to 2**32 - 1, or 1 without fields; found {self.id}")
        if len(set(names)) != len(names):
            raise InvalidInput(f"region fields of one spec need ids of their own, found {names}")


WHOLE_TABLE = RegionSpec()


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A region of a table: its UUID, the spec that it belongs to, and the values of the spec's fields (`Value`).

    `values` is None where only the id is known.
    """

    id: str
    spec_id: int
    values: tuple[Value, ...] | None


def specs_to_text(specs: Sequence[RegionSpec]) -> str:
    """Return the value of the entry `REGIONS_KEY`: the specs in their order."""
    return json_text([_spec_body(each) for each in specs])


def specs_from_text(text: str) -> tuple[RegionSpec, ...]:
    """Return the specs that `specs_to_text` wrote. Raises `InvalidInput` naming the entry."""
    bodies = cast("list[dict[str, Any]]", json_value(REGIONS_KEY, text))  # whatever else it is does not get far
    try:
        return check_specs(tuple(_spec(each) for each in bodies))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(
            f"table configuration {REGIONS_KEY!r}: not region specs ({error!r}): {quoted(text)}", key=REGIONS_KEY
        ) from error


def check_specs(specs: tuple[RegionSpec, ...]) -> tuple[RegionSpec, ...]:
    """Return the specs of a table: at least one, their ids ascending. Raises `InvalidInput`."""
    ids = [each.id for each in specs]
    if not ids or ids != sorted(set(ids)):
        raise InvalidInput(f"a table has region specs with ascending ids, the current one last; found the ids {ids}")
    return specs


def _spec_body(spec: RegionSpec) -> dict[str, object]:
    return {"id": spec.id, "fields": [_field_body(each) for each in spec.fields]}


def _field_body(field: RegionField) -> dict[str, object]:
    computed = {"transform": field.transform} if field.transform is not None else {"expression": field.expression}
    return {
        "field_id": field.field_id,
        "source_ids": list(field.source_ids),
        **computed,
        "result_type": field.result_type,
    }


def _spec(body: dict[str, Any]) -> RegionSpec:
    return RegionSpec(id=int(body["id"]), fields=tuple(_field(each) for each in body["fields"]))


def _field(body: dict[str, Any]) -> RegionField:
    return RegionField(
        field_id=str(body["field_id"]),
        source_ids=tuple(str(each) for each in body["source_ids"]),
        result_type=str(body["result_type"]),
        transform=body.get("transform"),
        expression=body.get("expression"),
    )
