"""What a table is, told by its splits where the log does not say it any more: schema, settings, region specs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

from storage_core.errors import Corrupt
from storage_core.formats.keys import KeyKind
from storage_core.fsck.inventory import Inventory
from storage_core.fsck.report import DAMAGE
from storage_core.log.actions import Metadata
from storage_core.objectstore.contract import ObjectStore
from storage_core.repair.found_split import FoundSplit, read_found
from storage_core.settings.region_fields import REGIONS_KEY, WHOLE_TABLE_SPEC
from storage_core.settings.table import TableConfig
from storage_core.split.lineage import Origin


def newest_readable(store: ObjectStore, inventory: Inventory, *paths: Iterable[str]) -> list[FoundSplit]:
    """Return the newest split of the first group that has one which says what table it belongs to; else nothing."""
    found = chain.from_iterable(_newest_first(store, inventory, group) for group in paths)
    first = next(found, None)
    return [] if first is None else [first]


def metadata_of(store: ObjectStore, found: Iterable[FoundSplit]) -> Metadata:
    """Return the metadata that the split which was planned last names. Raises `Corrupt` when there is none."""
    newest = max(found, key=lambda each: (each.origin.planned_version, each.path), default=None)
    if newest is None:
        raise Corrupt(
            f"{store.uri}: neither a readable part of the log nor a split says what the table is",
            advice="restore a copy, or write the data into a new table",
            uri=store.uri,
        )
    origin = newest.origin
    return Metadata(
        id=origin.table_id,
        schemaString=origin.table_schema,
        partitionColumns=TableConfig.from_configuration(origin.configuration).partition_columns,
        configuration=origin.configuration,
    )


def spec_ids_of_merges(found: Iterable[FoundSplit]) -> dict[str, int]:
    """Return the region spec of every region whose merges made some of the splits."""
    return {each.lineage.merged.region: _spec_id(each.origin) for each in found if each.lineage.merged is not None}


def with_region_specs(metadata: Metadata, newest: int, store: ObjectStore, inventory: Inventory) -> Metadata:
    """Return the metadata with the region specs up to the newest, as a split tells them where a lost version added it.

    `newest` is the highest spec id of a region. No request when the metadata has it; else those of `read_found` per
    split, the newest first, until one knows it. Nothing changes when none does: then nothing of that spec is merged.
    """
    if newest <= max(_spec_id(metadata), WHOLE_TABLE_SPEC):
        return metadata
    for each in _newest_first(store, inventory, [parsed.key for parsed in inventory.of(KeyKind.SPLIT)]):
        if each.origin.table_id == metadata.id and _spec_id(each.origin) >= newest:
            specs = each.origin.configuration[REGIONS_KEY]
            return replace(metadata, configuration={**metadata.configuration, REGIONS_KEY: specs})
    return metadata


def _spec_id(settings: Metadata | Origin) -> int:
    return TableConfig.from_configuration(settings.configuration).region_spec.id


def _newest_first(store: ObjectStore, inventory: Inventory, paths: Iterable[str]) -> Iterator[FoundSplit]:
    there = [path for path in paths if path in inventory.objects]
    for path in sorted(there, key=lambda each: (-inventory.objects[each].last_modified_ms, each)):
        try:
            yield read_found(store, inventory, path)
        except DAMAGE:
            continue  # it is not brought over either, which says so
