"""Regions and their fields computed for one Python row at a time, to check the vectorized results."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from storage_core.data.rows.conform import conform
from storage_core.data.rows.incoming import table_of
from storage_core.data.settings.layout import Region, RegionField, RegionSpec
from storage_core.write.region.spec import field_values, route


def region_of_row(table_id: str, spec: RegionSpec, row: Mapping[str, object], schema: pa.Schema) -> Region:
    """Return the region of one row that has the source columns of the spec. Other columns are ignored."""
    names = dict.fromkeys(name for field in spec.fields for name in field.source_ids)
    sources = [schema.field(name) for name in names]
    given = {each.name: row.get(each.name) for each in sources}
    rows = conform(table_of(given, schema), pa.schema([each.with_nullable(nullable=True) for each in sources]))
    return route(table_id, spec, rows).regions[0]


def field_value(field: RegionField, row: Mapping[str, object], schema: pa.Schema) -> object:
    """Return the value of a field for one Python row, computed as a batch of one row."""
    return field_values(field, table_of({name: row.get(name) for name in field.source_ids}, schema))[0].as_py()
