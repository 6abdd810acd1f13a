"""Many spans of one length out of bytes, copied together at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from storage_core.rows.keys import Positions

Bytes = npt.NDArray[np.uint8]


def spans_of(data: Bytes, starts: Positions, length: int) -> Bytes:
    """Return the `length` bytes from each of these starts on, a row each. Raises `IndexError` beyond the end."""
    if not len(starts):
        return np.zeros((0, length), np.uint8)
    every = np.lib.stride_tricks.as_strided(data, (max(0, len(data) - length + 1), length), (1, 1), writeable=False)
    return every[starts]
