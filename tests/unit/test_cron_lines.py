"""A declaration accepts a cron line only if the scheduler finds dates for that line."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from random import Random

import pytest
from dagster._utils.schedules import (
    get_latest_completed_cron_tick,
    is_valid_cron_string,
    schedule_execution_time_iterator,
)

from storage_core.base.errors import InvalidInput
from storage_core.change.declaration_parts import parse_cron

pytestmark = pytest.mark.dagster

NOW = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
MOST = {"minute": 61, "hour": 25, "day": 33, "month": 14, "weekday": 9}


@pytest.mark.parametrize(
    "line",
    [
        "61 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * 32 * *",
        "* * * 0 *",
        "* * * 13 *",
        "* * * * 8",
        "*/0 * * * *",
        "5-1 * * * *",
        "* * * 4-4 *",
        "59/5 * * * *",
        "1, * * * *",
        "-1 * * * *",
        "٣ * * * *",
        "* * * *",
        "* * * * * *",
        "@daily",
    ],
)
def test_a_line_that_no_scheduler_follows_is_refused(line: str) -> None:
    with pytest.raises(InvalidInput, match=r"of a cron line\. Write|is not a cron line of five fields"):
        parse_cron(line)


@pytest.mark.parametrize("days", ["0 0 30 2 *", "0 0 31 2 *", "0 0 30-31 2 *", "0 0 31 2,4,6,9,11 *", "0 0 31 4 1"])
def test_a_line_that_no_date_matches_is_refused(days: str) -> None:
    with pytest.raises(InvalidInput, match="never matches, because its months have no day 3"):
        parse_cron(days)


@pytest.mark.parametrize(
    ("line", "taken"),
    [
        ("*/15  *\t* * *", "*/15 * * * *"),
        ("0 0 29 2 *", "0 0 29 2 *"),
        ("0-59/7,3 00 1,31 2 5-7", "0-59/7,3 00 1,31 2 5-7"),
    ],
)
def test_a_sound_line_is_taken(line: str, taken: str) -> None:
    assert parse_cron(line) == taken


def drawn(random: Random) -> str:
    """Return a random line whose numbers are mostly valid and sometimes just out of range."""

    def part(most: int) -> str:
        first, last = random.randrange(most), random.randrange(most)
        base = random.choice(["*", "*", str(first), f"{first}-{last}"])
        return base + random.choice(["", "", f"/{random.randrange(most)}"])

    return " ".join(",".join(part(most) for _ in range(random.choice((1, 1, 2)))) for most in MOST.values())


def test_the_scheduler_finds_dates_for_each_drawn_line_that_is_taken() -> None:
    random, taken = Random(7), 0
    for _ in range(2_000):
        line = drawn(random)
        with suppress(InvalidInput):
            parse_cron(line)
            taken += 1
            assert is_valid_cron_string(line), line
            assert get_latest_completed_cron_tick(line, NOW, "UTC") <= NOW, line
            following = schedule_execution_time_iterator(NOW.timestamp(), line, "UTC", ascending=True)
            assert next(following) >= NOW, line
    assert taken > 200
