"""What the regions of a table keep alive (Lance MemWAL, "Garbage Collector").

A generation is kept until *every* retained version has merged it. What a sorted generation replaced is garbage, unless
a retained version has merged a part of it (decision 0054). Indexes need no generation longer than that: a merge names
its segments in the log, which keeps them from then on (decision 0126). WAL entries go with the generation that names
them.

When the objects of the oldest generations that a manifest lists are gone, it may prune them (decision 0055): then no
flush, claim or collection pays for what was merged long ago.

An entry that no generation names is kept, however old: it is a fence sentinel. A writer that was fenced and stalls for
weeks still tries the number of the sentinel next, and must find it taken (lesson 06). One small object per claim is
the price of that until writers check the collector's boundary.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile

from storage_core.formats import keys
from storage_core.formats.generation_manifest import MANIFEST_FILE, Generation
from storage_core.formats.region_manifest import FlushedGeneration
from storage_core.gc.retention import Retained
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.reading import exists
from storage_core.region import generation
from storage_core.region.manifest import read_latest


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionRoots:
    """What is needed of one region: its newest manifest, the directories of its unmerged generations.

    `merged_directories` are those of merged ones, `merged_entries` the WAL entries that merged and replaced ones leave
    to be collected. Everything else in the region, WAL entries that none of them names above all, is kept.
    `collected_generation` is the last of the oldest generations on the manifest's list whose objects are gone, 0
    without any: the manifest need not list them. `segments` are the keys of index segments of unmerged generations.
    `distributed` are its offsets of the raw log.
    """

    region: str
    manifest_version: int
    unmerged_directories: frozenset[str]
    merged_directories: frozenset[str]
    merged_entries: frozenset[int]
    collected_generation: int
    segments: frozenset[str]
    distributed: Mapping[str, int]


def region_roots(store: ObjectStore, region: str, retained: Retained) -> RegionRoots | None:
    """Return the roots of a region, or None when it has no manifest: then everything in it is kept.

    About three requests, one GET per generation of its manifest, or replaced by one of these, and one HEAD per
    generation that the newest version has merged. Raises whatever a read raises.
    """
    manifest = read_latest(store, region)
    if manifest is None:
        return None
    merged_up_to, newest = retained.merged_generation(region), retained.head.merged_generations.get(region, 0)
    merged = [each for each in manifest.flushed_generations if each.generation <= merged_up_to]
    # What the newest version has merged may be gone, also where an older one retained here has not merged it: a
    # collector with a later time retains fewer versions.
    there = [each for each in manifest.flushed_generations if each.generation > newest or _exists(store, region, each)]
    unmerged = [each for each in there if each.generation > merged_up_to]
    spent = [each for each in there if each.generation <= merged_up_to]
    opened = {each.path: generation.read(store, region, each) for each in there}
    originals = {part: each for each in opened.values() for part in each.replaces}
    needed = [
        part
        for part, each in originals.items()
        if part.generation > merged_up_to and _is_merged_in_part(each, region, retained)
    ]
    replaced = [part for part in originals if part not in needed and _exists(store, region, part)]
    # That a version has merged a part is a guess; an original that is gone was collected when none had.
    still = [part for part in needed if _exists(store, region, part)]
    needed_ones = [*(opened[each.path] for each in unmerged), *_opened(store, region, still)]
    kept = _entries(needed_ones)
    deleted = _entries(opened[each.path] for each in spent) | _entries(_opened(store, region, replaced))
    return RegionRoots(
        region=region,
        manifest_version=manifest.version,
        unmerged_directories=frozenset(each.path for each in (*unmerged, *needed)),
        merged_directories=frozenset(each.path for each in merged),
        merged_entries=deleted - kept,
        collected_generation=_collected(merged, spent),
        segments=frozenset(own.key for each in needed_ones for own in each.segments),
        distributed=manifest.distributed,
    )


def _collected(merged: Iterable[FlushedGeneration], spent: Collection[FlushedGeneration]) -> int:
    """The last one before the first that still has objects: what is pruned has no hole."""
    in_order = sorted(merged, key=lambda each: each.generation)
    return max((each.generation for each in takewhile(lambda each: each not in spent, in_order)), default=0)


def _is_merged_in_part(found: Generation, region: str, retained: Retained) -> bool:
    """Whether a retained version may have merged a part of the sorted generation: its readers read what it replaced."""
    lowest, highest = retained.merged_generation(region), retained.head.merged_generations.get(region, 0)
    return lowest < found.generation and highest >= found.sorted_from


def _opened(store: ObjectStore, region: str, flushed: Iterable[FlushedGeneration]) -> Iterator[Generation]:
    return (generation.read(store, region, each) for each in flushed)


def _entries(generations: Iterable[Generation]) -> frozenset[int]:
    return frozenset(entry for each in generations for entry in each.entries)


def _exists(store: ObjectStore, region: str, flushed: FlushedGeneration) -> bool:
    # The sweep deletes a generation's manifest last, so one that is gone has no entries left to collect.
    return exists(store, keys.generation_file_key(region, flushed.path, MANIFEST_FILE))
