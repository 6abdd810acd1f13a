"""What belongs to no reader: the collector's own state, quarantine, objects that nothing needs, and foreign keys."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from storage_core.clock import Clock
from storage_core.formats import gc_plan
from storage_core.formats.keys import KeyKind, gc_boundary_key, gc_candidates_key, tags_key
from storage_core.fsck.inventory import Inventory
from storage_core.fsck.report import DAMAGE, Finding, Kind, damage_of
from storage_core.gc.mark import mark
from storage_core.log.boundary import first_version
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.log.tags import read_tags
from storage_core.objectstore.contract import ObjectStore
from storage_core.quarantine import read_entry

_logger = logging.getLogger(__name__)


def check_rest(store: ObjectStore, inventory: Inventory, head: Snapshot | None) -> Iterator[Finding]:
    """Yield what is wrong with plan, boundary and quarantine, and the keys that are not ours. One GET each."""
    yield from _plan(store, inventory)
    yield from _boundary(store, inventory, head)
    yield from _tags(store, inventory)
    for parsed in inventory.of(KeyKind.QUARANTINE):
        try:
            read_entry(store, parsed.key)
        except DAMAGE as error:
            yield damage_of(Kind.QUARANTINE_DAMAGED, error, parsed.key, "a quarantine entry")
    for key in inventory.unknown:
        if head is not None and any(key in named for named in (head.splits, head.segments, head.translations)):
            continue  # the log names it, under a name that others gave
        yield Finding(kind=Kind.UNKNOWN_KEY, key=key, expected="objects of the table only", found="another one")


def check_unreferenced(store: ObjectStore, *, clock: Clock) -> Iterator[Finding]:
    """Yield the objects that the collector would call unreachable, with its reason. Requests: see `gc.mark.mark`.

    The collector judges nothing beside damage; then there is nothing to yield, and the damage is a finding already.
    """
    try:
        marked = mark(store, TransactionLog(store, clock=clock), now_ms=clock.now_ms())
    except DAMAGE as error:
        _logger.info("what is unreferenced cannot be told beside damage: %s", error)
        return
    for each in marked.unreachable:
        yield Finding(
            kind=Kind.UNREFERENCED, key=each.key, expected="a version that needs it", found=f"none: {each.reason}"
        )


def _plan(store: ObjectStore, inventory: Inventory) -> Iterator[Finding]:
    key = gc_candidates_key()
    if key not in inventory.objects:
        return
    try:
        gc_plan.decode(store.get(key).data)
    except DAMAGE as error:
        yield damage_of(Kind.GC_PLAN_DAMAGED, error, key, "a plan of the collector")


def _boundary(store: ObjectStore, inventory: Inventory, head: Snapshot | None) -> Iterator[Finding]:
    key = gc_boundary_key()
    versions = inventory.versions(KeyKind.VERSION)
    if key not in inventory.objects:
        if versions and versions[0] > 0:
            expected = f"that version files below {versions[0]} are gone"
            yield Finding(kind=Kind.GC_BOUNDARY_DAMAGED, key=key, expected=expected, found="nothing")
        return
    try:
        first = first_version(store)
    except DAMAGE as error:
        yield damage_of(Kind.GC_BOUNDARY_DAMAGED, error, key, "the first version that may exist")
        return
    newest = max([*versions, head.version if head else -1])
    # Files below the boundary may be left over from a sweep that was killed; none may be missing above it.
    oldest = versions[0] if versions else first
    if not 0 <= first <= newest or first < oldest:
        expected = f"a version from {oldest} to {newest}" if versions else "a version that exists"
        yield Finding(kind=Kind.GC_BOUNDARY_DAMAGED, key=key, expected=expected, found=str(first))


def _tags(store: ObjectStore, inventory: Inventory) -> Iterator[Finding]:
    key = tags_key()
    if key not in inventory.objects:
        return
    try:
        tags = read_tags(store)
    except DAMAGE as error:
        yield damage_of(Kind.TAGS_DAMAGED, error, key, "the tags of the table")
        return
    checkpoints = {*inventory.versions(KeyKind.STATE), *inventory.versions(KeyKind.JSON_CHECKPOINT)}
    for name, tag in sorted(tags.by_name.items()):
        if tag.version not in checkpoints:
            expected = f"a checkpoint of version {tag.version}, which the tag {name!r} keeps"
            yield Finding(kind=Kind.TAG_WITHOUT_VERSION, key=key, expected=expected, found="nothing")
