"""What is committed of a live split that loses rows: the entry with a longer vector, or its end."""

from __future__ import annotations

from dataclasses import replace

from pyroaring import BitMap

from storage_core.ids import Ids
from storage_core.log.actions import Add, Remove
from storage_core.objectstore.contract import ObjectStore
from storage_core.split.vectors import vector_for


def hiding(store: ObjectStore, split: Add, deleted: BitMap, *, rows: int, ids: Ids, now_ms: int) -> Add | Remove:
    """Return the action after which these of the `rows` of a live split's file are not live, those gone before too.

    At most one PUT, of a vector that is stored. Raises what `vector_for` raises.
    """
    if len(deleted) == rows:
        return removal(split, now_ms)
    return replace(split, deletionVector=vector_for(store, split, deleted, ids=ids), dataChange=True)


def removal(split: Add, now_ms: int, *, changes_rows: bool = True) -> Remove:
    """Return the action that ends a live split, whose rows stay in others unless it `changes_rows`."""
    return Remove(
        path=split.path,
        deletionTimestamp=now_ms,
        dataChange=changes_rows,
        partitionValues=dict(split.partitionValues),
        size=split.size,
    )
