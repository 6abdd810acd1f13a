"""SQL over one snapshot: DuckDB runs the query, Tidemark leaves out the splits its condition cannot match."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from storage_core.engine.parameters import Parameters, with_values
from storage_core.engine.sandbox.pool import prepare
from storage_core.engine.statement import check, parse
from storage_core.engine.tree import Node
from storage_core.headroom import QUERY_BYTES, require_headroom
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.read import pruning
from storage_core.read.columns_read import columns_read
from storage_core.read.pruning import Pruned, PruneStep
from storage_core.read.query_errors import TABLE, query_errors
from storage_core.read.source import is_counted, source_of
from storage_core.read.sql_predicate import where_of
from storage_core.read.sql_result import SqlResult
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
    parameters: Parameters | None = None,
) -> SqlResult:
    """Return the answer of one SELECT over the table, which the query calls `t`.

    Raises `InvalidInput` for anything but one SELECT, when the query is wrong, or its parameters are others than have
    values, and `Unavailable` when it passes one of its limits. The query can read the table's splits and nothing else,
    and write nothing (decision 0083). With `records`, they are folded over the base first and nothing is pruned.
    """
    prepare()  # a process starts while the text is checked, as most are sound
    text, tree = _checked(text, parameters)
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

    def batches() -> Iterator[pa.RecordBatch]:
        with query_errors(text, splits, bounds, files=source.splits), result:
            yield from result
            verified.recheck(store, source.splits)

    with query_errors(text, splits, bounds, files=source.splits):
        result = source.answer(text, bounds, spill_bytes=bounds.spill_bytes)
    return SqlResult(result.schema, batches(), on_stream=result.stream, memory_bytes=bounds.memory_bytes, query=text)


def explain(snapshot: Snapshot, text: str, parameters: Parameters | None = None) -> Pruned:
    """Return the splits the query reads and what each pruning step left out. Reads every manifest not read yet."""
    _, tree = _checked(text, parameters)
    if is_counted(snapshot, columns_read(tree, snapshot.schema.names, TABLE)):
        return Pruned((), (PruneStep("count", len(snapshot.splits), snapshot.bytes),))
    return pruning.explain(snapshot, where_of(tree, TABLE))


def _checked(text: str, parameters: Parameters | None) -> tuple[str, Node]:
    """The query with its values, and its tree."""
    if parameters is not None:
        text = with_values(text, parameters)
    tree = parse(text)
    check(tree, text, table=TABLE)
    return text, tree
