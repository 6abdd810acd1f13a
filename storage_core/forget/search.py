"""Every object of a table that holds rows is read, and looked through for rows that are to be forgotten.

A listing, not the log, says which objects there are: a split that no version names holds its rows, too. Of live splits
the log's statistics and indexes tell most; all else is decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap

from storage_core.dml.finding import ByCondition
from storage_core.errors import Corrupt, InvalidInput, NotFound, Unsupported
from storage_core.forget.judge import Judge
from storage_core.forget.memory import Directory
from storage_core.formats import generation_manifest
from storage_core.formats.generation_manifest import MANIFEST_FILE, RECORDS_FILE, Generation
from storage_core.formats.keys import KeyKind, ParsedKey, parse, wal_entry_key
from storage_core.formats.quarantine_entry import Entry, RejectedLines
from storage_core.log.actions import Add
from storage_core.log.checkpoints.checkpointed import Checkpointed
from storage_core.objectstore.contract import ObjectInfo, ObjectStore
from storage_core.objectstore.prefetch import prefetch
from storage_core.quarantine import read_entry
from storage_core.region import wal
from storage_core.rows.columns import stored_schema

_REFUSED = (Corrupt, Unsupported, InvalidInput, pa.ArrowException, OSError)

AT_ONCE: Final = 16
HELD_BYTES: Final = 64 * 2**20
"""Of objects that are read at a time; one may have more."""

_UNTOLD: Final = "lines that are no rows, and no condition of equality that tells which are meant"

Key = TypeVar("Key")
Read = TypeVar("Read")


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

    def size(self, key: str) -> int:
        """Return the bytes of an object; 0 of one that was not listed."""
        return self.objects[key].size if key in self.objects else 0

    @property
    def regions(self) -> frozenset[str]:
        """The regions with a WAL entry or generation that holds rows."""
        of_entries = {self.parsed[key].region or "" for key in self.entries}
        return frozenset(of_entries | {region for region, _ in self.directories})

    def checkpoints(self) -> list[Checkpointed]:
        """Return the checkpoints of the log, by key."""
        found = map(Checkpointed.at, self.of_kind(KeyKind.STATE, KeyKind.JSON_CHECKPOINT))
        return [each for each in found if each is not None]


def directory_of(key: ParsedKey) -> Directory:
    """Return the generation that a file or manifest of one is of."""
    return key.region or "", key.directory or ""


def listed(store: ObjectStore) -> Found:
    """Return what there is, nothing of it read. One LIST per 1,000 objects."""
    objects = {info.key: info for info in store.list("")}
    parsed = {key: parse(key) for key in objects}
    return Found(objects, {key: each for key, each in parsed.items() if each is not None})


def side_by_side(
    read: Callable[[Key], Read], wanted: Iterable[Key], size: Callable[[Key], int]
) -> Iterator[tuple[Key, Read | Exception]]:
    """Yield each with what reading it returns, or with the error that says why it cannot be read; several at a time.

    Memory: `HELD_BYTES`, or one that has more.
    """

    def tried(key: Key) -> tuple[Key, Read | Exception]:
        try:
            return key, read(key)
        except (NotFound, *_REFUSED) as error:
            return key, error

    with closing(prefetch(tried, wanted, AT_ONCE, weight=size, most=HELD_BYTES)) as every:
        yield from every


@dataclass(slots=True, eq=False)
class Search:
    """Looks for objects of a table that hold rows which meet the condition. What is known of one is not read again."""

    store: ObjectStore
    judge: Judge
    found: Found

    @staticmethod
    def of(store: ObjectStore, judge: Judge) -> Search:
        """Return the search of what there is, nothing of it read but for live splits of the judge's version.

        One LIST per 1,000 objects, and the requests of `live`. Raises `InvalidInput` for a condition that cannot be
        evaluated.
        """
        judge.require_sound()
        search = Search(store, judge, listed(store))
        search.found.shared = frozenset(judge.snapshot.splits) - search.found.objects.keys()
        search.live()
        return search

    def look(self) -> None:
        """Look through all that is not known: again through records, where keys came since that may be theirs.

        A GET of each split, WAL entry, file of records and quarantine entry that is, several at a time.
        """
        self.splits((*(each.key for each in self.found.of_kind(KeyKind.SPLIT)), *sorted(self.found.shared)))
        self._each(self._keys(KeyKind.WAL_ENTRY), self._entry, self._any)
        files = [each.key for each in self.found.of_kind(KeyKind.GENERATION_FILE) if each.name == RECORDS_FILE]
        self._each(files, lambda key: _streams(self.store.get(key).data), self._any)
        self._each(self._keys(KeyKind.QUARANTINE), lambda key: read_entry(self.store, key), self._quarantined)

    def done(self) -> Found:
        """Return what holds rows, by what is known now. One GET per manifest of a generation that is new."""
        memory, found = self.judge.memory, self.found
        held = {key for key in (*found.parsed, *found.shared) if memory.holds(key)}
        found.splits = {key for key in held if key in found.shared or found.parsed[key].kind is KeyKind.SPLIT}
        found.entries, found.quarantine = (held & {*self._keys(k)} for k in (KeyKind.WAL_ENTRY, KeyKind.QUARANTINE))
        found.unread |= {key: _UNTOLD for key in found.parsed if memory.holds(key) is None}
        files = [*found.of_kind(KeyKind.GENERATION_FILE)]
        found.directories = {directory_of(each) for each in files if each.key in held}
        self._open([each for each in files if each.name == MANIFEST_FILE])
        found.directories |= {at for at in found.generations if self._opens(at)}
        return found

    def live(self) -> None:
        """Note what the log, indexes and files tell of live splits. Requests: those of `ByCondition`.

        Of a keyed table it is only what the log rules out: the keys of rows are needed of the others.
        """
        memory, judge, head = self.judge.memory, self.judge, self.judge.snapshot
        finder = ByCondition(self.store, judge.wanted, "forget", judge.limits, judge.verified)
        candidates = finder.candidates(head)
        paths = {add.path for add in candidates.splits}
        told = dict.fromkeys(head.splits.keys() - paths, False)
        if not head.config.primary_key:
            new = [each for each in candidates.splits if each.path not in candidates.whole and memory.needs(each.path)]
            rows = finder.rows(head, new, {add.path: BitMap() for add in new}) if new else {}
            told |= {add.path: bool(rows.get(add.path)) for add in new} | dict.fromkeys(candidates.whole, True)
        for path, holds in told.items():
            memory.say(path, holds)

    def splits(self, paths: Iterable[str], *, strict: bool = False) -> None:
        """Look through the files of splits that are not known. One GET each, several at a time."""
        self._each(paths, lambda key: self.store.get(key).data, self._split, strict=strict)

    def _each(
        self,
        keys: Iterable[str],
        read: Callable[[str], Read],
        holds: Callable[[Read], bool | None],
        *,
        strict: bool = False,
    ) -> None:
        """Remember of each whether it holds rows, and of what cannot be read why; raise that if `strict`.

        What went away meanwhile holds nothing.
        """
        memory = self.judge.memory
        for key, data in side_by_side(read, (key for key in keys if memory.needs(key)), self._size):
            try:
                if isinstance(data, Exception):
                    raise data
                memory.say(key, holds(data))
            except (NotFound, *_REFUSED) as error:
                if strict:
                    raise
                if not isinstance(error, NotFound):
                    self.found.unread[key] = _why(error)

    def _size(self, key: str) -> int:
        add = self.judge.snapshot.splits.get(key)
        return self.found.size(key) if add is None else add.size

    def _keys(self, kind: KeyKind) -> list[str]:
        return [each.key for each in self.found.of_kind(kind)]

    def _split(self, data: bytes) -> bool:
        file = pq.ParquetFile(pa.BufferReader(data))
        wanted = [name for name in stored_schema(self.judge.schema).names if name in file.schema_arrow.names]
        groups = (file.read_row_group(group, columns=wanted, use_threads=False) for group in range(file.num_row_groups))
        return any(bool(self.judge.rows(rows).any()) for rows in groups)

    def _entry(self, key: str) -> list[pa.Table]:
        parsed = self.found.parsed[key]
        return [wal.read(self.store, parsed.region or "", parsed.entry or 0).entry.records]

    def _any(self, pieces: Iterable[pa.Table]) -> bool:
        return any(bool(self.judge.records(records).any()) for records in pieces if records.num_rows)

    def _quarantined(self, entry: Entry) -> bool | None:
        if not isinstance(entry, RejectedLines):
            return bool(self.judge.arrived(entry.rows).any())
        answers = {self.judge.text(str(each.get("text"))) for each in entry.rejected}
        return True if True in answers else None if None in answers else False

    def _open(self, manifests: Sequence[ParsedKey]) -> None:
        """Read the manifests of generations that were not read yet."""
        known, found = self.judge.memory.generations, self.found
        new = {each.key: directory_of(each) for each in manifests if directory_of(each) not in known}
        read = side_by_side(lambda key: generation_manifest.decode(self.store.get(key).data, key), new, self._size)
        for key, generation in read:
            if isinstance(generation, Generation):
                known[new[key]] = generation
            elif not isinstance(generation, NotFound):
                found.unread[key] = _why(generation)
        found.generations = {at: known[at] for at in map(directory_of, manifests) if at in known}

    def _opens(self, at: Directory) -> bool:
        """Whether the generation has an entry that holds rows, or one that is gone, which may have."""
        keys = [wal_entry_key(at[0], entry) for entry in self.found.generations[at].entries]
        return any(key in self.found.entries or key not in self.found.objects for key in keys)


def holding_splits(store: ObjectStore, judge: Judge) -> list[Add]:
    """Return the live splits of the version of the judge whose files have rows that meet the condition.

    Requests: those of `Search.live`, and a GET of each that is not known. Raises what reading one raises.
    """
    search, live = Search(store, judge, Found({}, {})), judge.snapshot.splits
    search.live()
    search.splits(sorted(live), strict=True)
    return [live[path] for path in sorted(live) if judge.memory.holds(path)]


def _why(error: Exception) -> str:
    return getattr(error, "found", None) or str(error)


def _streams(data: bytes) -> Iterable[pa.Table]:
    """The Arrow streams that lie one after the other in a file of records."""
    source = pa.BufferReader(data)
    while source.tell() < len(data):
        with pa.ipc.open_stream(source) as stream:
            yield stream.read_all()
