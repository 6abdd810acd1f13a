from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import pytest

from storage_core.base.clock import HOUR_MS
from storage_core.base.errors import Corrupt, InvalidInput, NotFound
from storage_core.data.formats.keys import state_key, version_key
from storage_core.data.settings.table import TableConfig
from storage_core.maintain.collect import collect
from storage_core.maintain.history import set_tag
from storage_core.read.describe import describe
from storage_core.read.view import At, snapshot_at
from storage_core.store.contract import Overwrite
from storage_core.store.memory import MemoryStore
from tests.support.clock import ManualClock
from tests.support.sample_table import SampleTable

START_MS = 1_700_000_000_001
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def instant(ms: int) -> dt.datetime:
    return EPOCH + dt.timedelta(milliseconds=ms)


@pytest.fixture
def table() -> SampleTable:
    """Make versions 0 to 5, an hour apart, with version 0 at `START_MS`."""
    clock = ManualClock(START_MS)
    config = TableConfig(checkpoint_interval=0, version_retention_ms=2 * HOUR_MS, gc_horizon_ms=0)
    table = SampleTable(MemoryStore("as-of", clock=clock), clock, config)
    for version in range(1, 6):
        clock.now = START_MS + version * HOUR_MS - 1
        table.append()
    return table


def version_at(table: SampleTable, at: At) -> int:
    return snapshot_at(table.log, at).version


def collected(table: SampleTable) -> SampleTable:
    """Checkpoint every version and collect versions older than two hours, so that versions 3 to 5 stay."""
    for version in range(6):
        table.log.checkpoint(table.log.snapshot(version=version))
    for _ in range(2):
        collect(table.store, table.log, clock=table.clock)
    return table


@pytest.mark.parametrize(
    ("offset_ms", "version"),
    [(0, 0), (1, 0), (HOUR_MS - 1, 0), (HOUR_MS, 1), (HOUR_MS + 1, 1), (5 * HOUR_MS, 5), (1000 * HOUR_MS, 5)],
)
def test_a_moment_is_the_newest_version_committed_by_then(table: SampleTable, offset_ms: int, version: int) -> None:
    assert version_at(table, instant(START_MS + offset_ms)) == version


@pytest.mark.parametrize("spelled", [str, dt.datetime.isoformat, lambda at: at.replace(tzinfo=None), lambda at: at])
def test_a_moment_may_be_text_or_not_and_is_utc_without_a_zone(
    table: SampleTable, spelled: Callable[[dt.datetime], At]
) -> None:
    assert version_at(table, spelled(instant(START_MS + 2 * HOUR_MS))) == 2


def test_a_moment_of_another_zone_is_the_same_moment(table: SampleTable) -> None:
    east = instant(START_MS + 2 * HOUR_MS).astimezone(dt.timezone(dt.timedelta(hours=9)))
    assert version_at(table, east) == version_at(table, east.isoformat()) == 2


def test_every_millisecond_counts_as_itself(table: SampleTable) -> None:
    """If times were seconds as a float, some of them would be a millisecond earlier."""
    at_commit = instant(START_MS + HOUR_MS)
    assert version_at(table, at_commit) == 1
    assert version_at(table, at_commit - dt.timedelta(microseconds=1)) == 0
    for ms in range(1000):
        shifted = START_MS // 1000 * 1000 + HOUR_MS + ms
        assert (version_at(table, instant(shifted)) == 1) == (shifted >= START_MS + HOUR_MS)


@pytest.mark.parametrize("at", [2, "2", "002"])
def test_a_version_is_a_number_or_digits(table: SampleTable, at: At) -> None:
    assert version_at(table, at) == 2


@pytest.mark.parametrize("at", ["", " ", "²", "-1", "1.5", "9" * 5000, "2024-13-01", "_x", "٣"])
def test_text_that_is_nothing_of_the_three_is_refused(table: SampleTable, at: str) -> None:
    with pytest.raises(InvalidInput, match=r"is not a version\. Give a version number"):
        version_at(table, at)


def test_a_name_is_a_tag(table: SampleTable) -> None:
    set_tag(table.log, "nightly", table.log.snapshot(version=3))
    assert version_at(table, "nightly") == 3
    with pytest.raises(NotFound, match=r"unknown tag 'weekly'\. The table memory://as-of has the tags nightly"):
        version_at(table, "weekly")


def test_a_moment_before_the_first_version_says_what_is_retained(table: SampleTable) -> None:
    with pytest.raises(
        NotFound,
        match=r"no version from 2023.* or before is retained.* retains versions 0 \(committed 2023-11-14T22:13:20",
    ):
        version_at(table, instant(START_MS - 1))


def test_a_version_that_is_not_there_yet_names_the_newest(table: SampleTable) -> None:
    with pytest.raises(NotFound, match=r"version 6 does not exist\. The newest version is 5"):
        version_at(table, 6)


def test_where_there_is_no_table_nothing_is_said_to_be_retained() -> None:
    table = SampleTable(MemoryStore("gone"), ManualClock(), TableConfig())
    table.store.delete(list(table.objects()))
    for at in (0, "2024-01-01", instant(0)):
        with pytest.raises(NotFound, match="there is no table here"):
            version_at(table, at)


# After a collection.


@pytest.mark.parametrize("version", [3, 4, 5])
def test_what_is_retained_opens_by_version_and_by_moment(table: SampleTable, version: int) -> None:
    collected(table)
    assert version_at(table, version) == version
    assert version_at(table, instant(START_MS + version * HOUR_MS)) == version


@pytest.mark.parametrize("version", [0, 1, 2])
def test_what_is_collected_says_what_is_retained(table: SampleTable, version: int) -> None:
    collected(table)
    with pytest.raises(
        NotFound, match=rf"version {version} is no longer retained. .* retains versions 3 \(committed .* to 5"
    ):
        version_at(table, version)
    with pytest.raises(
        NotFound, match=r"no version from .* or before is retained.* retains versions 3 \(committed .* to 5"
    ):
        version_at(table, instant(START_MS + version * HOUR_MS))


def test_a_tagged_version_is_an_island(table: SampleTable) -> None:
    set_tag(table.log, "kept", table.log.snapshot(version=1))
    collected(table)
    assert version_at(table, "kept") == version_at(table, 1) == 1
    for beside in (0, 2):
        with pytest.raises(NotFound, match=r"no longer retained. .*to 5, and by tag kept \(1\)"):
            version_at(table, beside)
    with pytest.raises(NotFound, match="or before is retained"):  # the newest version of that time is unknown
        version_at(table, instant(START_MS + 2 * HOUR_MS))


def test_damage_is_not_taken_for_a_collection(table: SampleTable) -> None:
    set_tag(table.log, "kept", table.log.snapshot(version=1))
    collected(table)
    table.store.put(state_key(1), b"damaged", Overwrite())
    with pytest.raises((Corrupt, NotFound)) as caught:
        version_at(table, "kept")
    assert "and by tag" not in str(caught.value)
    table.store.put(version_key(4), b"damaged", Overwrite())
    table.store.delete([state_key(4), state_key(5)])
    with pytest.raises(Corrupt, match="00004"):
        version_at(table, 4)


WRONG_MS = 1_900_000_000_000  # in 2030
AHEAD = "Version 1 has the time 2030-03-17T17:46:40.001.00:00, which the clock of this machine has not reached"


def under_a_wrong_clock() -> SampleTable:
    """Create a table while the clock is in 2030, and write to the table with a correct clock."""
    clock = ManualClock(WRONG_MS)
    table = SampleTable(MemoryStore("of-the-future", clock=clock), clock, TableConfig(checkpoint_interval=0))
    clock.now = START_MS
    table.append()
    return table


def test_a_moment_before_versions_of_the_future_says_that_a_clock_was_wrong_and_what_to_do() -> None:
    table = under_a_wrong_clock()
    with pytest.raises(NotFound, match=f"{AHEAD}.*Name a version by its number"):
        version_at(table, instant(START_MS + HOUR_MS))
    assert version_at(table, 1) == 1


def test_where_no_version_is_of_the_future_no_clock_is_blamed(table: SampleTable) -> None:
    with pytest.raises(NotFound) as refused:
        version_at(table, instant(START_MS - 1))
    assert "clock" not in str(refused.value)


def test_a_commit_after_one_of_the_future_warns(caplog: pytest.LogCaptureFixture) -> None:
    table = under_a_wrong_clock()
    (warned,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert warned.startswith(f"version 1 of {table.store.uri} is 199999999 s ahead of the clock of this machine")


def test_a_clock_that_is_a_minute_behind_is_no_reason_to_warn(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(START_MS)
    table = SampleTable(MemoryStore("a-minute", clock=clock), clock, TableConfig(checkpoint_interval=0))
    clock.now = START_MS - 59_000
    table.append()
    assert [each for each in caplog.records if each.levelname == "WARNING"] == []


def test_describe_says_how_far_a_version_is_ahead_of_the_clock(table: SampleTable) -> None:
    ahead, level = under_a_wrong_clock(), table.log.snapshot()
    found = describe(ahead.store, ahead.log.snapshot(), now_ms=START_MS)
    assert (found["timestamp"], found["ahead_of_clock_ms"]) == (WRONG_MS + 1, WRONG_MS + 1 - START_MS)
    assert describe(table.store, level, now_ms=level.timestamp)["ahead_of_clock_ms"] == 0
