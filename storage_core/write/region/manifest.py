"""Numbered manifests of a region (docs/architecture/ingestion.md, "Regions").

A region's manifest contains its epoch, its writer and its flushed generations. Manifests are numbered and immutable.
This module finds the newest manifest and commits the next manifest. A hint object contains the number of a recent
manifest and only saves requests.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from storage_core.base.clock import Clock
from storage_core.base.errors import Corrupt, NotFound, SnapshotExpired, TidemarkError, WriterFenced
from storage_core.data.formats import keys, region_manifest
from storage_core.data.formats.region_manifest import NO_COPIES, FlushedGeneration, RegionManifest
from storage_core.store.contract import IfAbsent, IfMatch, ObjectStore, create_numbered, exists
from storage_core.store.meter import under_way

_logger = logging.getLogger(__name__)

COPIED = 32
COPIED_BYTES = 384 * 2**10

_MANIFEST_BYTES = 512  # Approximate memory of a manifest, and of each generation in a manifest.


def region_of(table_id: str) -> str:
    """Return the id of the only region of a table without a region spec.

    Every call for the same table returns the same id.
    """
    return str(uuid.uuid5(uuid.UUID(table_id), "region:0"))


def read_latest(store: ObjectStore, region: str) -> RegionManifest | None:
    """Return the newest manifest of the region, or None if the region was never claimed.

    The hint only saves requests. The result is the same with a missing, torn, stale or too high hint (lesson 46).
    Raises `Corrupt` if a manifest does not match its key.

    Cost:
        With a good hint: one GET of the hint. Then one GET of the manifest and one HEAD of the next version,
        concurrently. On a local disk the HEAD comes before the GET.
    """
    near = store.local_path(keys.region_manifest_key(region, 1)) is not None
    return read_from(store, region, read_hint(store, region), near=near)


def read_from(store: ObjectStore, region: str, hint: Hint, *, near: bool = False) -> RegionManifest | None:
    """Return the result of `read_latest` without the request for the hint. `near` is the option of `under_way`."""
    if hint.version:
        # A version is missing only if the hint is too high. This is rare. A check before the GET would cost every
        # reader a HEAD.
        with suppress(NotFound):
            return _last_from(store, region, hint.version, near=near)
    # A lost hint must not make a claimed region look new, so the listing decides.
    version = last_existing(_exists(store, region), _listed_version(store, region))
    return read_version(store, region, version) if version else None


def read_after(store: ObjectStore, known: RegionManifest, *, near: bool = False) -> RegionManifest | None:
    """Return the result of `read_latest`. `known` is the newest manifest of an earlier read.

    Usually one GET and one HEAD, concurrently. The function also reads the hint, because the versions after `known` may
    be collected.
    """
    region = known.region_id
    with under_way(partial(read_hint, store, region), near=near) as hinted:
        version = last_existing(_exists(store, region), known.version)
    if (hint := hinted()).version > version:
        return read_from(store, region, hint, near=near)
    return known if version == known.version else read_version(store, region, version)


def _last_from(store: ObjectStore, region: str, version: int, *, near: bool) -> RegionManifest:
    """Return the newest manifest, starting at a version that exists.

    This version is usually the newest, so its GET and the HEAD of the next version are concurrent.
    """
    with under_way(partial(read_version, store, region, version), near=near) as found:
        last = last_existing(_exists(store, region), version)
    return found() if last == version else read_version(store, region, last)


def memory_bytes(manifest: RegionManifest) -> int:
    """Return the approximate memory of a manifest in bytes."""
    copied = sum(each.copies.nbytes for each in manifest.flushed_generations)
    return _MANIFEST_BYTES * (1 + len(manifest.flushed_generations)) + copied


def read_version(store: ObjectStore, region: str, version: int) -> RegionManifest:
    """Return one manifest version. One GET.

    Raise `NotFound` for a missing manifest. Raise `Corrupt` if the manifest contains another version or region.
    """
    key = keys.region_manifest_key(region, version)
    manifest = region_manifest.decode_region(store.get(key).data, key)
    if (manifest.region_id, manifest.version) != (region, version):
        raise Corrupt(
            f"{key}: expected version {version} of region {region}, "
            f"found version {manifest.version} of region {manifest.region_id}",
            key=key,
        )
    return manifest


def commit(store: ObjectStore, manifest: RegionManifest, *, clock: Clock) -> bool:
    """Write this version and return True. Return False if another writer's manifest has the same number.

    The write happens exactly once, even if replies are lost, because the manifest contains the id of the writer. Raises
    `CommitUnknown` if the store does not report the outcome.

    Cost:
        One PUT, then the hint as best effort (one GET and one PUT).
    """
    key = keys.region_manifest_key(manifest.region_id, manifest.version)
    listed = with_bounded_copies(manifest.flushed_generations)
    data = region_manifest.encode_region(replace(manifest, flushed_generations=listed))
    if not create_numbered(store, key, data, clock=clock):
        return False
    _write_hint(store, manifest)
    return True


def with_bounded_copies(listed: Sequence[FlushedGeneration]) -> tuple[FlushedGeneration, ...]:
    """Return the generations `listed`. Only the newest generations keep their copies of the manifest and the filter.

    At most `COPIED` generations and `COPIED_BYTES` are copied.

    Each flush, claim and sort writes the copies of files in the manifest again. Each reader of a new manifest fetches
    these copies. A writer of a manifest does not know the merged generations. The newest generations are merged last,
    so the function keeps the copies of the newest generations.
    """
    left, chosen = COPIED_BYTES, set[int]()
    for each in sorted(listed, key=lambda each: each.generation)[: -COPIED - 1 : -1]:
        left -= each.copies.nbytes
        if left < 0:
            break
        chosen.add(each.generation)
    return tuple(each if each.generation in chosen else replace(each, copies=NO_COPIES) for each in listed)


def advance(
    store: ObjectStore, change: Callable[[], RegionManifest | None], *, clock: Clock, writer_id: str
) -> RegionManifest | None:
    """Commit the manifest that `change` returns as the next version, and return this manifest.

    `change` reads the newest manifest and returns a changed manifest, or None to write nothing. `change` is called
    again after each lost race, so changes of other writers are never undone. Each attempt makes the requests of the
    functions `change` and `commit`, and raises the errors of these functions.
    """
    while (changed := change()) is not None:
        following = replace(changed, version=changed.version + 1, writer_id=writer_id)
        if commit(store, following, clock=clock):
            return following
    return None


def check_epoch(store: ObjectStore, region: str, epoch: int) -> RegionManifest:
    """Return the newest manifest if `epoch` still owns the region. Raise `WriterFenced` otherwise."""
    latest = read_latest(store, region)
    if latest is None or latest.writer_epoch != epoch:
        raise fenced(region, epoch, latest)
    return latest


def fenced(region: str, epoch: int, latest: RegionManifest | None) -> WriterFenced:
    """Return the error for a writer that lost the region to the writer in the newest manifest."""
    found = "no manifest" if latest is None else f"epoch {latest.writer_epoch} of writer {latest.writer_id}"
    return WriterFenced(
        f"region {region}: this writer has epoch {epoch}, the manifest has {found}. Another writer claimed the "
        "region. Stop using this writer, and open a new one to write again",
        region=region,
        epoch=epoch,
    )


@dataclass(frozen=True, slots=True)
class Hint:
    """Start points of two searches.

    One search finds the newest manifest of a region, and the other finds the end of its log.

    The start points of the two searches may be wrong. `version=0` means an unknown version. `replay_after=None` means
    an unknown end of the log.
    """

    version: int = 0
    replay_after: int | None = None
    etag: str | None = None


def last_existing(is_there: Callable[[int], bool], start: int) -> int:
    """Return the highest existing number, starting at `start`. The existing numbers must have no gap.

    Cost:
        About two requests per doubling of the distance from `start`. One request if `start` is the highest number.
    """
    low, step = start, 1
    while is_there(low + step):
        low, step = low + step, step * 2
    high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_there(middle) else (low, middle)
    return low


def _exists(store: ObjectStore, region: str) -> Callable[[int], bool]:
    return lambda version: exists(store, keys.region_manifest_key(region, version))


def _listed_version(store: ObjectStore, region: str) -> int:
    prefix = keys.region_manifest_key(region, 1).rsplit("/", 1)[0] + "/"
    parsed = (keys.parse(info.key) for info in store.list(prefix))
    return max((each.version or 0 for each in parsed if each is not None), default=0)


def read_hint(store: ObjectStore, region: str) -> Hint:
    """Return the hint of the region. If the hint is missing or torn, return a hint with unknown values. One GET."""
    try:
        blob = store.get(keys.region_hint_key(region))
    except NotFound:
        return Hint()
    try:
        body: object = json.loads(blob.data)
    except (ValueError, RecursionError):
        return Hint(etag=blob.etag)
    found = body if isinstance(body, Mapping) else {}
    return Hint(_number(found.get("version")) or 0, _number(found.get("replayAfter")), blob.etag)


def _number(found: object) -> int | None:
    return found if type(found) is int and 0 <= found < 2**63 else None


def _write_hint(store: ObjectStore, manifest: RegionManifest) -> None:
    # The hint is written by compare-and-swap and never moves backwards. So a late put cannot lower the hint (lesson
    # 05). Hints with the same version have different bytes, because each hint contains a writer id (lesson 09).
    key = keys.region_hint_key(manifest.region_id)
    found = {"version": manifest.version, "replayAfter": manifest.replay_after_wal_id, "nonce": manifest.writer_id}
    body = json.dumps(found).encode()
    try:
        hint = read_hint(store, manifest.region_id)
        if hint.version < manifest.version:
            store.put(key, body, IfAbsent() if hint.etag is None else IfMatch(hint.etag))
    except TidemarkError as error:
        _logger.warning("%s: the hint was not updated, which only costs readers time: %s", key, error)


# Pruning of a region's manifest. Without pruning, the manifest would grow with the history of the region.
#
# Every flush and every claim writes the whole list of generations. A generation that every retained version has merged
# is collected (`maintain.regions`). When the objects of a generation are deleted, the collector removes the generation
# from the list (docs/architecture/collection.md). The collector also removes offsets of the raw log that the table's
# log has reached (decision 0008). Like a sorter, the collector claims no region. The collector keeps the epoch and all
# concurrent changes of other processes.


NOTHING_REACHED: Mapping[str, int] = MappingProxyType({})


def beyond(distributed: Mapping[str, int], reached: Mapping[str, int]) -> dict[str, int]:
    """Return the offsets of a region that are greater than the table's offsets in `reached`."""
    return {writer: last for writer, last in distributed.items() if last > reached.get(writer, 0)}


def prune_collected(
    store: ObjectStore,
    region: str,
    generation: int,
    *,
    reached: Mapping[str, int] = NOTHING_REACHED,
    clock: Clock,
    writer_id: str,
) -> bool:
    """Remove generations up to `generation` from the region's manifest. Return True if this call changed the manifest.

    Call this function only for generations whose objects are deleted. `collected_generation` never decreases, so a late
    caller changes nothing. The call also removes the offsets in `reached`, because the table's log has reached these
    offsets. The commits with these offsets must be so old that no distributor still plans with lower offsets.

    Raises `CommitUnknown` if the store does not report the outcome. The next collection then reads the stored state.

    Cost:
        About four requests. The newest manifest is read again after each lost race.
    """
    before = 0

    def shortened() -> RegionManifest | None:
        nonlocal before
        latest = read_latest(store, region)
        if latest is None:
            return None
        offsets = beyond(latest.distributed, reached)
        if latest.collected_generation >= generation and len(offsets) == len(latest.distributed):
            return None
        before = len(latest.flushed_generations)
        collected = max(generation, latest.collected_generation)
        listed = tuple(each for each in latest.flushed_generations if each.generation > collected)
        return replace(latest, flushed_generations=listed, collected_generation=collected, distributed=offsets)

    committed = advance(store, shortened, clock=clock, writer_id=writer_id)
    if committed is None:
        return False
    count = before - len(committed.flushed_generations)
    _logger.info("region %s: %d generations up to %d are collected, not listed any more", region, count, generation)
    return True


def require_listed(manifest: RegionManifest, merged: int) -> None:
    """Raise `SnapshotExpired` unless the manifest lists every flushed generation that the snapshot has not merged.

    When generations are collected, every retained snapshot has merged these generations. A read at a snapshot that has
    not merged a collected generation would miss rows of this generation.
    """
    if merged < manifest.collected_generation:
        raise SnapshotExpired(
            f"region {manifest.region_id}: generations up to {manifest.collected_generation} are merged and "
            f"collected. This version has merged only generations up to {merged}, so the rows of the later "
            "generations are missing. "
            "Open the newest version. If this is the newest version, run tidemark fsck",
            region=manifest.region_id,
            expected=merged,
            found=manifest.collected_generation,
        )
