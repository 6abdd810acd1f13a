"""Search for rows to forget: check rows, records and texts of every object against the condition.

The search lists all objects instead of reading the log, because a split in no version of the log may also contain the
rows. For live splits, most answers come from the indexes and from the statistics of the log. The search decodes all
objects for which the indexes and the statistics give no answer. Objects never change, so an answer stays correct and
each object is read once.

Records that contain a key but no row are an exception. A record with only a key belongs to a forgotten row if the
search finds a row with this key. The search may find this row later. So objects with such records are read again when
new keys are found.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap

from storage_core.base.errors import Corrupt, InvalidInput, NotFound, Unsupported
from storage_core.base.limits import QueryLimits
from storage_core.change.row_finder import ByCondition
from storage_core.data.formats import region_manifest
from storage_core.data.formats.arrow_files import Entry, RejectedLines
from storage_core.data.formats.keys import ParsedKey, wal_entry_key
from storage_core.data.formats.kinds import KeyKind
from storage_core.data.formats.region_manifest import MANIFEST_FILE, RECORDS_FILE, Generation
from storage_core.data.rows.codes import Mask
from storage_core.data.rows.columns import stored_schema
from storage_core.data.rows.fold import OPERATION, Operation, conformed, record_schema
from storage_core.data.rows.keys import key_order
from storage_core.log.actions import Add
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.table_objects import Listing, list_table
from storage_core.read.fetching import may_match
from storage_core.read.predicate import And, Compare, Comparison, Filter, Or, Predicate, in_columns
from storage_core.read.row_filter import RowFilter
from storage_core.read.verified_files import VerifiedFiles
from storage_core.split.read import conform_split
from storage_core.store.contract import ObjectStore
from storage_core.store.meter import prefetch
from storage_core.write.late_rows import read_object
from storage_core.write.region import wal
from storage_core.write.region.records import matching

Directory = tuple[str, str]
"""A generation: its region and its folder."""


_WHOLE = pa.array([int(Operation.PUT), int(Operation.RESET)], pa.int8())


@dataclass(frozen=True, slots=True)
class _Answer:
    """Whether an object contains the rows.

    `holds` is None if the answer is unknown. `keys_at` is set if keys that the search finds later can change the
    answer.
    """

    holds: bool | None
    keys_at: int | None


@dataclass(slots=True, eq=False)
class Memory:
    """Answers for one condition on one table, by the name of the searched object.

    `keys` are the keys of the rows that matched the condition. `key` is the primary key of the table.
    """

    key: Sequence[str]
    generations: dict[Directory, Generation] = field(default_factory=dict)
    _answers: dict[str, _Answer] = field(default_factory=dict)
    _keys: list[pa.Table] = field(default_factory=list)
    _times: int = 0
    _is_open: bool = False

    def needs(self, name: str) -> bool:
        """Return whether an object must be searched, for the first time or again because of new keys."""
        known = self._answers.get(name)
        if known is None:
            return True
        return not known.holds and known.keys_at is not None and known.keys_at < self._times

    def holds(self, name: str) -> bool | None:
        """Return the last answer for an object, or False if there is no answer."""
        known = self._answers.get(name)
        return False if known is None else known.holds

    def say(self, name: str, holds: bool | None) -> None:  # noqa: FBT001  # the argument is the answer
        """Store an answer. If the answer is marked as open, keys that the search finds later can change the answer."""
        self._answers[name] = _Answer(holds, self._times if self._is_open else None)
        self._is_open = False

    def leave_open(self) -> None:
        """Mark the next stored answer as open, so that the object is read again when the search finds new keys."""
        self._is_open = True

    def add(self, keys: pa.Table) -> None:
        """Store the keys of rows that matched the condition."""
        self._keys.append(keys)

    @property
    def keys(self) -> pa.Table | None:
        """The keys found so far, or None if no keys were found."""
        return pa.concat_tables(self._keys) if self._keys else None

    def has_new_keys(self) -> bool:
        """Return whether new keys were found since the last call. If new keys were found, objects with open answers
        must be read again.
        """
        known = self.keys
        if known is None:
            return False
        before = self._keys[0].num_rows if self._times else 0
        order, begins = key_order(known, self.key)
        distinct = known.take(pa.array(order[begins])).combine_chunks()
        self._keys = [distinct]
        if distinct.num_rows == before:
            return False
        self._times += 1
        return True


@dataclass(slots=True, eq=False)
class RowCondition:
    """A condition on the rows of a table, which can be applied to rows with any earlier schema of the table.

    For a keyed table, a `RowCondition` also stores the keys of rows that matched the condition. A patch or a delete
    with one of these keys belongs to a row that matched the condition. The record itself lacks the columns of the
    condition.
    """

    store: ObjectStore
    snapshot: Snapshot
    wanted: Filter
    limits: QueryLimits | None = None
    verified: VerifiedFiles = field(default_factory=VerifiedFiles)
    memory: Memory = field(init=False)
    _filter: RowFilter = field(init=False)
    _predicate: Predicate = field(init=False)

    def __post_init__(self) -> None:
        """Prepare the filter. Raises the errors of `RowFilter`. Evaluates nothing."""
        self.memory = Memory(self.snapshot.config.primary_key)
        self._filter = RowFilter(
            self.store, self.snapshot, self.wanted, limits=self.limits, parts=self.verified.bitmaps, query="forget"
        )
        names = self.snapshot.schema.names
        self._predicate = in_columns(self.wanted.predicate, names) or self.wanted.predicate

    def at(self, head: Snapshot) -> RowCondition:
        """Return a `RowCondition` for another version. If the metadata of both versions is equal, the two
        `RowCondition` objects share the answers.
        """
        judge = RowCondition(self.store, head, self.wanted, self.limits, self.verified)
        if head.metadata == self.snapshot.metadata:
            judge.memory = self.memory
        return judge

    @property
    def key(self) -> Sequence[str]:
        """The columns of the primary key. An append table has no primary key."""
        return self.snapshot.config.primary_key

    @property
    def schema(self) -> pa.Schema:
        """The columns that the search reads."""
        wanted = {*self._filter.columns, *self.key}
        return pa.schema([each for each in self.snapshot.schema if each.name in wanted])

    def rows(self, rows: pa.Table) -> Mask:
        """Return a mask of the rows of a split that match the condition.

        Raises the errors of `conform_split` and `RowFilter.mask`.
        """
        return self._judged(conform_split(rows, self.schema))

    def records(self, records: pa.Table) -> Mask:
        """Return a mask of the records that match the condition.

        Whole rows are checked by their values. Other records are checked by comparing their keys with the keys found so
        far.
        """
        known = conformed(records, record_schema(self.snapshot.schema))
        whole = pc.is_in(known.column(OPERATION), _WHOLE).to_numpy()
        mask = np.zeros(known.num_rows, np.bool_)
        mask[whole] = self._judged(known.filter(pa.array(whole)).select(self.schema.names))
        if {*self._filter.columns} <= {*self.key}:  # a delete has the key columns, and the condition needs no others
            mask[~whole] = self._judged(known.filter(pa.array(~whole)).select(self.schema.names))
        elif not whole.all():
            self.memory.leave_open()
            keys = self.memory.keys
            if keys is not None:
                others = known.select(self.key).filter(pa.array(~whole))
                numbered = others.append_column("", pa.array(np.flatnonzero(~whole)))
                mask[matching(numbered, keys, self.key).column("").to_numpy()] = True
        return mask

    def mask_quarantined(self, rows: pa.Table) -> Mask:
        """Return a mask of the quarantined rows or records that match the condition."""
        if OPERATION in rows.column_names:
            return self.records(rows)
        try:
            return self.rows(rows)
        except (InvalidInput, pa.ArrowException):  # the types of the rows differ from the types of the table
            return np.array([self.text(repr(each)) is not False for each in rows.to_pylist()], np.bool_)

    def require_valid(self) -> None:
        """Raise `InvalidInput` if the condition cannot be evaluated."""
        self._filter.require_valid()

    def text(self, text: str) -> bool | None:
        """Return whether a text contains the values that the condition compares with. Return None if this is unknown.

        The answer is known for conditions of equality: True if the text contains the value as a word.
        """
        return _says(self._predicate, text)

    def _judged(self, rows: pa.Table) -> Mask:
        mask = may_match(rows, self._predicate)
        if mask.any():
            left = rows.filter(pa.array(mask))
            mask[mask] = self._filter.mask(left, left.num_rows)
        if self.key and mask.any():
            met = rows.filter(pa.array(mask))
            self.memory.add(pa.table({name: met.column(name) for name in self.key}))
        return mask


def _says(predicate: Predicate, text: str) -> bool | None:
    match predicate:
        case Compare(comparison=Comparison.EQ, value=value):
            found = value if isinstance(value, str | bytes) else getattr(value, "text", value)
            plain = found.decode(errors="replace") if isinstance(found, bytes) else str(found)
            return any(_has_word(text, each) for each in {plain, json.dumps(plain)[1:-1]})
        case And(children):
            answers = [_says(each, text) for each in children]
            return False if False in answers else True if True in answers else None
        case Or(children):
            answers = [_says(each, text) for each in children]
            return True if True in answers else None if None in answers else False
        case _:
            return None


def _has_word(text: str, word: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) is not None


_REFUSED = (Corrupt, Unsupported, InvalidInput, pa.ArrowException, OSError)

AT_ONCE: Final = 16
HELD_BYTES: Final = 64 * 2**20
"""Maximum number of bytes that are read at a time. A single object may be larger than this maximum."""

_UNTOLD: Final = "the object contains lines and not rows. Only a condition with an equality can find such lines"

Key = TypeVar("Key")
Read = TypeVar("Read")


@dataclass(slots=True)
class HoldingObjects:
    """The objects in a listing, and the objects among them that contain the rows.

    - `shared`: live splits of a shallow clone that are stored in its source. These splits are searched as well.
    - `splits`, `entries`, `quarantine`: keys of splits, WAL entries and quarantine entries that contain the rows.
    - `directories`: generations that contain the rows, in their own files or in WAL entries.
    - `unread`: objects for which the answer is unknown, with the reason.
    - `generations`: the manifests of all generations.
    """

    listing: Listing
    shared: frozenset[str] = frozenset()
    splits: set[str] = field(default_factory=set)
    entries: set[str] = field(default_factory=set)
    directories: set[Directory] = field(default_factory=set)
    quarantine: set[str] = field(default_factory=set)
    unread: dict[str, str] = field(default_factory=dict)
    generations: dict[Directory, Generation] = field(default_factory=dict)

    def has_split(self, path: str) -> bool:
        """Return whether a split exists. Only an existing split can be searched."""
        return path in self.listing.objects or path in self.shared

    @property
    def regions(self) -> frozenset[str]:
        """The regions with a WAL entry or a generation that contains the rows."""
        of_entries = {self.listing.parsed[key].region or "" for key in self.entries}
        return frozenset(of_entries | {region for region, _ in self.directories})


def directory_of(key: ParsedKey) -> Directory:
    """Return the generation to which a file or a manifest belongs."""
    return key.region or "", key.directory or ""


def read_concurrently(
    read: Callable[[Key], Read], wanted: Iterable[Key], size: Callable[[Key], int]
) -> Iterator[tuple[Key, Read | Exception]]:
    """Read objects concurrently. Yield each key with the value, or with the error if the read failed.

    Memory: `HELD_BYTES`, or one object if it is larger.
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
    """Search of the objects of a table for rows that match the condition.

    An object is not read again if its answer is known.
    """

    store: ObjectStore
    judge: RowCondition
    found: HoldingObjects

    @staticmethod
    def of(store: ObjectStore, judge: RowCondition) -> Search:
        """Return a `Search` that covers all existing objects.

        So far, only the live splits of the judge's version are searched.

        Raises:
            InvalidInput: The condition cannot be evaluated.

        Cost:
            One LIST per 1,000 objects, and the requests of `live`.
        """
        judge.require_valid()
        search = Search(store, judge, HoldingObjects(list_table(store)))
        search.found.shared = frozenset(judge.snapshot.splits) - search.found.listing.objects.keys()
        search.live()
        return search

    def search_objects(self) -> None:
        """Search each object for which no answer is stored.

        If there are new keys, search the records that may have these keys again.

        Cost:
            One GET per split, WAL entry, file of records and quarantine entry, several at a time.
        """
        self.splits((*(each.key for each in self.found.listing.of(KeyKind.SPLIT)), *sorted(self.found.shared)))
        self._each(self._keys(KeyKind.WAL_ENTRY), self._entry, self._any)
        files = [each.key for each in self.found.listing.of(KeyKind.GENERATION_FILE) if each.name == RECORDS_FILE]
        self._each(files, lambda key: _streams(self.store.get(key).data), self._any)
        self._each(self._keys(KeyKind.QUARANTINE), lambda key: read_object(self.store, key), self._quarantined)

    def holding_objects(self) -> HoldingObjects:
        """Return the objects that contain the rows, as far as the search has already read the objects.

        One GET per new manifest of a generation.
        """
        memory, found = self.judge.memory, self.found
        held = {key for key in (*found.listing.parsed, *found.shared) if memory.holds(key)}
        found.splits = {key for key in held if key in found.shared or found.listing.parsed[key].kind is KeyKind.SPLIT}
        found.entries, found.quarantine = (held & {*self._keys(k)} for k in (KeyKind.WAL_ENTRY, KeyKind.QUARANTINE))
        found.unread |= {key: _UNTOLD for key in found.listing.parsed if memory.holds(key) is None}
        files = [*found.listing.of(KeyKind.GENERATION_FILE)]
        found.directories = {directory_of(each) for each in files if each.key in held}
        self._open([each for each in files if each.name == MANIFEST_FILE])
        found.directories |= {at for at in found.generations if self._opens(at)}
        return found

    def live(self) -> None:
        """Decide from the log, the indexes and the files which live splits contain the rows, and store the answers.

        Makes the requests of `ByCondition`.

        For a keyed table, only splits that the log excludes get an answer. All other splits must be read for the keys
        of their rows.
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
        """Search the files of the splits that have no answer yet. One GET per file, several at a time."""
        self._each(paths, lambda key: self.store.get(key).data, self._split, strict=strict)

    def _each(
        self,
        keys: Iterable[str],
        read: Callable[[str], Read],
        holds: Callable[[Read], bool | None],
        *,
        strict: bool = False,
    ) -> None:
        """Store the answer for each object, and the reason if an object cannot be read. Raise the error if `strict`.

        An object that was deleted in the meantime holds no rows.
        """
        memory = self.judge.memory
        for key, data in read_concurrently(read, (key for key in keys if memory.needs(key)), self._size):
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
        return self.found.listing.size(key) if add is None else add.size

    def _keys(self, kind: KeyKind) -> list[str]:
        return [each.key for each in self.found.listing.of(kind)]

    def _split(self, data: bytes) -> bool:
        file = pq.ParquetFile(pa.BufferReader(data))
        wanted = [name for name in stored_schema(self.judge.schema).names if name in file.schema_arrow.names]
        groups = (file.read_row_group(group, columns=wanted, use_threads=False) for group in range(file.num_row_groups))
        return any(bool(self.judge.rows(rows).any()) for rows in groups)

    def _entry(self, key: str) -> list[pa.Table]:
        parsed = self.found.listing.parsed[key]
        return [wal.read(self.store, parsed.region or "", parsed.entry or 0).entry.records]

    def _any(self, pieces: Iterable[pa.Table]) -> bool:
        return any(bool(self.judge.records(records).any()) for records in pieces if records.num_rows)

    def _quarantined(self, entries: tuple[Entry, ...]) -> bool | None:
        answers = {self._holds(entry) for entry in entries}
        return True if True in answers else None if None in answers else False

    def _holds(self, entry: Entry) -> bool | None:
        if not isinstance(entry, RejectedLines):
            return bool(self.judge.mask_quarantined(entry.rows).any())
        answers = {self.judge.text(str(each.get("text"))) for each in entry.rejected}
        return True if True in answers else None if None in answers else False

    def _open(self, manifests: Sequence[ParsedKey]) -> None:
        """Read the manifests of generations that were not read before."""
        known, found = self.judge.memory.generations, self.found
        new = {each.key: directory_of(each) for each in manifests if directory_of(each) not in known}
        read = read_concurrently(
            lambda key: region_manifest.decode_generation(self.store.get(key).data, key), new, self._size
        )
        for key, generation in read:
            if isinstance(generation, Generation):
                known[new[key]] = generation
            elif not isinstance(generation, NotFound):
                found.unread[key] = _why(generation)
        found.generations = {at: known[at] for at in map(directory_of, manifests) if at in known}

    def _opens(self, at: Directory) -> bool:
        """Return whether a WAL entry of the generation contains rows.

        A deleted entry also counts if it may have contained rows.
        """
        keys = [wal_entry_key(at[0], entry) for entry in self.found.generations[at].entries]
        return any(key in self.found.entries or key not in self.found.listing.objects for key in keys)


def holding_splits(store: ObjectStore, judge: RowCondition) -> list[Add]:
    """Return the live splits with rows that match the condition. The live splits are those of the snapshot in `judge`.

    Raises the errors of the reads. Makes the requests of `Search.live`, and one GET for each split that `Search.live`
    does not decide.
    """
    search, live = Search(store, judge, HoldingObjects(Listing({}, {}))), judge.snapshot.splits
    search.live()
    search.splits(sorted(live), strict=True)
    return [live[path] for path in sorted(live) if judge.memory.holds(path)]


def _why(error: Exception) -> str:
    return getattr(error, "found", None) or str(error)


def _streams(data: bytes) -> Iterable[pa.Table]:
    """Yield the Arrow streams that are concatenated in a file of records."""
    source = pa.BufferReader(data)
    while source.tell() < len(data):
        with pa.ipc.open_stream(source) as stream:
            yield stream.read_all()
