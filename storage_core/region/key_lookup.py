"""Lookups of keys in generations, by bounds, bloom filter and key index (docs/architecture/reads.md)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

import pyarrow as pa

from storage_core.errors import Corrupt, NotFound
from storage_core.formats import bloom, key_index
from storage_core.formats.generation_manifest import BLOOM_FILE, INDEX_FILE, RECORDS_FILE, Generation, file_key
from storage_core.formats.key_hash import Hashes, key_hashes
from storage_core.objectstore.contract import ObjectStore
from storage_core.region import generation, sorted_file
from storage_core.region.memtable import matching
from storage_core.region.overlap import admitted, admitting
from storage_core.rows.earlier_records import conformed
from storage_core.rows.fold import left_open
from storage_core.split.kept_values import NOTHING, KeptValues

_logger = logging.getLogger(__name__)


def find(
    store: ObjectStore,
    generations: Sequence[Generation],
    wanted: pa.Table,
    kept: KeptValues = NOTHING,
    *,
    schema: pa.Schema | None = None,
) -> list[pa.Table]:
    """Return the records of these generations, oldest first, that say what the rows of the wanted keys are.

    They are in the order of their acknowledgement, one table per WAL entry or data file. Newest first: of a key whose
    row a record tells whole, no older generation is asked. `wanted` has the key columns in their order and types. The
    records have the record schema `schema`, or without it that of when they were written.

    A generation whose bounds exclude every key costs nothing; another one GET of its bloom filter, in growing groups
    side by side, unless the region's manifest has a sound copy of that. Unless it denies every key follow one GET of
    the key index, and one of each entry that it names; of a sorted generation instead ranged ones of the chunks that
    may hold a key. Filter and index only save work: one that is missing or damaged, and a generation without an index,
    cost reading all of its records. Of filter, index and entries those in `kept` are not read again, nor what its cache
    has, which keeps all but entries: those have no checksum in the manifest of the generation.
    Raises `Corrupt` like `read_records`, and for an index of the right checksum that names what is not there.
    """
    parts: list[pa.Table] = []
    hashes = key_hashes(wanted, wanted.column_names)
    for each, found_filter in _with_filters(store, generations, wanted, kept):
        if not found_filter.may_contain(hashes).any():
            continue
        requested = wanted.filter(pa.array(admitted(each, wanted)))
        found = list(_find(store, each, requested, kept, schema=schema)) if requested.num_rows else []
        if not found:
            continue
        parts = [*found, *parts]
        wanted = left_open(found, wanted)
        if not wanted.num_rows:
            break
        hashes = key_hashes(wanted, wanted.column_names)
    return parts


def admitting_generations(
    store: ObjectStore, generations: Sequence[Generation], wanted: pa.Table, kept: KeptValues
) -> tuple[int, int]:
    """Return how many generations may hold one of the keys by their bounds, and of these how many by their filter too.

    One GET per filter that is neither copied nor in `kept`.
    """
    hashes = key_hashes(wanted, wanted.column_names)
    admits = [each.may_contain(hashes).any() for _, each in _with_filters(store, generations, wanted, kept)]
    return len(admits), sum(map(bool, admits))


def _with_filters(
    store: ObjectStore, generations: Sequence[Generation], wanted: pa.Table, kept: KeptValues
) -> Iterator[tuple[Generation, bloom.BloomFilter]]:
    """Those that may hold a key by their bounds, newest first, each with its filter."""
    waiting = admitting(generations, wanted)[::-1]
    at_once = 1  # most keys that are asked for were written lately
    while waiting:
        # Those with a copy of their filter cost no request, so they are no reason to stop.
        asked = accumulate(not each.filter_bytes for each in waiting)
        size = sum(number <= at_once for number in asked)
        group, waiting = waiting[:size], waiting[size:]
        yield from zip(group, _filters(store, group, kept), strict=True)
        at_once *= 2


def _filters(store: ObjectStore, group: Sequence[Generation], kept: KeptValues) -> list[bloom.BloomFilter]:
    def read(number: int) -> bloom.BloomFilter:
        try:
            return generation.read_filter(store, group[number], kept.cached)
        except (Corrupt, NotFound) as error:
            _logger.warning("a bloom filter of region %s is not usable: %s", group[number].region, error)
            return bloom.DENIES_NOTHING

    names = [(file_key(each, BLOOM_FILE), each.bloom) for each in group]
    return kept.made_all(
        names,
        bloom.BloomFilter,
        read,
        lambda each: each.words.nbytes,
        at_hand=lambda number: generation.copied_filter(group[number]),
    )


def _find(
    store: ObjectStore, held: Generation, wanted: pa.Table, kept: KeptValues, *, schema: pa.Schema | None
) -> Iterator[pa.Table]:
    key = wanted.column_names

    def of_now(records: pa.Table) -> pa.Table:
        return records if schema is None else conformed(records, schema)

    if held.data is not None:
        parts = _chunks(store, held, wanted, kept) if held.chunks else [generation.read_data(store, held, kept.cached)]
        yield from (matching(of_now(each), wanted, key) for each in parts)
        return
    places = _places(store, held, key_hashes(wanted, key), kept)
    if places is not None and (beyond := sorted(places.keys() - {*held.entries})):
        raise _beyond(held, f"WAL entry {beyond[0]}, which is not of it")
    for entry in held.entries:
        if places is not None and entry not in places:
            continue
        records = generation.read_entry(store, held, entry, kept)
        found = matching(of_now(records if places is None else _taken(held, records, places[entry])), wanted, key)
        if found.num_rows:
            yield found


def _chunks(store: ObjectStore, held: Generation, wanted: pa.Table, kept: KeptValues) -> Iterator[pa.Table]:
    where = file_key(held, RECORDS_FILE)
    with generation.there(held, where):
        yield from sorted_file.find(store, where, held.chunks, wanted, cached=kept.cached)


def _places(
    store: ObjectStore, held: Generation, hashes: Hashes, kept: KeptValues
) -> Mapping[int, key_index.Rows] | None:
    """The rows of each entry that may have a wanted key; None when nothing says so, or one entry is all there is."""
    if held.key_index is None or len(held.entries) == 1:
        return None
    where = file_key(held, INDEX_FILE)
    try:
        index = kept.made(
            (where, held.key_index),
            key_index.KeyIndex,
            lambda: key_index.decode(generation.read_verified(store, where, held.key_index, kept.cached), where),
            lambda found: found.nbytes,
        )
        return index.find(hashes)
    except (Corrupt, NotFound) as error:
        _logger.warning("a key index of region %s is not usable: %s", held.region, error)
        return None


def _taken(held: Generation, records: pa.Table, rows: key_index.Rows) -> pa.Table:
    if rows[-1] >= records.num_rows:
        raise _beyond(held, f"row {rows[-1]} of a WAL entry of {records.num_rows}")
    return records.take(pa.array(rows))


def _beyond(held: Generation, what: str) -> Corrupt:
    # Reading everything instead would hide a forgery, or a defect of the writer, that leaves other keys out as well.
    where = file_key(held, INDEX_FILE)
    return Corrupt(f"{where}: the key index of generation {held.generation} names {what}", key=where)
