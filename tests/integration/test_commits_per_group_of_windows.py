"""A compaction commits many windows in groups, and a failure or a kill affects only the windows of one group."""

from __future__ import annotations

import datetime as dt
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from jobs.spark.spark import Spark
from storage_core.base.errors import Corrupt, Fenced
from storage_core.compact import planner, steps
from storage_core.compact.steps import Executed, GroupLimits, GroupsOutcome, compact_groups, grouped, settle
from storage_core.compact.work import CompactionTask
from storage_core.data.rows.window_range import WindowRange, window_name
from storage_core.data.settings.layout import Mode
from storage_core.data.steps import Compact
from storage_core.log.actions import Remove
from storage_core.log.job_run import JobRun, report_of, run
from storage_core.log.lease import break_lease
from storage_core.log.snapshot import Snapshot
from tests.integration.halved_split import halve_split, repair
from tests.support.merge_plan import plan
from tidemark import Table

START = dt.datetime(2015, 5, 17, 10, tzinfo=dt.UTC)
FIRST = int(START.timestamp())
WINDOWS = [FIRST + 3600 * number for number in range(5)]
IN_PAIRS = GroupLimits(windows=2)

# The real job in a real process, which kills itself just before its second commit.
KILLED_JOB = """
import os, signal, sys
from functools import partial
from storage_core.compact import steps
from storage_core.compact.steps import GroupLimits, compact_groups
from jobs.command import main
from storage_core.log.log import TransactionLog
commit, made = TransactionLog.commit, []
def killed(self, *arguments, **named):
    made.append(named["operation"])
    if len(made) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return commit(self, *arguments, **named)
TransactionLog.commit = killed
steps.compact_groups = partial(compact_groups, limits=GroupLimits(windows=2))
main("compact", ["--table-uri", sys.argv[1]])
"""


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Make a table of five windows with two splits each. The fourth window has by far the most rows."""
    schema = pa.schema(
        [pa.field("timestamp", pa.timestamp("us", "UTC"), nullable=False), pa.field("text", pa.string())]
    )
    created = Table.create(
        str(tmp_path / "events"), schema, time_column="timestamp", sort_schema="text|timestamp/V2", window="1h"
    )
    for batch in range(2):
        created.append(
            [
                {
                    "timestamp": START + dt.timedelta(hours=hour, seconds=number),
                    "text": f"{batch}-{number * 7919 % 10_007}",
                }
                for hour in range(5)
                for number in range(2000 if hour == 3 else 20)
            ]
        )
    return Table.open(created.uri)


def rows_of(table: Table) -> Counter[tuple[object, ...]]:
    return Counter(tuple(row.values()) for row in table.scan().to_arrow().to_pylist())


def splits_by_window(uri: str) -> list[int]:
    return [
        count
        for _, count in sorted(Counter(add.windowStart for add in Table.open(uri).snapshot.splits.values()).items())
    ]


def executed(table: Table, planned: Sequence[CompactionTask]) -> list[Executed]:
    return [Executed(task, steps.merge_splits({"table_uri": table.uri, "task": task.to_json()})) for task in planned]


def everything(snapshot: Snapshot) -> list[CompactionTask]:
    return plan(snapshot)


def test_a_window_that_changed_meanwhile_fails_alone_and_the_others_of_its_group_are_committed(table: Table) -> None:
    job, outcome = JobRun(Compact(table_uri=table.uri), Spark()), GroupsOutcome()
    with job.leased(everything, ["compact.all"]) as planned:
        merges = executed(table, planned)
        deleted = merges[1].task.inputs[0].path
        table.log.commit(
            table.snapshot, [Remove(path=deleted, deletionTimestamp=1, dataChange=False)], operation="COMPACT"
        )
        settle(job, merges, outcome)
    assert {window: each.kind for window, each in outcome.failed.items()} == {WINDOWS[1]: "conflict"}
    assert deleted in outcome.failed[WINDOWS[1]].message
    assert [each.windows for each in outcome.commits] == [tuple(each for each in WINDOWS if each != WINDOWS[1])]
    assert splits_by_window(table.uri) == [1] * 5
    assert deleted not in Table.open(table.uri).snapshot.splits


def test_every_commit_of_a_run_has_a_token_of_its_own_and_whoever_takes_over_ends_it(table: Table) -> None:
    job, outcome = JobRun(Compact(table_uri=table.uri), Spark()), GroupsOutcome()
    with job.leased(everything, ["compact.all"]) as planned:
        first, second, third = grouped(planned, IN_PAIRS)
        tokens = []
        for group in (first, second):
            settle(job, executed(table, group), outcome)
            tokens.append(Table.open(table.uri).snapshot.fences["compact.all"])
        break_lease(table.log, "compact.all", "somebody")
        with pytest.raises(Fenced):
            settle(job, executed(table, third), outcome)
    assert tokens == [1, 2]
    assert Table.open(table.uri).snapshot.fences["compact.all"] == 3
    assert WINDOWS[3] in outcome.commits[0].windows, "the largest window comes first"
    assert sorted(splits_by_window(table.uri)) == [1, 1, 1, 1, 2]


@pytest.mark.spark
def test_groups_are_committed_as_they_end_and_a_damaged_window_fails_alone(table: Table, spark: Spark) -> None:
    expected, file = rows_of(table), halve_split(table, WINDOWS[1])
    job = JobRun(Compact(table_uri=table.uri), spark)
    with job.leased(everything, ["compact.all"]) as planned:
        outcome = compact_groups(job, planned, IN_PAIRS)
    assert outcome.failed.keys() == {WINDOWS[1]}
    assert outcome.failed[WINDOWS[1]].kind == "corrupt"
    assert file.name in outcome.failed[WINDOWS[1]].message
    done = [window for each in outcome.commits for window in each.windows]
    assert sorted(str(each) for each in done) == [str(each) for each in WINDOWS if each != WINDOWS[1]]
    assert sorted(each.version for each in outcome.commits) == [3, 4, 5]
    assert splits_by_window(table.uri) == [1, 2, 1, 1, 1]
    assert sum(expected.values()) == Table.open(table.uri).snapshot.rows


@pytest.mark.spark
def test_a_plan_in_parts_is_one_run_with_one_report(
    table: Table, spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "PART_INPUTS", 4)
    expected, file = rows_of(table), halve_split(table, WINDOWS[1])
    with pytest.raises(Corrupt, match=f"The windows {window_name(WINDOWS[1])} were not compacted") as refused:
        run(Compact(table_uri=table.uri), spark)
    repair(file)
    report = report_of(refused.value)
    assert report is not None
    assert report.details["windows"] == [each for each in WINDOWS if each != WINDOWS[1]]
    commits: Any = report.details["commits"]
    assert [each["windows"] for each in commits] == [[WINDOWS[0]], WINDOWS[2:4], [WINDOWS[4]]]
    assert splits_by_window(table.uri) == [1, 2, 1, 1, 1]
    assert rows_of(Table.open(table.uri)) == expected


@pytest.mark.spark
def test_a_request_that_names_a_skipped_window_tries_it_again_and_a_repaired_one_is_done(
    table: Table, spark: Spark
) -> None:
    expected = rows_of(table)
    file = halve_split(table, WINDOWS[1])
    every = Compact(table_uri=table.uri)
    with pytest.raises(Corrupt, match=f"The windows {window_name(WINDOWS[1])} were not compacted") as refused:
        run(every, spark)
    report = report_of(refused.value)
    assert report is not None
    assert report.details["windows"] == [each for each in WINDOWS if each != WINDOWS[1]]
    assert [each["version"] for each in report.details["commits"]] == [report.version]  # type: ignore[attr-defined]
    assert run(every, spark).status == "nothing_to_do"
    named = Compact(table_uri=table.uri, windows=WindowRange(WINDOWS[0], WINDOWS[4]))
    scheduled = Compact(table_uri=table.uri, windows=named.windows, mode=Mode.POLICY)
    assert run(scheduled, spark).status == "nothing_to_do"
    message = f"{file.name}.* were not compacted.*. No window was compacted. Run: tidemark fsck, "
    with pytest.raises(Corrupt, match=message):
        run(named, spark)
    (skip,) = Table.open(table.uri).snapshot.mergeskips.values()
    assert skip.skipCount == 2
    repair(file)
    done = run(named, spark)
    assert (done.status, done.details["windows"], done.details["windows_failed"]) == ("committed", [WINDOWS[1]], [])
    assert not Table.open(table.uri).snapshot.mergeskips
    assert rows_of(Table.open(table.uri)) == expected


@pytest.mark.spark
def test_a_driver_that_is_killed_loses_no_group_that_was_committed(table: Table, spark: Spark) -> None:
    expected = rows_of(table)
    killed = subprocess.run([sys.executable, "-c", KILLED_JOB, table.uri], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert sorted(splits_by_window(table.uri)) in ([1, 1, 2, 2, 2], [1, 2, 2, 2, 2])
    left = sum(count == 2 for count in splits_by_window(table.uri))
    assert rows_of(Table.open(table.uri)) == expected

    report = run(Compact(table_uri=table.uri), spark)

    assert len(report.details["windows"]) == left  # type: ignore[arg-type]
    assert splits_by_window(table.uri) == [1] * 5
    assert rows_of(Table.open(table.uri)) == expected
