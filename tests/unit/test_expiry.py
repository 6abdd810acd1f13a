"""Retention by whole windows: the setting, the expired windows, and the execution of the plan."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core.base.clock import HOUR_MS
from storage_core.base.errors import InvalidInput
from storage_core.change.declaration import load
from storage_core.compact.planner import ExpiredWindow, plan_expiry
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Add, Remove
from storage_core.log.deletion_vector import inline
from storage_core.log.live_splits import LiveFiles, Part
from tests.support import merge_plan
from tests.support.events import CONFIG, HOUR_SECONDS, SCHEMA, snapshot
from tests.support.many_splits import snapshot_of_many
from tidemark import Table

DAY_MS = 24 * HOUR_MS


def _add(name: str, window: int | None, *, seconds: int | None = HOUR_SECONDS, rows: int = 10) -> Add:
    return Add(
        path=f"splits/{'null' if window is None else window}/{name}.parquet",
        size=100,
        modificationTime=1,
        numRecords=rows,
        windowStart=window,
        windowSeconds=seconds,
        sortSchema=CONFIG.sort_schema,
    )


def _leaving(adds: list[Add], *, retention_ms: int | None, now_ms: int) -> list[int]:
    found = plan_expiry(snapshot(adds), retention_ms=retention_ms, now_ms=now_ms)
    return [each.window_start for each in found.windows]


# The plan.


def test_a_window_leaves_at_its_end_plus_the_retention_and_not_a_millisecond_before() -> None:
    adds = [_add("a", 0), _add("b", HOUR_SECONDS)]
    due = HOUR_MS + DAY_MS
    assert _leaving(adds, retention_ms=DAY_MS, now_ms=due - 1) == []
    assert _leaving(adds, retention_ms=DAY_MS, now_ms=due) == [0]
    assert _leaving(adds, retention_ms=DAY_MS, now_ms=due + HOUR_MS) == [0, HOUR_SECONDS]


def test_a_retention_of_a_fraction_of_a_second_is_not_cut_short() -> None:
    assert _leaving([_add("a", 0)], retention_ms=1500, now_ms=HOUR_MS + 1499) == []
    assert _leaving([_add("a", 0)], retention_ms=1500, now_ms=HOUR_MS + 1500) == [0]


def test_windows_before_1970_leave_like_any_other() -> None:
    adds = [_add("a", -2 * HOUR_SECONDS), _add("b", -HOUR_SECONDS)]
    assert _leaving(adds, retention_ms=1000, now_ms=-HOUR_MS + 1000) == [-2 * HOUR_SECONDS]


def test_rows_without_a_time_and_splits_without_a_window_never_leave() -> None:
    adds = [_add("a", None), _add("b", None, seconds=None), _add("c", 0, seconds=None), _add("d", 0)]
    found = plan_expiry(snapshot(adds), retention_ms=1, now_ms=10**15)
    assert [add.path for add in found.splits] == ["splits/0/d.parquet"]


def test_without_a_retention_nothing_leaves() -> None:
    assert _leaving([_add("a", 0)], retention_ms=None, now_ms=10**15) == []


def test_each_window_says_its_splits_its_visible_rows_and_its_bytes() -> None:
    high_delete_ratio = replace(_add("c", 0), deletionVector=inline([1, 2, 3]))
    found = plan_expiry(snapshot([_add("b", 3600), _add("a", 0), high_delete_ratio]), retention_ms=1, now_ms=DAY_MS)
    assert found.windows == [
        ExpiredWindow(window_start=0, splits=2, rows=17, bytes=200),
        ExpiredWindow(window_start=3600, splits=1, rows=10, bytes=100),
    ]


def test_the_removes_say_that_rows_go_and_name_every_split_of_the_windows() -> None:
    found = plan_expiry(snapshot([_add("b", 0), _add("a", 0), _add("c", 36_000)]), retention_ms=1, now_ms=2 * HOUR_MS)
    assert found.removes(5) == [
        Remove(path=f"splits/0/{name}.parquet", deletionTimestamp=5, dataChange=True, partitionValues={}, size=100)
        for name in ("a", "b")
    ]


def test_manifests_that_hold_only_younger_windows_are_not_read() -> None:
    many = snapshot_of_many(1000, 10)
    assert len(plan_expiry(many, retention_ms=1, now_ms=3 * HOUR_MS + 1).splits) == 300
    assert many.splits.listed is not None
    (part,) = many.splits.listed.parts
    reads: list[str] = []

    def read() -> pa.Table:
        reads.append("a manifest")
        return part.table

    listed = replace(many.splits.listed, parts=(Part(part.info, read),))
    unread = replace(many, splits=LiveFiles(listed))
    assert plan_expiry(unread, retention_ms=1, now_ms=0).splits == ()
    assert reads == []
    assert len(plan_expiry(unread, retention_ms=1, now_ms=HOUR_MS + 1).splits) == 100
    assert reads == ["a manifest"]


def test_a_compaction_leaves_out_what_is_about_to_leave() -> None:
    adds = [_add(name, window) for name in ("a", "b") for window in (0, HOUR_SECONDS, None)]
    config = replace(CONFIG, retention_ms=DAY_MS)

    def planned(now_ms: int) -> list[int | None]:
        return [each.window for each in merge_plan.plan(snapshot(adds, config=config), now_ms=now_ms)]

    assert planned(HOUR_MS + DAY_MS - 1) == [0, HOUR_SECONDS, None]
    assert planned(HOUR_MS + DAY_MS) == [HOUR_SECONDS, None]


# The setting.


@pytest.mark.parametrize(
    ("retention_ms", "window_seconds", "complaint"),
    [
        (DAY_MS, None, "retention removes whole windows, but this table has no windows"),
        (0, 900, "retention is 0s. Give 1ms or more"),
        (10**18, 900, "or less"),
    ],
)
def test_a_retention_that_cannot_be_meant_is_refused(
    retention_ms: int, window_seconds: int | None, complaint: str
) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        TableConfig(retention_ms=retention_ms, window_seconds=window_seconds)


def test_a_table_without_windows_refuses_a_retention(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="retention removes whole windows"):
        Table.create(str(tmp_path / "t"), SCHEMA, time_column="at", window=None, retention="30d")


@pytest.mark.parametrize(("text", "retention_ms"), [("30d", 30 * DAY_MS), ("36h", 36 * HOUR_MS), (90, 90_000)])
def test_a_table_keeps_the_retention_it_was_created_with(tmp_path: Path, text: str | int, retention_ms: int) -> None:
    Table.create(str(tmp_path / "t"), SCHEMA, time_column="at", window="1h", retention=text)
    assert Table.open(str(tmp_path / "t")).config.retention_ms == retention_ms


@pytest.fixture
def declare(tmp_path: Path) -> Callable[[str], Table]:
    """Declare a table with one time column. `more` has additional lines of the declaration."""

    def declared(more: str) -> Table:
        file = tmp_path / "t.yaml"
        file.write_text(
            f"name: t\nuri: {tmp_path}/t\ncolumns: {{at: timestamp!}}\ntime_column: at\n{more}", encoding="utf-8"
        )
        return Table.declare(load(file))

    return declared


def test_a_declared_retention_is_changed_by_a_commit(declare: Callable[[str], Table]) -> None:
    assert declare("window: 1h\n").config.retention_ms is None
    table = declare("window: 1h\nretention: 30d\n")
    assert (table.config.retention_ms, table.history(1)[0].operation) == (30 * DAY_MS, "CONFIGURE")
    assert table.config.version_retention_ms == TableConfig().version_retention_ms
    assert declare("window: 1h\n").config.retention_ms is None


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ("retention: 30d\n", r"t.yaml:5: field `retention`: retention removes whole windows"),
        ("window: 1h\nretention: 0\n", r"t.yaml:6: field `retention` is 0s. Give 1ms or more"),
        ("window: 1h\nretention: a month\n", r"t.yaml:6: field `retention`: 'a month' is not a duration"),
    ],
)
def test_a_declared_retention_that_cannot_be_meant_is_named_with_its_line(
    declare: Callable[[str], Table], more: str, complaint: str
) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        declare(more)


def test_timestamps_without_a_zone_have_windows_that_leave(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("at", pa.timestamp("us"), nullable=False)])
    table = Table.create(str(tmp_path / "t"), schema, time_column="at", window="1h", retention="1d")
    table.append([{"at": dt.datetime(1969, 12, 31, 23, 30)}])  # noqa: DTZ001  # without a zone: that is the case
    found = plan_expiry(table.snapshot, retention_ms=table.config.retention_ms, now_ms=DAY_MS)
    assert [each.window_start for each in found.windows] == [-HOUR_SECONDS]
