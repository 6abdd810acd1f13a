"""Generations: what a flush leaves behind (design page 03, "Memtable and generations").

`<8 hex>_gen_<i>/_manifest.json` references WAL entries instead of copying them; `bloom_filter.bin` says which keys are
certainly not in it, `key_index.arrow` in which entry and row those are that may be. A directory counts only when the
region's manifest names it; every flush attempt makes a new one. A dealt generation (`region.dealt`) was never in the
WAL: it has its records in a file of its own, `records.arrow`, and no key index.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import xxhash

from storage_core.clock import Clock
from storage_core.errors import CommitConflict, Corrupt, NotFound, Unsupported
from storage_core.formats import keys
from storage_core.formats.region_manifest import FlushedGeneration
from storage_core.ids import Ids
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.create import create_numbered
from storage_core.region import bloom, data_file, key_index, wal
from storage_core.region.data_file import RECORDS_FILE
from storage_core.region.key_hash import Hashes, key_hashes
from storage_core.region.memtable import Memtable, matching
from storage_core.rows import statistics

_logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
DATA_FORMAT_VERSION = 2
"""With a data file: releases that look for records in WAL entries only must not take the generation for empty."""

MANIFEST_FILE = "_manifest.json"
BLOOM_FILE = "bloom_filter.bin"
INDEX_FILE = "key_index.arrow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One immutable generation: the WAL entries it consists of, in order, and what is known about its keys.

    `records` counts records, not keys. `min_key` and `max_key` are sound bounds per key column in the text form of
    `rows.statistics`; a missing column is not bounded. `bloom` is the xxh3-64 of the filter's file: a sound filter of
    another generation would deny rows. None where the release that wrote it did not say. `key_index` is that of the key
    index, `data` of `records.arrow` where the records are in that file instead of WAL entries; None where none is.
    """

    region: str
    generation: int
    path: str
    entries: tuple[int, ...]
    records: int
    min_key: Mapping[str, str]
    max_key: Mapping[str, str]
    bloom: str | None = None
    key_index: str | None = None
    data: str | None = None


def write(
    store: ObjectStore, memtable: Memtable, *, region: str, generation: int, clock: Clock, ids: Ids
) -> Generation:
    """Write the memtable as a generation into a fresh directory, durable when this returns. Three PUTs.

    Nothing refers to it until the region's manifest does. Raises `CommitUnknown` when the store did not say.
    """
    records = memtable.records()
    hashes = key_hashes(records, memtable.key)
    places = key_index.build(hashes, memtable.entries, [part.num_rows for part in memtable.parts()])
    planned = _Planned(records.select(memtable.key), hashes, memtable.entries)
    written = planned.described(region, generation, ids, key_index=xxhash.xxh3_64_hexdigest(places))
    _create(store, _key(written, BLOOM_FILE), planned.guard, clock)
    _create(store, _key(written, INDEX_FILE), places, clock)
    _create(store, _key(written, MANIFEST_FILE), _encode(written), clock)
    return written


def write_records(
    store: ObjectStore,
    records: pa.Table,
    key: Sequence[str],
    *,
    region: str,
    generation: int,
    clock: Clock,
    ids: Ids,
) -> Generation:
    """Write records that are in no WAL as a generation into a fresh directory. Three PUTs. Raises as `write` does."""
    data = data_file.encode(records)
    planned = _Planned(records.select(key), key_hashes(records, key), ())
    written = planned.described(region, generation, ids, data=data_file.checksum(data))
    _create(store, _key(written, RECORDS_FILE), data, clock)
    _create(store, _key(written, BLOOM_FILE), planned.guard, clock)
    _create(store, _key(written, MANIFEST_FILE), _encode(written), clock)
    return written


class _Planned:
    """What is known of a generation's keys before it is written."""

    def __init__(self, keys_of_records: pa.Table, hashes: Hashes, entries: tuple[int, ...]) -> None:
        self.guard = bloom.build(hashes).to_bytes()
        self._records = keys_of_records.num_rows
        self._bounds = statistics.compute(keys_of_records)
        self._entries = entries

    def described(
        self, region: str, generation: int, ids: Ids, *, key_index: str | None = None, data: str | None = None
    ) -> Generation:
        return Generation(
            region=region,
            generation=generation,
            path=f"{ids.uuid()[:8]}_gen_{generation}",
            entries=self._entries,
            records=self._records,
            min_key=self._bounds.min_values,
            max_key=self._bounds.max_values,
            bloom=xxhash.xxh3_64_hexdigest(self.guard),
            key_index=key_index,
            data=data,
        )


def read(store: ObjectStore, region: str, flushed: FlushedGeneration) -> Generation:
    """Return a generation that the region's manifest names. One GET.

    Raises `Corrupt` when it is absent, damaged or speaks of something else, `Unsupported` for a newer format.
    """
    key = keys.generation_file_key(region, flushed.path, MANIFEST_FILE)
    try:
        data = store.get(key).data
    except NotFound as error:
        raise Corrupt(
            f"{key}: generation {flushed.generation} of region {region} lost its manifest", key=key
        ) from error
    found = _decode(data, key)
    if (found.region, found.generation, found.path) != (region, flushed.generation, flushed.path):
        raise Corrupt(
            f"{key}: expected generation {flushed.generation} of region {region} in {flushed.path}, "
            f"found generation {found.generation} of region {found.region} in {found.path}",
            key=key,
        )
    return found


def read_records(store: ObjectStore, generation: Generation, *, first: int = 0) -> Iterable[pa.Table]:
    """Yield the records in the order of their acknowledgement, one table per WAL entry or data file. One GET each.

    `first` such parts are left out and not read. Raises `Corrupt` for an entry or file that is absent or damaged, or
    that belongs to another generation.
    """
    files = 0 if generation.data is None else 1
    if generation.data is not None and first == 0:
        yield _data(store, generation, generation.data)
    for entry in generation.entries[max(0, first - files) :]:
        yield _entry(store, generation, entry)


def find(store: ObjectStore, generation: Generation, wanted: pa.Table) -> Iterator[pa.Table]:
    """Yield every record of the wanted keys, in the order of their acknowledgement, one table per WAL entry with any.

    `wanted` has the key columns in their order and types. One GET of the bloom filter; unless that denies every key one
    of the key index, and one of each entry that it names. Both only save work: one that is missing or damaged, and a
    generation without an index, cost reading all of its records. Ask `admits` before for a single key.
    Raises `Corrupt` like `read_records`.
    """
    key = wanted.column_names
    if not _admitted(store, generation, wanted):
        return
    if generation.data is not None:
        yield matching(_data(store, generation, generation.data), wanted, key)
        return
    places = _places(store, generation, wanted)
    for entry in generation.entries:
        if places is not None and entry not in places:
            continue
        records = _entry(store, generation, entry)
        found = matching(records if places is None else records.take(pa.array(places[entry])), wanted, key)
        if found.num_rows:
            yield found


def _data(store: ObjectStore, generation: Generation, expected: str) -> pa.Table:
    where = _key(generation, RECORDS_FILE)
    try:
        return data_file.decode(store.get(where).data, expected, where)
    except NotFound as error:
        raise Corrupt(
            f"{where}: generation {generation.generation} of region {generation.region} lost its records", key=where
        ) from error


def admits(generation: Generation, key: pa.Table) -> bool:
    """Return False when the bounds of the generation exclude the key, a table of one row. No request."""
    for name in key.column_names:
        value, kind = key[name][0].as_py(), key[name].type
        low, high = generation.min_key.get(name), generation.max_key.get(name)
        # Only a comparison that holds excludes the key: with NaN, the greatest value, none does.
        if low is not None and value < statistics.decode(low, kind):
            return False
        if high is not None and value > statistics.decode(high, kind):
            return False
    return True


def may_hold(store: ObjectStore, generation: Generation, wanted: pa.Table, key: Sequence[str]) -> list[bool]:
    """Return, per row of `wanted`, False when the generation certainly has no record of that key. One GET."""
    answers = read_filter(store, generation).may_contain(key_hashes(wanted, key))
    return [bool(each) for each in answers]


def _entry(store: ObjectStore, generation: Generation, entry: int) -> pa.Table:
    logged = wal.read_known(store, generation.region, entry)
    if logged.entry.generation != generation.generation:
        key = keys.wal_entry_key(generation.region, entry)
        raise Corrupt(
            f"{key}: expected an entry of generation {generation.generation}, found generation "
            f"{logged.entry.generation}",
            key=key,
        )
    return logged.entry.records


def _admitted(store: ObjectStore, generation: Generation, wanted: pa.Table) -> bool:
    try:
        return any(may_hold(store, generation, wanted, wanted.column_names))
    except (Corrupt, NotFound) as error:
        _logger.warning("a bloom filter of region %s is not usable: %s", generation.region, error)
        return True


def _places(store: ObjectStore, generation: Generation, wanted: pa.Table) -> Mapping[int, key_index.Rows] | None:
    """The rows of each entry that may have a wanted key; None when nothing says so, or one entry is all there is."""
    if generation.key_index is None or len(generation.entries) == 1:
        return None
    where = _key(generation, INDEX_FILE)
    try:
        data = _verified(store, where, generation.key_index)
        return key_index.find(data, key_hashes(wanted, wanted.column_names), where)
    except (Corrupt, NotFound) as error:
        _logger.warning("a key index of region %s is not usable: %s", generation.region, error)
        return None


def read_filter(store: ObjectStore, generation: Generation) -> bloom.BloomFilter:
    """Return the bloom filter of the generation. One GET. Raises `NotFound`, `Corrupt` also for another's filter."""
    where = _key(generation, BLOOM_FILE)
    return bloom.from_bytes(_verified(store, where, generation.bloom), where)


def _verified(store: ObjectStore, where: str, expected: str | None) -> bytes:
    data = store.get(where).data
    found = xxhash.xxh3_64_hexdigest(data)
    if expected not in (None, found):
        raise Corrupt(f"{where}: expected xxh3-64 {expected}, found {found}", key=where)
    return data


def _key(generation: Generation, name: str) -> str:
    return keys.generation_file_key(generation.region, generation.path, name)


def _create(store: ObjectStore, key: str, data: bytes, clock: Clock) -> None:
    if not create_numbered(store, key, data, clock=clock):
        raise CommitConflict(f"{key}: another flush uses this directory; flush again, which takes a new one", key=key)


def _encode(generation: Generation) -> bytes:
    body = {
        "format": FORMAT_VERSION if generation.data is None else DATA_FORMAT_VERSION,
        "region": generation.region,
        "generation": generation.generation,
        "path": generation.path,
        "entries": list(generation.entries),
        "records": generation.records,
        "minKey": dict(generation.min_key),
        "maxKey": dict(generation.max_key),
    }
    digests = {"bloom": generation.bloom, "keyIndex": generation.key_index, "data": generation.data}
    body |= {name: digest for name, digest in digests.items() if digest is not None}
    return json.dumps({**body, "xxh3": _digest(body)}, sort_keys=True).encode()


def _decode(data: bytes, where: str) -> Generation:
    try:
        body: dict[str, Any] = json.loads(data)
        digest = body.pop("xxh3")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise Corrupt(f"{where}: not a generation manifest: {error}", key=where) from error
    if digest != _digest(body):
        raise Corrupt(f"{where}: damaged generation manifest: expected xxh3 {digest}, found {_digest(body)}", key=where)
    if body["format"] not in (FORMAT_VERSION, DATA_FORMAT_VERSION):
        raise Unsupported(
            f"{where}: generation of format {body['format']}, this release reads {FORMAT_VERSION} and "
            f"{DATA_FORMAT_VERSION}; upgrade",
            key=where,
        )
    return Generation(
        region=body["region"],
        generation=body["generation"],
        path=body["path"],
        entries=tuple(body["entries"]),
        records=body["records"],
        min_key=body["minKey"],
        max_key=body["maxKey"],
        bloom=body.get("bloom"),
        key_index=body.get("keyIndex"),
        data=body.get("data"),
    )


def _digest(body: Mapping[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())
