"""An answer from windows of a ranking that grow: the same rows in the same order, however it is cut into pages.

The first rows are those of the first window, the next those that a window of `GROWTH` times as many has besides, until
there are as many, and so on. So a longer ranking need not begin with the shorter one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from storage_core.rows.keys import key_codes

GROWTH: Final = 4


def windows(first: int, most: int) -> Iterator[int]:
    """Yield the sizes of the windows that an answer of `most` rows needs."""
    yield first
    while first < most:
        first *= GROWTH
        yield first


def in_windows(
    ranked: Callable[[int], tuple[pa.Table, bool]], most: int, name: Sequence[str], *, first: int
) -> pa.Table:
    """Return the first `most` rows; `ranked` gives those of a window, and whether they are all that there are.

    Rows of a window come best first, perhaps more than its size; the columns `name` tell which row it is.
    """
    found = list[pa.Table]()
    for window in windows(first, most):
        rows, is_all = ranked(window)
        if found:
            *known, own = key_codes([*found, rows], name)
            rows = rows.filter(pa.array(~np.isin(own, np.concatenate(known))))
        found.append(rows if is_all else rows.slice(0, window - sum(each.num_rows for each in found)))
        if is_all:
            break
    return pa.concat_tables(found).slice(0, most)
