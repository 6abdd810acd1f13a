"""What the regions of a table keep alive (design page 06, "Eligible"; source `001`, "Garbage Collector").

A generation is kept until *every* retained version has merged it. Indexes need no generation longer than that: readers
index what their segments do not cover themselves (design page 05). WAL entries go with the generation that names them.

An entry that no generation names is kept, however old: it is a fence sentinel. A writer that was fenced and stalls for
weeks still tries the number of the sentinel next, and must find it taken (lesson 06). One small object per claim is
the price of that until writers check the collector's boundary.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from storage_core.formats import keys
from storage_core.formats.generation_manifest import MANIFEST_FILE
from storage_core.formats.region_manifest import FlushedGeneration
from storage_core.gc.retention import Retained
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.reading import exists
from storage_core.region import generation
from storage_core.region.manifest import read_latest


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionRoots:
    """What is needed of one region: its newest manifest, the directories of its unmerged generations.

    `merged_directories` and `merged_entries` are what merged generations leave to be collected. Everything else in the
    region, WAL entries that no merged generation names above all, is kept.
    """

    region: str
    manifest_version: int
    unmerged_directories: frozenset[str]
    merged_directories: frozenset[str]
    merged_entries: frozenset[int]


def region_roots(store: ObjectStore, region: str, retained: Retained) -> RegionRoots | None:
    """Return the roots of a region, or None when it has no manifest: then everything in it is kept.

    About three requests, and one GET per generation of its manifest. Raises whatever a read raises.
    """
    manifest = read_latest(store, region)
    if manifest is None:
        return None
    merged_up_to = retained.merged_generation(region)
    unmerged = [each for each in manifest.flushed_generations if each.generation > merged_up_to]
    merged = [each for each in manifest.flushed_generations if each.generation <= merged_up_to]
    needed = _entries(store, region, unmerged)
    return RegionRoots(
        region=region,
        manifest_version=manifest.version,
        unmerged_directories=frozenset(each.path for each in unmerged),
        merged_directories=frozenset(each.path for each in merged),
        merged_entries=_entries(store, region, (each for each in merged if _exists(store, region, each))) - needed,
    )


def _entries(store: ObjectStore, region: str, flushed: Iterable[FlushedGeneration]) -> frozenset[int]:
    return frozenset(entry for each in flushed for entry in generation.read(store, region, each).entries)


def _exists(store: ObjectStore, region: str, flushed: FlushedGeneration) -> bool:
    # The sweep deletes a generation's manifest last, so one that is gone has no entries left to collect.
    return exists(store, keys.generation_file_key(region, flushed.path, MANIFEST_FILE))
