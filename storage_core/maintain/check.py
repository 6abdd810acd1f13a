"""`fsck`: report every damage of a table and change nothing (docs/architecture/transaction-log.md, "History").

`log_check` checks the log, and `regions` checks the regions. This module checks the size of the live objects. If `deep`
is set, the module also checks the content of these objects. This module also checks the collector's state and the
quarantine, and lists unneeded objects and keys that Tidemark does not know. Objects that a shallow clone shares with
its source count as objects of the clone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import assert_never

from storage_core.base.clock import Clock
from storage_core.base.errors import InvalidInput, NotFound
from storage_core.data.formats import documents
from storage_core.data.formats.keys import gc_boundary_key, source_key, tags_key
from storage_core.data.formats.kinds import KeyKind
from storage_core.index import segments
from storage_core.index.row_positions import load_map
from storage_core.log.actions import Add, File, IndexSegment, Translation
from storage_core.log.coverage import by_input, reaches
from storage_core.log.listing import first_version
from storage_core.log.log import TransactionLog, read_tags
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.audit_splits import VALUES, AuditedTable, audit_split
from storage_core.maintain.collect import mark
from storage_core.maintain.findings import DAMAGE, Finding, Kind, Report, Unread, damage_of, try_read
from storage_core.maintain.history import objects_of
from storage_core.maintain.log_check import LogCheck, check_log, older_splits
from storage_core.maintain.regions import Regions, check_regions
from storage_core.maintain.table_objects import Listing, Reference, files_of, list_table, references, references_of
from storage_core.split.deletion_vectors import deleted_rows
from storage_core.split.read import open_split
from storage_core.store.contract import ObjectStore
from storage_core.store.meter import MeteredStore
from storage_core.write.late_rows import read_object

# For each kind of object, three findings: the object is missing, its size differs, or its content cannot be read.
_FINDINGS: Mapping[KeyKind, tuple[Kind, Kind, Kind]] = {
    KeyKind.SPLIT: (Kind.SPLIT_MISSING, Kind.SPLIT_SIZE, Kind.SPLIT_DAMAGED),
    KeyKind.VECTOR: (Kind.VECTOR_MISSING, Kind.VECTOR_DAMAGED, Kind.VECTOR_DAMAGED),
    KeyKind.SEGMENT: (Kind.SEGMENT_MISSING, Kind.SEGMENT_DAMAGED, Kind.SEGMENT_DAMAGED),
    KeyKind.TRANSLATION: (Kind.TRANSLATION_MISSING, Kind.TRANSLATION_DAMAGED, Kind.TRANSLATION_DAMAGED),
}

_logger = logging.getLogger(__name__)

# These kinds of objects are checked by reading them. Each entry has the kind of finding for a failed read, a
# description of the expected content, and a function that reads the object.
_READERS: Mapping[KeyKind, tuple[Kind, str, Callable[[ObjectStore, str], object]]] = {
    KeyKind.GC_CANDIDATES: (
        Kind.GC_PLAN_DAMAGED,
        "a plan of the collector",
        lambda store, key: documents.decode_gc_plan(store.get(key).data),
    ),
    KeyKind.QUARANTINE: (Kind.QUARANTINE_DAMAGED, "a quarantine entry", read_object),
}


def list_whole_table(store: ObjectStore) -> Listing:
    """Return the objects below the root of a table.

    Raises `InvalidInput` for a shallow clone, which has objects elsewhere.
    """
    found = list_table(store)
    if source_key() in found.parsed:
        raise InvalidInput(
            f"{store.uri}: a shallow clone cannot be repaired, because most of its files are in another table. If "
            "the clone opens, clone it with --deep. Otherwise repair the source, then clone the source again",
            uri=store.uri,
        )
    return found


def with_shared(store: ObjectStore, listing: Listing, keys: Iterable[str]) -> Listing:
    """Return the listing with additional keys from the source of a shallow clone. One HEAD per key."""
    if source_key() not in listing.objects:
        return listing
    found = dict(listing.objects)
    for key in keys:
        if key not in found:
            try:
                found[key] = store.head(key)
            except NotFound:
                continue
    return replace(listing, objects=found)


def check_files(store: ObjectStore, listing: Listing, snapshot: Snapshot, *, deep: bool) -> Iterator[Finding]:
    """Yield the damage of live splits, their deletion vectors, segments and translations.

    Makes no request. With `deep`, the check makes one GET for each object. One object is in memory at a time.
    """
    for file in files_of(snapshot):
        for each in references_of(file):
            yield from _object(each, file, listing, _content(store, each, file, snapshot) if deep else ())
    moved = by_input(snapshot.translations.values())
    for segment in snapshot.segments.values():
        if not reaches(segment, snapshot.splits, moved):
            what = f"neither {segment.covers[0]} nor a split with its rows is live" if segment.covers else "none"
            yield Finding(kind=Kind.SEGMENT_STALE, key=segment.path, expected="to cover live splits", found=what)


def check_older_splits(store: ObjectStore, listing: Listing, older: Iterable[Add]) -> Iterator[Finding]:
    """Yield the damage of splits that only older versions reference. One GET per split."""
    for add in older:
        if add.path not in listing.objects:
            expected = f"{add.size} bytes{_rows(add)}"
            yield Finding(kind=Kind.OLDER_SPLIT_MISSING, key=add.path, expected=expected, found="nothing")
            continue
        found = try_read(add.path, f"the bytes with xxh3-64 {add.xxh3}", partial(open_split, store, add.as_written))
        if isinstance(found, Unread):
            yield found.finding(Kind.OLDER_SPLIT_DAMAGED)


def _object(of: Reference, file: File, listing: Listing, content: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the damage of one object: the object is missing, has another size, or has wrong content.

    The content is read only if this is necessary.
    """
    missing, resized, damaged = _FINDINGS[of.kind]
    info = listing.objects.get(of.key)
    if info is None:
        yield Finding(kind=missing, key=of.key, expected=_expected(of, file), found="nothing")
    elif info.size != of.size:
        yield Finding(kind=resized, key=of.key, expected=_expected(of, file), found=f"{info.size} bytes")
    else:
        try:
            yield from content
        except DAMAGE as error:
            expected = _expected(of, file) if of.kind is KeyKind.VECTOR else f"the bytes with xxh3-64 {of.xxh3}"
            yield damage_of(damaged, error, of.key, expected)


def _expected(of: Reference, file: File) -> str:
    vector = file.deleted_rows if isinstance(file, Add) and of.kind is KeyKind.VECTOR else None
    if vector is not None:
        return f"{of.size} bytes, {vector.cardinality} rows of {file.path}"
    return f"{of.size} bytes{_rows(file)}"


def _rows(file: File) -> str:
    return f", {file.numRecords} rows" if isinstance(file, Add) and file.numRecords is not None else ""


def _content(store: ObjectStore, of: Reference, file: File, snapshot: Snapshot) -> Iterator[Finding]:
    """Read an object and yield its findings. Raises the errors of the read."""
    match file:
        case Add() if of.kind is KeyKind.VECTOR:
            deleted_rows(store, file)
        case Add():
            for each in audit_split(store, file, AuditedTable.of(snapshot)):
                kind = Kind.SPLIT_VALUES_NOT_VALID if each.invariant == VALUES else Kind.SPLIT_BREAKS_INVARIANT
                yield Finding(kind=kind, key=file.path, expected=each.invariant, found=each.message)
        case IndexSegment():
            segments.load(store, file)
        case Translation():
            load_map(store, file)
        case _:
            assert_never(file)


def check_rest(store: ObjectStore, listing: Listing, head: Snapshot | None) -> Iterator[Finding]:
    """Yield findings for a damaged plan, boundary or quarantine object, and for unknown keys.

    One GET for each object.
    """
    for kind, (finding, expected, read) in _READERS.items():
        for parsed in listing.of(kind):
            found = try_read(parsed.key, expected, partial(read, store, parsed.key))
            if isinstance(found, Unread):
                yield found.finding(finding)
    yield from _boundary(store, listing, head)
    yield from _tags(store, listing)
    for key in listing.unknown:
        if head is not None and any(key in named for named in (head.splits, head.segments, head.translations)):
            continue  # Another program chose this name, and the log references it.
        yield Finding(kind=Kind.UNKNOWN_KEY, key=key, expected="objects of the table only", found="another one")


def check_unreferenced(store: ObjectStore, *, clock: Clock) -> Iterator[Finding]:
    """Yield the objects that the collector would delete, with the reason. The cost is the requests of `mark`.

    The collector refuses to mark a damaged table. In this case nothing is yielded, because the damage is already a
    finding.
    """
    try:
        marked = mark(store, TransactionLog(store, clock=clock), now_ms=clock.now_ms())
    except DAMAGE as error:
        _logger.info("unreferenced objects are unknown, because the table is damaged: %s", error)
        return
    for each in marked.unreachable:
        yield Finding(
            kind=Kind.UNREFERENCED,
            key=each.key,
            expected="a version that needs the object",
            found=f"none: {each.reason}",
        )


def _boundary(store: ObjectStore, listing: Listing, head: Snapshot | None) -> Iterator[Finding]:
    key = gc_boundary_key()
    versions = listing.versions(KeyKind.VERSION)
    if key not in listing.objects:
        if versions and versions[0] > 0:
            expected = f"a record that version files below {versions[0]} were collected"
            yield Finding(kind=Kind.GC_BOUNDARY_DAMAGED, key=key, expected=expected, found="nothing")
        return
    first = try_read(key, "the first version that may exist", lambda: first_version(store))
    if isinstance(first, Unread):
        yield first.finding(Kind.GC_BOUNDARY_DAMAGED)
        return
    newest = max([*versions, head.version if head else -1])
    # A killed sweep can leave version files below the boundary. No version file above the boundary may be missing.
    oldest = versions[0] if versions else first
    if not 0 <= first <= newest or first < oldest:
        expected = f"a version from {oldest} to {newest}" if versions else "a version that exists"
        yield Finding(kind=Kind.GC_BOUNDARY_DAMAGED, key=key, expected=expected, found=str(first))


def _tags(store: ObjectStore, listing: Listing) -> Iterator[Finding]:
    key = tags_key()
    if key not in listing.objects:
        return
    tags = try_read(key, "the tags of the table", lambda: read_tags(store))
    if isinstance(tags, Unread):
        yield tags.finding(Kind.TAGS_DAMAGED)
        return
    checkpoints = {*listing.versions(KeyKind.STATE), *listing.versions(KeyKind.JSON_CHECKPOINT)}
    for name, tag in sorted(tags.by_name.items()):
        if tag.version not in checkpoints:
            expected = f"a checkpoint of version {tag.version} for the tag {name!r}"
            yield Finding(kind=Kind.TAG_WITHOUT_VERSION, key=key, expected=expected, found="nothing")


def fsck(store: ObjectStore, *, clock: Clock, deep: bool = False) -> Report:
    """Check the table in `store` and return all damage as findings. Writes nothing.

    Damage is a finding and never an error. The check reads the whole log and the unmerged records, and compares the
    sizes of splits and segments. If `deep`, the check also reads and hashes every object of a known kind.

    If a table does not have the writer feature `tidemark`, another program maintains its log. The check then reports
    only faults that stop a reader: a log that does not open, and missing live files.

    The check cannot detect some damage:

    - A hint, plan, boundary or lock has a valid but wrong content.
    - An object is missing, but no other object needs it.
    - The newest version or WAL entry is missing, and no later object depends on it.

    Raises:
        NotFound: There is no object of a table at the location.
        Unavailable: The store cannot be reached.

    Cost:
        One LIST per 1,000 objects, one or two GETs per log file and per unmerged WAL entry, and the requests of `mark`.
        If `deep`, one more GET per object. Memory: a key and its metadata per object, two snapshots and one split.
    """
    metered = MeteredStore(store)
    listing = list_table(metered)
    if not listing.parsed:
        raise NotFound(f"{store.uri}: no table and no object of a table exists here. Check the location", uri=store.uri)
    log = check_log(metered, listing)
    findings = [*log.findings]
    if log.is_ours:
        findings += _objects(metered, listing, log, clock=clock, deep=deep)
    elif log.head is not None:  # other objects have names and formats of the program that maintains the log
        findings += check_files(metered, listing, log.head, deep=False)
    return Report(
        uri=store.uri,
        version=None if log.head is None else log.head.version,
        deep=deep,
        findings=tuple(_distinct(findings)),
        objects=len(listing.objects),
        bytes=sum(info.size for info in listing.objects.values()),
        requests=metered.requests,
    )


def _objects(store: ObjectStore, listing: Listing, log: LogCheck, *, clock: Clock, deep: bool) -> Iterator[Finding]:
    if log.head is not None:
        seen = with_shared(store, listing, (each.key for each in references(log.head)))
        yield from check_files(store, seen, log.head, deep=deep)
        if deep:
            older = list(older_splits(store, log))
            yield from check_older_splits(store, with_shared(store, seen, objects_of(older)), older)
    merged = {} if log.head is None else dict(log.head.merged_generations)
    yield from check_regions(Regions(store, listing), merged, deep=deep)
    yield from check_rest(store, listing, log.head)
    if log.head is None or log.newest <= log.head.version:
        yield from check_unreferenced(store, clock=clock)  # a lost version may need the objects


def _distinct(findings: list[Finding]) -> list[Finding]:
    """Return each finding once. Several checks can find the same damage."""
    return list(dict.fromkeys(findings))
