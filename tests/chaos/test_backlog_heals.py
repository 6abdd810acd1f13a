"""A real daemon compacts a backlog of windows.

The daemon starts with the most urgent windows, and always stays within its budgets.

Rows continue to arrive. The test kills the daemon several times. The test kills the daemon each time the daemon has
completed a fixed share of the pending work. By default there are two tables with a few windows. With SCALE=32, the test
has fifty tables with hourly windows of one week each, and ten kills. At this scale, each job of a run is a separate
process. The hourly budgets apply to a period that is shorter than 60 minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from dagster import DagsterEventType, DagsterInstance, RunRecord
from dagster._grpc.client import DagsterGrpcClient
from dagster._grpc.server import wait_for_grpc_server

from assets.run_tags import granted_bytes
from pipelines.instance import home
from storage_core.change.declaration import load
from storage_core.compact.pending_work import find_pieces
from storage_core.data.settings.layout import Mode
from storage_core.table import Table
from tests.support.scale import scaled

pytestmark = pytest.mark.dagster

REPOSITORY = Path(__file__).resolve().parents[2]
IS_SMALL = scaled(1) == 1
TABLES = min(50, 2 * scaled(1))
WINDOWS = min(168, 6 * scaled(1) - 4)
KILLS = min(10, scaled(1))
HOURS_OF_DEBT = 2 if IS_SMALL else 8
HOUR_SECONDS = 4 if IS_SMALL else 30
SAMPLE_SECONDS = 2 if IS_SMALL else 5
RUNS_AT_ONCE = 2
SPLITS, ROWS = 10, 40
MOST_IN_A_WINDOW = SPLITS - 1
FIRST = datetime(2026, 1, 1, tzinfo=UTC)
PRIORITIES = (9, 5, 1)
HOUR = timedelta(hours=1)

DECLARATION = """
name: {name}
uri: warehouse/{name}
columns: {{at: timestamp!, n: int!, host: string}}
time_column: at
window: 1h
sort_schema: host|timestamp/V2
compaction: {{cold_after: 10000d}}
schedule: {{checkpoint: "0 0 1 1 *"}}
"""


class Backlog:
    """Tables with pending work in all windows, the expected rows of the tables, and the budgets.

    The pending work takes hours within these budgets.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names = [f"t{number:02}" for number in range(TABLES)]
        self.rows: Counter[str] = Counter()
        (root / "tables").mkdir()
        for name in self.names:
            self._declare(name, "")
        first = Table.declare(load(self._file(self.names[0])))
        for number in range(SPLITS):
            first.append(self._rows(first, number))
        for name in self.names[1:]:
            shutil.copytree("warehouse/t00", f"warehouse/{name}")
        self.rows.update(dict.fromkeys(self.names, SPLITS * ROWS * WINDOWS))
        self.bytes_of_one = self.debt(self.names[0])
        self.budget = self.bytes_of_one * TABLES * 11 // (10 * HOURS_OF_DEBT)
        self.own_budget = self.bytes_of_one * 11 // (10 if IS_SMALL else 20)
        self.priority = {name: PRIORITIES[number % len(PRIORITIES)] for number, name in enumerate(reversed(self.names))}
        for name in self.names:
            self._declare(name, f"upkeep: {{priority: {self.priority[name]}, bytes_per_hour: {self.own_budget}}}")
        (root / "upkeep.yaml").write_text(f"bytes_per_hour: {self.budget}\nruns_at_once: {RUNS_AT_ONCE}\n")
        self.arrived = 0

    def debt(self, name: str) -> int:
        table = self._open(name)
        return sum(find_pieces(table.snapshot, now_ms=table.log.clock.now_ms(), mode=Mode.POLICY).first().bytes)

    def debts(self) -> int:
        return sum(map(self.debt, self.names))

    def arrive(self) -> None:
        """Add a row to the next table, in a window that has no work and stays below the merge threshold."""
        turn, number = divmod(self.arrived, TABLES)
        name = self.names[number]
        at = FIRST + (WINDOWS + 1 + turn // MOST_IN_A_WINDOW) * HOUR
        self._open(name).append({"at": at, "n": 0, "host": "new"})
        self.rows[name] += 1
        self.arrived += 1

    def read(self, name: str) -> int:
        return len(self._open(name).scan().to_arrow())

    def _open(self, name: str) -> Table:
        return Table.open(f"warehouse/{name}")

    def _file(self, name: str) -> Path:
        return self.root / "tables" / f"{name}.yaml"

    def _declare(self, name: str, more: str) -> None:
        self._file(name).write_text(DECLARATION.format(name=name) + more, encoding="utf-8")

    def _rows(self, table: Table, number: int) -> pa.Table:
        at = [FIRST + window * HOUR for window in range(WINDOWS) for _ in range(ROWS)]
        rows = {"at": at, "n": [number] * len(at), "host": [f"h{place % 7}" for place in range(len(at))]}
        return pa.table(rows, table.schema)


@contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program of Dagster in its own process, and kill it at the end."""
    with subprocess.Popen([sys.executable, "-m", *command]) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def code_server(port: int, root: Path) -> Iterator[None]:
    """Run the code server, and yield when it responds. A daemon finds the code server through a file."""
    where = ["--python-file", str(REPOSITORY / "tests" / "chaos" / "backlog_definitions.py"), "--port", str(port)]
    about = ["--location-name", "backlog", "--working-directory", str(root), "--log-level", "error"]
    address = {"grpc_server": {"host": "localhost", "port": port, "location_name": "backlog"}}
    (root / "workspace.yaml").write_text(yaml.safe_dump({"load_from": [address]}))
    with running("dagster", "api", "grpc", *where, *about) as process:
        wait_for_grpc_server(process, DagsterGrpcClient(port=port), where)
        yield


@pytest.fixture
def backlog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, history: object) -> Backlog:
    del history  # the environment contains the location of the history
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(home(tmp_path)))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("BACKLOG_HOUR_SECONDS", str(HOUR_SECONDS))
    if scaled(1) >= 32:
        monkeypatch.setenv("BACKLOG_PROCESSES", "1")
    return Backlog(tmp_path)


def test_a_backlog_heals_within_budgets_most_urgent_first_while_rows_arrive_and_the_daemon_is_killed(
    backlog: Backlog, free_port: int
) -> None:
    debts, kills, samples = [backlog.debts()], 0, 0
    with DagsterInstance.from_config(os.environ["DAGSTER_HOME"]) as instance, code_server(free_port, backlog.root):
        while debts[-1] or not all(run.is_finished for run in instance.get_runs()):
            with running("dagster._daemon", "run", "--workspace", "workspace.yaml") as daemon:
                while debts[-1] or not all(run.is_finished for run in instance.get_runs()):
                    time.sleep(SAMPLE_SECONDS)
                    assert daemon.poll() is None, "it runs until it is killed"
                    backlog.arrive()
                    debts.append(backlog.debts())
                    records = list(instance.get_run_records())
                    _assert_within_budgets(records, backlog, time.time())
                    samples += 1
                    if kills < KILLS and debts[-1] * (KILLS + 1) <= debts[0] * (KILLS - kills):
                        kills += 1
                        break
        records = sorted(instance.get_run_records(), key=lambda each: each.create_timestamp)
        read = {each.dagster_run.run_id: _bytes_read(instance, each) for each in records}

    sys.stdout.write(_summary(records, backlog, debts, kills, samples))
    assert kills == KILLS
    assert debts == sorted(debts, reverse=True), "the debt never rises"
    for record in records:
        _assert_within_budgets(records, backlog, record.create_timestamp.timestamp())
        granted, done = granted_bytes(record.dagster_run.tags), read[record.dagster_run.run_id]
        assert set(granted) == set(done) == {key.path[0] for key in record.dagster_run.asset_selection or ()}
        assert all(0 < done[name] <= granted[name] for name in granted)
    assert sum(sum(each.values()) for each in read.values()) == debts[0], "each split of the backlog is read once"
    last = {
        backlog.priority[name]: place for place, each in enumerate(records) for name in read[each.dagster_run.run_id]
    }
    assert list(dict(sorted(last.items(), key=lambda each: each[1]))) == sorted(last, reverse=True), "most urgent first"
    for name in backlog.names:
        assert backlog.read(name) == backlog.rows[name]


def _assert_within_budgets(records: list[RunRecord], backlog: Backlog, at: float) -> None:
    """Fail if the granted bytes exceed a budget at this time.

    The granted bytes of a run count while the run waits or works, and for an hour after its end.
    """
    begun = [each for each in records if each.create_timestamp.timestamp() <= at]
    assert sum((each.end_time or at + 1) > at for each in begun) <= RUNS_AT_ONCE
    counted = [each for each in begun if (each.end_time or at) > at - HOUR_SECONDS]
    granted = [granted_bytes(each.dagster_run.tags) for each in counted]
    spent = sum((Counter(each) for each in granted), Counter[str]())
    assert sum(spent.values()) <= backlog.budget
    assert max(spent.values(), default=0) <= backlog.own_budget


def _bytes_read(instance: DagsterInstance, record: RunRecord) -> dict[str, int]:
    """Return for each table the bytes that the jobs of a run read.

    Each event reports a value for a table. The largest value is the number of bytes that the whole job of the table
    read.
    """
    kinds = {DagsterEventType.ASSET_MATERIALIZATION, DagsterEventType.ASSET_OBSERVATION}
    found = dict[str, int]()
    for each in instance.get_records_for_run(record.dagster_run.run_id, of_type=kinds).records:
        event = each.event_log_entry.asset_materialization or each.event_log_entry.asset_observation
        if event is not None and isinstance(value := event.metadata["bytes_in"].value, int):
            name = event.asset_key.path[0]
            found[name] = max(found.get(name, 0), value)
    return found


def _summary(records: list[RunRecord], backlog: Backlog, debts: list[int], kills: int, samples: int) -> str:
    seconds = (records[-1].end_time or 0) - records[0].create_timestamp.timestamp()
    return (
        f"{TABLES} tables, {WINDOWS} windows each, {debts[0]:,} bytes of debt; budgets {backlog.budget:,} for all and "
        f"{backlog.own_budget:,} per table within {HOUR_SECONDS} s; {len(records)} runs in {seconds:.0f} s, "
        f"{kills} kills, {samples} samples, {backlog.arrived} rows arrived\n"
    )
