"""What several texts about a run share."""

from __future__ import annotations

from jobs.report import MOST_NAMED, named, shortened


def test_an_error_names_the_first_and_counts_the_others() -> None:
    assert named([None, 3600]) == "None, 3600"
    names = list(range(MOST_NAMED + 2))
    assert named(names[:MOST_NAMED]).endswith(f", {MOST_NAMED - 1}")
    assert named(names).endswith(f", {MOST_NAMED - 1}, and 2 more")


def test_a_list_is_shortened_only_when_it_is_longer() -> None:
    assert shortened([1, 2], 2) == [1, 2]
    assert shortened([1, 2, 3], 2) == [1, 2, "and 1 more"]
