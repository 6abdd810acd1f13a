"""A compaction on Spark with concurrent operations.

The test checks each cell of the row "compact" of the conflict table.

First the tasks of the compaction write their splits. Then the other operation commits. The compaction commits last. A
model in plain Python computes the expected rows for both outcomes of the race.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from jobs.spark.spark import Spark
from storage_core.change.declaration import load
from storage_core.data.rows.window_range import WindowRange
from storage_core.data.steps import Compact, Merge
from storage_core.log.actions import Remove
from storage_core.log.job_run import Answer, Item, JobReport, run
from storage_core.maintain.audit import audit
from storage_core.table import Table
from tests.support.deleted_rows import delete_where

pytestmark = pytest.mark.spark

MASTER = "local[2]"
START = dt.datetime(2024, 2, 29, 10, tzinfo=dt.UTC)
FIRST = int(START.timestamp())
WINDOW = 900
ROWS = 300
DECLARATION = """
name: events
uri: {uri}
columns: {{at: timestamp!, host: string, n: long!, text: string}}
time_column: at
window: 15m
sort_schema: "{order}"
compaction: {compaction}
{more}
"""
Model = dict[int, str]
Act = Callable[[], object]


class CommittedMeanwhile(Spark):
    """A launcher that uses the running session, and runs another operation between the tasks and the commit."""

    def __init__(self, act: Act) -> None:
        super().__init__(MASTER)
        self._act = act

    def map(
        self, execute: Callable[[Item], Answer], items: Sequence[Item], *, input_bytes: float = math.inf
    ) -> list[Answer]:
        answers = super().map(execute, items, input_bytes=input_bytes)
        act, self._act = self._act, list
        act()
        return answers


class Events:
    """A table of two windows with three splits each, and the model of its rows."""

    def __init__(self, folder: Path, *, keyed: bool = False) -> None:
        self._folder, self._keyed = folder, keyed
        self.table = self.declare("host|timestamp/V2")
        self.model: Model = {}
        for first in range(3):
            self.append(range(first, ROWS, 3))

    def declare(self, order: str, compaction: str = "{}") -> Table:
        path = self._folder / "events.yaml"
        more = "primary_key: [n, at]" if self._keyed else ""
        path.write_text(DECLARATION.format(uri=self._folder / "events", order=order, more=more, compaction=compaction))
        return Table.declare(load(path))

    def row(self, n: int, text: str) -> dict[str, Any]:
        at = START + dt.timedelta(seconds=n % 2 * WINDOW + n * 7 % 600)
        return {"at": at, "host": None if n % 11 == 0 else f"h{n % 5}", "n": n, "text": text}

    def append(self, numbers: Sequence[int], text: str = "first") -> None:
        """Add rows. On the keyed table, a merge on Spark adds the rows."""
        rows = [self.row(n, text) for n in numbers]
        if self._keyed:
            with self.table.refresh().writer() as writer:
                writer.put(rows)
                writer.flush()
            self.merge()
        else:
            self.table.refresh().append(rows)
        self.model |= dict.fromkeys(numbers, text)

    def delete(self, deleted: Callable[[int], bool]) -> None:
        """Delete rows. On the keyed table, a merge on Spark deletes the rows."""
        numbers = [n for n in self.model if deleted(n)]
        if self._keyed:
            with self.table.refresh().writer() as writer:
                writer.delete([{"n": n, "at": self.row(n, "")["at"]} for n in numbers])
                writer.flush()
            self.merge()
        else:
            delete_where(self.table.log, lambda row: deleted(row["n"]))
        for n in numbers:
            del self.model[n]

    def merge(self, meanwhile: Act = list) -> JobReport:
        return run(Merge(table_uri=self.table.uri, master=MASTER), CommittedMeanwhile(meanwhile))

    def compact(self, meanwhile: Act = list, *, start: int | None = None) -> JobReport:
        request = Compact(table_uri=self.table.uri, master=MASTER, windows=WindowRange(start=start))
        return run(request, CommittedMeanwhile(meanwhile))

    def check(self, *, splits: int) -> None:
        """Check that the table has each row of the model once.

        Also check the number of splits, and that the splits match the log.
        """
        table = Table.open(self.table.uri)
        rows = table.scan(["n", "text"]).to_arrow().to_pylist()
        assert {row["n"]: row["text"] for row in rows} == self.model
        assert len(rows) == len(self.model) == table.snapshot.rows
        assert len(table.snapshot.splits) == splits
        assert audit(table.store, table.snapshot).violations == ()


@pytest.fixture
def events(tmp_path: Path, spark: Spark) -> Events:
    assert spark.slots == 2
    return Events(tmp_path)


def test_rows_appended_to_the_same_window_stay_and_both_commit(events: Events) -> None:
    report = events.compact(lambda: events.append(range(1_000, 1_040), "appended"))
    assert report.status == "committed"
    events.check(splits=2 + 2)
    assert events.compact().status == "committed"
    events.check(splits=2)


def test_deletes_are_carried_over_and_never_undone(events: Events) -> None:
    def others() -> None:
        events.delete(lambda n: n % 7 == 3)
        events.delete(lambda n: n in {0, 1, 2, 299})

    before = events.table.refresh().version
    report = events.compact(others)
    assert (report.status, report.version) == ("committed", before + 3)
    events.check(splits=2)
    assert events.table.refresh().changes(before + 2).read_all().num_rows == 0
    assert events.compact().status == "nothing_to_do"
    events.delete(lambda n: n % 2 == 0)
    events.check(splits=2)


def test_a_keyed_merge_into_the_same_splits_wins_row_by_row(tmp_path: Path, spark: Spark) -> None:
    assert spark.slots == 2
    events = Events(tmp_path, keyed=True)

    def others() -> None:
        events.append(range(0, ROWS, 5), "replaced")
        events.delete(lambda n: n % 10 == 1)
        events.append([5, 11, 2_000], "again")  # row 5 was replaced before, row 11 was deleted, and row 2000 is new

    report = events.compact(others)
    assert report.status == "committed"
    assert len({add.path for add in events.table.refresh().snapshot.splits.marked()}) >= 2
    events.check(splits=2 + 2 + 2)
    assert events.compact().status == "committed"
    events.check(splits=2)


def test_a_merge_that_a_compaction_overtook_is_planned_again(tmp_path: Path, spark: Spark) -> None:
    assert spark.slots == 2
    events = Events(tmp_path, keyed=True)
    with events.table.refresh().writer() as writer:
        writer.put([events.row(n, "replaced") for n in range(50)])
        writer.flush()
    assert events.merge(events.compact).status == "committed"
    events.model |= dict.fromkeys(range(50), "replaced")
    events.check(splits=2 + 2)
    assert events.merge().status == "nothing_to_do"


@pytest.mark.parametrize("rest", [0, 1], ids=["all of it", "one of two windows"])
def test_of_two_compactions_one_wins_and_the_other_does_the_rest(events: Events, rest: int) -> None:
    """The two compactions have different leases, because a lease belongs to the first window of a range."""
    start = FIRST + rest * WINDOW
    report = events.compact(lambda: events.compact(start=start))
    assert report.status == ("committed" if rest else "nothing_to_do")
    assert report.details.get("windows_failed", []) == []
    assert report.metrics.splits_in == 3 * rest
    events.check(splits=2)


def test_a_restore_wins(events: Events) -> None:
    version = events.table.refresh().version

    def restore() -> None:
        events.table.refresh().restore(version - 1)
        events.model = {n: text for n, text in events.model.items() if n % 3 != 2}

    assert events.compact(restore).status == "committed"
    events.check(splits=2)


def test_rows_that_a_restore_brings_back_are_not_lost(events: Events) -> None:
    model = dict(events.model)
    events.delete(lambda n: n % 5 == 0)
    version = events.table.refresh().version

    def restore() -> None:
        events.table.refresh().restore(version - 1)
        events.model = model

    assert events.compact(restore).status == "committed"
    events.check(splits=2)


@pytest.mark.parametrize("windows", [(FIRST,), (FIRST, FIRST + WINDOW)], ids=["a window", "everything"])
def test_removed_windows_stay_removed(events: Events, windows: tuple[int, ...]) -> None:
    """One commit removes the windows completely, as retention does."""

    def expire() -> None:
        head = events.table.refresh().snapshot
        deleted = [add for add in head.splits.values() if add.windowStart in windows]
        events.table.log.commit(head, [Remove(path=add.path) for add in deleted], operation="EXPIRE")
        events.model = {n: text for n, text in events.model.items() if FIRST + n % 2 * WINDOW not in windows}

    assert events.compact(expire).status == ("committed" if len(windows) == 1 else "nothing_to_do")
    events.check(splits=2 - len(windows))
    assert events.compact().status == "nothing_to_do"


def test_a_changed_sort_schema_wins_also_beside_deletes(events: Events) -> None:
    def configure() -> None:
        events.delete(lambda n: n % 50 == 0)
        events.declare("n|timestamp/V2")

    assert events.compact(configure).status == "committed"  # splits keep their sort order
    events.check(splits=2)
    assert {add.sortSchema for add in events.table.refresh().snapshot.splits.values()} == {"host|timestamp/V2"}


def test_a_changed_metric_of_the_upkeep_is_in_nobodys_way(events: Events) -> None:
    def configure() -> None:
        events.delete(lambda n: n % 50 == 0)
        assert events.declare("host|timestamp/V2", "{most_files: 30}").version == events.table.version + 2

    assert events.compact(configure).status == "committed"
    events.check(splits=2)
