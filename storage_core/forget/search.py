"""Every object of a table that holds rows is read, and looked through for rows that are to be forgotten.

What is there says a listing, not the log: also a split that no version names holds its rows. Of live splits the log's
statistics and indexes tell most; all else is decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap

from storage_core.dml.finding import ByCondition
from storage_core.errors import Corrupt, InvalidInput, NotFound, Unsupported
from storage_core.forget.judge import Judge
from storage_core.formats import generation_manifest
from storage_core.formats.generation_manifest import MANIFEST_FILE, RECORDS_FILE, Generation
from storage_core.formats.keys import KeyKind, ParsedKey, parse, wal_entry_key
from storage_core.formats.quarantine_entry import RejectedLines
from storage_core.log.actions import Add
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectInfo, ObjectStore
from storage_core.quarantine import read_entry
from storage_core.region import wal
from storage_core.rows.columns import stored_schema

_REFUSED = (Corrupt, Unsupported, InvalidInput, pa.ArrowException, OSError)

Directory = tuple[str, str]
"""A generation: its region, and its folder there."""


@dataclass(slots=True)
class Found:
    """What a listing showed, and which of it holds rows, or cannot be told to hold none (`unread`, with why).

    `shared` are live splits of a shallow clone that are in its source, and were looked through as well.
    `directories` are generations, those whose records lie in WAL entries too; `generations` are the manifests of all.
    """

    objects: Mapping[str, ObjectInfo]
    parsed: Mapping[str, ParsedKey]
    shared: frozenset[str] = frozenset()
    splits: set[str] = field(default_factory=set)
    entries: set[str] = field(default_factory=set)
    directories: set[Directory] = field(default_factory=set)
    quarantine: set[str] = field(default_factory=set)
    unread: dict[str, str] = field(default_factory=dict)
    generations: dict[Directory, Generation] = field(default_factory=dict)

    def of_kind(self, *kinds: KeyKind) -> Iterator[ParsedKey]:
        """Yield the objects of these kinds, by key."""
        return (self.parsed[key] for key in sorted(self.parsed) if self.parsed[key].kind in kinds)

    def has_split(self, path: str) -> bool:
        """Return whether a split was there to be looked through."""
        return path in self.objects or path in self.shared

    @property
    def regions(self) -> frozenset[str]:
        """The regions with a WAL entry or generation that holds rows."""
        of_entries = {self.parsed[key].region or "" for key in self.entries}
        return frozenset(of_entries | {region for region, _ in self.directories})


def listed(store: ObjectStore) -> Found:
    """Return what there is, nothing of it read. One LIST per 1,000 objects."""
    objects = {info.key: info for info in store.list("")}
    parsed = {key: parse(key) for key in objects}
    return Found(objects, {key: each for key, each in parsed.items() if each is not None})


def search(store: ObjectStore, judge: Judge) -> Found:
    """Return which objects hold rows that meet the condition.

    One LIST per 1,000 objects, and a GET of each split, WAL entry, file of records, manifest of a generation and
    quarantine entry, but for live splits that `ByCondition` rules out; of a keyed table WAL entries and files of
    records once more. What goes away meanwhile holds nothing. Memory: one object. Raises `InvalidInput` for a condition
    that cannot be evaluated.
    """
    judge.require_sound()
    found = listed(store)
    live = live_splits(store, judge)
    found.shared = frozenset(judge.snapshot.splits) - found.objects.keys()
    for path in (*(each.key for each in found.of_kind(KeyKind.SPLIT)), *sorted(found.shared)):
        if path in live.ruled_out:
            continue
        if path in live.holding or _looked(found, path, partial(_split_holds, store, path, judge)):
            found.splits.add(path)
    for _ in range(2):
        _search_records(store, judge, found)
        if not judge.needs_keys:
            break
    for each in found.of_kind(KeyKind.QUARANTINE):
        if _looked(found, each.key, partial(_entry_holds, store, each.key, judge)):
            found.quarantine.add(each.key)
    return found


@dataclass(frozen=True, slots=True)
class LiveSplits:
    """Live splits of which rows meet the condition, hidden ones too, and those of which none does."""

    holding: frozenset[str]
    ruled_out: frozenset[str]


def live_splits(store: ObjectStore, judge: Judge, head: Snapshot | None = None) -> LiveSplits:
    """Return what the log, indexes and files tell of live splits. Requests: those of `ByCondition`.

    Of a keyed table it is only what the log rules out: the keys of rows are needed of the others.
    """
    head = head or judge.snapshot
    finder = ByCondition(store, judge.wanted, "forget", judge.limits, judge.verified)
    candidates = finder.candidates(head)
    paths = {add.path for add in candidates.splits}
    if head.config.primary_key:
        return LiveSplits(frozenset(), frozenset(head.splits) - paths)
    left = [add for add in candidates.splits if add.path not in candidates.whole]
    rows = finder.rows(head, left, {add.path: BitMap() for add in left}) if left else {}
    holding = candidates.whole | {path for path, each in rows.items() if each}
    return LiveSplits(frozenset(holding), frozenset(head.splits) - holding)


def holding_splits(store: ObjectStore, judge: Judge, head: Snapshot) -> list[Add]:
    """Return the live splits of a version whose files have rows that meet the condition. See `live_splits`."""
    live = live_splits(store, judge, head)
    left = [path for path in sorted(head.splits) if path not in live.ruled_out]
    return [head.splits[path] for path in left if path in live.holding or _split_holds(store, path, judge)]


def _looked(found: Found, key: str, look: Callable[[], bool | None]) -> bool:
    """Whether an object holds rows; what cannot be told is noted. What is gone holds none."""
    try:
        answer = look()
    except NotFound:
        return False
    except _REFUSED as error:
        found.unread[key] = getattr(error, "found", None) or str(error)
        return False
    if answer is None:
        found.unread[key] = "lines that are no rows, and no condition of equality that tells which are meant"
    return bool(answer)


def _split_holds(store: ObjectStore, key: str, judge: Judge) -> bool:
    file = pq.ParquetFile(pa.BufferReader(store.get(key).data))
    wanted = [name for name in stored_schema(judge.schema).names if name in file.schema_arrow.names]
    groups = (file.read_row_group(group, columns=wanted, use_threads=False) for group in range(file.num_row_groups))
    return any(bool(judge.rows(rows).any()) for rows in groups)


def _entry_holds(store: ObjectStore, key: str, judge: Judge) -> bool | None:
    entry = read_entry(store, key)
    if not isinstance(entry, RejectedLines):
        return bool(judge.arrived(entry.rows).any())
    answers = {judge.text(str(each.get("text"))) for each in entry.rejected}
    return True if True in answers else None if None in answers else False


def _search_records(store: ObjectStore, judge: Judge, found: Found) -> None:
    for each in found.of_kind(KeyKind.WAL_ENTRY):
        if each.key not in found.entries and _looked(found, each.key, partial(_wal_holds, store, each, judge)):
            found.entries.add(each.key)
    for each in found.of_kind(KeyKind.GENERATION_FILE):
        at = (each.region or "", each.directory or "")
        if each.name == RECORDS_FILE and at not in found.directories:
            if _looked(found, each.key, partial(_file_holds, store, each.key, judge)):
                found.directories.add(at)
        elif each.name == MANIFEST_FILE and _looked(found, each.key, partial(_opens, store, each, found)):
            found.directories.add(at)


def _opens(store: ObjectStore, manifest: ParsedKey, found: Found) -> bool:
    """Whether the generation has an entry that holds rows, or one that is gone, which may have."""
    at = (manifest.region or "", manifest.directory or "")
    if at not in found.generations:
        found.generations[at] = generation_manifest.decode(store.get(manifest.key).data, manifest.key)
    keys = [wal_entry_key(at[0], entry) for entry in found.generations[at].entries]
    return any(key in found.entries or key not in found.objects for key in keys)


def _wal_holds(store: ObjectStore, entry: ParsedKey, judge: Judge) -> bool:
    records = wal.read(store, entry.region or "", entry.entry or 0).entry.records
    return bool(records.num_rows and judge.records(records).any())


def _file_holds(store: ObjectStore, key: str, judge: Judge) -> bool:
    return any(bool(judge.records(records).any()) for records in _streams(store.get(key).data))


def _streams(data: bytes) -> Iterable[pa.Table]:
    """The Arrow streams that lie one after the other in a file of records."""
    source = pa.BufferReader(data)
    while source.tell() < len(data):
        with pa.ipc.open_stream(source) as stream:
            yield stream.read_all()
