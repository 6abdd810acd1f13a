"""Operations across a change of the window length: plans, pruning, retention, features, declarations, partitions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
import yaml

from assets.steps import partition_key, span_of
from storage_core.base.clock import SystemIds
from storage_core.base.errors import CommitConflict, InvalidInput, Unsupported
from storage_core.change import declaration
from storage_core.compact import planner, rewindow
from storage_core.compact.planner import choose
from storage_core.data.rows.window_range import WindowRange
from storage_core.log import actions, conflicts, snapshot
from storage_core.maintain.audit import audit
from storage_core.table import Table
from tests.support.clock import ManualClock
from tests.support.upkeep import compact

SCHEMA = pa.schema([pa.field("time", pa.timestamp("us", tz="UTC")), pa.field("host", pa.string())])
TEN = 36_000
MINUTE = 60


def rows(*minutes: int) -> pa.Table:
    """Return one row for each number of minutes. The time of the row is this many minutes after 10 o'clock."""
    return pa.table([[(TEN + each * MINUTE) * 10**6 for each in minutes], ["h"] * len(minutes)], SCHEMA)


def windows(table: Table) -> list[tuple[int | None, int | None]]:
    """Return the start (in minutes after 10 o'clock) and the duration (in minutes) of each window with splits."""
    found = {(add.windowStart, add.windowSeconds) for add in table.snapshot.splits.values()}
    return sorted((((start or 0) - TEN) // MINUTE, (seconds or 0) // MINUTE) for start, seconds in found)


@pytest.fixture
def table(request: pytest.FixtureRequest) -> Table:
    """Make a table with two 15-minute windows. Then change the windows to one hour, and add one hourly window."""
    place = re.sub("[^a-z0-9]", "-", request.node.name.lower())
    table = Table.create(f"memory://{place}", SCHEMA, time_column="time", window="15m")
    table.append(rows(1, 2, 20))
    table.append(rows(3))
    table.alter({"window": "1h"})
    table.append(rows(5, 50))
    return table


def rewindowed(table: Table) -> Table:
    works = rewindow.plan(table.snapshot, windows=None, now_ms=0)
    done = [rewindow.execute(table.store, work, ids=SystemIds(), now_ms=1) for work in works]
    table.log.commit(table.snapshot, [each for result in done for each in result.actions], operation="REWINDOW")
    return table.refresh()


def test_new_splits_have_the_new_window_and_old_ones_keep_theirs(table: Table) -> None:
    assert windows(table) == [(0, 15), (0, 60), (15, 15)]
    assert (table.config.window_seconds, table.config.former_windows) == (3600, (900,))
    about = cast("list[dict[str, Any]]", table.describe()["windows"])
    assert [(each["window_start"], each["window_seconds"], each["rows"]) for each in about] == [
        (TEN, 900, 3),
        (TEN, 3600, 2),
        (TEN + 900, 900, 1),
    ]


def test_compaction_never_mixes_two_durations(table: Table) -> None:
    chosen = [task for part in choose(table.snapshot).parts() for task in part]
    assert [{add.windowSeconds for add in task.inputs} for task in chosen] == [{900}]
    compact(table)
    assert windows(table.refresh()) == [(0, 15), (0, 60), (15, 15)]


def test_rewindowed_splits_are_in_the_new_windows_and_become_one_run(table: Table) -> None:
    before = table.scan().to_arrow().sort_by("time")
    version = table.version
    assert windows(rewindowed(table)) == [(0, 60)]
    assert table.scan().to_arrow().sort_by("time") == before
    assert table.changes(version).read_all().num_rows == 0
    compact(table)
    assert len(table.refresh().snapshot.splits) == 1
    assert rewindow.plan(table.snapshot, windows=None, now_ms=0) == []


def test_longer_windows_become_shorter_ones_and_back(table: Table) -> None:
    rewindowed(table).alter({"window": "15m"})
    assert table.config.former_windows == (900, 3600)
    assert windows(rewindowed(table)) == [(0, 15), (15, 15), (45, 15)]
    table.alter({"window": "20m"})
    assert windows(rewindowed(table)) == [(0, 20), (20, 20), (40, 20)]
    assert table.snapshot.rows == 6


DAY = 86_400


@pytest.fixture
def hours(request: pytest.FixtureRequest) -> Table:
    """Make one split per hour for 60 hours. The table's settings join the windows of old hours into day windows."""
    place = re.sub("[^a-z0-9]", "-", request.node.name.lower())
    table = Table.create(f"memory://{place}", SCHEMA, time_column="time", window="1h")
    table.append(rows(*(60 * each - TEN // MINUTE for each in range(60))))
    table.alter({"compaction.coarsen_to": "1d", "compaction.coarsen_after": "7d"})
    return table


def rewindowed_at(table: Table, now_seconds: int) -> list[tuple[int | None, int | None]]:
    """Rewrite the windows at the time `now_seconds`. Return the start and duration of each window in hours."""
    works = rewindow.plan(table.snapshot, windows=None, now_ms=now_seconds * 1000)
    done = [rewindow.execute(table.store, work, ids=SystemIds(), now_ms=1) for work in works]
    if done:
        table.log.commit(table.snapshot, [each for result in done for each in result.actions], operation="REWINDOW")
    found = [(add.windowStart, add.windowSeconds) for add in table.refresh().snapshot.splits.values()]
    return sorted(((start or 0) // 3600, (seconds or 0) // 3600) for start, seconds in found)


def test_windows_that_ended_long_ago_are_joined_to_longer_ones(hours: Table) -> None:
    before = hours.scan().to_arrow().sort_by("time")
    single = [(each, 1) for each in range(60)]
    assert rewindowed_at(hours, 8 * DAY - 1) == single, "no day ended a week ago"
    assert rewindowed_at(hours, 8 * DAY) == sorted([(0, 24), *single[24:]])
    assert rewindowed_at(hours, 20 * DAY) == [(0, 24), (24, 24), (48, 24)]
    assert rewindow.plan(hours.snapshot, windows=None, now_ms=0) == [], "they stay joined"
    assert hours.scan().to_arrow().sort_by("time") == before
    assert audit(hours.store, hours.snapshot).violations == ()
    about: Any = hours.explain("select * from t where time >= '1970-01-02 23:30:00+00'").to_dict()
    assert [each["rows"] for each in about["tables"][0]["read"]] == [12]


def test_rows_that_come_late_for_joined_windows_join_them_with_the_next_rewrite(hours: Table) -> None:
    rewindowed_at(hours, 20 * DAY)
    hours.append(rows(*(60 * each - TEN // MINUTE + 1 for each in (3, 4))))
    assert rewindowed_at(hours, 20 * DAY) == [(0, 24), (0, 24), (24, 24), (48, 24)]
    compact(hours)
    assert len(hours.refresh().snapshot.splits) == 3
    assert audit(hours.store, hours.snapshot).violations == ()


def test_without_the_setting_joined_windows_are_divided_again(hours: Table) -> None:
    rewindowed_at(hours, 20 * DAY)
    hours.alter({"compaction.coarsen_to": None})
    assert audit(hours.store, hours.snapshot).violations == ()
    assert rewindowed_at(hours, 20 * DAY) == [(each, 1) for each in range(60)]


def test_a_joined_window_is_a_multiple_of_the_windows_of_the_table(hours: Table) -> None:
    with pytest.raises(InvalidInput, match=r"coarsen_to is 5400 s\. Give whole hours"):
        hours.alter({"compaction.coarsen_to": "90m"})
    with pytest.raises(InvalidInput, match="and the table has windows of 7200 s"):
        hours.alter({"window": "2h", "coarse_window": True, "compaction.coarsen_to": "3h"})
    flat = Table.create("memory://no-windows-to-join", pa.schema([("a", pa.int64())]))
    with pytest.raises(InvalidInput, match="the table has no windows"):
        flat.alter({"compaction.coarsen_to": "1d"})


def test_a_query_of_a_time_prunes_the_windows_of_every_duration(table: Table) -> None:
    plan: Any = table.explain("select * from t where time >= '1970-01-01 10:30:00+00'").to_dict()
    assert [each["rows"] for each in plan["tables"][0]["read"]] == [2]
    assert table.scan(filter="time < '1970-01-01 10:04:00+00'").to_arrow().num_rows == 3
    table.checkpoint()
    assert Table.open(table.uri).scan(filter="time >= '1970-01-01 10:49:00+00'").to_arrow().num_rows == 1


def test_a_window_leaves_by_its_own_end(table: Table) -> None:
    hour = 3_600_000
    at_half_past = (TEN + 1800) * 1000 + hour
    left = planner.plan_expiry(table.snapshot, retention_ms=hour, now_ms=at_half_past)
    assert [(each.window_start, each.rows) for each in left.windows] == [(TEN, 3), (TEN + 900, 1)]
    assert planner.plan_expiry(table.snapshot, retention_ms=hour, now_ms=at_half_past + hour).windows[0].rows == 5


def test_windows_that_have_left_and_those_before_the_start_are_not_written_anew(table: Table) -> None:
    table.alter({"retention": "1h", "compaction.start": "1970-01-01T10:15"})
    assert [each.inputs[0].windowStart for each in rewindow.plan(table.snapshot, windows=None, now_ms=0)] == [TEN + 900]
    late = (TEN + 7200) * 1000
    assert rewindow.plan(table.snapshot, windows=None, now_ms=late) == []
    table.alter({"retention": None, "compaction.start": None})
    assert len(rewindow.plan(table.snapshot, windows=[TEN + 900], now_ms=late)) == 1


def test_rows_that_are_hidden_stay_hidden(table: Table) -> None:
    from dataclasses import replace

    from storage_core.log.deletion_vector import inline

    hidden = next(add for add in table.snapshot.splits.values() if add.numRecords == 2)
    table.log.commit(table.snapshot, [replace(hidden, deletionVector=inline((0,)))], operation="DELETE")
    table.refresh()
    left = table.snapshot.rows
    assert rewindowed(table).scan().to_arrow().num_rows == left == 5


@pytest.mark.parametrize("first", ["window", "delete", "compact", "restore", "append"])
def test_what_was_planned_before_something_else_conflicts_or_is_right(table: Table, first: str) -> None:
    """The test covers a rewrite into new windows against each commit of the conflict table."""
    from dataclasses import replace

    from storage_core.log.deletion_vector import inline

    planned = table.snapshot
    (work,) = rewindow.plan(planned, windows=[TEN], now_ms=0)
    done = rewindow.execute(table.store, work, ids=SystemIds(), now_ms=1)
    other = Table.open(table.uri)
    match first:
        case "window":
            other.alter({"window": "30m"})
        case "delete":
            other.log.commit(planned, [replace(work.inputs[0], deletionVector=inline((0,)))], operation="DELETE")
        case "compact":
            compact(other)
        case "restore":
            other.restore(1)
        case "append":
            other.append(rows(7))
    if first == "append":
        table.log.commit(planned, done.actions, operation="REWINDOW")
        assert table.refresh().snapshot.rows == 7
        return
    with pytest.raises(CommitConflict):
        table.log.commit(planned, done.actions, operation="REWINDOW")


def test_rows_that_were_written_for_the_old_window_are_refused_after_the_change(table: Table) -> None:
    from storage_core.split.context import context_of
    from storage_core.split.writer import sort_and_write

    planned = table.snapshot
    adds = sort_and_write(table.store, rows(8), context=context_of(planned), ids=SystemIds(), now_ms=1)
    Table.open(table.uri).alter({"window": "30m"})
    with pytest.raises(CommitConflict, match="window"):
        table.log.commit(planned, adds, operation="APPEND")
    table.refresh().append(rows(8))  # planned again
    assert (0, 30) in windows(table)


def test_a_writer_goes_on_across_the_change_and_merges_are_of_the_new_window() -> None:
    from tests.support.upkeep import merge

    schema = pa.schema(
        [pa.field("time", pa.timestamp("us", tz="UTC"), nullable=False), pa.field("id", pa.int64(), nullable=False)]
    )
    table = Table.create(
        "memory://keyed-windows",
        schema,
        time_column="time",
        window="15m",
        primary_key=["id", "time"],
        indexes=[{"name": "ids", "kind": "bitmap", "columns": ["id"]}],
    )

    def row(minute: int, number: int) -> dict[str, object]:
        return {"time": pa.scalar((TEN + minute * MINUTE) * 10**6, pa.timestamp("us", tz="UTC")).as_py(), "id": number}

    with table.writer() as writer:
        writer.put([row(1, 1), row(20, 2)])
        writer.flush()
        merge(table)
        Table.open(table.uri).alter({"window": "1h"})
        writer.put([row(20, 2), row(40, 3)])
        writer.flush()
    merge(table.refresh())
    table.refresh()
    assert windows(table) == [(0, 15), (0, 60)]
    assert sorted(table.scan().to_arrow().column("id").to_pylist()) == [1, 2, 3]
    assert table.get((2, row(20, 2)["time"])) is not None


def test_a_release_that_does_not_know_the_change_refuses_the_table(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert actions.WINDOW_CHANGES_FEATURE in (table.snapshot.protocol.writerFeatures or ())
    never = Table.create("memory://never-changed", SCHEMA, time_column="time")
    never.alter({"window": "15m"})
    assert actions.WINDOW_CHANGES_FEATURE not in (never.snapshot.protocol.writerFeatures or ())
    for module in (snapshot, conflicts):
        monkeypatch.setattr(module, "FEATURES", actions.FEATURES - {actions.WINDOW_CHANGES_FEATURE})
    with pytest.raises(Unsupported, match="windowChanges"):
        Table.open(table.uri)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"window": "7m"}, "window is 7m. Give"),
        ({"window": "2h"}, "Set coarse_window: true"),
        ({"window": None}, "Windows cannot be added or removed later"),
        ({"former_windows": [60]}, "Tidemark changes this setting when the setting window changes"),
    ],
)
def test_a_window_that_cannot_be_is_refused(table: Table, given: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        table.alter(given)


def test_a_table_without_windows_gets_none() -> None:
    table = Table.create("memory://no-windows", SCHEMA, time_column="time", window=None)
    with pytest.raises(InvalidInput, match=r"the table has none. Windows cannot be added or removed later"):
        table.alter({"window": "1h"})


def test_a_restore_brings_the_old_window_back_and_the_next_change_is_known(table: Table) -> None:
    table.restore(2)
    assert (table.config.window_seconds, table.config.former_windows) == (900, ())
    table.alter({"window": "5m"})
    assert table.config.former_windows == (900,)


def test_a_declared_change_begins_partitions_of_the_new_duration(tmp_path: Path) -> None:
    def declared(window: str, start: str) -> declaration.TableDeclaration:
        file = tmp_path / "t.yaml"
        body = {"name": "t", "uri": str(tmp_path / "t"), "columns": {"time": "timestamp", "host": "string"}}
        more = {"time_column": "time", "window": window, "partitions": {"start": start}}
        file.write_text(yaml.safe_dump({**body, **more}), encoding="utf-8")
        return declaration.load(file)

    Table.declare(declared("15m", "2020-01-01T00:00"))
    changed = declared("1h", "2020-01-02T00:00")
    table = Table.declare(changed)
    assert (table.config.window_seconds, table.config.former_windows) == (3600, (900,))
    span = span_of(changed, ManualClock(1_577_923_200_000 + 7_200_000))  # two hours into the second day
    assert span is not None
    assert (partition_key(span.first), span.window_seconds) == ("2020-01-02T00:00", 3600)
    quarter_past = span.first + 900
    assert span.partition_of(quarter_past) == span.first, "former windows are of the partition that they begin in"
    assert span.partition_of(span.first - 900) is None


def test_one_window_is_named_by_a_start_that_any_duration_has() -> None:
    quarter_past = WindowRange(TEN + 900, TEN + 901)
    quarter_past.require_fits(3600, (900,))
    with pytest.raises(InvalidInput, match=r"no window starts at 1970-01-01T10:15\. Windows of this table are"):
        quarter_past.require_fits(3600)
