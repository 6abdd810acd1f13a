"""Generations: what a flush leaves behind (design page 03, "Memtable and generations").

`<8 hex>_gen_<i>/_manifest.json` references WAL entries instead of copying them; `bloom_filter.bin` says which keys are
certainly not in it. A directory counts only when the region's manifest names it; every flush attempt makes a new one.
A dealt generation (`region.dealt`) was never in the WAL and has its records in a file of its own, `records.arrow`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
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
from storage_core.region import bloom, data_file, wal
from storage_core.region.data_file import RECORDS_FILE
from storage_core.region.key_hash import key_hashes
from storage_core.region.memtable import Memtable
from storage_core.rows import statistics

FORMAT_VERSION = 1
DATA_FORMAT_VERSION = 2
"""With a data file: releases that look for records in WAL entries only must not take the generation for empty."""

MANIFEST_FILE = "_manifest.json"
BLOOM_FILE = "bloom_filter.bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One immutable generation: the WAL entries it consists of, in order, and what is known about its keys.

    `records` counts records, not keys. `min_key` and `max_key` are sound bounds per key column in the text form of
    `rows.statistics`; a missing column is not bounded. `bloom` is the xxh3-64 of the filter's file: a sound filter of
    another generation would deny rows. None where the release that wrote it did not say. `data` is the xxh3-64 of
    `records.arrow` where the records are in that file instead of WAL entries.
    """

    region: str
    generation: int
    path: str
    entries: tuple[int, ...]
    records: int
    min_key: Mapping[str, str]
    max_key: Mapping[str, str]
    bloom: str | None = None
    data: str | None = None


def write(
    store: ObjectStore, memtable: Memtable, *, region: str, generation: int, clock: Clock, ids: Ids
) -> Generation:
    """Write the memtable as a generation into a fresh directory, durable when this returns. Two PUTs.

    Nothing refers to it until the region's manifest does. Raises `CommitUnknown` when the store did not say.
    """
    return write_records(
        store,
        memtable.records(),
        memtable.key,
        region=region,
        generation=generation,
        entries=memtable.entries,
        clock=clock,
        ids=ids,
    )


def write_records(
    store: ObjectStore,
    records: pa.Table,
    key: Sequence[str],
    *,
    region: str,
    generation: int,
    entries: tuple[int, ...] | None,
    clock: Clock,
    ids: Ids,
) -> Generation:
    """Write records as a generation into a fresh directory: those of WAL `entries`, or with None in a file of its own.

    Two PUTs, with a file three. Raises as `write` does.
    """
    bounds = statistics.compute(records.select(key))
    guard = bloom.build(key_hashes(records, key)).to_bytes()
    data = data_file.encode(records) if entries is None else None
    written = Generation(
        region=region,
        generation=generation,
        path=f"{ids.uuid()[:8]}_gen_{generation}",
        entries=entries or (),
        records=records.num_rows,
        min_key=bounds.min_values,
        max_key=bounds.max_values,
        bloom=xxhash.xxh3_64_hexdigest(guard),
        data=None if data is None else data_file.checksum(data),
    )
    if data is not None:
        _create(store, _key(written, RECORDS_FILE), data, clock)
    _create(store, _key(written, BLOOM_FILE), guard, clock)
    _create(store, _key(written, MANIFEST_FILE), _encode(written), clock)
    return written


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


def read_records(store: ObjectStore, generation: Generation) -> Iterable[pa.Table]:
    """Yield the records in the order of their acknowledgement, one table per WAL entry or data file. One GET each.

    Raises `Corrupt` for an entry or file that is absent or damaged, or that belongs to another generation.
    """
    if generation.data is not None:
        yield _data(store, generation, generation.data)
    for entry in generation.entries:
        logged = wal.read_known(store, generation.region, entry)
        if logged.entry.generation != generation.generation:
            key = keys.wal_entry_key(generation.region, entry)
            raise Corrupt(
                f"{key}: expected an entry of generation {generation.generation}, found generation "
                f"{logged.entry.generation}",
                key=key,
            )
        yield logged.entry.records


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


def read_filter(store: ObjectStore, generation: Generation) -> bloom.BloomFilter:
    """Return the bloom filter of the generation. One GET. Raises `NotFound`, `Corrupt` also for another's filter."""
    where = _key(generation, BLOOM_FILE)
    data = store.get(where).data
    found = xxhash.xxh3_64_hexdigest(data)
    if generation.bloom not in (None, found):
        raise Corrupt(f"{where}: expected xxh3-64 {generation.bloom}, found {found}", key=where)
    return bloom.from_bytes(data, where)


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
    } | {name: value for name in ("bloom", "data") if (value := getattr(generation, name)) is not None}
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
        data=body.get("data"),
    )


def _digest(body: Mapping[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())
