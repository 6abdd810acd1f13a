"""A writer that accepts invalid input: patches that lack what the schema requires."""

from __future__ import annotations

from dataclasses import replace

from storage_core.base.clock import Clock, Ids
from storage_core.data.rows.fold import record_schema
from storage_core.log.snapshot import Snapshot
from storage_core.store.contract import ObjectStore
from storage_core.write.region.records import Following, RecordBuilder, WriterOptions, WriterSnapshot
from storage_core.write.region.spec import only_region
from storage_core.write.region.writer import RegionWriter, claim
from tests.support.keyed_table import PLANES


def lenient(store: ObjectStore, snapshot: Snapshot, *, clock: Clock, ids: Ids) -> RegionWriter:
    """Return a writer that ignores required columns. The table has the schema `PLANES` and a single region."""
    region = only_region(snapshot.table_id, snapshot.config.region_spec)
    claimed = claim(store, region, record_schema=record_schema(PLANES), clock=clock, ids=ids)
    builder = RecordBuilder(PLANES, ("tailnum",))
    following = Following(store, clock, replace(WriterSnapshot.of(snapshot), builder=builder))
    return RegionWriter(claimed, following=following, ids=ids, options=WriterOptions(), late=None)
