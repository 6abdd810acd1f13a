"""Where the column chunks of a split lie."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from storage_core.log.actions import Add
from storage_core.split import chunk_checksums
from tidemark import Table


def column_places(table: Table, add: Add) -> npt.NDArray[np.int64]:
    """Return from where to where each column chunk goes, by row group and leaf column. One GET."""
    return chunk_checksums.places(pq.read_metadata(pa.BufferReader(table.store.get(add.path).data)))
