"""A writer that takes what no door takes today: patches that lack what the schema requires."""

from __future__ import annotations

from storage_core.clock import Clock
from storage_core.ids import Ids
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.region.claim import claim
from storage_core.region.options import WriterOptions
from storage_core.region.records import RecordBuilder
from storage_core.region.spec import only_region
from storage_core.region.writer import RegionWriter
from storage_core.rows.fold import record_schema
from storage_core.split.context import context_of
from tests.support.keyed_table import PLANES


def lenient(store: ObjectStore, snapshot: Snapshot, *, clock: Clock, ids: Ids) -> RegionWriter:
    """Return a writer of the only region of a table of planes, whatever its schema requires."""
    region = only_region(snapshot.table_id, snapshot.config.region_spec)
    claimed = claim(store, region, record_schema=record_schema(PLANES), clock=clock, ids=ids)
    builder = RecordBuilder(PLANES, ("tailnum",))
    return RegionWriter(
        claimed, builder=builder, ids=ids, options=WriterOptions(), late=None, context=context_of(snapshot)
    )
