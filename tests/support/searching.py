"""Searches and their recall over a store and a snapshot, without a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from storage_core.log.snapshot import Snapshot
from storage_core.read.predicate import Filter
from storage_core.read.search import hybrid
from storage_core.read.search import vectors as measured
from storage_core.read.search.matches import Searched
from storage_core.read.search.search_cache import SearchCache
from storage_core.read.search.search_request import SearchQuestion
from storage_core.read.search.vectors import Recall
from storage_core.store.contract import ObjectStore
from storage_core.write.region.captured_regions import Unmerged


def search(
    store: ObjectStore,
    snapshot: Snapshot,
    query: object = None,
    *,
    limit: object = 10,
    offset: object = 0,
    columns: Sequence[str] | None = None,
    filter: Filter | None = None,  # noqa: A002  # as of `Table.search`
    cache_dir: Path | None = None,
    unmerged: Sequence[Unmerged] = (),
    kept: SearchCache | None = None,
    **of_question: Any,
) -> pa.Table:
    """Return the result of `hybrid.search`. `of_question` are further fields of a `SearchQuestion`."""
    searched = Searched(
        store=store,
        snapshot=snapshot,
        unmerged=unmerged,
        filter=filter,
        cache_dir=cache_dir,
        kept=kept or SearchCache(),
    )
    given = SearchQuestion(query=query, **of_question)
    return hybrid.search(searched, given, columns, limit=limit, offset=offset)


def recall(
    store: ObjectStore,
    snapshot: Snapshot,
    *,
    filter: Filter | None = None,  # noqa: A002  # as of `Table.recall`
    **of_recall: Any,
) -> Recall:
    """Return the result of `vectors.recall`. The function passes `of_recall` to `vectors.recall`."""
    return measured.recall(Searched(store=store, snapshot=snapshot, filter=filter), **of_recall)
