"""Readers of generations (docs/architecture/ingestion.md, "Memtable and generations").

A generation is an immutable set of records of a region. The directory of a generation is `<8 hex>_gen_<i>/` and
contains `_manifest.json`. A directory counts only if the manifest of the region contains it. Every flush attempt
creates a new directory. There are three kinds of generations:

- A *flushed* generation comes from the writer. The manifest of a flushed generation references WAL entries instead of
  copying them. `bloom_filter.bin` excludes keys that the generation does not contain. `key_index.arrow` maps a key to
  the entries and rows that may have it (`region.captured_regions`).
- A *distributed* generation comes from a raw log (`write.region.router`) and was never in the WAL. The records of a
  distributed generation are in `records.arrow`. A distributed generation has no key index.
- A *sorted* generation replaces several generations (`write.region.generation_write`). The records of a sorted
  generation are in `records.arrow`, in key order. A sorted generation has no key index.

The data file of a sorted generation is a sequence of chunks. Each chunk is an Arrow IPC stream like a data file of
`data.formats.arrow_files`, and can be read without other chunks. The generation's manifest contains the offset, the
checksum and the key bounds of each chunk. A lookup uses binary search to find the chunks that may contain a key. A
lookup reads only the chunks that may contain the key (docs/architecture/ingestion.md, "Raw log").
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import compress, islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from storage_core.base.errors import Corrupt, NotFound, Unsupported
from storage_core.data.formats import arrow_files, key_hashes, keys
from storage_core.data.formats.region_manifest import (
    BLOOM_FILE,
    FILTER_COPY_RECORDS,
    MANIFEST_FILE,
    RECORDS_FILE,
    Chunk,
    FlushedGeneration,
    Generation,
    RegionManifest,
    decode_generation,
    file_key,
)
from storage_core.data.rows import bound_text, statistics
from storage_core.data.rows.codes import Mask, bound_keys, sortable, unless_false
from storage_core.data.rows.keys import map_column, with_room
from storage_core.store.contract import ObjectStore
from storage_core.store.meter import all_of
from storage_core.store.pieces import NOT_CACHED, NOTHING, CachedPieces, KeptValues, Piece
from storage_core.write.region import wal
from storage_core.write.region.manifest import require_listed

CHUNK_RECORDS = 8192
"""Number of records in a chunk.

A chunk has a few hundred KB. A read of a chunk from a store takes about as long as a read of a few bytes.
"""

CHUNKS_AT_ONCE = 8
"""The number of chunks that a sequential read fetches with one request.

Eight chunks contain about one page of the history of a key (`read.history`).
"""


def encode_sorted(folded: pa.Table, key: Sequence[str]) -> tuple[tuple[Chunk, ...], bytes]:
    """Return the chunks and the bytes of a sorted data file. The records must ascend by key.

    There is at least one chunk.
    """
    chunks: list[Chunk] = []
    parts: list[bytes] = []
    start = 0
    for at in range(0, max(folded.num_rows, 1), CHUNK_RECORDS):
        part = folded.slice(at, CHUNK_RECORDS)
        data, bounds = arrow_files.encode_data_file(part), statistics.compute(part.select(key))
        chunks.append(
            Chunk(
                start=start,
                length=len(data),
                checksum=arrow_files.checksum(data),
                min_key=bounds.min_values,
                max_key=bounds.max_values,
            )
        )
        parts.append(data)
        start += len(data)
    return tuple(chunks), b"".join(parts)


def decode_sorted(data: bytes, chunks: Sequence[Chunk], where: str) -> pa.Table:
    """Decode the bytes of adjacent chunks, and return the records in order.

    Raise `Corrupt` for damaged bytes.
    """
    begin = chunks[0].start
    parts = [
        arrow_files.decode_data_file(data[each.start - begin : each.start - begin + each.length], each.checksum, where)
        for each in chunks
    ]
    return pa.concat_tables(parts)


def find_key(
    store: ObjectStore, where: str, chunks: Sequence[Chunk], wanted: pa.Table, *, cached: CachedPieces = NOT_CACHED
) -> Iterator[pa.Table]:
    """Yield the records of the chunks that may contain a wanted key, in order.

    Raises `NotFound` if the file does not exist, and `Corrupt` for a damaged chunk.

    Cost:
        One ranged GET per run of adjacent chunks. A cached run makes no request.
    """
    run: list[Chunk] = []
    for each in _holding(chunks, wanted):
        if run and each.start != run[-1].start + run[-1].length:
            yield _read_chunks(store, where, run, cached)
            run = []
        run.append(each)
    if run:
        yield _read_chunks(store, where, run, cached)


def read_from(store: ObjectStore, where: str, chunks: Sequence[Chunk], first: int) -> Iterator[tuple[int, pa.Table]]:
    """Yield the chunks, starting at chunk number `first`. One ranged GET per `CHUNKS_AT_ONCE` chunks.

    Raise the errors of `find_key`.
    """
    for start in range(first, len(chunks), CHUNKS_AT_ONCE):
        run = chunks[start : start + CHUNKS_AT_ONCE]
        data = store.get_range(where, run[0].start, run[-1].start + run[-1].length)
        for number, each in enumerate(run, start):
            offset = each.start - run[0].start
            yield number, decode_sorted(data[offset : offset + each.length], [each], where)


def _read_chunks(store: ObjectStore, where: str, run: Sequence[Chunk], cached: CachedPieces) -> pa.Table:
    pieces = [Piece(each.start, each.start + each.length, each.checksum) for each in run]
    held = [each for each in cached.read(store.uri, where, "", pieces) if each is not None]
    if len(held) == len(run):
        return decode_sorted(b"".join(held), run, where)
    data = store.get_range(where, run[0].start, run[-1].start + run[-1].length)
    records = decode_sorted(data, run, where)  # verifies the checksums
    begin = run[0].start
    fetched = [(piece, data[each.start - begin :][: each.length]) for piece, each in zip(pieces, run, strict=True)]
    cached.write(store.uri, where, "", fetched)
    return records


def _holding(chunks: Sequence[Chunk], wanted: pa.Table) -> list[Chunk]:
    """Return the chunks whose bounds include a wanted key, in order.

    Only the first column of the key is compared, because the values of this column ascend from chunk to chunk.
    """
    column = wanted.column(0)
    lows = _bounds([each.min_key for each in chunks], wanted.column_names[0], column.type)
    highs = _bounds([each.max_key for each in chunks], wanted.column_names[0], column.type)
    if lows is None or highs is None:
        return list(chunks)
    found: set[int] = set()
    for value in column.unique().to_pylist():
        if value != value:  # noqa: PLR0124  # NaN, the greatest value, compares with nothing
            return list(chunks)
        found.update(range(bisect_left(highs, value), bisect_right(lows, value)))
    return [chunks[number] for number in sorted(found)]


def _bounds(bounds: Sequence[Mapping[str, str]], name: str, kind: pa.DataType) -> list[bound_text.Value] | None:
    """Return the bounds of every chunk, in ascending order.

    Return None if a chunk has no bound, or if a bound is NaN, which has no order.
    """
    texts = [each.get(name) for each in bounds]
    if any(text is None for text in texts):
        return None
    values = [bound_text.bound_of_text(text, kind) for text in texts if text is not None]
    return None if any(value != value for value in values) else values  # noqa: PLR0124


_logger = logging.getLogger(__name__)

# Approximate memory of a decoded manifest, and of each entry or chunk in a manifest.
_MANIFEST_BYTES = 2048
_PART_BYTES = 512

_AT_ONCE = 8


def read(store: ObjectStore, region: str, flushed: FlushedGeneration, kept: KeptValues = NOTHING) -> Generation:
    """Return a generation in the region's manifest. One GET unless `kept` has the generation.

    Copies in the region's manifest are not used. Raises `Corrupt` if the generation's manifest is missing, is damaged
    or describes another generation. Raises `Unsupported` for a newer format.
    """
    name = _manifest_name(region, flushed)
    return kept.made(name, Generation, lambda: _read(store, region, flushed), _manifest_bytes)


def bytes_in_memory(generations: Iterable[Generation]) -> float:
    """Return the bytes that the records take in memory.

    Return infinity if an early 0.1 release wrote one of the generations. These releases did not record the size.
    """
    return sum(math.inf if each.size_bytes is None else each.size_bytes for each in generations)


def read_all(
    store: ObjectStore, region: str, flushed: Sequence[FlushedGeneration], kept: KeptValues
) -> list[Generation]:
    """Return the result of `read` for each generation.

    If a generation has a copied filter, add the bytes of the filter.

    Cost:
        One concurrent GET per generation that is not in `kept` and has no valid copy in the region's manifest.
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
    """Return the generation with copies of its manifest and filter. At most two GETs.

    A file that cannot be read is not copied, because readers need no copy. A copy only saves requests.
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
    """Return the generation from the copies of its manifest and its filter, or None if there is no valid copy."""
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
    found = decode_generation(data, key)
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
    """Return the generations with a higher number than `merged`, in order.

    Each record is in only one of these generations.

    The base may already contain a part of a sorted generation. In this case, the result contains the source generations
    and not the sorted generation. The result has only source generations with a higher number than `merged`. Merged
    records must not be applied again (docs/architecture/ingestion.md). This takes one GET. The base may contain a part
    of at most one sorted generation. Raises the errors of `read`, and `SnapshotExpired` if one of the generations is
    collected (`region.manifest`).
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

    Raises `Corrupt` for an entry or a file that is missing, damaged, or part of another generation.
    """
    if generation.data is not None:
        yield read_data(store, generation)
    for entry in generation.entries:
        yield read_entry(store, generation, entry)


def read_all_records(
    store: ObjectStore, generations: Sequence[Generation], cached: CachedPieces = NOT_CACHED
) -> list[tuple[pa.Table, ...]]:
    """Return the result of `read_records` for each generation. The GETs are concurrent.

    Raise the errors of `read_records`. The function makes no request for a data file that is in the cache.
    """
    parts = [(each, entry) for each in generations for entry in (*([] if each.data is None else [None]), *each.entries)]

    def read_part(part: tuple[Generation, int | None]) -> pa.Table:
        of, entry = part
        return read_data(store, of, cached) if entry is None else read_entry(store, of, entry)

    tables = iter(all_of(read_part, parts, _AT_ONCE))
    return [tuple(islice(tables, len(each.entries) + (each.data is not None))) for each in generations]


def read_parts(store: ObjectStore, generation: Generation, *, first: int = 0) -> Iterator[tuple[int, pa.Table]]:
    """Yield the parts of the records, starting at part number `first`. Parts before `first` are not read.

    A part is a WAL entry, a data file, or a chunk of a sorted data file. One GET reads several chunks. Raises the
    errors of `read_records`.
    """
    if generation.chunks:
        where = file_key(generation, RECORDS_FILE)
        with there(generation, where):
            yield from read_from(store, where, generation.chunks, first)
    elif generation.data is not None and first == 0:
        yield 0, read_data(store, generation)
    files = 0 if generation.data is None else 1
    for number in range(max(0, first - files), len(generation.entries)):
        yield files + number, read_entry(store, generation, generation.entries[number])


def read_data(store: ObjectStore, generation: Generation, cached: CachedPieces = NOT_CACHED) -> pa.Table:
    """Return all records in the data file of the generation. One GET unless cached.

    Raise the errors of `read_records`.
    """
    where = file_key(generation, RECORDS_FILE)
    with there(generation, where):
        data = _vouched(store, where, generation.data, cached)
    if generation.chunks:
        return decode_sorted(data, generation.chunks, where)
    return arrow_files.decode_data_file(data, generation.data or "", where)


@contextmanager
def there(generation: Generation, where: str) -> Iterator[None]:
    """Raise `Corrupt` if the block raises `NotFound`, because the data file `where` is missing."""
    try:
        yield
    except NotFound as error:
        raise Corrupt(
            f"{where}: generation {generation.generation} of region {generation.region} lost its records", key=where
        ) from error


def read_entry(store: ObjectStore, generation: Generation, entry: int, kept: KeptValues = NOTHING) -> pa.Table:
    """Return the records of one WAL entry of the generation. One GET, or no request if the entry is in `kept`.

    Raise the errors of `read_records`.
    """
    logged = wal.read_known(store, generation.region, entry, kept)
    if not wal.is_of(logged.entry, generation.generation):
        key = keys.wal_entry_key(generation.region, entry)
        raise Corrupt(
            f"{key}: expected an entry of generation {generation.generation}, found generation "
            f"{logged.entry.generation}",
            key=key,
        )
    return logged.entry.records


def read_filter(
    store: ObjectStore, generation: Generation, cached: CachedPieces = NOT_CACHED
) -> key_hashes.BloomFilter:
    """Return the Bloom filter of the generation. One GET, or no request if the filter is cached.

    Raises `NotFound`, or `Corrupt` if the file is damaged or is the filter of another generation.
    """
    where = file_key(generation, BLOOM_FILE)
    return key_hashes.from_bytes(read_verified(store, where, generation.bloom, cached), where)


def copied_filter(generation: Generation) -> key_hashes.BloomFilter | None:
    """Return the copied Bloom filter of the generation, or None without a valid copy. No request."""
    if not generation.filter_bytes or generation.bloom is None:
        return None
    where = f"the copy of {file_key(generation, BLOOM_FILE)}"
    try:
        return key_hashes.from_bytes(_verified(generation.filter_bytes, where, generation.bloom), where)
    except (Corrupt, Unsupported) as error:
        _logger.warning("a copy in the manifest of region %s is not usable: %s", generation.region, error)
        return None


def read_verified(store: ObjectStore, where: str, expected: str | None, cached: CachedPieces = NOT_CACHED) -> bytes:
    """Return a file, verified by its XXH3-64 if `expected` is not None. One GET unless the file is cached.

    Raises `NotFound`, or `Corrupt` for a different checksum.
    """
    return _verified(_vouched(store, where, expected, cached), where, expected)


def _verified(data: bytes, where: str, expected: str | None) -> bytes:
    found = xxhash.xxh3_64_hexdigest(data)
    if expected not in (None, found):
        raise Corrupt(f"{where}: expected xxh3-64 {expected}, found {found}", key=where)
    return data


def _vouched(store: ObjectStore, where: str, expected: str | None, cached: CachedPieces) -> bytes:
    """Return a file of a generation. The cache is used if the generation's manifest has the checksum of the file.

    The caller verifies fetched bytes. The name of the file is unique. The cache entry of this name therefore stores
    chunks of the file too (`generation.find_key`).
    """

    def fetch() -> bytes:
        return store.get(where).data

    if expected is None:
        return fetch()
    return cached.made(store.uri, where, "", Piece(0, None, expected), fetch=fetch)


# The bounds of generations determine which base splits and wanted keys have no record in a generation. The comparison
# works on columns, not on single values.


Bounds = Mapping[str, tuple[pa.Array, pa.Array]]


def may_overlap(
    files: pa.Table, generations: Sequence[Generation], *, key: Sequence[str], schema: pa.Schema
) -> pa.BooleanArray:
    """Return for each split in a table of splits (`FILES_SCHEMA`) whether it may contain a key of a generation.

    The result is False only if each generation has a key column that excludes the split. In this key column, the range
    of the generation's keys does not overlap the range of the split's keys. A bound that is missing or invalid excludes
    no split. No request.
    """
    types = {name: schema.field(name).type for name in key}
    touched = [_bounds_of(each, types) for each in generations]
    masks = [_overlaps(batch, touched, types) for batch in files.select(["minValues", "maxValues"]).to_batches()]
    return pa.array(np.concatenate([np.empty(0, dtype=bool), *masks]))


def may_hold(files: pa.Table, wanted: pa.Table) -> pa.BooleanArray:
    """Return for each split in a table of splits (`FILES_SCHEMA`) whether it may contain one of these keys.

    The result is False only if, in some column, the range of the split is outside the range of the keys. No request.
    `wanted` has the key columns and at least one row.
    """
    ends = {name: pc.min_max(sortable(wanted[name].combine_chunks())) for name in wanted.column_names}
    bounds = {name: (pa.array([each["min"]]), pa.array([each["max"]])) for name, each in ends.items()}
    types = {each.name: each.type for each in wanted.schema}
    masks = [_overlaps(batch, [bounds], types) for batch in files.select(["minValues", "maxValues"]).to_batches()]
    return pa.array(np.concatenate([np.empty(0, dtype=bool), *masks]))


def admitting(generations: Sequence[Generation], wanted: pa.Table) -> list[Generation]:
    """Return the generations whose bounds include one of the keys, in the same order. No request.

    There is one comparison per key column, for any number of generations and keys (see `with_room`).
    """
    if not generations:
        return []
    ranges = [
        (_keys(each, [held.min_key for held in generations]), _keys(each, [held.max_key for held in generations]))
        for each in wanted.schema
    ]
    return list(compress(generations, with_room(ranges, wanted).tolist()))


def _keys(column: pa.Field, bounds: Sequence[Mapping[str, str]]) -> pa.Array:
    return bound_keys(pa.array([each.get(column.name) for each in bounds], pa.string()), column.type)


def admitted(generation: Generation, wanted: pa.Table) -> Mask:
    """Return for each key whether the bounds of the generation include the key. No request.

    There is one comparison per key column and bound, for any number of keys. All NaN values are equal, and NaN is the
    greatest value. A bound that is missing or invalid excludes no key.
    """
    mask = np.ones(wanted.num_rows, dtype=bool)
    for name, (least, greatest) in _bounds_of(generation, {each.name: each.type for each in wanted.schema}).items():
        keys = sortable(wanted[name].combine_chunks())
        mask &= unless_false(pc.greater_equal(keys, least[0])) & unless_false(pc.less_equal(keys, greatest[0]))
    return mask


def _bounds_of(generation: Generation, types: Mapping[str, pa.DataType]) -> Bounds:
    found = {
        name: bound_keys(pa.array([generation.min_key.get(name), generation.max_key.get(name)], pa.string()), type_)
        for name, type_ in types.items()
    }
    return {name: (both[:1], both[1:]) for name, both in found.items()}


def _overlaps(files: pa.RecordBatch, touched: Sequence[Bounds], types: Mapping[str, pa.DataType]) -> Mask:
    lows, highs = map_column(files.column("minValues")), map_column(files.column("maxValues"))
    held = {
        name: (bound_keys(lows.lookup(name), kind), bound_keys(highs.lookup(name), kind))
        for name, kind in types.items()
    }
    mask = np.zeros(files.num_rows, dtype=bool)
    for bounds in touched:
        common = np.ones(files.num_rows, dtype=bool)
        for name, (low, high) in held.items():
            least, greatest = bounds[name]
            # Bounds are inclusive. Two ranges overlap if one range ends at the start of the other.
            common &= unless_false(pc.less_equal(low, greatest[0])) & unless_false(pc.greater_equal(high, least[0]))
        mask |= common
    return mask
