"""Distances as the metrics define them, from exact vectors. Smaller is nearer, whatever the metric.

| Metric | Distance |
|---|---|
| l2 | the Euclidean distance |
| cosine | 1 - the cosine of the angle, from 0 to 2 |
| dot | the dot product times -1 |
"""

from __future__ import annotations

from typing import assert_never

import numpy as np
import numpy.typing as npt

from storage_core.rows.vectors import Floats
from storage_core.settings.vector_options import Metric

Distances = npt.NDArray[np.float64]

_VALUES_AT_ONCE = 2**16  # half a megabyte, which stays in the cache of the processor


def exact(query: npt.ArrayLike, vectors: Floats, metric: Metric) -> Distances:
    """Return the distance of each vector (rows by dimensions) from the query, computed in 64 bits.

    Equal vectors have equal distances wherever they stand. NaN for a zero vector, or a zero query, under cosine.
    Memory: a few megabytes beside the result.
    """
    wanted = np.asarray(query, np.float64)
    step = max(1, _VALUES_AT_ONCE // max(1, vectors.shape[1]))
    parts = [_exact(wanted, vectors[at : at + step].astype(np.float64), metric) for at in range(0, len(vectors), step)]
    return np.concatenate(parts) if parts else np.zeros(0, np.float64)


def _exact(query: Distances, vectors: Distances, metric: Metric) -> Distances:
    match metric:
        case "l2":
            found: Distances = np.sqrt(np.square(vectors - query).sum(axis=1))
        case "cosine":
            # Not by a product of matrices: what a library adds up in which order depends on where a row stands.
            lengths = np.sqrt(np.square(vectors).sum(axis=1)) * np.sqrt(np.square(query).sum())
            with np.errstate(invalid="ignore", divide="ignore"):
                cosines = (vectors * query).sum(axis=1) / lengths
            found = 1.0 - np.clip(cosines, -1.0, 1.0)
        case "dot":
            found = -(vectors * query).sum(axis=1)
        case _:
            assert_never(metric)
    return found
