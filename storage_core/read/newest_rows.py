"""When the newest rows of a table happened, and when they came in: what freshness is judged by (decision 0164)."""

from __future__ import annotations

import pyarrow as pa

from storage_core.log.advance import read_version
from storage_core.log.snapshot import Snapshot, commit_timestamp
from storage_core.log.written import brings_rows
from storage_core.objectstore.contract import ObjectStore
from storage_core.rows.bound_text import decode_column
from storage_core.rows.columns import stored_name

MOST_VERSIONS = 32
"""So many version files are read at most to find the newest rows."""


def newest_row_ms(snapshot: Snapshot) -> int | None:
    """Return the latest time of a row by the bounds of the splits, in ms since the epoch; None where none is known.

    No request but for manifests. Records that are not merged are not among the splits.
    """
    import pyarrow.compute as pc

    name = snapshot.config.time_column
    if name is None or not len(snapshot.splits):
        return None
    field = snapshot.schema.field(name)
    greatest = []
    for files in snapshot.splits.tables():
        maps = [maps for maps in files.column("maxValues").chunks if len(maps)]
        texts = [pc.map_lookup(each, pa.scalar(stored_name(field)), "first") for each in maps]
        greatest += [pc.max(decode_column(each, field.type)) for each in texts]
    known = [each.cast(pa.timestamp("ms"), safe=False).value for each in greatest if each.is_valid]
    return max(known, default=None)


def rows_came_ms(store: ObjectStore, snapshot: Snapshot, *, since_ms: int) -> int:
    """Return when the newest rows were committed, in ms; of a table without rows, when it was made.

    Where no commit since `since_ms` brought rows, and where none of the `MOST_VERSIONS` newest did, it is the time of
    the oldest that was looked at: rows came then or before. One GET per version looked at.
    """
    came = snapshot.timestamp
    for version in range(snapshot.version, max(-1, snapshot.version - MOST_VERSIONS), -1):
        actions = read_version(store, version)
        if actions is None:
            break
        came = commit_timestamp(actions, 0)
        if came < since_ms or any(map(brings_rows, actions)):
            break
    return came
