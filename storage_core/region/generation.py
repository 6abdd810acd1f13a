"""Generations, read: what a flush, a distributor or a sort leaves behind (docs/architecture/ingestion.md, "Memtable and
generations").

`<8 hex>_gen_<i>/_manifest.json` references WAL entries instead of copying them; `bloom_filter.bin` says which keys are
certainly not in it, `key_index.arrow` in which entry and row those are that may be (`region.key_lookup`). A directory
counts only when the region's manifest names it; every flush attempt makes a new one. A distributed generation
(`region.distributor`) was never in the WAL: it has its records in a file of its own, `records.arrow`, and no key index.
So has a sorted one (`region.sorting`), which stands for several and has its records in key order.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice

import pyarrow as pa
import xxhash

from storage_core.cache.pieces import NOT_CACHED, CachedPieces, Piece
from storage_core.errors import Corrupt, NotFound, Unsupported
from storage_core.formats import bloom, data_file, keys
from storage_core.formats.generation_manifest import (
    BLOOM_FILE,
    FILTER_COPY_RECORDS,
    MANIFEST_FILE,
    RECORDS_FILE,
    Generation,
    decode,
    file_key,
)
from storage_core.formats.region_manifest import FlushedGeneration, RegionManifest
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.prefetch import all_of
from storage_core.region import sorted_file, wal
from storage_core.region.collected import require_listed
from storage_core.split.kept_values import NOTHING, KeptValues

_logger = logging.getLogger(__name__)

# What a decoded manifest takes in memory, about, and each entry or chunk that it names.
_MANIFEST_BYTES = 2048
_PART_BYTES = 512

_AT_ONCE = 8


def read(store: ObjectStore, region: str, flushed: FlushedGeneration, kept: KeptValues = NOTHING) -> Generation:
    """Return a generation that the region's manifest names. One GET unless it is in `kept`; a copy is not asked.

    Raises `Corrupt` when it is absent, damaged or speaks of something else, `Unsupported` for a newer format.
    """
    name = _manifest_name(region, flushed)
    return kept.made(name, Generation, lambda: _read(store, region, flushed), _manifest_bytes)


def bytes_in_memory(generations: Iterable[Generation]) -> float:
    """Return what the records take in memory; infinite where early 0.1, which did not say it, wrote some."""
    return sum(math.inf if each.size_bytes is None else each.size_bytes for each in generations)


def read_all(
    store: ObjectStore, region: str, flushed: Sequence[FlushedGeneration], kept: KeptValues
) -> list[Generation]:
    """Return what `read` returns of each of these, with the bytes of its filter where those were copied.

    One GET, side by side, of each that is not in `kept` and of which the region's manifest has no sound copy.
    """
    names = [_manifest_name(region, each) for each in flushed]
    return kept.made_all(
        names,
        Generation,
        lambda number: _read(store, region, flushed[number]),
        _manifest_bytes,
        at_hand=lambda number: copied(region, flushed[number]),
    )


def with_copies(store: ObjectStore, region: str, flushed: FlushedGeneration) -> FlushedGeneration:
    """Return a generation that somebody wrote with the copies that its region's manifest is to have. At most two GETs.

    Without those that cannot be read: they only save requests.
    """
    try:
        found = _read(store, region, flushed)
        if found.records <= FILTER_COPY_RECORDS:
            found = replace(found, filter_bytes=read_verified(store, file_key(found, BLOOM_FILE), found.bloom))
    except (Corrupt, NotFound, Unsupported) as error:
        _logger.warning("the manifest of region %s gets no copies of %s: %s", region, flushed.path, error)
        return flushed
    return found.copied


def _manifest_name(region: str, flushed: FlushedGeneration) -> tuple[object, ...]:
    return keys.generation_file_key(region, flushed.path, MANIFEST_FILE), flushed


def _manifest_bytes(generation: Generation) -> int:
    parts = len(generation.entries) + len(generation.chunks)
    return _MANIFEST_BYTES + _PART_BYTES * parts + len(generation.filter_bytes)


def _read(store: ObjectStore, region: str, flushed: FlushedGeneration) -> Generation:
    key = keys.generation_file_key(region, flushed.path, MANIFEST_FILE)
    try:
        data = store.get(key).data
    except NotFound as error:
        raise Corrupt(
            f"{key}: generation {flushed.generation} of region {region} lost its manifest", key=key
        ) from error
    return _decoded(data, region, flushed, key)


def copied(region: str, flushed: FlushedGeneration) -> Generation | None:
    """Return the generation by the copy of its manifest, with that of its filter; None without a sound one."""
    if not flushed.copies.manifest:
        return None
    key = keys.generation_file_key(region, flushed.path, MANIFEST_FILE)
    try:
        found = _decoded(flushed.copies.manifest, region, flushed, f"the copy of {key}")
    except (Corrupt, Unsupported) as error:
        _logger.warning("a copy in the manifest of region %s is not usable: %s", region, error)
        return None
    return replace(found, filter_bytes=flushed.copies.bloom_filter)


def _decoded(data: bytes, region: str, flushed: FlushedGeneration, key: str) -> Generation:
    found = decode(data, key)
    if (found.region, found.flushed) != (region, flushed):
        raise Corrupt(
            f"{key}: expected generation {flushed.generation} of region {region} in {flushed.path}{_range(flushed)}, "
            f"found generation {found.generation} of region {found.region} in {found.path}{_range(found.flushed)}",
            key=key,
        )
    return found


def _range(flushed: FlushedGeneration) -> str:
    return f", sorted from {flushed.sorted_from}" if flushed.sorted_from else ""


def unmerged(
    store: ObjectStore, manifest: RegionManifest, merged: int, kept: KeptValues = NOTHING
) -> list[FlushedGeneration]:
    """Return the generations above the merged one, in order and each record once.

    A sorted one of which the base has a part is given as the generations that it was made of, above the merged one:
    what the base has is not for anybody to lay over it again (decision 0054). One GET for it; there is at most one.
    Raises as `read` does, and `SnapshotExpired` where one of them is collected (`region.collected`).
    """
    require_listed(manifest, merged)
    found: list[FlushedGeneration] = []
    for each in manifest.flushed_generations:
        if each.generation <= merged:
            continue
        if each.first > merged:
            found.append(each)
        else:
            parts = read(store, manifest.region_id, each, kept).replaces
            found += [part for part in parts if part.generation > merged]
    return sorted(found, key=lambda each: each.generation)


def read_records(store: ObjectStore, generation: Generation) -> Iterable[pa.Table]:
    """Yield the records in the order of their acknowledgement, one table per WAL entry or data file. One GET each.

    Raises `Corrupt` for an entry or file that is absent or damaged, or that belongs to another generation.
    """
    if generation.data is not None:
        yield read_data(store, generation)
    for entry in generation.entries:
        yield read_entry(store, generation, entry)


def read_all_records(
    store: ObjectStore, generations: Sequence[Generation], cached: CachedPieces = NOT_CACHED
) -> list[tuple[pa.Table, ...]]:
    """Return what `read_records` yields of each of these. The GETs are made side by side. Raises as it does.

    A data file that is cached costs none.
    """
    parts = [(each, entry) for each in generations for entry in (*([] if each.data is None else [None]), *each.entries)]

    def read_part(part: tuple[Generation, int | None]) -> pa.Table:
        of, entry = part
        return read_data(store, of, cached) if entry is None else read_entry(store, of, entry)

    tables = iter(all_of(read_part, parts, _AT_ONCE))
    return [tuple(islice(tables, len(each.entries) + (each.data is not None))) for each in generations]


def read_parts(store: ObjectStore, generation: Generation, *, first: int = 0) -> Iterator[tuple[int, pa.Table]]:
    """Yield the parts of the records from number `first` on: what `read_records` does, and none before them is read.

    A part is a WAL entry, a data file, or a chunk of a sorted one, of which one GET reads several. Raises as
    `read_records` does.
    """
    if generation.chunks:
        where = file_key(generation, RECORDS_FILE)
        with there(generation, where):
            yield from sorted_file.read_from(store, where, generation.chunks, first)
    elif generation.data is not None and first == 0:
        yield 0, read_data(store, generation)
    files = 0 if generation.data is None else 1
    for number in range(max(0, first - files), len(generation.entries)):
        yield files + number, read_entry(store, generation, generation.entries[number])


def read_data(store: ObjectStore, generation: Generation, cached: CachedPieces = NOT_CACHED) -> pa.Table:
    """Return all that the data file of the generation holds. One GET unless cached. Raises as `read_records` does."""
    where = file_key(generation, RECORDS_FILE)
    with there(generation, where):
        data = _vouched(store, where, generation.data, cached)
    if generation.chunks:
        return sorted_file.decode(data, generation.chunks, where)
    return data_file.decode(data, generation.data or "", where)


@contextmanager
def there(generation: Generation, where: str) -> Iterator[None]:
    """Raise `Corrupt` where the block finds that the data file `where` is absent."""
    try:
        yield
    except NotFound as error:
        raise Corrupt(
            f"{where}: generation {generation.generation} of region {generation.region} lost its records", key=where
        ) from error


def read_entry(store: ObjectStore, generation: Generation, entry: int, kept: KeptValues = NOTHING) -> pa.Table:
    """Return the records of one of its WAL entries. One GET unless `kept` has it. Raises as `read_records` does."""
    logged = wal.read_known(store, generation.region, entry, kept)
    if not wal.is_of(logged, generation.generation):
        key = keys.wal_entry_key(generation.region, entry)
        raise Corrupt(
            f"{key}: expected an entry of generation {generation.generation}, found generation "
            f"{logged.entry.generation}",
            key=key,
        )
    return logged.entry.records


def read_filter(store: ObjectStore, generation: Generation, cached: CachedPieces = NOT_CACHED) -> bloom.BloomFilter:
    """Return the bloom filter of the generation. One GET unless it is cached.

    Raises `NotFound`, `Corrupt` also for another's filter.
    """
    where = file_key(generation, BLOOM_FILE)
    return bloom.from_bytes(read_verified(store, where, generation.bloom, cached), where)


def copied_filter(generation: Generation) -> bloom.BloomFilter | None:
    """Return the bloom filter that is at hand with the generation; None without a sound one. No request."""
    if not generation.filter_bytes or generation.bloom is None:
        return None
    where = f"the copy of {file_key(generation, BLOOM_FILE)}"
    try:
        return bloom.from_bytes(_verified(generation.filter_bytes, where, generation.bloom), where)
    except (Corrupt, Unsupported) as error:
        _logger.warning("a copy in the manifest of region %s is not usable: %s", generation.region, error)
        return None


def read_verified(store: ObjectStore, where: str, expected: str | None, cached: CachedPieces = NOT_CACHED) -> bytes:
    """Return a file of this XXH3-64, where one is given. One GET unless it is cached.

    Raises `NotFound`, and `Corrupt` for another sum.
    """
    return _verified(_vouched(store, where, expected, cached), where, expected)


def _verified(data: bytes, where: str, expected: str | None) -> bytes:
    found = xxhash.xxh3_64_hexdigest(data)
    if expected not in (None, found):
        raise Corrupt(f"{where}: expected xxh3-64 {expected}, found {found}", key=where)
    return data


def _vouched(store: ObjectStore, where: str, expected: str | None, cached: CachedPieces) -> bytes:
    """A file of a generation, from the cache if its manifest has the checksum; the caller verifies what is fetched.

    No other generation has a file of this name, so chunks of it are found in the same entry (`sorted_file.find`).
    """

    def fetch() -> bytes:
        return store.get(where).data

    if expected is None:
        return fetch()
    return cached.made(store.uri, where, "", Piece(0, None, expected), fetch=fetch)
