"""Are the live splits, segments and translations there and what was written: by their sizes, or, deep, by content."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from storage_core.audit.splits import VALUES, AuditedTable, audit_split
from storage_core.fsck.inventory import Inventory
from storage_core.fsck.report import DAMAGE, Finding, Kind, damage_of
from storage_core.index import segments
from storage_core.index.places import load_map
from storage_core.log.actions import Add, IndexSegment, Translation
from storage_core.log.moves import by_input, reaches
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.split.read import open_split
from storage_core.split.vectors import deleted_rows


def check_splits(store: ObjectStore, inventory: Inventory, snapshot: Snapshot, *, deep: bool) -> Iterator[Finding]:
    """Yield what is wrong with the live splits and their deletion vectors.

    No request; deep: one GET per split, one in memory at a time, and one per vector that is stored.
    """
    for add in snapshot.splits.values():
        found = _presence(add, inventory)
        if found is not None:
            yield found
        elif deep:
            yield from _split_content(store, add, snapshot)
        yield from _vector(store, add, inventory, deep=deep)


def check_older_splits(store: ObjectStore, inventory: Inventory, older: Iterable[Add]) -> Iterator[Finding]:
    """Yield what is wrong with splits that only older versions name. One GET per split."""
    for add in older:
        if add.path not in inventory.objects:
            expected = f"{add.size} bytes{_rows(add)}"
            yield Finding(kind=Kind.OLDER_SPLIT_MISSING, key=add.path, expected=expected, found="nothing")
            continue
        try:
            open_split(store, add.as_written)
        except DAMAGE as error:
            yield damage_of(Kind.OLDER_SPLIT_DAMAGED, error, add.path, f"the bytes with xxh3-64 {add.xxh3}")


def check_segments(store: ObjectStore, inventory: Inventory, snapshot: Snapshot, *, deep: bool) -> Iterator[Finding]:
    """Yield what is wrong with the live segments and translations. No request; deep: one GET for each."""
    moved = by_input(snapshot.translations.values())
    for segment in snapshot.segments.values():
        found = _presence(segment, inventory)
        if found is not None:
            yield found
        elif deep:
            yield from _segment_content(store, segment)
        if not reaches(segment, snapshot.splits, moved):
            what = f"{segment.covers[0]} is not, nor what its rows went to" if segment.covers else "none"
            yield Finding(kind=Kind.SEGMENT_STALE, key=segment.path, expected="to cover live splits", found=what)
    for translation in snapshot.translations.values():
        found = _presence(translation, inventory)
        if found is not None:
            yield found
        elif deep:
            yield from _translation_content(store, translation)


def _vector(store: ObjectStore, add: Add, inventory: Inventory, *, deep: bool) -> Iterator[Finding]:
    vector = add.deleted_rows
    if vector is None or vector.path is None:
        return
    info = inventory.objects.get(vector.path)
    expected = f"{vector.size} bytes, {vector.cardinality} rows of {add.path}"
    if info is None:
        yield Finding(kind=Kind.VECTOR_MISSING, key=vector.path, expected=expected, found="nothing")
    elif info.size != vector.size:
        yield Finding(kind=Kind.VECTOR_DAMAGED, key=vector.path, expected=expected, found=f"{info.size} bytes")
    elif deep:
        try:
            deleted_rows(store, add)
        except DAMAGE as error:
            yield damage_of(Kind.VECTOR_DAMAGED, error, vector.path, expected)


def _presence(named: Add | IndexSegment | Translation, inventory: Inventory) -> Finding | None:
    gone, other = _KINDS[type(named)]
    info = inventory.objects.get(named.path)
    expected = f"{named.size} bytes"
    if info is None:
        return Finding(kind=gone, key=named.path, expected=expected + _rows(named), found="nothing")
    if info.size != named.size:
        return Finding(kind=other, key=named.path, expected=expected + _rows(named), found=f"{info.size} bytes")
    return None


_KINDS: Mapping[type[object], tuple[Kind, Kind]] = {
    Add: (Kind.SPLIT_MISSING, Kind.SPLIT_SIZE),
    IndexSegment: (Kind.SEGMENT_MISSING, Kind.SEGMENT_DAMAGED),
    Translation: (Kind.TRANSLATION_MISSING, Kind.TRANSLATION_DAMAGED),
}


def _rows(named: Add | IndexSegment | Translation) -> str:
    return f", {named.numRecords} rows" if isinstance(named, Add) and named.numRecords is not None else ""


def _split_content(store: ObjectStore, add: Add, snapshot: Snapshot) -> Iterator[Finding]:
    try:
        faults = audit_split(store, add, AuditedTable.of(snapshot))
    except DAMAGE as error:
        yield damage_of(Kind.SPLIT_DAMAGED, error, add.path, f"the bytes with xxh3-64 {add.xxh3}")
        return
    for each in faults:
        kind = Kind.SPLIT_VALUES_NOT_VALID if each.invariant == VALUES else Kind.SPLIT_BREAKS_INVARIANT
        yield Finding(kind=kind, key=add.path, expected=each.invariant, found=each.message)


def _segment_content(store: ObjectStore, segment: IndexSegment) -> Iterator[Finding]:
    try:
        segments.load(store, segment)
    except DAMAGE as error:
        yield damage_of(Kind.SEGMENT_DAMAGED, error, segment.path, f"the bytes with xxh3-64 {segment.xxh3}")


def _translation_content(store: ObjectStore, translation: Translation) -> Iterator[Finding]:
    try:
        load_map(store, translation)
    except DAMAGE as error:
        expected = f"the bytes with xxh3-64 {translation.xxh3}"
        yield damage_of(Kind.TRANSLATION_DAMAGED, error, translation.path, expected)
