"""The windows of killed or stopped backfills are found, and these backfills do not block the next run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dagster import DagsterInstance, DagsterRunStatus

from assets.launcher import Context, InProcessLauncher, Launcher, Report
from jobs.spark.spark import Spark
from pipelines.backfill import ChunkDone, backfill
from pipelines.cli import main
from pipelines.instance import home, open_instance
from storage_core.base.errors import Held
from storage_core.change.declaration import TableDeclaration, load
from storage_core.data.steps import Compact, RunOptions
from tests.integration.ticks import DECLARATION
from tidemark import Table

pytestmark = pytest.mark.dagster

START, END = "2015-05-01T00:00", "2015-05-01T04:00"


class Interrupted:
    """A launcher that calls the argument `instead` before its second compaction. Jobs without work start no Spark."""

    def __init__(self, instead: Callable[[], None]) -> None:
        self._instead, self._jobs = instead, 0

    def submit(self, context: Context, options: RunOptions) -> Report:
        self._jobs += isinstance(options, Compact)
        if self._jobs == 2:
            self._instead()
        return InProcessLauncher(Spark()).submit(context, options)


def fill(
    declaration: TableDeclaration,
    instance: DagsterInstance,
    launcher: Launcher | None = None,
    *,
    only_failed: bool = False,
) -> list[ChunkDone]:
    """Fill two chunks of two windows each."""
    use = launcher or InProcessLauncher(Spark())
    return list(backfill(declaration, START, END, "2h", only_failed=only_failed, instance=instance, launcher=use))


def killed() -> None:
    """Fill the table of the working directory, and kill this process in the second chunk."""
    with open_instance(home(Path.cwd(), {})) as instance:
        fill(load("tables/ticks.yaml"), instance, Interrupted(lambda: os.kill(os.getpid(), signal.SIGKILL)))


@pytest.fixture
def declaration(checkout: Path) -> TableDeclaration:
    file = checkout / "tables" / "ticks.yaml"
    file.write_text(DECLARATION, encoding="utf-8")
    declared = load(file)
    Table.declare(declared)
    return declared


@pytest.fixture
def instance(checkout: Path) -> Iterator[DagsterInstance]:
    """Open an instance with the repository's settings, which allow one run per table at a time."""
    with open_instance(home(checkout, {})) as opened:
        yield opened


def test_the_windows_of_a_killed_run_are_done_again_at_once_and_only_these(
    declaration: TableDeclaration, instance: DagsterInstance
) -> None:
    here = Path(__file__)
    source = f"import sys; sys.path[:0] = [{str(here.parent)!r}]; import {here.stem}; {here.stem}.killed()"
    child = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", source],
        env={**os.environ, "PYTHONPATH": str(here.parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    left, done = instance.get_runs()
    assert (left.status, done.status) == (DagsterRunStatus.STARTED, DagsterRunStatus.SUCCESS)

    (again,) = fill(declaration, instance, only_failed=True)

    assert (again.chunk.first, again.chunk.windows, again.error) == ("2015-05-01T02:00", 2, None)
    ended = instance.get_run_by_id(left.run_id)
    assert ended is not None
    assert ended.status is DagsterRunStatus.FAILURE
    assert fill(declaration, instance, only_failed=True) == []


@pytest.mark.usefixtures("declaration")
def test_that_no_window_failed_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    command = ["backfill", "--table", "ticks", "--from", START, "--to", END, "--failed"]
    said = []
    for arguments in (command, [*command, "--json"]):
        assert main(arguments) == 0
        said.append(capfd.readouterr().out)
    nothing = f"nothing to do: no window from {START} to {END} has a last run that failed or was killed\n"
    assert said == [nothing, ""]


def test_windows_in_work_are_waited_for_and_those_of_a_stopped_run_are_done_again(
    declaration: TableDeclaration, instance: DagsterInstance
) -> None:
    refused: list[str] = []

    def asked_and_stopped() -> None:
        with pytest.raises(Held, match=r"the run .* \(STARTED\) works on 2015-05-01T02:00") as held:
            fill(declaration, instance, only_failed=True)
        refused.append(str(held.value))
        instance.report_run_canceling(instance.get_runs()[0])
        raise KeyboardInterrupt

    done, stopped = fill(declaration, instance, Interrupted(asked_and_stopped))
    assert (done.error, bool(stopped.error)) == (None, True)
    last = instance.get_runs()[0]
    assert len(refused) == 1
    assert last.run_id in refused[0]
    assert last.status is DagsterRunStatus.CANCELED

    (again,) = fill(declaration, instance, only_failed=True)

    assert (again.chunk.first, again.chunk.windows, again.error) == ("2015-05-01T02:00", 2, None)
    assert fill(declaration, instance, only_failed=True) == []
