"""Functions for tests of split readers. The functions delete rows of live splits by deletion vectors, like a merge."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from pyroaring import BitMap

from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.split.deletion_vectors import deleted_rows, vector_for
from storage_core.split.read import read_split


def delete_places(log: TransactionLog, places: Mapping[str, Iterable[int]]) -> Snapshot:
    """Delete the rows at these positions of live splits, in addition to the rows that are already deleted.

    Return the snapshot after the commit.
    """
    head = log.snapshot()
    adds = [head.splits[path] for path in places]
    marked = [
        replace(add, deletionVector=vector_for(log.store, add, deleted, ids=log.ids))
        for add in adds
        if (deleted := deleted_rows(log.store, add) | BitMap(places[add.path]))
    ]
    return log.commit(head, marked, operation="DELETE").snapshot


def delete_where(log: TransactionLog, condition: Callable[[Mapping[str, Any]], bool]) -> Snapshot:
    """Delete the live rows that meet the condition, and return the snapshot after the commit."""
    places = {
        add.path: [
            place for place, row in enumerate(read_split(log.store, add.as_written).to_pylist()) if condition(row)
        ]
        for add in log.snapshot().splits.values()
    }
    return delete_places(log, {path: rows for path, rows in places.items() if rows})
