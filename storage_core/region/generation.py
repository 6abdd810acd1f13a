"""Generations, read: what a flush, a distributor or a sort leaves behind (docs/architecture/ingestion.md, "Memtable and
generations").

`<8 hex>_gen_<i>/_manifest.json` references WAL entries instead of copying them; `bloom_filter.bin` says which keys are
certainly not in it, `key_index.arrow` in which entry and row those are that may be. A directory counts only when the
region's manifest names it; every flush attempt makes a new one. A distributed generation (`region.distributor`) was
never in the WAL: it has its records in a file of its own, `records.arrow`, and no key index. So has a sorted one
(`region.sorting`), which stands for several and has its records in key order.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa
import xxhash

from storage_core.errors import Corrupt, NotFound
from storage_core.formats import bloom, data_file, key_index, keys
from storage_core.formats.generation_manifest import (
    BLOOM_FILE,
    INDEX_FILE,
    MANIFEST_FILE,
    RECORDS_FILE,
    Generation,
    decode,
    file_key,
)
from storage_core.formats.key_hash import Hashes, key_hashes
from storage_core.formats.region_manifest import FlushedGeneration, RegionManifest
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.prefetch import all_of
from storage_core.region import sorted_file, wal
from storage_core.region.collected import require_listed
from storage_core.region.memtable import matching
from storage_core.split.kept_values import NOTHING, KeptValues

_logger = logging.getLogger(__name__)

# What a decoded manifest takes in memory, about, and each entry or chunk that it names.
_MANIFEST_BYTES = 2048
_PART_BYTES = 512

_PARALLEL_MANIFESTS = 16


def read(store: ObjectStore, region: str, flushed: FlushedGeneration, kept: KeptValues = NOTHING) -> Generation:
    """Return a generation that the region's manifest names. One GET unless it is in `kept`.

    Raises `Corrupt` when it is absent, damaged or speaks of something else, `Unsupported` for a newer format.
    """
    name = _manifest_name(region, flushed)
    return kept.made(name, Generation, lambda: _read(store, region, flushed), _manifest_bytes)


def read_all(
    store: ObjectStore, region: str, flushed: Sequence[FlushedGeneration], kept: KeptValues
) -> list[Generation]:
    """Return what `read` returns of each of these. One GET of each that is not in `kept`, side by side."""
    found = [kept.get(_manifest_name(region, each)) for each in flushed]
    absent = [each for each, known in zip(flushed, found, strict=True) if not isinstance(known, Generation)]
    fetched = iter(all_of(lambda each: read(store, region, each, kept), absent, _PARALLEL_MANIFESTS))
    return [known if isinstance(known, Generation) else next(fetched) for known in found]


def _manifest_name(region: str, flushed: FlushedGeneration) -> tuple[object, ...]:
    return keys.generation_file_key(region, flushed.path, MANIFEST_FILE), flushed


def _manifest_bytes(generation: Generation) -> int:
    return _MANIFEST_BYTES + _PART_BYTES * (len(generation.entries) + len(generation.chunks))


def _read(store: ObjectStore, region: str, flushed: FlushedGeneration) -> Generation:
    key = keys.generation_file_key(region, flushed.path, MANIFEST_FILE)
    try:
        data = store.get(key).data
    except NotFound as error:
        raise Corrupt(
            f"{key}: generation {flushed.generation} of region {region} lost its manifest", key=key
        ) from error
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
        yield _data(store, generation)
    for entry in generation.entries:
        yield _entry(store, generation, entry)


def read_parts(store: ObjectStore, generation: Generation, *, first: int = 0) -> Iterator[tuple[int, pa.Table]]:
    """Yield the parts of the records from number `first` on: what `read_records` does, and none before them is read.

    A part is a WAL entry, a data file, or a chunk of a sorted one, of which one GET reads several. Raises as
    `read_records` does.
    """
    if generation.chunks:
        where = file_key(generation, RECORDS_FILE)
        with _there(generation, where):
            yield from sorted_file.read_from(store, where, generation.chunks, first)
    elif generation.data is not None and first == 0:
        yield 0, _data(store, generation)
    files = 0 if generation.data is None else 1
    for number in range(max(0, first - files), len(generation.entries)):
        yield files + number, _entry(store, generation, generation.entries[number])


def find(
    store: ObjectStore, generation: Generation, wanted: pa.Table, kept: KeptValues = NOTHING
) -> Iterator[pa.Table]:
    """Yield every record of the wanted keys, in the order of their acknowledgement, one table per WAL entry with any.

    `wanted` has the key columns in their order and types. One GET of the bloom filter; unless that denies every key one
    of the key index, and one of each entry that it names; of a sorted generation instead ranged ones of the chunks that
    may hold a key. Filter and index only save work: one that is missing or damaged, and a generation without an index,
    cost reading all of its records. Of filter, index and entries those in `kept` are not read again. Ask
    `overlap.admitted` before.
    Raises `Corrupt` like `read_records`, and for an index of the right checksum that names what is not there.
    """
    key = wanted.column_names
    hashes = key_hashes(wanted, key)
    if not _admitted(store, generation, hashes, kept):
        return
    if generation.data is not None:
        parts = _chunks(store, generation, wanted) if generation.chunks else [_data(store, generation)]
        yield from (matching(each, wanted, key) for each in parts)
        return
    places = _places(store, generation, hashes, kept)
    if places is not None and (beyond := sorted(places.keys() - {*generation.entries})):
        raise _beyond(generation, f"WAL entry {beyond[0]}, which is not of it")
    for entry in generation.entries:
        if places is not None and entry not in places:
            continue
        records = _entry(store, generation, entry, kept)
        found = matching(records if places is None else _taken(generation, records, places[entry]), wanted, key)
        if found.num_rows:
            yield found


def _data(store: ObjectStore, generation: Generation) -> pa.Table:
    where = file_key(generation, RECORDS_FILE)
    with _there(generation, where):
        data = store.get(where).data
    if generation.chunks:
        return sorted_file.decode(data, generation.chunks, where)
    return data_file.decode(data, generation.data or "", where)


def _chunks(store: ObjectStore, generation: Generation, wanted: pa.Table) -> Iterator[pa.Table]:
    where = file_key(generation, RECORDS_FILE)
    with _there(generation, where):
        yield from sorted_file.find(store, where, generation.chunks, wanted)


@contextmanager
def _there(generation: Generation, where: str) -> Iterator[None]:
    try:
        yield
    except NotFound as error:
        raise Corrupt(
            f"{where}: generation {generation.generation} of region {generation.region} lost its records", key=where
        ) from error


def _entry(store: ObjectStore, generation: Generation, entry: int, kept: KeptValues = NOTHING) -> pa.Table:
    logged = wal.read_known(store, generation.region, entry, kept)
    if not wal.is_of(logged, generation.generation):
        key = keys.wal_entry_key(generation.region, entry)
        raise Corrupt(
            f"{key}: expected an entry of generation {generation.generation}, found generation "
            f"{logged.entry.generation}",
            key=key,
        )
    return logged.entry.records


def _admitted(store: ObjectStore, generation: Generation, hashes: Hashes, kept: KeptValues) -> bool:
    try:
        found = kept.made(
            _filter_name(generation),
            bloom.BloomFilter,
            lambda: read_filter(store, generation),
            lambda each: each.words.nbytes,
        )
        return bool(found.may_contain(hashes).any())
    except (Corrupt, NotFound) as error:
        _logger.warning("a bloom filter of region %s is not usable: %s", generation.region, error)
        return True


def denies(generation: Generation, hashes: Hashes, kept: KeptValues) -> bool:
    """Whether a bloom filter that is in `kept` says that the generation has none of these keys. No request."""
    found = kept.get(_filter_name(generation))
    return isinstance(found, bloom.BloomFilter) and not found.may_contain(hashes).any()


def _filter_name(generation: Generation) -> tuple[object, ...]:
    return file_key(generation, BLOOM_FILE), generation.bloom


def _places(
    store: ObjectStore, generation: Generation, hashes: Hashes, kept: KeptValues
) -> Mapping[int, key_index.Rows] | None:
    """The rows of each entry that may have a wanted key; None when nothing says so, or one entry is all there is."""
    if generation.key_index is None or len(generation.entries) == 1:
        return None
    where = file_key(generation, INDEX_FILE)
    try:
        index = kept.made(
            (where, generation.key_index),
            key_index.KeyIndex,
            lambda: key_index.decode(_verified(store, where, generation.key_index), where),
            lambda found: found.nbytes,
        )
        return index.find(hashes)
    except (Corrupt, NotFound) as error:
        _logger.warning("a key index of region %s is not usable: %s", generation.region, error)
        return None


def _taken(generation: Generation, records: pa.Table, rows: key_index.Rows) -> pa.Table:
    if rows[-1] >= records.num_rows:
        raise _beyond(generation, f"row {rows[-1]} of a WAL entry of {records.num_rows}")
    return records.take(pa.array(rows))


def _beyond(generation: Generation, what: str) -> Corrupt:
    # Reading everything instead would hide a forgery, or a defect of the writer, that leaves other keys out as well.
    where = file_key(generation, INDEX_FILE)
    return Corrupt(f"{where}: the key index of generation {generation.generation} names {what}", key=where)


def read_filter(store: ObjectStore, generation: Generation) -> bloom.BloomFilter:
    """Return the bloom filter of the generation. One GET. Raises `NotFound`, `Corrupt` also for another's filter."""
    where = file_key(generation, BLOOM_FILE)
    return bloom.from_bytes(_verified(store, where, generation.bloom), where)


def _verified(store: ObjectStore, where: str, expected: str | None) -> bytes:
    data = store.get(where).data
    found = xxhash.xxh3_64_hexdigest(data)
    if expected not in (None, found):
        raise Corrupt(f"{where}: expected xxh3-64 {expected}, found {found}", key=where)
    return data
