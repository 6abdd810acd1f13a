"""Pass one's question: which of the objects that exist does no root name, and why (docs/architecture/collection.md,
"Eligible").
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import assert_never

from storage_core.formats.gc_plan import Reason
from storage_core.formats.keys import KeyKind, ParsedKey, parse
from storage_core.gc.forgotten import forgotten_keys
from storage_core.gc.plan import read_plan
from storage_core.gc.roots import Roots, roots
from storage_core.log.log import TransactionLog
from storage_core.objectstore.contract import ObjectInfo, ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreachable:
    """An object that no root names: why, its size in bytes, and since which version and time (ms) it is not needed.

    The time is the removing commit's where there is one, never the file's own age (lesson 40); else the object's last
    modification by the store's clock.
    """

    key: str
    kind: KeyKind
    reason: Reason
    size: int
    since_version: int
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """The roots, what they do not name, keys that are not ours, and the newest modification that the listing showed."""

    roots: Roots
    unreachable: tuple[Unreachable, ...]
    unknown_keys: tuple[str, ...]
    newest_modification_ms: int


def mark(store: ObjectStore, log: TransactionLog, *, now_ms: int) -> Marked:
    """Return what is unreachable at `now_ms`, in key order. Writes nothing.

    The listing is taken before the roots: what is committed in between is among the roots. One LIST per 1,000 objects,
    and the requests of `roots`; one GET of the plan where there is quarantine. Any read error is raised.
    """
    objects = {info.key: info for info in store.list("")}
    parsed = {key: parse(key) for key in objects}
    known = {key: each for key, each in parsed.items() if each is not None}
    found = roots(store, log, known.values(), now_ms=now_ms)
    quarantined = any(each.kind is KeyKind.QUARANTINE for each in known.values())
    forgotten = forgotten_keys([read_plan(store)]) if quarantined else frozenset[str]()
    return Marked(
        roots=found,
        unreachable=tuple(_unreachable(found, objects, known, now_ms=now_ms, forgotten=forgotten)),
        unknown_keys=tuple(sorted(set(objects) - set(known))),
        newest_modification_ms=max((info.last_modified_ms for info in objects.values()), default=0),
    )


def _unreachable(
    found: Roots,
    objects: dict[str, ObjectInfo],
    known: dict[str, ParsedKey],
    *,
    now_ms: int,
    forgotten: frozenset[str],
) -> Iterable[Unreachable]:
    region_cutoff_ms = now_ms - found.retained.head.config.version_retention_ms
    for key in sorted(known):
        reason = _reason(found, known[key], old=objects[key].last_modified_ms < region_cutoff_ms)
        if known[key].kind is KeyKind.QUARANTINE and key in forgotten:
            reason = Reason.FORGOTTEN
        if reason is None:
            continue
        removal = found.retained.removals.get(key)
        yield Unreachable(
            key=key,
            kind=known[key].kind,
            reason=reason,
            size=objects[key].size,
            since_version=removal.version if removal else found.retained.head.version,
            since_ms=removal.timestamp_ms if removal else objects[key].last_modified_ms,
        )


def _reason(found: Roots, parsed: ParsedKey, *, old: bool) -> Reason | None:
    match parsed.kind:
        case KeyKind.VERSION:
            return Reason.OLD_VERSION if _number(parsed.version) < found.first_version else None
        case (
            KeyKind.SPLIT
            | KeyKind.VECTOR
            | KeyKind.SEGMENT
            | KeyKind.TRANSLATION
            | KeyKind.STATE
            | KeyKind.MANIFEST
            | KeyKind.PROGRESS
            | KeyKind.JSON_CHECKPOINT
            | KeyKind.JSON_CHECKPOINT_PART
        ):
            return None if parsed.key in found.keys else _unnamed(found, parsed)
        case KeyKind.REGION_MANIFEST | KeyKind.WAL_ENTRY | KeyKind.GENERATION_FILE:
            return _of_region(found, parsed, old=old)
        case KeyKind.PROBE:
            return Reason.LEFT_BY_PROBE
        case KeyKind.DELTA_COMMIT | KeyKind.DELTA_CHECKPOINT:
            return Reason.OLD_PUBLISHED if _number(parsed.version) < found.first_published else None
        case KeyKind.ICEBERG_METADATA:
            return Reason.OLD_PUBLISHED if _number(parsed.version) < found.first_metadata else None
        case KeyKind.ICEBERG_LIST | KeyKind.ICEBERG_MANIFEST:
            return None if parsed.key in found.keys else Reason.OLD_PUBLISHED
        case (
            KeyKind.LAST_CHECKPOINT
            | KeyKind.REGION_REGISTRY
            | KeyKind.REGION_HINT
            | KeyKind.GC_CANDIDATES
            | KeyKind.GC_BOUNDARY
            | KeyKind.TAGS
            | KeyKind.SOURCE
            | KeyKind.LOCK
            | KeyKind.QUARANTINE
            | KeyKind.DELTA_HINT
            | KeyKind.ICEBERG_HINT
        ):
            return None
        case _:
            assert_never(parsed.kind)


def _unnamed(found: Roots, parsed: ParsedKey) -> Reason:
    removed = parsed.key in found.retained.removals
    match parsed.kind:
        case KeyKind.SPLIT:
            return Reason.REMOVED_SPLIT if removed else Reason.ORPHAN_SPLIT
        case KeyKind.VECTOR:  # superseded or never committed: its action does not say which it took the place of
            return Reason.UNNAMED_VECTOR
        case KeyKind.SEGMENT:
            return Reason.REMOVED_SEGMENT if removed else Reason.ORPHAN_SEGMENT
        case KeyKind.TRANSLATION:
            return Reason.REMOVED_TRANSLATION if removed else Reason.ORPHAN_TRANSLATION
        case KeyKind.STATE | KeyKind.JSON_CHECKPOINT:
            return Reason.OLD_STATE
        case _:
            return Reason.OLD_MANIFEST


def _of_region(found: Roots, parsed: ParsedKey, *, old: bool) -> Reason | None:
    region = found.regions.get(parsed.region or "")
    if region is None:
        return None
    match parsed.kind:
        case KeyKind.REGION_MANIFEST:
            superseded = _number(parsed.version) < region.manifest_version
            return Reason.OLD_REGION_MANIFEST if superseded and old else None
        case KeyKind.WAL_ENTRY:
            return Reason.WAL_ENTRY if parsed.entry in region.merged_entries else None
        case _:
            if parsed.directory in region.unmerged_directories:
                return None
            merged = parsed.directory in region.merged_directories
            return Reason.MERGED_GENERATION if merged else Reason.ORPHAN_GENERATION


def _number(value: int | None) -> int:
    # A parsed key of a numbered kind has its number; were it ever missing, the object would be the newest and stay.
    return 2**64 if value is None else value
