"""Write-ahead log (WAL) of a region: append, find the tail, replay (docs/architecture/ingestion.md, "WAL").

A put-if-absent at the next number is enough to check the epoch. A claim first commits a manifest with a higher epoch.
Then the claim puts a sentinel, an entry without rows, at the first free number. The fenced writer skips a number only
if an entry with this number exists. So the next number of the old writer is never beyond the sentinel. The next put of
the old writer collides with the sentinel. A writer reads the manifest only after a collision. Therefore every
acknowledged entry is before the sentinel and is replayed. An append costs one PUT and no other request.

After a collision, the writer reads the entry at this number. The writer can skip an entry of a lower epoch. An entry
with the same epoch from another process comes from a copy of the process. A fork() or a restored machine creates a copy
of the writer's process. If a writer finds an entry that a copy of its process wrote, the writer stops, because the rows
of this entry are acknowledged. If this writer moved the replay point past the entry of the copy, no process would
replay the rows of that entry (decision 0011).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from storage_core.base.clock import Clock, Ids
from storage_core.base.errors import Corrupt, NotFound, WriterFenced
from storage_core.data.formats import arrow_files, keys
from storage_core.data.formats.arrow_files import WalEntry
from storage_core.store.contract import ObjectStore, create_numbered, exists
from storage_core.store.meter import all_of
from storage_core.store.pieces import NOTHING, KeptValues
from storage_core.write.region.manifest import check_epoch, last_existing

_logger = logging.getLogger(__name__)

IN_PAIRS = 8
"""The first entries of a tail, up to this number, are read two at a time.

Most tails have fewer than `IN_PAIRS` entries. The second of the two GETs often detects the end of the tail.
"""

TOGETHER = 16
"""After the first `IN_PAIRS` entries of a tail, a reader fetches this number of entries at a time."""

_ENTRY_BYTES = 2048  # Approximate memory of an entry without its values.


@dataclass(frozen=True, slots=True)
class Logged:
    """A WAL entry with its number in the log of its region."""

    id: int
    entry: WalEntry


@dataclass(slots=True, kw_only=True)
class WalAppender:
    """Appends the entries of one writer under one epoch. The next put uses the number `next_id`.

    The appender is not safe for concurrent use. `RegionWriter` calls the appender from one thread at a time.
    """

    store: ObjectStore
    clock: Clock
    ids: Ids
    region: str
    epoch: int
    writer_id: str
    next_id: int
    seq: int = 0

    def append(self, records: pa.Table, *, generation: int) -> int:
        """Append the records as one entry and return its number. The entry is durable on return. One PUT.

        A table of records without rows makes a sentinel.

        Raises:
            WriterFenced: another writer claimed the region, or a copy of this process wrote. The entry is not in the
                log.
            CommitUnknown: the store did not report whether the entry is in the log. Do not use this appender again. A
                new claim reads the stored entries.
        """
        self.seq += 1
        entry = WalEntry(
            writer_epoch=self.epoch,
            generation=generation,
            writer_id=self.writer_id,
            seq=self.seq,
            records=records,
            nonce=self.ids.uuid(),
        )
        while True:
            data = arrow_files.encode_wal_entry(replace(entry, number=self.next_id))
            if create_numbered(self.store, keys.wal_entry_key(self.region, self.next_id), data, clock=self.clock):
                break
            check_epoch(self.store, self.region, self.epoch)
            self._require_earlier()
            self.next_id += 1
        taken = self.next_id
        self.next_id += 1
        _logger.debug("region %s: WAL entry %d, %d records, %d bytes", self.region, taken, records.num_rows, len(data))
        return taken

    def _require_earlier(self) -> None:
        """Raise `WriterFenced` unless the entry at `next_id` has an earlier epoch.

        An entry of an earlier epoch is the last entry of an earlier writer, or the sentinel of a late claim.
        """
        found = read_known(self.store, self.region, self.next_id).entry
        if found.writer_epoch >= self.epoch:
            raise WriterFenced(
                f"region {self.region}: WAL entry {self.next_id} was written by writer {found.writer_id} with epoch "
                f"{found.writer_epoch} (seq {found.seq}). This writer has epoch {self.epoch}. A copy of this "
                "process, after fork() or on a restored machine, also writes. Stop this writer and open a new one, "
                "which replays the acknowledged records",
                region=self.region,
                entry=self.next_id,
                epoch=self.epoch,
            )


def find_tail(store: ObjectStore, region: str, *, after: int, seed: int) -> int:
    """Return the number of the last WAL entry, or `after` if there is no later entry.

    Args:
        after: the last known flushed entry, or 0.
        seed: a number that only shortens the search. If this entry does not exist, the search starts at `after`.

    Cost:
        The number of HEADs grows with the logarithm of the distance.
    """

    def entry_exists(entry: int) -> bool:
        return exists(store, keys.wal_entry_key(region, entry))

    return last_existing(entry_exists, seed if seed > after and entry_exists(seed) else after)


def read(store: ObjectStore, region: str, entry: int, kept: KeptValues = NOTHING) -> Logged:
    """Return one entry. One GET unless `kept` has the entry.

    Raises `NotFound`, or `Corrupt` with the key for invalid bytes.
    """
    return kept.made(
        _name(region, entry),
        Logged,
        lambda: _read(store, region, entry),
        lambda found: _ENTRY_BYTES + found.entry.records.nbytes,
    )


def _name(region: str, entry: int) -> tuple[str]:
    return (keys.wal_entry_key(region, entry),)


def _read(store: ObjectStore, region: str, entry: int) -> Logged:
    return decoded(store.get(keys.wal_entry_key(region, entry)).data, region, entry)


def decoded(data: bytes, region: str, entry: int) -> Logged:
    """Decode the entry in these bytes.

    Raise `Corrupt` with the key of the entry if the bytes do not belong to this entry.
    """
    key = keys.wal_entry_key(region, entry)
    found = arrow_files.decode_wal_entry(data, key)
    if found.number not in (None, entry):
        raise Corrupt(f"{key}: expected WAL entry {entry} of region {region}, found entry {found.number}", key=key)
    return Logged(entry, found)


def read_known(store: ObjectStore, region: str, entry: int, kept: KeptValues = NOTHING) -> Logged:
    """Return an entry that a durable object references. Raise `Corrupt` if the entry is damaged or missing."""
    try:
        return read(store, region, entry, kept)
    except NotFound as error:
        key = keys.wal_entry_key(region, entry)
        raise Corrupt(
            f"{key}: WAL entry {entry} of region {region} is missing from the middle of its log", key=key
        ) from error


def belonging(logged: Logged, generation: int) -> Logged:
    """Return an unflushed entry. If its generation is lower than `generation`, replace this number with `generation`.

    `generation` is the number of the next flush. A copy of the writer may flush a generation and omit an entry of this
    generation. The omitted entry then has a lower generation than the next flush (decision 0011).
    """
    if logged.entry.generation >= generation:
        return logged
    return Logged(logged.id, replace(logged.entry, generation=generation))


def is_of(entry: WalEntry, generation: int) -> bool:
    """Return whether an entry in the list of a generation can be part of this generation.

    An entry that names a lower generation can still be part of this generation (see `belonging`). An entry of a lower
    generation must contain its own WAL number. An entry without its number could have been swapped with another entry.
    """
    return entry.generation == generation or (entry.generation < generation and entry.number is not None)


def replay(store: ObjectStore, region: str, *, after: int, before: int) -> Iterator[Logged]:
    """Yield the entries that have rows, from `after` + 1 to `before` - 1, in order. One GET each.

    No number is skipped. Raises `Corrupt` with the name of the first missing, torn or damaged entry.
    """
    return _with_rows(read_known(store, region, entry) for entry in range(after + 1, before))


def read_tail(
    store: ObjectStore, region: str, *, after: int, kept: KeptValues = NOTHING, near: bool = False
) -> Iterator[Logged]:
    """Yield the entries with rows after entry `after`, in order, up to the last entry.

    Raises `Corrupt` with the name of a torn or damaged entry, even if it is the last entry. Also raises `Corrupt` if an
    entry is missing and a later entry exists.

    Cost:
        One GET per entry that is not in `kept`, two at a time, and two more requests at the end. After `IN_PAIRS`
        entries, `TOGETHER` GETs are made at a time, and the last of these GETs find nothing. With `near`, entries are
        read one by one.
    """
    return _with_rows(_until_absent(store, region, after, kept, at_once=1 if near else TOGETHER))


def read_kept(store: ObjectStore, region: str, *, after: int, before: int) -> tuple[list[Logged], list[int]]:
    """Return the existing entries with rows from `after` + 1 to `before` - 1, and the numbers of missing entries.

    Use this function if a collection of generations may run concurrently. The caller must determine whether a missing
    entry should exist. Raises `Corrupt` with the name of a torn or damaged entry. One GET each.
    """
    missing: list[int] = []

    def there() -> Iterator[Logged]:
        for entry in range(after + 1, before):
            try:
                yield read(store, region, entry)
            except NotFound:
                missing.append(entry)

    return list(_with_rows(there())), missing


def _until_absent(store: ObjectStore, region: str, after: int, kept: KeptValues, *, at_once: int) -> Iterator[Logged]:
    def found(entry: int) -> Logged | None:
        try:
            return read(store, region, entry, kept)
        except NotFound:
            return None

    first, fetched = after + 1, 0
    while True:
        while isinstance(known := kept.get(_name(region, first)), Logged):
            yield known
            first += 1
        numbers = range(first, first + (2 if fetched < IN_PAIRS else TOGETHER))
        entries = all_of(found, numbers, at_once)
        for entry, logged in zip(numbers, entries, strict=True):
            if logged is None:
                # Numbers have no gaps. If the next entry exists, this missing entry is a hole and not the end of the
                # log. If a second GET finds the missing entry, a writer wrote this entry and the next entry after the
                # first GET.
                later = entries[entry - first + 1 :]
                if not (any(later) if later else exists(store, keys.wal_entry_key(region, entry + 1))):
                    return
            yield logged or read_known(store, region, entry)
        first, fetched = numbers.stop, fetched + len(numbers)


def _with_rows(entries: Iterator[Logged]) -> Iterator[Logged]:
    """Omit sentinels, and entries after the sentinel of a higher epoch.

    These entries were never acknowledged.
    """
    highest = 0
    for each in entries:
        highest = max(highest, each.entry.writer_epoch)
        if each.entry.writer_epoch == highest and not each.entry.is_sentinel:
            yield each
