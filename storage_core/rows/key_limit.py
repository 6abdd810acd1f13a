"""How long a value of a key column may be (`docs/spec.md` section 10.2, decision 0088).

A key is compared, hashed and kept in memory wherever its row goes. The limit holds for every record that may make a
row; deletes take any key, so that what early 0.1 accepted can be deleted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage_core.errors import InvalidInput
from storage_core.rows.codes import Mask

MAX_KEY_BYTES = 64 * 2**10


def beyond_limit(rows: pa.Table, name: str) -> Mask:
    """Tell per row whether its value of the key column takes more than `MAX_KEY_BYTES`, of text in UTF-8."""
    column, kinds = rows.column(name), pa.types
    texts = kinds.is_string(column.type) or kinds.is_large_string(column.type)
    if not texts and not kinds.is_binary(column.type) and not kinds.is_large_binary(column.type):
        return np.zeros(rows.num_rows, np.bool_)
    mask: Mask = np.asarray(pc.fill_null(pc.greater(pc.binary_length(column), MAX_KEY_BYTES), False))  # noqa: FBT003
    return mask


def size_of_key(value: object) -> int:
    """Return how many bytes a value of a key column takes; 0 where its type has no length."""
    return len(value.encode() if isinstance(value, str) else value) if isinstance(value, str | bytes) else 0


def too_long(name: str, size_bytes: int) -> str:
    """Return what is to be said of a value of so many bytes in the key column."""
    return f"column {name!r}: a value of {size_bytes} bytes; in the key at most {MAX_KEY_BYTES} are kept"


def require_short_keys(rows: pa.Table, key: Sequence[str]) -> None:
    """Return when no value of a key column is longer than the limit. Raises `InvalidInput` naming column and row."""
    for name in key:
        beyond = np.flatnonzero(beyond_limit(rows, name))
        if len(beyond):
            row = int(beyond[0])
            size = pc.binary_length(rows.column(name)[row]).as_py()
            raise InvalidInput(
                f"row {row}: {too_long(name, size)}; shorten it", column=name, row=row, limit=MAX_KEY_BYTES
            )
