"""In which region a record of a key that has a row belongs (decision 0150).

Where the region spec says, unless a region made by hand holds an unmerged record of the key: then there, so that no key
has unmerged records in two regions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.region.registry import hand_regions
from storage_core.region.router import groups_of
from storage_core.region.spec import route
from storage_core.region.unmerged import capture
from storage_core.rows.codes import Mask
from storage_core.rows.keys import key_codes
from storage_core.settings.region_fields import Region


def by_region(store: ObjectStore, snapshot: Snapshot, rows: pa.Table) -> Iterator[tuple[Region, pa.Table]]:
    """Yield each region and the rows whose records belong there; `rows` has the key columns, each key once.

    Of several regions by hand it is the one whose records readers see. No request where there are none, else one GET of
    the registry and those of `unmerged.capture` and `CapturedRegion.of_keys` for all of them. Raises what these raise.
    """
    key = snapshot.config.primary_key
    by_hand = hand_regions(store, snapshot) if rows.num_rows else []
    captured = capture(store, snapshot, include_wal=True, regions=by_hand).regions if by_hand else ()
    for region, each in reversed([*zip(by_hand, captured, strict=True)]):
        if rows.num_rows:
            held = held_in(each.of_keys(snapshot, rows.select(key)), rows, key)
            if held.any():
                yield region, rows.filter(pa.array(held))
                rows = rows.filter(pa.array(~held))
    if rows.num_rows:
        for region, places in groups_of(route(snapshot.table_id, snapshot.config.region_spec, rows)):
            yield region, rows.take(places)


def held_in(parts: Sequence[pa.Table], rows: pa.Table, key: Sequence[str]) -> Mask:
    """Return which of the rows have a key that is in one of these tables, too."""
    own, *others = key_codes([each.select(key) for each in (rows, *parts)], key)
    return np.isin(own, np.concatenate([own[:0], *others]))
