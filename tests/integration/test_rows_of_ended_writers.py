"""If writer processes end without a flush, are killed, or are stopped, the job `merge` merges their rows.

The test backdates the files of the writers, so that it does not have to wait. A stopped writer continues after the
merge of its rows.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jobs.due_runs import TableInputs, due_run
from jobs.spark.spark import Spark
from storage_core.change.declaration import TableDeclaration
from storage_core.data.steps import Merge
from storage_core.log.job_run import DueRun, run
from storage_core.maintain.check import fsck
from storage_core.write.region.spec import read_registry
from tests.support.old_regions import make_old
from tidemark import Table

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
REGIONS = 16
NAMES = [f"N{number}" for number in range(100)]

WRITER = """
import os, signal, sys
from tidemark import Table

def put(year):
    writer.put([{"tailnum": f"N{number}", "year": year} for number in range(100)])

writer = Table.open(sys.argv[1]).writer()
put(2004)
match sys.argv[2]:
    case "ended":
        writer.close()
    case "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    case "paused":
        os.kill(os.getpid(), signal.SIGSTOP)
        put(2005)
        writer.flush()
        writer.delete("N0")
"""


@pytest.fixture
def declaration(tmp_path: Path) -> TableDeclaration:
    return TableDeclaration.model_validate(
        {
            "name": "planes",
            "uri": str(tmp_path / "planes"),
            "columns": {"tailnum": "string", "year": "long"},
            "primary_key": ["tailnum"],
            "regions": [{"transform": "bucket", "source": "tailnum", "n": str(REGIONS)}],
            "idle_after": "10m",
        }
    )


@contextmanager
def writer_until(end: str, uri: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that writes and then ends or stops."""
    with subprocess.Popen([sys.executable, "-c", WRITER, uri, end], cwd=ROOT) as process:
        try:
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status) == (end == "paused")
            assert os.WIFSIGNALED(status) == (end == "killed")
            yield process
        finally:
            process.kill()


def years(table: Table) -> dict[object, object]:
    return {row["tailnum"]: row["year"] for row in table.refresh().scan().to_arrow().to_pylist()}


def merge_due(declaration: TableDeclaration) -> DueRun | None:
    return due_run("merge", TableInputs.of(declaration))


@pytest.mark.parametrize("end", ["ended", "killed", "paused"])
def test_its_rows_are_in_the_base_after_the_next_merge_and_one_that_wakes_up_goes_on(
    declaration: TableDeclaration, spark: Spark, end: str
) -> None:
    table = Table.declare(declaration)
    request = Merge(table_uri=table.uri)
    with writer_until(end, table.uri) as process:
        assert len(read_registry(table.store).regions) == REGIONS
        make_old(table, 60)
        assert merge_due(declaration) is None
        assert run(request, spark).status == "nothing_to_do"
        make_old(table, 3600)
        due = merge_due(declaration)
        assert due is not None
        assert due.reason == "16 regions with rows of a silent writer"
        planned = run(Merge(table_uri=table.uri, dry_run=True), spark)
        assert planned.details == {"generations": 0, "regions": 0, "idle_regions": REGIONS}
        assert merge_due(declaration) == due, "nothing was changed"
        done = run(request, spark)
        assert (done.status, done.metrics.rows_out) == ("committed", len(NAMES))
        assert done.details == {"generations": REGIONS, "regions": REGIONS, "idle_regions": REGIONS}
        assert years(table) == dict.fromkeys(NAMES, 2004)
        assert merge_due(declaration) is None
        expected = dict.fromkeys(NAMES, 2004)
        if end == "paused":
            process.send_signal(signal.SIGCONT)
            assert process.wait() == 0, "its caller saw an error"
            expected = dict.fromkeys(NAMES[1:], 2005)
            make_old(table, 3600)
            assert run(request, spark).details["idle_regions"] == 1
        assert years(table) == expected
        assert fsck(table.store, clock=table.log.clock, deep=True).clean
