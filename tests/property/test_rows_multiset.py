"""The fingerprint of rows, compared with a Python multiset of the rows (docs/architecture/compaction.md, MC-1)."""

from __future__ import annotations

from collections import Counter
from random import Random

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from storage_core.data.rows.statistics import combine, fingerprint_of

SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("number", pa.int32()),
        ("tags", pa.list_(pa.string())),
        ("labels", pa.map_(pa.string(), pa.int64())),
        ("point", pa.struct([("x", pa.int64()), ("y", pa.list_(pa.int64()))])),
    ]
)
SMALL = st.integers(0, 2)
TEXT = st.sampled_from(["", "a", "ab", "\U00010000", "abcdefgh", "abcdefgh\0", "abcdefghabcdefgh", "habcdefg"])
ROW = st.fixed_dictionaries(
    {
        "text": st.none() | TEXT,
        "number": st.none() | SMALL,
        "tags": st.none() | st.lists(st.none() | TEXT, max_size=2),
        "labels": st.none() | st.lists(st.tuples(TEXT, st.none() | SMALL), max_size=2),
        "point": st.none()
        | st.fixed_dictionaries({"x": st.none() | SMALL, "y": st.none() | st.lists(SMALL, max_size=2)}),
    }
)
ROWS = st.lists(ROW, max_size=6)


def _table(rows: list[dict[str, object]]) -> pa.Table:
    return pa.Table.from_pylist(rows, SCHEMA)


def _multiset(rows: list[dict[str, object]]) -> Counter[str]:
    return Counter(repr(row) for row in _table(rows).to_pylist())


@given(ROWS, ROWS)
def test_fingerprints_are_equal_exactly_when_the_multisets_are(
    left: list[dict[str, object]], right: list[dict[str, object]]
) -> None:
    assert (fingerprint_of(_table(left)) == fingerprint_of(_table(right))) == (_multiset(left) == _multiset(right))


@given(ROWS, st.randoms(use_true_random=False), st.data())
def test_neither_order_nor_chunks_nor_dictionaries_count(
    rows: list[dict[str, object]],
    random: Random,
    data: st.DataObject,
) -> None:
    expected = fingerprint_of(_table(rows))
    random.shuffle(rows)
    whole = _table(rows)
    cut = data.draw(st.integers(0, len(rows)))
    parts = [whole.slice(0, cut), whole.slice(cut)]
    assert fingerprint_of(pa.concat_tables(parts)) == expected
    assert combine(fingerprint_of(parts[0]), fingerprint_of(parts[1])) == expected
    encoded = pa.chunked_array([part.column("text").combine_chunks().dictionary_encode() for part in parts])
    assert fingerprint_of(whole.set_column(0, "text", encoded)) == expected
    columns = data.draw(st.permutations(SCHEMA.names))
    assert fingerprint_of(whole.select(columns)) == expected


@given(ROWS, st.sampled_from(SCHEMA.names))
def test_a_missing_column_equals_one_without_values(rows: list[dict[str, object]], name: str) -> None:
    without = _table(rows).drop_columns([name])
    nulls = without.append_column(name, pa.nulls(len(rows), SCHEMA.field(name).type))
    assert fingerprint_of(nulls) == fingerprint_of(without)
