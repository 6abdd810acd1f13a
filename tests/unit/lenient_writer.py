"""A writer that takes what no door takes today: patches that lack what the schema requires."""

from __future__ import annotations

from dataclasses import replace

from storage_core.clock import Clock
from storage_core.ids import Ids
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.region.claim import claim
from storage_core.region.following import Following, Known
from storage_core.region.options import WriterOptions
from storage_core.region.records import RecordBuilder
from storage_core.region.spec import only_region
from storage_core.region.writer import RegionWriter
from storage_core.rows.fold import record_schema
from tests.support.keyed_table import PLANES


def lenient(store: ObjectStore, snapshot: Snapshot, *, clock: Clock, ids: Ids) -> RegionWriter:
    """Return a writer of the only region of a table of planes, whatever its schema requires."""
    region = only_region(snapshot.table_id, snapshot.config.region_spec)
    claimed = claim(store, region, record_schema=record_schema(PLANES), clock=clock, ids=ids)
    builder = RecordBuilder(PLANES, ("tailnum",))
    following = Following(store, clock, replace(Known.of(snapshot), builder=builder))
    return RegionWriter(claimed, following=following, ids=ids, options=WriterOptions(), late=None)
