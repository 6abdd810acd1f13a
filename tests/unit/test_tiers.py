"""A test run omits tests of the nightly tier, and runs only some cases of a large matrix, chosen by a seed."""

from __future__ import annotations

from pathlib import Path

from tests.draws import MOST_CASES, left_out, seed
from tests.tiers import NIGHTLY, REPRESENTATIVES, is_nightly

ROOT = Path(__file__).resolve().parents[2]
LARGE = [f"tests/test_a.py::test_large[{case}]" for case in range(40)]
SMALL = [f"tests/test_a.py::test_small[{case}]" for case in range(MOST_CASES)]


def test_a_large_matrix_draws_some_cases_by_its_seed_and_a_small_one_runs_whole() -> None:
    missing = left_out([*LARGE, *SMALL], "1")
    assert missing < {*LARGE}
    assert len(LARGE) - len(missing) == 10
    assert left_out(LARGE, "1") == missing, "what another matrix has changes nothing"
    assert left_out(LARGE, "2") != missing


def test_every_case_of_a_matrix_is_drawn_by_some_seed() -> None:
    assert set.intersection(*(left_out(LARGE, str(number)) for number in range(100))) == set()


def test_a_run_without_a_seed_draws_nothing() -> None:
    assert seed({}) is None
    assert seed({"TIDEMARK_DRAW": ""}) is None
    assert seed({"TIDEMARK_DRAW": "7"}) == "7"


def test_each_file_that_the_check_leaves_out_has_a_representative_or_needs_postgresql() -> None:
    represented = {name.partition("::")[0] for name in REPRESENTATIVES}
    for reason, files in NIGHTLY.items():
        assert any(file.partition("[")[0] in represented for file in files), reason


def test_only_the_cases_on_postgresql_of_a_file_with_others_are_nightly() -> None:
    file = "tests/integration/test_catalogue_places.py"
    assert is_nightly(file, "test_a_check_tells_what_differs[postgresql]")
    assert not is_nightly(file, "test_a_check_tells_what_differs[sqlite]")
    side = "test_every_side_answers_the_same_after_every_step[postgresql-1]"
    assert not is_nightly("tests/integration/test_sql_catalogue.py", side)
