"""The numbered manifests of a region: finding the newest one and committing the next (docs/architecture/ingestion.md,
"Regions").
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from storage_core.clock import Clock
from storage_core.errors import Corrupt, NotFound, TidemarkError, WriterFenced
from storage_core.formats import keys, region_manifest
from storage_core.formats.region_manifest import NO_COPIES, FlushedGeneration, RegionManifest
from storage_core.objectstore.contract import IfAbsent, IfMatch, ObjectStore
from storage_core.objectstore.create import create_numbered
from storage_core.objectstore.prefetch import under_way
from storage_core.objectstore.reading import exists

_logger = logging.getLogger(__name__)

COPIED = 32
COPIED_BYTES = 384 * 2**10

_MANIFEST_BYTES = 512  # what a manifest takes in memory, about, and each generation that it lists


def region_of(table_id: str) -> str:
    """Return the id of the one region of a table that no region spec governs; the same table gives the same id."""
    return str(uuid.uuid5(uuid.UUID(table_id), "region:0"))


def read_latest(store: ObjectStore, region: str) -> RegionManifest | None:
    """Return the newest manifest of the region, or None when the region was never claimed.

    The hint only saves requests: missing, torn, stale or ahead gives the same answer (lesson 46). With a good hint one
    GET of it, then one HEAD forward beside one GET, or before it on a local disk. Raises `Corrupt` for a manifest that
    is not what its key says.
    """
    near = store.local_path(keys.region_manifest_key(region, 1)) is not None
    return read_from(store, region, read_hint(store, region), near=near)


def read_from(store: ObjectStore, region: str, hint: Hint, *, near: bool = False) -> RegionManifest | None:
    """Return what `read_latest` returns, for the requests that follow that of the hint; `near` as of `under_way`."""
    if hint.version:
        # Only a hint that is ahead names a version that does not exist; asking first would cost every reader a HEAD.
        with suppress(NotFound):
            return _last_from(store, region, hint.version, near=near)
    # A hint that is lost must not make a claimed region look new, so the listing decides.
    version = last_existing(_exists(store, region), _listed_version(store, region))
    return read_version(store, region, version) if version else None


def read_after(store: ObjectStore, known: RegionManifest, *, near: bool = False) -> RegionManifest | None:
    """Return what `read_latest` returns, where `known` was the newest manifest once. One GET beside one HEAD, mostly.

    The hint is read all the same: the versions that follow `known` may be collected by now.
    """
    region = known.region_id
    with under_way(partial(read_hint, store, region), near=near) as hinted:
        version = last_existing(_exists(store, region), known.version)
    if (hint := hinted()).version > version:
        return read_from(store, region, hint, near=near)
    return known if version == known.version else read_version(store, region, version)


def _last_from(store: ObjectStore, region: str, version: int, *, near: bool) -> RegionManifest:
    """The newest manifest, not older than a version that exists. Mostly that is it, so both are asked at once."""
    with under_way(partial(read_version, store, region, version), near=near) as found:
        last = last_existing(_exists(store, region), version)
    return found() if last == version else read_version(store, region, last)


def memory_bytes(manifest: RegionManifest) -> int:
    """Return what a manifest takes in memory, about."""
    copied = sum(each.copies.nbytes for each in manifest.flushed_generations)
    return _MANIFEST_BYTES * (1 + len(manifest.flushed_generations)) + copied


def read_version(store: ObjectStore, region: str, version: int) -> RegionManifest:
    """Return one manifest version. One GET. Raises `NotFound`, or `Corrupt` when it speaks of another version."""
    key = keys.region_manifest_key(region, version)
    manifest = region_manifest.decode(store.get(key).data, key)
    if (manifest.region_id, manifest.version) != (region, version):
        raise Corrupt(
            f"{key}: expected version {version} of region {region}, "
            f"found version {manifest.version} of region {manifest.region_id}",
            key=key,
        )
    return manifest


def commit(store: ObjectStore, manifest: RegionManifest, *, clock: Clock) -> bool:
    """Write this version and return True, or return False when another writer's manifest has its number.

    Exactly once under lost replies, which the writer id in the manifest makes possible. One PUT, then the hint as best
    effort (one GET and one PUT). Raises `CommitUnknown` when the store does not say.
    """
    key = keys.region_manifest_key(manifest.region_id, manifest.version)
    listed = with_bounded_copies(manifest.flushed_generations)
    data = region_manifest.encode(replace(manifest, flushed_generations=listed))
    if not create_numbered(store, key, data, clock=clock):
        return False
    _write_hint(store, manifest)
    return True


def with_bounded_copies(listed: Sequence[FlushedGeneration]) -> tuple[FlushedGeneration, ...]:
    """Return these generations with the copies of the newest `COPIED` only, of at most `COPIED_BYTES` together.

    Each flush, claim and sort writes them again, and each reader of a new manifest fetches them. Nobody who writes a
    manifest knows which generations are merged, so it is the newest ones that count.
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
    """Commit what `change` makes of the newest manifest, which it reads, as the next version, and return that.

    It is asked again after each lost race, so nothing that others committed is taken back; None ends it with nothing
    written. Requests: those of `change` and of `commit`, per race. Raises what they raise.
    """
    while (changed := change()) is not None:
        following = replace(changed, version=changed.version + 1, writer_id=writer_id)
        if commit(store, following, clock=clock):
            return following
    return None


def check_epoch(store: ObjectStore, region: str, epoch: int) -> RegionManifest:
    """Return the newest manifest after making sure that `epoch` still owns the region. Raises `WriterFenced`."""
    latest = read_latest(store, region)
    if latest is None or latest.writer_epoch != epoch:
        raise fenced(region, epoch, latest)
    return latest


def fenced(region: str, epoch: int, latest: RegionManifest | None) -> WriterFenced:
    """Return the error of a writer that lost the region to whom the newest manifest names."""
    found = "no manifest" if latest is None else f"epoch {latest.writer_epoch} of writer {latest.writer_id}"
    return WriterFenced(
        f"region {region}: this writer holds epoch {epoch}, the manifest says {found}; another writer claimed the "
        "region, so stop using this one and open a new one if it should write again",
        region=region,
        epoch=epoch,
    )


@dataclass(frozen=True, slots=True)
class Hint:
    """Where to look for the newest manifest of a region, and behind which entry for the end of its log.

    Neither need be so: a `version` of 0, and a `replay_after` of None, say nothing.
    """

    version: int = 0
    replay_after: int | None = None
    etag: str | None = None


def last_existing(is_there: Callable[[int], bool], start: int) -> int:
    """Return the highest number that exists at or behind `start`, where every number from `start` on exists up to it.

    About two requests per doubling of the distance; one when `start` is already the last.
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
    """Return the hint of the region, one that says nothing where it is missing or torn. One GET."""
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
    # By compare-and-swap and never backwards: a put that arrives late cannot regress it (lesson 05). The writer id
    # keeps equal versions from having equal bytes (lesson 09).
    key = keys.region_hint_key(manifest.region_id)
    found = {"version": manifest.version, "replayAfter": manifest.replay_after_wal_id, "nonce": manifest.writer_id}
    body = json.dumps(found).encode()
    try:
        hint = read_hint(store, manifest.region_id)
        if hint.version < manifest.version:
            store.put(key, body, IfAbsent() if hint.etag is None else IfMatch(hint.etag))
    except TidemarkError as error:
        _logger.warning("%s: the hint was not updated, which only costs readers time: %s", key, error)
