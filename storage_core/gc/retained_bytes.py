"""What holds the bytes of a table's folder, and until when, from the log and the collector's last plan.

No object is listed, so the cost is bounded and objects that no commit named and no collection has seen are not counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from storage_core.formats.gc_plan import Candidate, Plan
from storage_core.log.actions import (
    Action,
    Add,
    IndexSegment,
    Remove,
    RemoveIndexSegment,
    RemoveTranslation,
    Translation,
)
from storage_core.log.advance import read_version
from storage_core.log.snapshot import Snapshot, commit_timestamp
from storage_core.log.tags import read_tags
from storage_core.objectstore.contract import ObjectStore

MOST_VERSIONS = 32
"""So many of the newest versions are read for what they removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedPart:
    """Bytes that are kept for one reason, and when the first and the last of them may go, in ms since the epoch."""

    bytes: int = 0
    first_ms: int | None = None
    last_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedBytes:
    """What holds the bytes of a table.

    `live_bytes` are those of splits, segments and translations of the newest version. `versions` are removed files that
    older versions still name, until the retention of versions and the horizon of the collector have passed.
    `horizon` are unneeded files that the last collection noted, and `orphans` files that no commit named. Both wait for
    the horizon. `tags` are the live tags that keep files of older versions, with the moment when each expires (ms, None
    for never). Where `is_partial` older versions than those read may keep more.
    """

    live_bytes: int
    versions: RetainedPart
    horizon: RetainedPart
    orphans: RetainedPart
    tags: Mapping[str, int | None]
    is_partial: bool


def measure_retained(store: ObjectStore, snapshot: Snapshot, plan: Plan, *, now_ms: int) -> RetainedBytes:
    """Return what holds the bytes of the table. One GET for the tags, and one for each of the 32 newest versions.

    Versions that are older than the retention are not read. A moment is the earliest one: the next collection deletes.
    """
    config = snapshot.config
    removed, is_partial = _removed(store, snapshot, since_ms=now_ms - config.version_retention_ms)
    waits_ms = config.version_retention_ms + config.gc_horizon_ms
    noted = defaultdict[bool, list[Candidate]](list)
    for each in plan.candidates.values():
        noted[_is_orphan(each)].append(each)
    tags = read_tags(store).live(now_ms)
    extra = sum(each.size for each in snapshot.segments.values())
    extra += sum(each.size for each in snapshot.translations.values())
    return RetainedBytes(
        live_bytes=snapshot.bytes + extra,
        versions=_kept(
            (size, at_ms + waits_ms) for key, (size, at_ms) in removed.items() if key not in plan.candidates
        ),
        horizon=_noted(noted[False], config.gc_horizon_ms),
        orphans=_noted(noted[True], config.gc_horizon_ms),
        tags={each.name: each.expires_at_ms for each in tags if each.version < snapshot.version},
        is_partial=is_partial,
    )


def _removed(store: ObjectStore, snapshot: Snapshot, *, since_ms: int) -> tuple[dict[str, tuple[int, int]], bool]:
    """The files that versions since then removed, with size and moment, and whether there are more such versions."""
    found: dict[str, tuple[int, int]] = {}
    unsized: dict[str, int] = {}
    kept = {*snapshot.segments, *snapshot.translations}
    for version in range(snapshot.version, max(snapshot.version - MOST_VERSIONS, -1), -1):
        actions = read_version(store, version)
        if actions is None:
            return found, False
        at_ms = commit_timestamp(actions, 0)
        if at_ms <= since_ms:
            return found, False
        _note_sizes(actions, unsized, found)
        named = {each.path for each in actions if isinstance(each, Add)}
        removed = {each.path for each in actions if isinstance(each, Remove)} - named - found.keys()
        live = named | kept | {path for path in removed if path in snapshot.splits}
        for each in actions:
            match each:
                case Remove(path=path, size=size) if path not in found and path not in live:
                    if size is None:
                        unsized[path] = at_ms
                    else:
                        found[path] = (size, at_ms)
                case RemoveIndexSegment(path=path) | RemoveTranslation(path=path) if path not in kept:
                    unsized.setdefault(path, at_ms)
    return found, snapshot.version >= MOST_VERSIONS


def _note_sizes(actions: Iterable[Action], unsized: dict[str, int], found: dict[str, tuple[int, int]]) -> None:
    """Take the sizes of removed files from the commit that added them."""
    for each in actions:
        if isinstance(each, Add | IndexSegment | Translation) and each.path in unsized:
            found[each.path] = (each.size, unsized.pop(each.path))


def _is_orphan(candidate: Candidate) -> bool:
    return candidate.reason.value.startswith("orphan_")


def _noted(candidates: Iterable[Candidate], horizon_ms: int) -> RetainedPart:
    return _kept((each.size, each.first_seen_ms + horizon_ms) for each in candidates)


def _kept(found: Iterable[tuple[int, int]]) -> RetainedPart:
    known = list(found)
    moments = [until_ms for _, until_ms in known]
    return RetainedPart(
        bytes=sum(size for size, _ in known), first_ms=min(moments, default=None), last_ms=max(moments, default=None)
    )
