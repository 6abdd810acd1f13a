"""A table with a vector index for each encoding, and the expected answers of its searches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from storage_core.data.rows.vectors import vector_type
from storage_core.data.settings.index import IndexDefinition
from storage_core.data.settings.table import TableConfig
from storage_core.store.contract import ObjectStore
from storage_core.store.memory import MemoryStore
from tests.support.clock import ManualClock
from tests.support.every_kind import open_copy
from tests.support.indexed_table import IndexedTable

DIMENSIONS, ROWS = 6, 400
SCHEMA = pa.schema([("id", pa.int64()), ("v", vector_type(DIMENSIONS))])
INDEXES = tuple(
    IndexDefinition(name, "vector", ("v",), {"metric": metric, "quantization": name})
    for name, metric in (("rotated", "l2"), ("scalar", "cosine"), ("product", "dot"), ("none", "l2"))
)
QUERIES = np.random.default_rng(11).integers(-9, 10, (3, DIMENSIONS)).astype(float).tolist()


def vector_table() -> IndexedTable:
    """Return a table of two splits with segments. Some rows have no embedding, and some rows are deleted."""
    table = IndexedTable(MemoryStore("vectors"), TableConfig(indexes=INDEXES), schema=SCHEMA)
    chance = np.random.default_rng(10)
    for first in (0, ROWS):
        vectors = chance.integers(-50, 51, (ROWS, DIMENSIONS)).astype(np.float32).tolist()
        vectors[5 : ROWS if first else 6 : 40] = [None] * len(vectors[5 : ROWS if first else 6 : 40])
        table.add(pa.table([range(first, first + ROWS), pa.array(vectors, SCHEMA.field("v").type)], schema=SCHEMA))
    for index in INDEXES:
        table.catch_up(index.name)
    table.delete({min(table.snapshot.splits): range(30)})
    return table


def answers(
    store: ObjectStore, clock: ManualClock, queries: Sequence[Sequence[float]]
) -> dict[str, list[list[tuple[int, float]]]]:
    """Return the IDs and distances of the nearest rows, for each index and query."""
    table, found = open_copy(store, clock), dict[str, list[list[tuple[int, float]]]]()
    for index in INDEXES:
        rows = [table.search(vector=each, index=index.name, nprobe=100, columns=["id"]).to_pylist() for each in queries]
        found[index.name] = [[(row["id"], round(row["distance"], 9)) for row in each] for each in rows]
    return found
