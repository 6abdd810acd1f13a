"""Commit a region manifest with other copies of generations, as a release with other copies would write it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from storage_core.data.formats import keys
from storage_core.data.formats.region_manifest import BLOOM_FILE, MANIFEST_FILE, Copies, RegionManifest
from storage_core.store.contract import ObjectStore
from storage_core.write.region import manifest
from storage_core.write.region.spec import known_regions
from tests.support.clock import ManualClock
from tidemark import Table


def copied_as_stored(store: ObjectStore, region: str) -> list[bool]:
    """Return for each generation of the newest manifest whether it has copies.

    Assert that copies equal the stored data.
    """
    latest = manifest.read_latest(store, region)
    assert latest is not None
    for each in latest.flushed_generations:
        for name, found in ((MANIFEST_FILE, each.copies.manifest), (BLOOM_FILE, each.copies.bloom_filter)):
            assert found in (b"", store.get(keys.generation_file_key(region, each.path, name)).data)
    return [bool(each.copies.manifest and each.copies.bloom_filter) for each in latest.flushed_generations]


def change_copies(table: Table, change: Callable[[Copies], Copies]) -> None:
    """For each region of the table, commit a next manifest in which `change` was applied to all copies."""
    for region in known_regions(table.store, table.snapshot):

        def changed(region: str = region.id) -> RegionManifest | None:
            latest = manifest.read_latest(table.store, region)
            assert latest is not None
            listed = tuple(replace(each, copies=change(each.copies)) for each in latest.flushed_generations)
            return replace(latest, flushed_generations=listed)

        assert manifest.advance(table.store, changed, clock=ManualClock(), writer_id="another") is not None


def drop_copies(table: Table) -> None:
    """Commit the next manifest of each region without `Copies`, like a release that does not support `Copies`."""
    change_copies(table, lambda _: Copies())
