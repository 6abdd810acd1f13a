"""The write-ahead log of a region: append, search for the tail, replay (docs/architecture/ingestion.md, "WAL").

Why a put-if-absent at the next number is a sufficient epoch check. A claim first commits a manifest with a higher
epoch and then puts a sentinel at the first free number. A writer only ever advances over numbers it found occupied, so
its next number is never behind that sentinel: its next put collides, and only then it asks the manifest. Every
acknowledged entry therefore lies before the sentinel and is replayed; none lies behind it. An append costs one PUT and
nothing else.

An entry that it collides with is read. One of a lower epoch may be passed over. One of its own epoch that it did not
write is of a copy of its process, by fork() or a machine that was restored: that ends it, for rows in there are
acknowledged, and what it flushed over them would never be replayed (decision 0087).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from storage_core.clock import Clock
from storage_core.errors import Corrupt, NotFound, WriterFenced
from storage_core.formats import keys, wal_entry
from storage_core.formats.wal_entry import WalEntry
from storage_core.ids import Ids
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.create import create_numbered
from storage_core.objectstore.prefetch import all_of
from storage_core.objectstore.reading import exists
from storage_core.region.manifest import check_epoch, last_existing
from storage_core.split.kept_values import NOTHING, KeptValues

_logger = logging.getLogger(__name__)

IN_PAIRS = 8
"""Entries of a tail that are read two at a time: most tails are no longer, and the second GET tells their end."""

TOGETHER = 16
"""Entries of a longer tail that are read at a time."""

_ENTRY_BYTES = 2048  # what an entry takes in memory besides its values, about


@dataclass(frozen=True, slots=True)
class Logged:
    """A WAL entry and the number it has in the log of its region."""

    id: int
    entry: WalEntry


@dataclass(slots=True, kw_only=True)
class WalAppender:
    """Appends entries of one writer under one epoch. `next_id` is the number the next put tries.

    Not safe for concurrent use; `RegionWriter` serialises its callers.
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
        """Append the records as one entry, durable before this returns, and return its number. One PUT.

        Records without rows make a fence sentinel. Raises `WriterFenced` when another writer claimed the region, or a
        copy of this one wrote; then the entry is not in the log. Raises `CommitUnknown` when the store did not say
        whether it is: this appender must not be used again, and a new claim finds out.
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
            data = wal_entry.encode(replace(entry, number=self.next_id))
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
        """Return when the entry that has our number is of an earlier epoch: a last one, or a claim that came too late.

        Raises `WriterFenced` for any other.
        """
        found = read_known(self.store, self.region, self.next_id).entry
        if found.writer_epoch >= self.epoch:
            raise WriterFenced(
                f"region {self.region}: WAL entry {self.next_id} was written under epoch {found.writer_epoch} by "
                f"writer {found.writer_id} (seq {found.seq}), not by this one, with epoch {self.epoch}: a copy of "
                "this process, by fork() or a restored machine, writes as well; stop using this writer and open a new "
                "one, which replays what is acknowledged",
                region=self.region,
                entry=self.next_id,
                epoch=self.epoch,
            )


def find_tail(store: ObjectStore, region: str, *, after: int, seed: int) -> int:
    """Return the number of the last WAL entry, or `after` when there is none behind it.

    `after` is an entry known to be the last one flushed (0: none). `seed` only shortens the search: when the entry it
    names does not exist, the search starts at `after`. HEADs grow with the logarithm of the distance.
    """

    def entry_exists(entry: int) -> bool:
        return exists(store, keys.wal_entry_key(region, entry))

    return last_existing(entry_exists, seed if seed > after and entry_exists(seed) else after)


def read(store: ObjectStore, region: str, entry: int, kept: KeptValues = NOTHING) -> Logged:
    """Return one entry. One GET unless it is in `kept`.

    Raises `NotFound`, or `Corrupt` naming the key when the bytes do not verify.
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
    key = keys.wal_entry_key(region, entry)
    found = wal_entry.decode(store.get(key).data, key)
    if found.number not in (None, entry):
        raise Corrupt(f"{key}: expected WAL entry {entry} of region {region}, found entry {found.number}", key=key)
    return Logged(entry, found)


def read_known(store: ObjectStore, region: str, entry: int, kept: KeptValues = NOTHING) -> Logged:
    """Return an entry that something durable names. Raises `Corrupt`, also when it is absent: that is a hole."""
    try:
        return read(store, region, entry, kept)
    except NotFound as error:
        key = keys.wal_entry_key(region, entry)
        raise Corrupt(
            f"{key}: WAL entry {entry} of region {region} is missing from the middle of its log", key=key
        ) from error


def belonging(logged: Logged, generation: int) -> Logged:
    """Return an entry behind everything that is flushed, as one of `generation`, which is flushed next, at the least.

    It may say less: a copy of the writer flushed the generation that it was written for, without it (decision 0087).
    """
    if logged.entry.generation >= generation:
        return logged
    return Logged(logged.id, replace(logged.entry, generation=generation))


def is_of(logged: Logged, generation: int) -> bool:
    """Tell whether an entry that this generation names may be of it.

    One of a lower generation may, see `belonging`, if it says its number: without that it could have changed places.
    """
    found = logged.entry.generation
    return found == generation or (found < generation and logged.entry.number is not None)


def replay(store: ObjectStore, region: str, *, after: int, before: int) -> Iterator[Logged]:
    """Yield the entries with rows numbered `after` + 1 up to `before` - 1, in order. One GET each.

    No number is skipped: raises `Corrupt` that names the first absent, torn or damaged entry.
    """
    return _with_rows(read_known(store, region, entry) for entry in range(after + 1, before))


def read_tail(
    store: ObjectStore, region: str, *, after: int, kept: KeptValues = NOTHING, near: bool = False
) -> Iterator[Logged]:
    """Yield the entries with rows behind `after`, in order, to the last one.

    One GET of each that is not in `kept`, two at a time, and two requests more for the end. Behind `IN_PAIRS` of them
    `TOGETHER` GETs are made at a time, of which the last are in vain; what is `near` is read one by one.

    Raises `Corrupt` that names a torn or damaged entry, the last one included, or one that is missing before another.
    """
    return _with_rows(_until_absent(store, region, after, kept, at_once=1 if near else TOGETHER))


def read_kept(store: ObjectStore, region: str, *, after: int, before: int) -> tuple[list[Logged], list[int]]:
    """Return the entries with rows from `after` + 1 up to `before` - 1 that are there, and the numbers that are not.

    For who may come when generations are collected; whether one had to be there is for the caller to find out. One GET
    each. Raises `Corrupt` that names a torn or damaged entry.
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
                # Numbers have no gaps, so one behind it tells a hole from the end; unless both were put just now.
                later = entries[entry - first + 1 :]
                if not (any(later) if later else exists(store, keys.wal_entry_key(region, entry + 1))):
                    return
            yield logged or read_known(store, region, entry)
        first, fetched = numbers.stop, fetched + len(numbers)


def _with_rows(entries: Iterator[Logged]) -> Iterator[Logged]:
    """Leave out sentinels, and entries behind the sentinel of a higher epoch: nobody was told that those succeeded."""
    highest = 0
    for each in entries:
        highest = max(highest, each.entry.writer_epoch)
        if each.entry.writer_epoch == highest and not each.entry.is_sentinel:
            yield each
