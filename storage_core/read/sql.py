"""SQL over one snapshot: DuckDB runs the query, Tidemark leaves out the splits its condition cannot match."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from storage_core.engine.sandbox.pool import prepare
from storage_core.engine.statement import check, parse
from storage_core.engine.tree import Node, shown
from storage_core.errors import Unavailable
from storage_core.headroom import QUERY_BYTES, require_headroom
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.read import pruning
from storage_core.read.columns_read import columns_read
from storage_core.read.pruning import Pruned, PruneStep
from storage_core.read.query_errors import TABLE, query_errors
from storage_core.read.source import is_counted, source_of
from storage_core.read.sql_predicate import where_of
from storage_core.read.verified import Verified
from storage_core.settings.query import QueryLimits


@require_headroom("a query", size=QUERY_BYTES)
def query(
    store: ObjectStore,
    snapshot: Snapshot,
    text: str,
    *,
    verified: Verified,
    records: pa.Table | None = None,
    limits: QueryLimits | None = None,
) -> pa.Table:
    """Return the answer of one SELECT over the table, which the query calls `t`.

    Raises `InvalidInput` for anything but one SELECT, or when the query is wrong, and `Unavailable` when it passes one
    of its limits. The query can read the table's splits and nothing else, and write nothing (decision 0083). With
    `records`, they are folded over the base first and nothing is pruned.
    """
    prepare()  # a process starts while the text is checked, as most are sound
    tree = _checked(text)
    bounds = QueryLimits() if limits is None else limits
    splits, source = source_of(
        store,
        snapshot,
        where_of(tree, TABLE),
        verified=verified,
        records=records,
        columns=columns_read(tree, snapshot.schema.names, TABLE),
        query=text,
    )
    with (
        query_errors(text, splits, bounds, files=source.splits),
        source.answer(text, bounds, spill_bytes=bounds.spill_bytes) as result,
    ):
        rows = pa.Table.from_batches(_bounded(result, text, bounds), result.schema)
    verified.recheck(store, source.splits)
    return rows


def explain(snapshot: Snapshot, text: str) -> Pruned:
    """Return the splits the query reads and what each pruning step left out. Reads every manifest not read yet."""
    tree = _checked(text)
    if is_counted(snapshot, columns_read(tree, snapshot.schema.names, TABLE)):
        return Pruned((), (PruneStep("count", len(snapshot.splits), snapshot.bytes),))
    return pruning.explain(snapshot, where_of(tree, TABLE))


def _checked(text: str) -> Node:
    tree = parse(text)
    check(tree, text, table=TABLE)
    return tree


def _bounded(batches: Iterable[pa.RecordBatch], text: str, limits: QueryLimits) -> Iterator[pa.RecordBatch]:
    held = 0
    for batch in batches:
        held += batch.nbytes
        if held > limits.memory_bytes:
            found = f"its answer is larger than `memory_bytes` = {limits.memory_bytes}"
            raise Unavailable(f"{shown(text)}: {found}; ask for less, or raise it (--memory-mib)", query=text)
        yield batch
