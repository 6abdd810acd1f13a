"""The data that a task needs to write splits (`SplitContext`), and the sort order of rows in splits.

The planner of the work determines the context.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from storage_core.data.formats.keys import folder_value, partition_folder
from storage_core.data.rows.columns import column_ids, numbered, stored_names
from storage_core.data.rows.keys import Positions
from storage_core.data.rows.schema import from_schema_string, to_schema_string
from storage_core.data.rows.sort_order import OrderColumn, SortOrder, bind, nameless, sort_indices
from storage_core.data.rows.statistics import TRUNCATE_AT
from storage_core.data.rows.windows import Partition, by_partition, split_by_window
from storage_core.data.settings.layout import PartitionField, partition_fields
from storage_core.data.settings.table import PUBLISH_KEY, USUAL_CODEC, Publish, SplitCodec
from storage_core.log.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitContext:
    """The data that a task needs to write splits of a table without opening the table. Serialized as JSON.

    Attributes:
        schema: The table's columns, with their names in the table.
        window_seconds: The window in seconds, or None for a table without windows.
        source_id: The id of the source, or empty. In a table with partition fields, `of_partition` sets this value.
        partition_id: The id of the partition, or empty. In a table with partition fields, `of_partition` sets this
            value.
        bloom_filters: The columns with Bloom filters, with their names in splits.
        schema_ref: The family of union-compatible schemas (`add.docMappingRef`). None stands for the table's first
            family.
        configuration: The table's settings at the planned version. Files contain them, so that a lost log can be
            rebuilt.
        planned_version: The version on which the work was planned. Files also contain this version.
    """

    table_id: str
    schema: pa.Schema
    order: SortOrder
    time_column: str | None = None
    window_seconds: int | None = None
    target_bytes: int = 256 * 2**20
    source_id: str = ""
    partition_id: str = ""
    partition_by: tuple[PartitionField, ...] = ()
    partition_values: Partition = field(default_factory=dict)
    bloom_filters: tuple[str, ...] = ()
    codec: SplitCodec = USUAL_CODEC
    string_cut: int = TRUNCATE_AT
    packed_metadata: bool = False
    schema_ref: str | None = None
    configuration: Mapping[str, str] = field(default_factory=dict)
    planned_version: int = 0

    @property
    def arrangement(self) -> str:
        """A text. If two contexts have the same `arrangement`, writers sort the same rows in the same order."""
        partitions = [[each.text for each in self.partition_by]] if self.partition_by else []
        parts = [nameless(self.order.text), self.time_column, self.window_seconds, *partitions]
        return json.dumps(parts, ensure_ascii=False)

    @property
    def field_ids(self) -> Mapping[str, int]:
        """The ids of the columns, by the names of the columns in files.

        Columns get ids when the schema first changes, or when the table is first published as Iceberg. Ids are needed
        because not every Iceberg reader maps columns by name.
        """
        is_iceberg = Publish.from_text(self.configuration.get(PUBLISH_KEY, "{}")).iceberg
        return column_ids(numbered(self.schema) if is_iceberg else self.schema)

    @property
    def partition_folder(self) -> str:
        """The folders of the partition in a split's key. The text is empty without partitions."""
        return _folders(self.partition_by, self.partition_values)

    def of_partition(self, values: Partition) -> SplitContext:
        """Return the context for the splits of one partition, with the values and the scope of the partition."""
        source = next((each for each in self.partition_by if each.is_source), None)
        return replace(
            self,
            partition_values=values,
            source_id="" if source is None else folder_value(values.get(source.name)),
            partition_id=_folders([each for each in self.partition_by if not each.is_source], values),
        )

    def to_json(self) -> str:
        """Return the context as text. `from_json` converts the text back to a context."""
        body = {
            "tableId": self.table_id,
            "schema": to_schema_string(self.schema),
            "order": self.order.text,
            "orderColumns": [[each.name, each.descending, each.nulls_first] for each in self.order.columns],
            "orderStatistics": list(self.order.statistics),
            "timeColumn": self.time_column,
            "windowSeconds": self.window_seconds,
            "targetBytes": self.target_bytes,
            "sourceId": self.source_id,
            "partitionId": self.partition_id,
            "partitionBy": [each.text for each in self.partition_by],
            "partitionValues": dict(self.partition_values),
            "bloomFilters": list(self.bloom_filters),
            "codec": [self.codec.name, self.codec.level],
            "stringCut": self.string_cut,
            "packedMetadata": self.packed_metadata,
            "schemaRef": self.schema_ref,
            "configuration": dict(self.configuration),
            "plannedVersion": self.planned_version,
        }
        return json.dumps(body, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> SplitContext:
        """Return the context that `to_json` wrote."""
        body: Mapping[str, Any] = json.loads(text)
        columns = tuple(OrderColumn(*each) for each in body["orderColumns"])
        return SplitContext(
            table_id=body["tableId"],
            schema=from_schema_string(body["schema"]),
            order=SortOrder(columns=columns, text=body["order"], statistics=tuple(body["orderStatistics"])),
            time_column=body["timeColumn"],
            window_seconds=body["windowSeconds"],
            target_bytes=body["targetBytes"],
            source_id=body["sourceId"],
            partition_id=body["partitionId"],
            partition_by=partition_fields(body["partitionBy"]),
            partition_values=body["partitionValues"],
            bloom_filters=tuple(body["bloomFilters"]),
            codec=SplitCodec(*body["codec"]),
            string_cut=body["stringCut"],
            packed_metadata=body["packedMetadata"],
            schema_ref=body["schemaRef"],
            configuration=body["configuration"],
            planned_version=body["plannedVersion"],
        )


def _folders(fields: Sequence[PartitionField], values: Partition) -> str:
    return "/".join(partition_folder(each.name, values.get(each.name)) for each in fields)


def context_of(snapshot: Snapshot) -> SplitContext:
    """Return the context for new splits of the table. The context is taken from the snapshot."""
    config, schema = snapshot.config, snapshot.schema
    return SplitContext(
        table_id=snapshot.table_id,
        schema=schema,
        order=bind(config, schema),
        time_column=config.time_column,
        window_seconds=config.window_seconds,
        target_bytes=config.target_split_bytes,
        partition_by=config.partition_fields,
        bloom_filters=tuple(stored_names(schema, config.bloom_filters)),
        codec=config.split_codec,
        string_cut=config.string_cut,
        packed_metadata=config.split_metadata == "packed",
        configuration=snapshot.metadata.configuration,
        planned_version=snapshot.version,
    )


# The order of rows in the base: first by partition, then by window, then by the table's sort order.
#
# Equal rows keep their given order.


PLACE = "\0place"  # No column has this name.


def arranged(rows: pa.Table, context: SplitContext) -> Iterator[tuple[SplitContext, int | None, pa.Table]]:
    """Yield the rows of each partition and window in order, together with the context for their splits.

    The windows of a partition are ascending. The window of null timestamps is last.
    """
    for values, part in by_partition(rows, context.partition_by):
        own = context.of_partition(values) if context.partition_by else context
        for window, of_window in _by_window(part, context):
            yield own, window, _ordered(of_window, context.order)


def with_places(rows: pa.Table) -> pa.Table:
    """Return the rows with an additional column `PLACE`. `PLACE` contains the row numbers."""
    return rows.append_column(PLACE, pa.array(np.arange(rows.num_rows)))


def places_in_order(rows: pa.Table, context: SplitContext) -> Positions:
    """Return the row numbers in the order of `arranged`."""
    compared = {context.time_column, *(each.name for each in context.order.columns), PLACE}
    compared |= {each.column for each in context.partition_by}
    placed = with_places(rows)
    chosen = placed.select([name for name in placed.column_names if name in compared])
    parts = [part.column(PLACE).to_numpy() for _, _, part in arranged(chosen, context)]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def _by_window(rows: pa.Table, context: SplitContext) -> list[tuple[int | None, pa.Table]]:
    if rows.num_rows == 0:
        return []
    if context.window_seconds is None or context.time_column is None:
        return [(None, rows)]
    return split_by_window(rows, context.time_column, context.window_seconds)


def _ordered(rows: pa.Table, order: SortOrder) -> pa.Table:
    indices = sort_indices(rows, order.present(rows.column_names))
    if not np.any(indices[1:] < indices[:-1]):
        return rows  # The rows of a merge are already sorted. `take` would copy all rows.
    return rows.take(pa.array(indices))
