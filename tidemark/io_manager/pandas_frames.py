"""Rows as data frames of pandas that can be stored again as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from storage_core.extras import PIPELINE, needs

if TYPE_CHECKING:
    import pandas as pd


def frame_of(rows: pa.Table) -> pd.DataFrame:
    """Return the rows as a data frame whose columns keep their Arrow types (`pandas.ArrowDtype`).

    So a null in a column of integers leaves them integers, NaN is no null, and lists, structs and maps keep what is in
    them; NumPy's types can say none of that. Raises `Unavailable` without pandas.
    """
    with needs(PIPELINE, "a data frame of pandas"):
        import pandas as pd
    return rows.to_pandas(types_mapper=pd.ArrowDtype)
