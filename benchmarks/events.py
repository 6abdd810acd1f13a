"""The rows for benchmarks of ingestion: events with an integer key. An encoded event has about 32 bytes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

KEY = "id"
SCHEMA = pa.schema(
    [
        pa.field(KEY, pa.int64(), nullable=False),
        ("time", pa.timestamp("us", "UTC")),
        ("service", pa.string()),
        ("message", pa.string()),
        ("latency", pa.float64()),
    ]
)

_SERVICES = pa.array([f"service-{number}" for number in range(20)])

Keys = npt.NDArray[np.int64]


def events(keys: Keys, seed: int) -> pa.Table:
    """Return one row per key. A different seed gives different values."""
    texts = pc.cast(pa.array((keys * 7_919 + seed) % 100_003), pa.string())
    columns = [
        pa.array(keys),
        pa.array(1_700_000_000_000_000 + keys).cast(pa.timestamp("us", "UTC")),
        _SERVICES.take(pa.array(keys % len(_SERVICES))),
        pc.binary_join_element_wise("GET /items/", texts, " took long", ""),
        pa.array(np.random.default_rng(seed).random(len(keys))),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def batch(number: int, rows: int = 1_000) -> pa.Table:
    """Return the rows of one append. Batches with different numbers have different keys."""
    return events(np.arange(number * rows, (number + 1) * rows), number)
