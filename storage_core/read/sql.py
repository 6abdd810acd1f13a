"""SQL over one snapshot: DuckDB runs the query, Tidemark leaves out the splits its condition cannot match."""

from __future__ import annotations

import duckdb
import pyarrow as pa

from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.read import pruning
from storage_core.read.pruning import Pruned, prune
from storage_core.read.relation import TABLE, Verified, query_errors, rows_relation, session, splits_relation
from storage_core.read.scan import merged_rows
from storage_core.read.sql_predicate import parse_select, where_of


def query(
    store: ObjectStore, snapshot: Snapshot, text: str, *, verified: Verified, records: pa.Table | None = None
) -> pa.Table:
    """Return the answer of one SELECT over the table, which the query calls `t`.

    Raises `InvalidInput` for anything but one SELECT, or when the query is wrong. The query can read the table's
    splits and nothing else. With `records`, they are folded over the base first and nothing is pruned.
    """
    connection = session()
    splits = () if records is not None else prune(snapshot, where_of(parse_select(text), TABLE))
    with query_errors(text, splits):
        if records is not None:
            parse_select(text)
            rows_relation(connection, merged_rows(store, snapshot, records))
        else:
            splits_relation(connection, store, splits, snapshot.schema, verified=verified)
        return _run(connection, text)


def explain(snapshot: Snapshot, text: str) -> Pruned:
    """Return the splits the query reads and what each pruning step left out. Reads every manifest not read yet."""
    return pruning.explain(snapshot, where_of(parse_select(text), TABLE))


def _run(connection: duckdb.DuckDBPyConnection, text: str) -> pa.Table:
    return connection.sql(text).to_arrow_table()
