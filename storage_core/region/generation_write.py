"""Writing generations: fresh directories that count once the region's manifest names them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import xxhash

from storage_core.clock import Clock
from storage_core.errors import CommitConflict
from storage_core.formats import bloom, data_file, key_index
from storage_core.formats.generation_manifest import (
    BLOOM_FILE,
    INDEX_FILE,
    MANIFEST_FILE,
    RECORDS_FILE,
    Generation,
    encode,
    file_key,
)
from storage_core.formats.key_hash import key_hashes
from storage_core.ids import Ids
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.create import create_numbered
from storage_core.region import sorted_file
from storage_core.region.generation_segments import with_segments
from storage_core.region.memtable import Memtable
from storage_core.rows import statistics
from storage_core.split.context import SplitContext


def write(
    store: ObjectStore,
    memtable: Memtable,
    *,
    region: str,
    generation: int,
    clock: Clock,
    ids: Ids,
    context: SplitContext | None = None,
) -> Generation:
    """Write the memtable as a generation into a fresh directory, durable when this returns. Three PUTs.

    With the context of the table one PUT more per maintained index, for its segment (`with_segments`).
    Nothing refers to it until the region's manifest does. Raises `CommitUnknown` when the store did not say.
    """
    records = memtable.records()
    hashes = key_hashes(records, memtable.key)
    places = key_index.build(hashes, memtable.entries, [part.num_rows for part in memtable.parts()])
    guard = bloom.build(hashes).to_bytes()
    written = replace(
        _described(records, memtable.key, guard, region=region, generation=generation, ids=ids),
        entries=memtable.entries,
        key_index=xxhash.xxh3_64_hexdigest(places),
    )
    if context is not None:
        written = with_segments(store, written, records, memtable.key, context=context, ids=ids)
    return _stored(store, written, {BLOOM_FILE: guard, INDEX_FILE: places}, clock)


def write_records(
    store: ObjectStore,
    records: pa.Table,
    key: Sequence[str],
    *,
    region: str,
    generation: int,
    clock: Clock,
    ids: Ids,
    context: SplitContext | None = None,
) -> Generation:
    """Write records that are in no WAL as a generation into a fresh directory. Requests and errors: those of `write`.

    The records lie in a file of their own, and no key index beside it.
    """
    data = data_file.encode(records)
    guard = bloom.build(key_hashes(records, key)).to_bytes()
    written = replace(
        _described(records, key, guard, region=region, generation=generation, ids=ids), data=data_file.checksum(data)
    )
    if context is not None:
        written = with_segments(store, written, records, key, context=context, ids=ids)
    return _stored(store, written, {RECORDS_FILE: data, BLOOM_FILE: guard}, clock)


def write_sorted(
    store: ObjectStore,
    folded: pa.Table,
    key: Sequence[str],
    *,
    replaces: Sequence[Generation],
    clock: Clock,
    ids: Ids,
    context: SplitContext | None = None,
) -> Generation:
    """Write the fold of consecutive generations, one record per key ascending by it, into a fresh directory.

    It takes the number of the last one. Requests and errors: those of `write`.
    """
    chunks, data = sorted_file.encode(folded, key)
    guard = bloom.build(key_hashes(folded, key)).to_bytes()
    last = replaces[-1]
    written = replace(
        _described(folded, key, guard, region=last.region, generation=last.generation, ids=ids),
        data=data_file.checksum(data),
        sorted_from=replaces[0].generation,
        chunks=chunks,
        replaces=tuple(each.flushed for each in replaces),
    )
    if context is not None:
        written = with_segments(store, written, folded, key, context=context, ids=ids)
    return _stored(store, written, {RECORDS_FILE: data, BLOOM_FILE: guard}, clock)


def _described(
    records: pa.Table, key: Sequence[str], guard: bytes, *, region: str, generation: int, ids: Ids
) -> Generation:
    """What is known of records and their keys before they are written, in no entries yet."""
    bounds = statistics.compute(records.select(key))
    return Generation(
        region=region,
        generation=generation,
        path=f"{ids.uuid()[:8]}_gen_{generation}",
        entries=(),
        records=records.num_rows,
        min_key=bounds.min_values,
        max_key=bounds.max_values,
        bloom=xxhash.xxh3_64_hexdigest(guard),
        size_bytes=records.nbytes,
        filter_bytes=guard,
    )


def _stored(store: ObjectStore, written: Generation, files: Mapping[str, bytes], clock: Clock) -> Generation:
    for name, data in files.items():
        _create(store, file_key(written, name), data, clock)
    _create(store, file_key(written, MANIFEST_FILE), encode(written), clock)
    return written


def _create(store: ObjectStore, key: str, data: bytes, clock: Clock) -> None:
    if not create_numbered(store, key, data, clock=clock):
        raise CommitConflict(f"{key}: another flush uses this directory; flush again, which takes a new one", key=key)
