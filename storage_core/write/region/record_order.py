"""Order records by a column. The newest row of a key wins. The newest row can be in the table.

The module sorts the records of one region by a column. The module removes a record if the row with the same key is
newer. The region must be claimed, so no other process writes to it. The row of a key is the row that a read at `latest`
returns. This read includes the base and the unmerged generations of the region. The generation stores the order of a
delete that a landed file contains. A put with an older order may arrive in a later file. This put has no effect until a
merge applies the delete. After the merge, the order of the delete is no longer available, so this put has an effect.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.base.errors import InvalidInput
from storage_core.data.rows.codes import Mask
from storage_core.data.rows.fold import OPERATION, Operation, record_schema
from storage_core.data.rows.keys import key_codes, key_order
from storage_core.log.replay import open_head
from storage_core.log.snapshot import Snapshot
from storage_core.log.split_columns import adds_of
from storage_core.split.context import context_of
from storage_core.store.contract import ObjectStore
from storage_core.write.region import captured_regions, generation
from storage_core.write.region.generation import may_hold
from storage_core.write.region.manifest import read_latest
from storage_core.write.region.merge import IndexedBase, with_index
from storage_core.write.region.merge_work import MergeWork, find


def sort_by_order(records: pa.Table, order: str) -> pa.Table:
    """Return the records in the ascending order of the column. Nulls are first, and equal values keep their order."""
    orders = records.select([order]).combine_chunks()
    return records.take(pc.sort_indices(orders, sort_keys=[(order, "ascending", "at_start")]))


def without_older(store: ObjectStore, records: pa.Table, region: str, *, key: Sequence[str], order: str) -> pa.Table:
    """Return the records that are not older than the row of their key in the table, in order.

    Raises `InvalidInput` if the column was dropped after the records were read.

    Cost:
        The requests to open the table, three requests for the region, and the requests of `captured_regions.find`. For
        each split that may contain a key, the requests of `merge_work.find`.
    """
    if not records.num_rows:
        return records
    manifest = read_latest(store, region)
    head = open_head(store)
    if order not in head.schema.names:
        raise InvalidInput(f"order_by: the table has no column {order!r} any more. Correct the declaration")
    places, begins = key_order(records, key)
    wanted = records.select(key).take(pa.array(np.sort(places[begins])))
    narrow = pa.schema([head.schema.field(name) for name in (*key, *(() if order in key else (order,)))])
    parts = [_of_base(store, head, region, wanted, narrow=narrow)]
    if manifest is not None:
        merged = head.merged_generations.get(region, 0)
        waiting = [generation.read(store, region, each) for each in generation.unmerged(store, manifest, merged)]
        found = captured_regions.find(store, waiting, wanted, schema=record_schema(head.schema))
        parts += [_deciding(each, order).select(narrow.names) for each in found]
    held = pa.concat_tables(
        [each.cast(pa.schema(field.with_nullable(nullable=True) for field in narrow)) for each in parts]
    )
    return records.filter(pa.array(~_is_older(records, held, key, order)))


def _deciding(records: pa.Table, order: str) -> pa.Table:
    """Return the records that set the column `order` of a row. Omit patches without a value in this column."""
    patches = pc.equal(records.column(OPERATION), int(Operation.PATCH))
    return records.filter(pc.invert(pc.and_(patches, records.column(order).is_null())))


def _of_base(store: ObjectStore, head: Snapshot, region: str, wanted: pa.Table, *, narrow: pa.Schema) -> pa.Table:
    """Return the keys and orders of the rows in the base."""
    files = head.splits.table()
    work = MergeWork(
        region=region,
        after=0,
        generations=(),
        primary_key=tuple(wanted.column_names),
        base=tuple(adds_of(files.filter(may_hold(files, wanted)))),
        context=context_of(head),
    )
    (work,) = with_index(head, [work])
    patches = pa.array(np.full(wanted.num_rows, int(Operation.PATCH), np.int8))
    probes = wanted.append_column(OPERATION, patches)
    index = IndexedBase.of(store, work, probes)
    found = (
        find(store, split, probes, key=wanted.column_names, schema=narrow, among=index.rows(split))
        for split in work.base
    )
    return pa.concat_tables([narrow.empty_table(), *(each.read for each in found if each is not None)])


def _is_older(records: pa.Table, held: pa.Table, key: Sequence[str], order: str) -> Mask:
    """Return a mask of records older than the last record of `held` with the same key.

    A record whose order is null is older than a record with a value.
    """
    own, others = key_codes([records.select(key), held.select(key)], key)
    last = np.full(int(max(own.max(), others.max(initial=0))) + 1, -1)
    last[others] = np.arange(len(others))  # the last position of each key remains
    places = last[own]
    against = held.column(order).take(pa.array(places, mask=places < 0))
    own_orders = records.column(order)
    is_less = pc.fill_null(pc.less(own_orders, against), fill_value=False)
    mask: Mask = np.asarray(pc.or_(is_less, pc.and_(own_orders.is_null(), against.is_valid())))
    return mask
