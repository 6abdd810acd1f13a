"""`tidemark compact --rewindow` on Spark.

The test ingests rows, changes the window length, and starts one run per new window.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.spark.spark import Spark
from pipelines.cli import main
from storage_core.data.rows.window_range import WindowRange
from storage_core.data.settings.layout import Mode
from storage_core.data.steps import Compact, Ingest
from storage_core.log.job_run import Answer, Item, run
from storage_core.maintain.audit import audit
from storage_core.table import Table
from tests.support.deleted_rows import delete_where

pytestmark = pytest.mark.spark

MASTER = "local[2]"
DECLARATION = """
name: events
uri: {root}/events
columns: {{at: timestamp!, n: long!}}
time_column: at
window: {window}
landing: {{uri: {root}/landing, format: ndjson}}
"""


def declared(root: Path, window: str) -> Ingest:
    path = root / "events.yaml"
    path.write_text(DECLARATION.format(root=root, window=window), encoding="utf-8")
    return Ingest(table_uri=str(root / "events"), declaration=str(path), master=MASTER)


@pytest.fixture
def changed(tmp_path: Path, spark: Spark) -> Table:
    """Land a file with rows of three hours. One hour has 15-minute windows, and two hours have hourly windows."""
    (tmp_path / "landing").mkdir()
    lines = (f'{{"at": "2024-02-29T{10 + n // 60:02}:{n % 60:02}:00Z", "n": {n}}}\n' for n in range(180))
    (tmp_path / "landing" / "a.ndjson").write_text("".join(lines), encoding="utf-8")
    eleven = 1_709_204_400
    first = declared(tmp_path, "15m")
    run(replace(first, windows=WindowRange(eleven, eleven + 1800)), spark)
    table = Table.open(first.table_uri)
    assert table.snapshot.rows == 30
    run(declared(tmp_path, "1h"), spark)
    return table.refresh()


def numbers(table: Table) -> list[int]:
    return sorted(table.refresh().scan().to_arrow().column("n").to_pylist())


def seconds(table: Table) -> set[int | None]:
    return {add.windowSeconds for add in table.refresh().snapshot.splits.values()}


def test_a_file_that_was_begun_is_finished_by_new_windows_and_old_ones_are_rewritten_on_request(
    changed: Table, spark: Spark, capfd: pytest.CaptureFixture[str]
) -> None:
    assert numbers(changed) == list(range(180))
    assert seconds(changed) == {900, 3600}
    request = Compact(table_uri=changed.uri, mode=Mode.REWINDOW, master=MASTER)
    planned = run(Compact(table_uri=changed.uri, mode=Mode.REWINDOW, dry_run=True), spark)
    assert (planned.status, planned.metrics.rows_in) == ("planned", 30)
    assert main(["compact", changed.uri, "--rewindow", "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert (report["status"], report["rows_in"], report["rows_out"]) == ("committed", 30, 30)
    assert report["details"]["windows"] == [1_709_204_400]
    assert changed.refresh().history(1)[0].operation == "REWINDOW"
    assert (numbers(changed), seconds(changed)) == (list(range(180)), {3600})
    assert run(request, spark).status == "nothing_to_do"
    run(Compact(table_uri=changed.uri, master=MASTER), spark)
    assert [each["splits"] for each in changed.refresh().describe()["windows"]] == [1, 1, 1]  # type: ignore[attr-defined]
    assert audit(changed.store, changed.snapshot).violations == ()
    assert main(["compact", changed.uri, "--rewindow", "--policy"]) == 2


def test_scheduled_runs_join_cold_windows_and_then_merge_them(changed: Table, spark: Spark) -> None:
    changed.alter({"compaction.coarsen_to": "1d", "compaction.coarsen_after": "0s", "compaction.cold_after": "0s"})
    changed.alter({"compaction.most_files": 1})
    assert {each.reasons for each in changed.debt(Mode.POLICY)} == {("coarsen",)}
    request = Compact(table_uri=changed.uri, mode=Mode.POLICY, master=MASTER)
    act = Meanwhile(lambda: delete_where(changed.log, lambda row: row["n"] == 65))
    report = run(request, act)
    left = [n for n in range(180) if n != 65]
    assert numbers(changed) == left
    assert (report.status, report.metrics.rows_in) == ("committed", len(left))
    assert changed.refresh().history(1)[0].operation == "REWINDOW"
    assert (numbers(changed), seconds(changed)) == (left, {86_400})
    while run(request, spark).status != "nothing_to_do":
        pass
    assert (numbers(changed), len(changed.refresh().snapshot.splits)) == (left, 1)
    assert audit(changed.store, changed.snapshot).violations == ()


class Meanwhile(Spark):
    """A launcher that uses the running session.

    The launcher runs an operation after the tasks and before the next step of the job.
    """

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__(MASTER)
        self._act = act

    def map(
        self, execute: Callable[[Item], Answer], items: Sequence[Item], *, input_bytes: float = math.inf
    ) -> list[Answer]:
        answers = super().map(execute, items, input_bytes=input_bytes)
        act, self._act = self._act, list
        act()
        return answers


def test_rows_that_are_deleted_meanwhile_never_come_back(changed: Table) -> None:
    request = Compact(table_uri=changed.uri, mode=Mode.REWINDOW, master=MASTER)
    act = Meanwhile(lambda: delete_where(changed.log, lambda row: row["n"] == 65))
    assert run(request, act).status == "committed"
    assert numbers(changed) == [n for n in range(180) if n != 65]
    assert seconds(changed) == {3600}
