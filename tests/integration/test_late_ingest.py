"""Late rows of landed files are ingested on Spark.

The policy decides how the late rows count in the report, the commit and the quarantine. No row is lost.
"""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from pathlib import Path

import pytest

from jobs.spark.spark import Spark
from storage_core.data.formats.arrow_files import QuarantinedRows
from storage_core.data.rows.window_range import window_range
from storage_core.data.settings.table import LatePolicy
from storage_core.data.steps import Ingest
from storage_core.log.job_run import run
from storage_core.write.late_rows import read_entries
from tidemark import Table

pytestmark = pytest.mark.spark

DECLARATION = """
name: {policy}
uri: {root}/{policy}
columns: {{at: timestamp!, id: long!}}
time_column: at
window: 15m
landing: {{uri: {root}/landing, format: ndjson}}
late_data: {{policy: {policy}, acceptance_window: 2h}}
"""
POLICIES: tuple[LatePolicy, ...] = ("accept", "quarantine", "drop")
COUNTED: dict[LatePolicy, tuple[int, int, int]] = {"accept": (60, 0, 0), "quarantine": (0, 60, 0), "drop": (0, 0, 60)}


def test_each_policy_counts_its_late_rows_and_loses_none_unasked(tmp_path: Path, spark: Spark) -> None:
    """The table has two files of 50 rows.

    The times of the first 20 rows are within the last minutes. Rows 21 to 50 have times that are more than 2 h old.
    """
    now = dt.datetime.now(dt.UTC)
    (tmp_path / "landing").mkdir()
    for file in range(2):
        times = [now - dt.timedelta(minutes=number if number < 20 else 6 * number, seconds=1) for number in range(50)]
        lines = [json.dumps({"at": at.isoformat(), "id": 100 * file + number}) for number, at in enumerate(times)]
        (tmp_path / "landing" / f"{file}.ndjson").write_text("\n".join(lines) + "\nno row\n")
    ids = {100 * file + number for file in range(2) for number in range(50)}
    late = {each for each in ids if each % 100 >= 20}
    for policy in POLICIES:
        declared = tmp_path / f"{policy}.yaml"
        declared.write_text(DECLARATION.format(root=tmp_path, policy=policy))
        uri = str(tmp_path / policy)
        # First ingest a window with only late rows, and then ingest the other windows. Each row is checked and counted
        # once.
        start = int((now - dt.timedelta(hours=3)).timestamp()) // 900 * 900
        first = Ingest(table_uri=uri, declaration=str(declared), windows=window_range(str(start), None, None))
        reports = [
            run(first, spark),
            run(Ingest(table_uri=uri, declaration=str(declared)), spark),
        ]

        table = Table.open(uri)
        visible = Counter(table.scan(["id"]).to_arrow().column("id").to_pylist())
        entries = [entry for _, entry in read_entries(table.store) if isinstance(entry, QuarantinedRows)]
        kept = Counter(each for entry in entries for each in entry.rows.column("id").to_pylist())
        assert visible == Counter(ids if policy == "accept" else ids - late)
        assert kept == Counter(late if policy == "quarantine" else ())
        metrics = [
            (each.rows_late_accepted, each.rows_late_quarantined, each.rows_late_dropped)
            for each in (report.metrics for report in reports)
        ]
        assert tuple(map(sum, zip(*metrics, strict=True))) == COUNTED[policy]
        assert sum(metrics[0]) > 0
        assert reports[1].metrics.rows_in == 102
        commits = [entry.metrics for entry in table.history() if entry.operation == "INGEST"]
        names = ("rows_late_accepted", "rows_late_quarantined", "rows_late_dropped")
        assert [tuple(each[name] for name in names) for each in reversed(commits)] == metrics
        splits = [(add.minValues, add.maxValues, add.windowStart) for add in table.snapshot.splits.values()]
        for least, greatest, window in splits:
            assert window is not None
            assert least is not None
            assert greatest is not None
            inside = [_seconds(least["at"]), _seconds(greatest["at"])]
            assert all(window <= each < window + 900 for each in inside)


def _seconds(text: str) -> float:
    return dt.datetime.fromisoformat(text).timestamp()
