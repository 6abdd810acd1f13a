from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.base.errors import InvalidInput
from storage_core.data.formats.kinds import MAX_NUMBER, number_of, reversed_name

GOLDEN = {
    1: "1" + "0" * 63,
    2: "01" + "0" * 62,
    3: "11" + "0" * 62,
    5: "101" + "0" * 61,
    6: "011" + "0" * 61,
    MAX_NUMBER: "1" * 64,
}


@pytest.mark.parametrize(("number", "name"), GOLDEN.items())
def test_numbers_have_the_names_of_the_golden_table(number: int, name: str) -> None:
    assert reversed_name(number) == name
    assert number_of(name) == number


@given(st.integers(1, MAX_NUMBER))
def test_a_name_gives_its_number_back(number: int) -> None:
    assert number_of(reversed_name(number)) == number


@pytest.mark.parametrize("number", [0, -1, 2**64])
def test_a_number_outside_the_range_has_no_name(number: int) -> None:
    with pytest.raises(InvalidInput):
        reversed_name(number)


REFUSED = ["", "1", "0" * 64, "1" * 63, "1" * 65, "2" + "0" * 63, "1" * 63 + "\n", "\u0661" * 64]


@pytest.mark.parametrize("name", REFUSED)
def test_a_text_that_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        number_of(name)
