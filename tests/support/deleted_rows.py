"""Rows of live splits deleted by vectors, as a merge deletes them: for tests of everything that reads splits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from pyroaring import BitMap

from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.split.read import read_split
from storage_core.split.vectors import deleted_rows, vector_for


def delete_places(log: TransactionLog, places: Mapping[str, Iterable[int]]) -> Snapshot:
    """Commit that these rows of the files of these live splits, by place, are deleted, beside those that are already.

    Return the snapshot after it.
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
    """Commit that the live rows for which the condition holds are deleted, and return the snapshot after it."""
    places = {
        add.path: [
            place for place, row in enumerate(read_split(log.store, add.as_written).to_pylist()) if condition(row)
        ]
        for add in log.snapshot().splits.values()
    }
    return delete_places(log, {path: rows for path, rows in places.items() if rows})
