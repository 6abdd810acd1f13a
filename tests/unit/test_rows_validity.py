from __future__ import annotations

import pyarrow as pa
import pytest

from storage_core.base.errors import InvalidInput
from storage_core.data.rows.values import examined, validated
from tests.support.invalid_values import BAD, INVALID, numbers_of, text_of


@pytest.mark.parametrize("what", INVALID)
def test_a_value_that_is_not_valid_is_refused_by_its_column_and_row(what: str) -> None:
    rows = pa.table({"n": [1, 2, 3], "c": INVALID[what]})
    with pytest.raises(InvalidInput, match=r"column 'c', row 11:|column 'c' is not valid Arrow data") as refused:
        validated(rows, 10 if what != "the last chunk" else 9)
    assert refused.value.context["column"] == "c"


@pytest.mark.parametrize(
    "given",
    [
        numbers_of([86_400], pa.time32("s")),
        numbers_of([-1], pa.time64("us")),
        numbers_of([5], pa.date64()),
        pa.ExtensionArray.from_storage(pa.json_(), text_of([b"\xff"])),
        pa.ListViewArray.from_arrays(pa.array([0], pa.int32()), pa.array([1], pa.int32()), text_of([b"\xff"])),
    ],
    ids=lambda each: str(each.type),
)
def test_values_of_types_that_tables_do_not_hold_are_refused_as_well(given: pa.Array) -> None:
    with pytest.raises(InvalidInput, match="column 'c'"):
        validated(pa.table({"c": given}))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (pa.DictionaryArray.from_arrays(pa.array([0, 2, None]), BAD), ["a", "z", None]),
        (pa.ListArray.from_arrays([0, 1, 2, 3], BAD).slice(2), [["z"]]),
        (pa.ListArray.from_arrays([0, 1, 2, 3], BAD, mask=pa.array([False, True, False])), [["a"], None, ["z"]]),
        (pa.MapArray.from_arrays([0, 1, 2, 3], BAD, pa.array([1, 2, 3])).slice(0, 1), [[("a", 1)]]),
        (
            pa.StructArray.from_arrays([BAD], ["x"], mask=pa.array([False, True, False])),
            [{"x": "a"}, None, {"x": "z"}],
        ),
    ],
    ids=["a dictionary", "a slice of lists", "below a null list", "a slice of maps", "below a null struct"],
)
def test_bytes_that_no_row_has_are_left_out(given: pa.Array, kept: list[object]) -> None:
    rows = validated(pa.table({"c": given}))
    rows.validate(full=True)
    assert rows.column("c").to_pylist() == kept
    assert rows.schema.field("c").type == given.type


def test_the_faults_of_a_table_are_told_by_row() -> None:
    rows, faults = examined(pa.table({"n": [1, 2, 3], "c": BAD, "d": pa.array(["x", "y", "z"])}))
    assert [(each.column, each.reason, each.rows.tolist()) for each in faults] == [
        ("c", "the text is not valid UTF-8", [False, True, False])
    ]
    assert rows.num_rows == 3
