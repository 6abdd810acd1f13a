"""The row fingerprint for rules MC-1, MC-2 and MC-4 detects changed rows and ignores the order of rows."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from storage_core.data.rows.statistics import RowFingerprint, combine, fingerprint_of

SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("blob", pa.binary()),
        ("number", pa.int64()),
        ("share", pa.float64()),
        ("price", pa.decimal128(10, 2)),
        ("flag", pa.bool_()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("tags", pa.list_(pa.string())),
        ("point", pa.struct([("x", pa.int64()), ("y", pa.string())])),
        ("labels", pa.map_(pa.string(), pa.int64())),
    ]
)
COLUMNS: dict[str, list[object]] = {
    "text": ["a", "", None],
    "blob": [b"a", b"", None],
    "number": [1, 0, None],
    "share": [0.5, 0.0, None],
    "price": [Decimal("1.00"), Decimal("-1.00"), None],
    "flag": [True, False, None],
    "at": [1, 0, None],
    "day": [1, 0, None],
    "tags": [["a", None], [], None],
    "point": [{"x": 1, "y": None}, {"x": None, "y": None}, None],
    "labels": [[("a", 1)], [], None],
}
ROWS = pa.table({name: pa.array(values, SCHEMA.field(name).type) for name, values in COLUMNS.items()})


def test_the_order_of_rows_and_columns_does_not_count() -> None:
    assert (
        fingerprint_of(ROWS.take([2, 0, 1]))
        == fingerprint_of(ROWS.select(list(reversed(ROWS.column_names))))
        == fingerprint_of(ROWS)
    )


def test_chunks_slices_and_dictionaries_do_not_count() -> None:
    chunked = pa.concat_tables([ROWS.slice(2), ROWS.slice(0, 2)])
    encoded = chunked.set_column(0, "text", chunked.column("text").dictionary_encode())
    assert fingerprint_of(chunked) == fingerprint_of(encoded) == fingerprint_of(ROWS)


def test_parts_combine_to_the_whole() -> None:
    assert combine(fingerprint_of(ROWS.slice(0, 1)), fingerprint_of(ROWS.slice(1))) == fingerprint_of(ROWS)
    assert combine(fingerprint_of(ROWS), fingerprint_of(ROWS.schema.empty_table())) == fingerprint_of(ROWS)
    assert fingerprint_of(ROWS.schema.empty_table()) == RowFingerprint(0, 0)


def test_a_missing_column_equals_one_without_values() -> None:
    added = ROWS.append_column("later", pa.nulls(3, pa.string()))
    assert fingerprint_of(added) == fingerprint_of(ROWS)
    assert fingerprint_of(added.append_column("listed", pa.array([None] * 3, pa.list_(pa.int64())))) == fingerprint_of(
        ROWS
    )


@pytest.mark.parametrize("name", SCHEMA.names)
@pytest.mark.parametrize("swapped", [[1, 0, 2], [2, 1, 0], [0, 2, 1]])
def test_two_values_that_swap_rows_are_seen_in_every_type(name: str, swapped: list[int]) -> None:
    # The column "number" identifies each row. If the test swaps values of "number", the column "text" identifies each
    # row.
    rows = ROWS.select(["text" if name == "number" else "number", name])
    changed = rows.set_column(1, rows.field(1), rows.column(1).take(pa.array(swapped)))
    assert fingerprint_of(changed) != fingerprint_of(rows)


@pytest.mark.parametrize("name", SCHEMA.names)
@pytest.mark.parametrize(("row", "source"), [(0, 1), (0, 2), (1, 2)])
def test_a_value_that_becomes_another_or_null_is_seen_in_every_type(name: str, row: int, source: int) -> None:
    rows = ROWS.select([name])
    positions = [0, 1, 2]
    positions[row] = source
    assert fingerprint_of(rows.take(positions)) != fingerprint_of(rows)


def test_values_that_swap_columns_are_seen() -> None:
    rows = pa.table({"a": [1, 2], "b": [2, 1]})
    assert fingerprint_of(rows) != fingerprint_of(pa.table({"a": [1, 1], "b": [2, 2]}))
    assert fingerprint_of(rows.slice(0, 1)) != fingerprint_of(rows.slice(1))


def test_a_row_twice_is_not_a_row_once() -> None:
    assert fingerprint_of(ROWS.take([0, 0, 1, 2])) != fingerprint_of(ROWS)
    assert fingerprint_of(ROWS.take([0, 0, 1])).digest != fingerprint_of(ROWS.take([0, 1, 1])).digest


def test_bytes_that_move_between_neighbours_or_places_are_seen() -> None:
    assert fingerprint_of(pa.table({"c": ["ab", "c"]})) != fingerprint_of(pa.table({"c": ["a", "bc"]}))
    assert fingerprint_of(pa.table({"c": ["ab"]})) != fingerprint_of(pa.table({"c": ["ba"]}))
    assert fingerprint_of(pa.table({"c": ["a"]})) != fingerprint_of(pa.table({"c": ["a\0"]}))
    assert fingerprint_of(pa.table({"c": [["ab"]]})) != fingerprint_of(pa.table({"c": [["a", "b"]]}))
    assert fingerprint_of(pa.table({"c": [[1], []]})) != fingerprint_of(pa.table({"c": [[], [2]]}))


def test_texts_of_every_length_and_alignment_have_their_own_hash() -> None:
    texts = [fill * length for fill in ("\0", "x", "\x7f") for length in range(1, 40)]
    texts += [texts[-1][:place] + "y" + texts[-1][place + 1 :] for place in range(39)]
    column = pa.array(["", *texts], pa.large_string())
    assert len({fingerprint_of(pa.table({"c": column.slice(row, 1)})).digest for row in range(len(column))}) == len(
        column
    )


def test_the_two_zeros_are_one_value_and_so_are_all_nans() -> None:
    assert fingerprint_of(pa.table({"c": [0.0]})) == fingerprint_of(pa.table({"c": [-0.0]}))
    assert fingerprint_of(pa.table({"c": [float("nan")]})) == fingerprint_of(pa.table({"c": [-float("nan")]}))


def test_a_wide_dictionary_under_few_rows_is_the_same() -> None:
    wide = pa.DictionaryArray.from_arrays(pa.array([7, None, 3]), pa.array([str(i) for i in range(9)]))
    assert fingerprint_of(pa.table({"c": wide})) == fingerprint_of(pa.table({"c": ["7", None, "3"]}))


def test_more_rows_than_one_batch_give_the_same_in_any_order() -> None:
    rows = pa.table({"i": range(150_000), "s": pa.array(range(150_000)).cast(pa.string())})
    turned = pa.concat_tables([rows.slice(100_000), rows.slice(0, 100_000)])
    assert fingerprint_of(turned) == fingerprint_of(rows)
    assert fingerprint_of(rows.slice(1)).digest != fingerprint_of(rows.slice(0, 149_999)).digest
