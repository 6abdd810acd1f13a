"""The registry of a table's regions: which there are, so that readers need no listing of the log.

`_mem_wal/_regions.json` names every region of a spec with fields, and every one made by hand; the region of the whole
table needs no entry. It is extended by compare-and-swap *before* the first manifest of a region, so what was
acknowledged is in a region that the registry names. It also says which specs take no new region: changing the spec
closes the one before (decision 0040).

It is derived: lost or torn, it is made again from the manifests of the regions, whose directories a listing shows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from storage_core.clock import Clock
from storage_core.errors import Corrupt, NotFound, RegionClosed, Unavailable
from storage_core.formats import keys
from storage_core.formats.region_manifest import RegionManifest
from storage_core.formats.region_registry import Registry, decode, encode
from storage_core.ids import Ids
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.compare_and_swap import ATTEMPTS, compare_and_swap
from storage_core.objectstore.contract import ObjectStore, PutResult, unchanged
from storage_core.objectstore.create import put_or_unknown
from storage_core.region.manifest import read_latest
from storage_core.region.spec import closing_region, only_region
from storage_core.settings.region_fields import BY_HAND_SPEC, WHOLE_TABLE_SPEC, Region

_logger = logging.getLogger(__name__)

PARALLEL_REGIONS = 8
"""Regions that a reader asks at a time."""


def read_registry(store: ObjectStore) -> Registry:
    """Return the registry. One GET; where it is lost or torn, what the regions themselves say: see `rebuilt`.

    Raises `Corrupt` when neither can be read, `Unsupported` for a newer format.
    """
    key = keys.region_registry_key()
    try:
        blob = store.get(key)
    except NotFound:
        return rebuilt(store)
    try:
        return decode(blob.data, etag=blob.etag)
    except Corrupt as error:
        _logger.warning("%s: made again from the manifests of the regions: %s", key, error)
        return replace(rebuilt(store), etag=blob.etag)


def known_regions(store: ObjectStore, snapshot: Snapshot) -> list[Region]:
    """Return the regions that may hold rows which the snapshot has not merged: its current spec's, then those by hand.

    Regions of the specs before it were merged whole before it became current (decision 0040). None for append tables.
    One GET of the registry, or no request where the spec has no fields and no region is made by hand.
    """
    config = snapshot.config
    if config.kind != "keyed":
        return []
    is_one = not config.region_spec.fields
    named = Registry() if is_one and not config.regions_by_hand else read_registry(store)
    if is_one:
        routed = [only_region(snapshot.table_id, config.region_spec)]
    else:
        empty = closing_region(snapshot.table_id, config.region_spec).id
        routed = [each for each in named.of_spec(config.region_spec.id) if each.id != empty]
    return [*routed, *(named.of_spec(BY_HAND_SPEC) if config.regions_by_hand else ())]


def hand_regions(store: ObjectStore, snapshot: Snapshot) -> list[Region]:
    """Return the regions that callers made by hand, by id. One GET of the registry where the table may have any."""
    if snapshot.config.kind != "keyed" or not snapshot.config.regions_by_hand:
        return []
    return read_registry(store).of_spec(BY_HAND_SPEC)


def known_manifests(store: ObjectStore, snapshot: Snapshot) -> list[RegionManifest]:
    """Return the newest manifest of each region that may hold rows the snapshot has not merged; see `known_regions`.

    Regions that were never claimed are left out. About three requests per region.
    """
    found = (read_latest(store, region.id) for region in known_regions(store, snapshot))
    return [manifest for manifest in found if manifest is not None]


def register(store: ObjectStore, region: Region, *, clock: Clock, ids: Ids) -> None:
    """Return once the registry names the region. One GET when it does already, else one GET and one PUT.

    Raises `RegionClosed` when the region's spec is closed, `CommitUnknown` when the store did not say: try again.
    """
    if region.spec_id == WHOLE_TABLE_SPEC:
        return

    def with_region(current: Registry) -> Registry:
        if region.id in current.regions:
            return current
        if region.spec_id in current.closed:
            raise closed_region(region.id, region.spec_id, current.closed[region.spec_id])
        return replace(current, regions={**current.regions, region.id: region})

    _change(store, with_region, clock=clock, ids=ids)


def close_spec(store: ObjectStore, closing: Region, successor: int, *, clock: Clock, ids: Ids) -> Registry:
    """Let the spec of `closing` take no region after that one, and return the registry: there will never be others.

    What it returns is written: who read a registry before cannot add to it. Closing again changes nothing. One GET, and
    one PUT the first time. Raises `CommitUnknown`, `Unavailable`.
    """

    def with_closed(current: Registry) -> Registry:
        if closing.spec_id in current.closed and not current.is_rebuilt:
            return current
        regions = {**current.regions, closing.id: closing}
        return replace(current, regions=regions, closed={**current.closed, closing.spec_id: successor})

    return _change(store, with_closed, clock=clock, ids=ids)


def closed_region(region: str, spec_id: int, successor: int) -> RegionClosed:
    """Return the error of a claim that comes too late."""
    return RegionClosed(
        f"region {region}: its region spec {spec_id} is closed, spec {successor} follows it; open the table again and "
        "write there (while `Table.set_regions` is under way or was interrupted: finish it first)",
        region=region,
        spec=spec_id,
        successor=successor,
    )


def rebuilt(store: ObjectStore) -> Registry:
    """Return what the regions themselves say: those that have a manifest, and the specs that a closed one closes.

    One LIST per region, and about three requests each. The values of their fields are not known any more, so they are
    not pruned until their next claim. Raises `Corrupt` naming the manifest that cannot be read.
    """
    found = (read_latest(store, region) for region in _listed(store))
    manifests = [each for each in found if each is not None and each.region_spec_id != WHOLE_TABLE_SPEC]
    regions = (Region(id=each.region_id, spec_id=each.region_spec_id, values=None) for each in manifests)
    closed = {each.region_spec_id: each.closed_by for each in manifests if each.closed_by}
    return Registry(regions={each.id: each for each in regions}, closed=closed, is_rebuilt=True)


def _listed(store: ObjectStore) -> Iterator[str]:
    """The regions that have objects. Each is skipped over as soon as it is seen, so its log is not listed."""
    prefix = keys.REGIONS_PREFIX
    after: str | None = None
    while True:
        parsed = (keys.parse(info.key) for info in store.list(prefix, after))
        region = next((each.region for each in parsed if each is not None and each.region is not None), None)
        if region is None:
            return
        yield region
        after = f"{prefix}{region}0"  # the character behind `/`: the first key that cannot be of this region


def _change(store: ObjectStore, change: Callable[[Registry], Registry], *, clock: Clock, ids: Ids) -> Registry:
    key = keys.region_registry_key()

    def put(wanted: Registry) -> PutResult:
        return put_or_unknown(store, key, encode(wanted, nonce=ids.uuid()), unchanged(wanted.etag))

    done = compare_and_swap(partial(read_registry, store), change, put, store=store, key=key, clock=clock, ids=ids)
    if done is None:
        raise Unavailable(f"{key}: lost {ATTEMPTS} races against others; nothing was changed, try again later", key=key)
    return done
