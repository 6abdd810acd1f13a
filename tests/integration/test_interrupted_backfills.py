"""Ctrl-C or SIGTERM stops a backfill or job completely and at once. The command reports how to continue."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pytest
from dagster import DagsterExecutionInterruptedError, raise_execution_interrupts
from dagster._utils.interrupts import capture_interrupts

from assets.steps import asset_key
from pipelines.backfill import Chunk, ChunkDone
from pipelines.commands.services import noticed, require_complete
from pipelines.instance import home, open_instance
from pipelines.runs import unfinished
from storage_core.base.errors import Interrupted
from storage_core.change.declaration import load
from storage_core.data.formats.documents import RELEASED_MS
from storage_core.log.lease import stored_leases
from tests.integration.ticks import DECLARATION
from tidemark import Table

pytestmark = pytest.mark.dagster

RANGE = ("--table", "ticks", "--from", "2015-05-01T02:00", "--to", "2015-05-01T08:00", "--chunk", "2h", "--json")
HOURS = [f"2015-05-01T{hour:02}:00" for hour in range(8)]

# A stand-in for Java that records its start and then never answers. The job takes its lease before this start.
SILENT_JAVA = """#!/bin/sh
touch '{begun}'
exec sleep 300 > /dev/null 2>&1
"""


BACKFILL = ("pipelines.cli", "backfill", *RANGE)
JOB = ("jobs", "compact", "--table-uri", "warehouse/ticks", "--json")


def _start(checkout: Path, command: tuple[str, ...]) -> tuple[subprocess.Popen[str], Path]:
    """Start a command. The first window that the command processes has pending work.

    Return the process, and the file that shows the start of the job.
    """
    (checkout / "tables" / "ticks.yaml").write_text(DECLARATION, encoding="utf-8")
    table = Table.declare(load(checkout / "tables" / "ticks.yaml"))
    for value in range(2):
        instants = pa.array([dt.datetime(2015, 5, 1, 2, value, tzinfo=dt.UTC)], pa.timestamp("us", "UTC"))
        table.append(pa.table({"timestamp": instants, "value": pa.array([value], pa.int32())}))
    mark, java = checkout / "begun", checkout / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(SILENT_JAVA.format(begun=mark), encoding="utf-8")
    java.chmod(0o755)
    environment = {**os.environ, "JAVA_HOME": str(checkout / "java"), "TIDEMARK_SPARK": "always"}
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    return process, mark


@contextmanager
def begun(checkout: Path, command: tuple[str, ...]) -> Iterator[subprocess.Popen[str]]:
    """Start a command, and wait until its job has taken the lease. At the end, kill all processes of the command."""
    process, mark = _start(checkout, command)
    try:
        while process.poll() is None and not mark.exists():
            time.sleep(0.05)
        yield process
    finally:
        with suppress(ProcessLookupError):  # kill the process and its children, because nothing else ends `sleep`
            os.killpg(process.pid, signal.SIGKILL)


def is_released() -> bool:
    (lease,) = stored_leases(Table.open("warehouse/ticks").store)
    assert lease.record is not None
    return lease.record.expires_at_ms == RELEASED_MS


@pytest.mark.timeout(900)  # the processes load Dagster or Spark, on a machine that may be busy
def test_ctrl_c_ends_the_whole_backfill_and_its_last_line_says_what_is_left(checkout: Path) -> None:
    with begun(checkout, BACKFILL) as process:
        os.killpg(process.pid, signal.SIGINT)  # on Ctrl-C, a terminal signals the whole process group
        out, err = process.communicate()

    assert process.returncode == 130, err
    cut_short, last = (json.loads(line) for line in out.splitlines())
    assert (cut_short["first"], cut_short["error"]) == ("2015-05-01T02:00", "interrupted")
    assert (last["status"], last["error"]) == ("failed", "interrupted")
    assert err.splitlines()[-1] == f"tidemark: interrupted: {last['message']}"
    assert last["message"] == (
        "stopped by a signal: 0 of 3 chunks done, 1 interrupted or failed, 2 not started. Continue with the same "
        "command and --failed for interrupted or failed chunks, and with --from 2015-05-01T04:00 "
        "for the chunks that have not started."
    )
    with open_instance(home(checkout, {})) as instance:
        assert unfinished(instance, [asset_key("ticks", "compacted")], HOURS) == set(HOURS[2:4])
    assert is_released()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_job_lets_go_of_its_lease_however_many_signals_follow_the_first(
    first: signal.Signals, checkout: Path
) -> None:
    with begun(checkout, JOB) as process:
        process.send_signal(first)
        while process.poll() is None:
            time.sleep(0.001)  # a release of the lease takes longer than this sleep
            process.send_signal(signal.SIGINT)
    out, err = process.communicate()

    assert json.loads(out)["error"] == "interrupted", err
    assert is_released()


@pytest.mark.timeout(900)
def test_the_job_of_a_killed_run_ends_and_releases_its_lease(checkout: Path) -> None:
    with begun(checkout, BACKFILL) as process:
        process.kill()  # only the run's process, not its separate job process
        process.communicate()
        while not is_released():
            time.sleep(0.05)


def ended(*errors: str | None, of: int) -> list[ChunkDone]:
    """Return one `ChunkDone` object for each error in `errors`."""
    chunk = Chunk(HOURS[2], HOURS[3], 2)
    return [
        ChunkDone(
            chunk=chunk,
            number=number,
            of=of,
            run_id="",
            rows={},
            failed=(),
            error=error,
            following=HOURS[4] if number < of else None,
        )
        for number, error in enumerate(errors, 1)
    ]


@pytest.mark.parametrize("only_failed", [False, True])
def test_a_signal_after_the_last_chunk_interrupts_nothing(only_failed: bool) -> None:
    require_complete(ended(None, None, of=2), only_failed=only_failed)
    require_complete(ended(None, "bad rows", of=2), only_failed=only_failed)


def test_an_interrupted_backfill_advises_failed_only_for_what_was_begun() -> None:
    with pytest.raises(
        Interrupted,
        match=r"1 interrupted or failed, 0 not started\. .* and --failed for interrupted or failed chunks\.$",
    ):
        require_complete(ended(None, "interrupted", of=2), only_failed=False)
    with pytest.raises(
        Interrupted, match=r"1 of 2 chunks done, 0 interrupted or failed, 1 not started\. .* and --from \S+ "
    ):
        require_complete(ended(None, of=2), only_failed=False)
    with pytest.raises(
        Interrupted, match=r"0 interrupted or failed, 1 not started\. Continue with the same command\.$"
    ):
        require_complete(ended(None, of=2), only_failed=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_step_and_is_noticed_also_where_dagster_forgets_it(number: signal.Signals) -> None:
    with noticed() as stopped:
        with capture_interrupts(), pytest.raises(DagsterExecutionInterruptedError), raise_execution_interrupts():
            signal.raise_signal(number)
        assert stopped()
    with noticed() as stopped:
        with capture_interrupts():
            assert not stopped()
            signal.raise_signal(number)
        assert stopped()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    before = signal.getsignal(number)
    with noticed() as stopped:
        assert not stopped()
    assert signal.getsignal(number) == before
