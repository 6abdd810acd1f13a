"""The regions of a repaired table: all of them written anew, and what of their records nobody will read said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from storage_core.clock import Clock
from storage_core.fsck.inventory import Inventory
from storage_core.fsck.region_check import check_regions
from storage_core.fsck.report import Kind, Severity
from storage_core.ids import Ids
from storage_core.objectstore.contract import ObjectStore
from storage_core.region.manifest import region_of
from storage_core.repair.outcome import Lost
from storage_core.repair.region_salvage import RegionSalvage
from storage_core.repair.region_writing import BaseTable, write_region
from storage_core.repair.salvage import Salvage
from storage_core.rows.schema import from_schema_string
from storage_core.settings.region_fields import WHOLE_TABLE_SPEC
from storage_core.settings.table import TableConfig

# Findings of a region that stand for acknowledged records; what else is wrong with it is written anew.
_RECORDS = frozenset({Kind.WAL_ENTRY_DAMAGED, Kind.WAL_ENTRY_MISSING})


def bring_regions(
    source: ObjectStore,
    target: ObjectStore | None,
    inventory: Inventory,
    found: Salvage,
    *,
    regions: Mapping[str, RegionSalvage],
    clock: Clock,
    ids: Ids,
) -> tuple[int, list[Lost]]:
    """Write what is not merged into the base, and return how many records that is, and those that are lost.

    `target` None writes nothing. Nothing happens for append tables. Requests: those of `check_regions` and
    `write_region`.
    """
    config = TableConfig.from_configuration(found.metadata.configuration)
    if config.kind != "keyed":
        return 0, []
    schema = from_schema_string(found.metadata.schemaString)
    table = BaseTable(schema=schema, key=config.primary_key, merged=found.merged)
    lost = list(_damaged(source, inventory, found, regions))
    records = 0
    for name in sorted({*regions, *found.merged}):
        region = _with_spec(regions.get(name) or RegionSalvage(region=name), found.metadata.id, config)
        waiting = region.records_above(found.merged.get(name, 0))
        lost += _undescribed(region, waiting, config)
        lost += _unread(region, found.merged.get(name, 0))
        records += waiting
        if target is not None:
            write_region(source, target, region, table, clock=clock, ids=ids)
    return records, lost


def _damaged(
    source: ObjectStore, inventory: Inventory, found: Salvage, regions: Mapping[str, RegionSalvage]
) -> Iterator[Lost]:
    known = {key: rows for region in regions.values() for key, rows in region.unreadable.items()}
    for each in check_regions(source, inventory, dict(found.merged), deep=False):
        if each.severity is Severity.ERROR and each.kind in _RECORDS:
            reason, rows = f"{each.expected}; found: {each.found}", known.get(each.key)
            if rows != 0:
                yield Lost(key=each.key, reason=reason, rows=rows, is_uncounted=rows is None)


def _unread(region: RegionSalvage, merged: int) -> Iterator[Lost]:
    for each in region.unread_above(merged):
        yield Lost(key=each.key, reason=each.reason, rows=each.records, is_uncounted=each.records is None)


def _with_spec(region: RegionSalvage, table_id: str, config: TableConfig) -> RegionSalvage:
    """The region with its spec. One that neither manifest nor registry tells of is taken for one of the current."""
    if region.spec_id is not None:
        return region
    return replace(region, spec_id=WHOLE_TABLE_SPEC if region.region == region_of(table_id) else config.region_spec.id)


def _undescribed(region: RegionSalvage, records: int, config: TableConfig) -> Iterator[Lost]:
    if records and region.spec_id is not None and region.spec_id > config.region_spec.id:
        why = f"{records} records of region spec {region.spec_id}, which nothing that is left describes"
        yield Lost(key=f"_mem_wal/{region.region}/", reason=why, rows=records)
