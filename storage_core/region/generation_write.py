"""Writing generations: fresh directories that count once the region's manifest names them (design page 03)."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import xxhash

from storage_core.clock import Clock
from storage_core.config import IndexDefinition
from storage_core.errors import CommitConflict
from storage_core.formats.generation_manifest import BLOOM_FILE, INDEX_FILE, MANIFEST_FILE, Generation, encode, file_key
from storage_core.ids import Ids
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.create import create_numbered
from storage_core.region import bloom, data_file, key_index
from storage_core.region.data_file import RECORDS_FILE
from storage_core.region.generation_segments import with_segments
from storage_core.region.key_hash import Hashes, key_hashes
from storage_core.region.memtable import Memtable
from storage_core.rows import statistics


def write(
    store: ObjectStore,
    memtable: Memtable,
    *,
    region: str,
    generation: int,
    clock: Clock,
    ids: Ids,
    indexes: Sequence[IndexDefinition] = (),
) -> Generation:
    """Write the memtable as a generation into a fresh directory, durable when this returns. Three PUTs.

    One PUT more per index, for its segment; an index that cannot be built gets none (`with_segments`).
    Nothing refers to it until the region's manifest does. Raises `CommitUnknown` when the store did not say.
    """
    records = memtable.records()
    hashes = key_hashes(records, memtable.key)
    places = key_index.build(hashes, memtable.entries, [part.num_rows for part in memtable.parts()])
    planned = _Planned(records.select(memtable.key), hashes, memtable.entries)
    written = planned.described(region, generation, ids, key_index=xxhash.xxh3_64_hexdigest(places))
    written, segments = with_segments(written, records, memtable.key, indexes)
    _create(store, file_key(written, BLOOM_FILE), planned.guard, clock)
    _create(store, file_key(written, INDEX_FILE), places, clock)
    for name, content in segments.items():
        _create(store, file_key(written, name), content, clock)
    _create(store, file_key(written, MANIFEST_FILE), encode(written), clock)
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
    indexes: Sequence[IndexDefinition] = (),
) -> Generation:
    """Write records that are in no WAL as a generation into a fresh directory. Requests and errors: those of `write`.

    The records lie in a file of their own, and no key index beside it.
    """
    data = data_file.encode(records)
    planned = _Planned(records.select(key), key_hashes(records, key), ())
    written = planned.described(region, generation, ids, data=data_file.checksum(data))
    written, segments = with_segments(written, records, key, indexes)
    _create(store, file_key(written, RECORDS_FILE), data, clock)
    _create(store, file_key(written, BLOOM_FILE), planned.guard, clock)
    for name, content in segments.items():
        _create(store, file_key(written, name), content, clock)
    _create(store, file_key(written, MANIFEST_FILE), encode(written), clock)
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


def _create(store: ObjectStore, key: str, data: bytes, clock: Clock) -> None:
    if not create_numbered(store, key, data, clock=clock):
        raise CommitConflict(f"{key}: another flush uses this directory; flush again, which takes a new one", key=key)
