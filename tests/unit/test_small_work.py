"""The work that a job executes in its own process, with the same results as on Spark."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, TypeVar

import pytest

from jobs.spark.spark import DRIVER_ITEMS, DRIVER_MIB, SPARK, DriverShare, SmallWork, Spark, SparkUse
from storage_core.base.errors import Corrupt, InvalidInput, TidemarkError

Made = TypeVar("Made")


def in_a_new_process(make: Callable[[], Made]) -> Made:
    """Return the result of `make` in a new process, because this process may have a session of another test."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as new:
        return new.submit(make).result()


def doubled(item: Mapping[str, Any]) -> dict[str, Any]:
    return {"twice": 2 * item["number"], "pair": (1, 2)}


def refused(item: Mapping[str, Any]) -> dict[str, Any]:
    raise Corrupt(f"item {item['number']} is damaged", path="a")


def broken(item: Mapping[str, Any]) -> dict[str, Any]:
    raise ValueError(f"a defect at {item['number']}\nin two lines")


def seconds_and_answers() -> tuple[float, list[dict[str, Any]]]:
    with Spark(small=SmallWork()) as spark:
        answers = spark.map(doubled, [{"number": number} for number in range(3)], input_bytes=10)
        return spark.seconds, answers


def test_small_work_is_executed_without_spark_in_the_order_of_the_items() -> None:
    seconds, answers = in_a_new_process(seconds_and_answers)
    assert seconds == 0
    assert answers == [{"twice": 2 * number, "pair": [1, 2]} for number in range(3)]  # JSON returns the pair as a list


def refused_item() -> str:
    with Spark(small=SmallWork()) as spark, pytest.raises(Corrupt) as found:
        spark.map(refused, [{"number": 7}], input_bytes=0)
    return str(found.value)


def broken_item() -> tuple[str, str]:
    with Spark(small=SmallWork()) as spark, pytest.raises(TidemarkError) as found:
        spark.map(broken, [{"number": 7}], input_bytes=0)
    return found.value.kind, str(found.value)


def test_an_error_of_small_work_is_the_error_that_it_is_of_a_task() -> None:
    assert "item 7 is damaged" in in_a_new_process(refused_item)
    assert in_a_new_process(broken_item) == (TidemarkError.kind, "a task failed: ValueError: a defect at 7")


def test_work_is_small_as_long_as_all_of_it_together_is_within_the_bounds() -> None:
    share = DriverShare(SmallWork(most_bytes=100, most_items=3))
    assert [share.fits(100, 3), share.fits(101, 1), share.fits(1, 4), share.fits(math.inf, 1)] == [True, *[False] * 3]
    assert [share.take(60, 1), share.take(60, 1), share.take(40, 2), share.take(0, 1)] == [True, False, True, False]


def test_nothing_is_small_where_spark_is_always_used_or_a_bound_is_zero() -> None:
    for most in (SmallWork(use=SparkUse.ALWAYS), SmallWork(most_bytes=0), SmallWork(most_items=0)):
        assert not DriverShare(most).take(1, 1)


def test_who_names_a_place_for_spark_has_all_work_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    places = ["local[2]", "spark://host:7077", "sc://host:15002"]
    assert [Spark(each, SmallWork()).is_needed_for(1, 1) for each in places] == [True] * 3
    monkeypatch.setenv("SPARK_REMOTE", "sc://host:15002")
    assert Spark(small=SmallWork()).is_needed_for(1, 1)


def test_the_environment_says_what_is_small() -> None:
    chosen = SmallWork.of({SPARK: "always", DRIVER_MIB: "8", DRIVER_ITEMS: "5"})
    assert chosen == SmallWork(use=SparkUse.ALWAYS, most_bytes=8 * 2**20, most_items=5)
    assert SmallWork.of({}) == SmallWork()


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        (SPARK, "never", r"TIDEMARK_SPARK is 'never'. Set TIDEMARK_SPARK to auto or always"),
        (DRIVER_MIB, "64MB", r"TIDEMARK_DRIVER_MIB is '64MB'. Set TIDEMARK_DRIVER_MIB to a whole number"),
        (DRIVER_ITEMS, "-1", r"TIDEMARK_DRIVER_ITEMS is '-1'. Set TIDEMARK_DRIVER_ITEMS to a whole number"),
    ],
)
def test_a_setting_that_is_none_is_named(name: str, value: str, found: str) -> None:
    with pytest.raises(InvalidInput, match=found):
        SmallWork.of({name: value})
