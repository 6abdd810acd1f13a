"""The computed size of a page includes at least the bytes of each row.

See docs/architecture/ingestion.md, "Paged reading".
"""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.read.history import row_bytes
from tests.support.scale import scaled

SCHEMA = pa.schema(
    [
        ("flag", pa.bool_()),
        ("small", pa.int8()),
        ("price", pa.decimal128(20, 2)),
        ("text", pa.string()),
        ("blob", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("attrs", pa.map_(pa.string(), pa.int64())),
        ("inner", pa.struct([("a", pa.int32()), ("b", pa.list_(pa.bool_()))])),
    ]
)
ROWS = st.fixed_dictionaries(
    {
        "flag": st.none() | st.booleans(),
        "small": st.none() | st.integers(-128, 127),
        "price": st.none() | st.just(Decimal("1.50")),
        "text": st.none() | st.text(max_size=9),
        "blob": st.none() | st.binary(max_size=9),
        "tags": st.none() | st.lists(st.none() | st.text(max_size=3), max_size=4),
        "attrs": st.none() | st.lists(st.tuples(st.text(max_size=2), st.integers(0, 9)), max_size=3),
        "inner": st.none()
        | st.fixed_dictionaries({"a": st.none() | st.just(1), "b": st.none() | st.lists(st.booleans(), max_size=3)}),
    }
)


def bytes_of(row: dict[str, object]) -> int:
    return int(row_bytes(pa.Table.from_pylist([row], SCHEMA))[0])


@settings(max_examples=scaled(40))
@given(st.lists(ROWS, max_size=20), st.integers(0, 20), st.integers(0, 20))
def test_rows_anywhere_in_a_table_are_charged_what_they_are_charged_alone_and_never_take_more(
    rows: list[dict[str, object]], start: int, length: int
) -> None:
    whole = pa.concat_tables([pa.Table.from_pylist(part, SCHEMA) for part in (rows[:7], rows[7:])])
    cut = whole.slice(start, length)
    sizes = row_bytes(cut)
    assert sizes.tolist() == [bytes_of(row) for row in rows[start : start + length]]
    laid_out = pa.Table.from_pylist(cut.to_pylist(), SCHEMA)
    assert laid_out.nbytes <= sizes.sum()
    assert cut.combine_chunks().nbytes <= sizes.sum() or not cut.num_rows


def test_a_row_is_charged_by_the_table_of_the_module() -> None:
    empty = dict.fromkeys(SCHEMA.names)
    base = bytes_of(empty)
    assert base == (1 + 1) + (1 + 1) + (1 + 16) + 4 * (1 + 8) + (1 + (1 + 4) + (1 + 8))
    assert bytes_of({**empty, "text": "naïve"}) == base + 6
    assert bytes_of({**empty, "tags": ["a", None]}) == base + 2 * (1 + 8) + 1
    assert bytes_of({**empty, "attrs": [("ab", 1)]}) == base + 1 + (1 + 8 + 2) + (1 + 8)


def test_a_value_that_a_null_hides_is_charged_as_it_stays_in_memory() -> None:
    offsets = pa.py_buffer(np.array([0, 4, 5], np.int32))
    hidden = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"gonex"), pa.py_buffer(b"\x02"))
    assert hidden.to_pylist() == [None, "x"]
    assert row_bytes(pa.table({"text": hidden})).tolist() == [13, 10]
