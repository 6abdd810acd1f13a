"""What a task must know of a table to write splits of it: fixed when the work is planned."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from storage_core.formats.keys import folder_value, partition_folder
from storage_core.log.snapshot import Snapshot
from storage_core.rows.columns import column_ids, numbered, stored_names
from storage_core.rows.partitions import Partition
from storage_core.rows.schema import from_schema_string, to_schema_string
from storage_core.rows.sort_order import OrderColumn, SortOrder, bind, nameless
from storage_core.rows.statistics import TRUNCATE_AT
from storage_core.settings.partition_fields import PartitionField, partition_fields
from storage_core.settings.publish import PUBLISH_KEY, Publish
from storage_core.settings.split_codec import USUAL_CODEC, SplitCodec


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitContext:
    """Everything a task needs to write splits of one table, without opening the table again; travels as JSON.

    `window_seconds` None means a table without windows. `source_id` and `partition_id` are empty where there is none.
    In a table that is partitioned by fields, those of `of_partition` are of one partition, others of none yet.
    `schema_ref` names the family of union-compatible schemas (`add.docMappingRef`); None is the table's first family.
    `schema` has the table's names of the columns, `bloom_filters` those that splits have.
    `configuration` and `planned_version` are those of the snapshot that the work was planned on: files carry them, so
    that a lost log can be made again.
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
        """Text that is equal where the same rows get the same order, from window to window."""
        partitions = [[each.text for each in self.partition_by]] if self.partition_by else []
        parts = [nameless(self.order.text), self.time_column, self.window_seconds, *partitions]
        return json.dumps(parts, ensure_ascii=False)

    @property
    def field_ids(self) -> Mapping[str, int]:
        """The ids that files have for their columns, by the names there.

        From the first change of the schema on, or as soon as the table is to be read as Iceberg: not every reader of
        that maps names.
        """
        is_iceberg = Publish.from_text(self.configuration.get(PUBLISH_KEY, "{}")).iceberg
        return column_ids(numbered(self.schema) if is_iceberg else self.schema)

    @property
    def partition_folder(self) -> str:
        """The folders of the partition in keys of its splits, joined by slashes; none without partitions."""
        return _folders(self.partition_by, self.partition_values)

    def of_partition(self, values: Partition) -> SplitContext:
        """Return the context of the splits of one partition: its values, and its parts of their scope."""
        source = next((each for each in self.partition_by if each.is_source), None)
        return replace(
            self,
            partition_values=values,
            source_id="" if source is None else folder_value(values.get(source.name)),
            partition_id=_folders([each for each in self.partition_by if not each.is_source], values),
        )

    def to_json(self) -> str:
        """Return the text from which `from_json` makes an equal context."""
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
    """Return the context in which new splits of the table are written, as of the snapshot."""
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
