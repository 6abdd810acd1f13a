"""The whole product survives many failures without help: no row is lost, and in the end all checks pass.

Programs land files, write a keyed table and append to a raw log. `tidemark ui`, with all schedules and sensors on,
maintains four tables. The processes of `tidemark ui` and the processes of its runs are killed in turn. A trial runs for
75 seconds with kills, and then until the system is quiet. A trial uses shorter intervals than the product.

In a long run (`TIDEMARK_SCALE` above 1, called a soak), the trial lasts an hour and uses Tidemark's default intervals.
A soak also checks the time until rows are visible.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from statistics import median

import pytest
from dagster import DagsterInstance, DagsterRunStatus

from storage_core.table import Table
from tests.chaos.live.producers import LATE_ROWS, PROGRAMS, Journal
from tests.chaos.live.product import KINDS, REPOSITORY, Product
from tests.chaos.live.tables import LANDED, TABLES, declare
from tests.chaos.live.watch import UPKEEP, Watch
from tests.support.scale import scaled

IS_SOAK = scaled(1) > 1
SECONDS = 3600 if IS_SOAK else 75
KILLS = 36 if IS_SOAK else len(KINDS)
"""The number of kills. A short trial kills one process of each kind. A soak (long run) kills one per hundred seconds.
"""
OFTEN = "*/10 * * * *" if IS_SOAK else "30 3 * * *"
"""The cron line of collections, checkpoints and raw-log maintenance.

In a short trial, each schedule starts at most one run.
"""
SAMPLE_SECONDS = 2.0
MOST_TICKS = 60
"""The maximum number of ticks of the maintenance sensor after the last row, until all work has ended."""
SOON_RUNS, SOON_SECONDS = 12, 120
"""Limits for the median of the time until the rows of a landed file are visible.

One limit is a number of runs, and the other limit is a number of seconds. Only a soak (a run with
`TIDEMARK_SCALE` above 1) checks the limit in seconds.
"""
BY_TIME = {"checkpoint", "expire", "publish"}
"""Steps that stay pending until their cron schedule starts them."""

pytestmark = [pytest.mark.dagster, pytest.mark.timeout(0 if IS_SOAK else 2700)]


@contextmanager
def producers(folder: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Run the programs that produce rows. At the end of the block, each program must have ended successfully."""
    command = [sys.executable, "-m", "tests.chaos.live.producers"]
    running = {name: subprocess.Popen([*command, name, str(folder)], cwd=REPOSITORY) for name in PROGRAMS}
    try:
        yield running
        (folder / "stop").touch()
        assert {name: each.wait() for name, each in running.items()} == dict.fromkeys(running, 0)
    finally:
        for each in running.values():
            each.kill()


def live(product: Product, watch: Watch, random: Random) -> None:
    """Kill one process after another, and wait between the kills. Successive kills end processes of different kinds."""
    began = time.monotonic()
    kinds = [*KINDS] * -(-KILLS // len(KINDS))
    done = 0
    while done < KILLS or time.monotonic() < began + SECONDS:
        time.sleep(SAMPLE_SECONDS)
        watch.sample()
        product.look()
        if done < KILLS and time.monotonic() > began + (done + 1) * SECONDS / (KILLS + 1):
            done += product.kill(kinds[done], random)


def settle(product: Product, watch: Watch) -> None:
    """Wait until no work is left. Fail if the wait takes more than `MOST_TICKS` sensor ticks."""
    since = time.time()
    files = len(LANDED) * len(Journal(product.folder, "land").calls())
    while not (len(watch.visible) == files and watch.is_quiet(since) and owes_nothing(product)):
        ticks = watch.ticks(UPKEEP, since)
        assert len(ticks) <= MOST_TICKS, f"after {len(ticks)} ticks there is still something to do: {ticks[:3]}"
        time.sleep(SAMPLE_SECONDS)
        watch.sample()
        product.look()


def owes_nothing(product: Product) -> bool:
    """Return True if all pending steps of all tables wait for their cron schedule."""
    _, text = product.tidemark("status", "--json")
    return all(json.loads(line)["pending"].keys() <= BY_TIME for line in text.splitlines())


def rows_of(folder: Path, table: str) -> list[tuple[object, ...]]:
    columns = {"clicks": ["id", "batch"], "visits": ["id", "batch"]}.get(table, ["id", "n"])
    found = Table.open(str(folder / "warehouse" / table)).scan(columns).to_arrow().to_pylist()
    return sorted(tuple(row.values()) for row in found)


def in_quarantine(product: Product, table: str) -> list[tuple[object, ...]]:
    code, text = product.tidemark("quarantine", table, "--show", "--json")
    assert code == 0, text
    return sorted((row["id"], row["batch"]) for line in text.splitlines() for row in [json.loads(line)["row"]])


def written(folder: Path, program: str) -> list[list[tuple[object, ...]]]:
    """Return the rows that a program wrote, per call. Fail if a call was not acknowledged."""
    calls = Journal(folder, program).calls()
    assert all(call.is_acknowledged for call in calls)
    return [[tuple(value for name, value in row.items() if name != "time") for row in call.rows] for call in calls]


def assert_rows_are_those_acknowledged(product: Product) -> None:
    folder = product.folder
    landed = written(folder, "land")
    assert rows_of(folder, "clicks") == sorted(row for rows in landed for row in rows)
    assert rows_of(folder, "visits") == sorted(row for rows in landed for row in rows[LATE_ROWS:])
    assert in_quarantine(product, "visits") == sorted(row for rows in landed for row in rows[:LATE_ROWS])
    assert rows_of(folder, "readings") == sorted(row for rows in written(folder, "log") for row in rows)
    newest = {row[0]: row[1] for rows in written(folder, "write") for row in rows}
    assert rows_of(folder, "accounts") == sorted(newest.items())


def assert_all_is_green(product: Product, watch: Watch) -> None:
    last = {key.to_user_string(): run for key, run in watch.last_of_each().items()}
    assert {name: run.run_id for name, run in last.items() if run.status is not DagsterRunStatus.SUCCESS} == {}
    assert {"clicks/ingested", "visits/ingested", "visits/index_words", "accounts/merged", "sensors/distributed"} <= {
        *last
    }
    code, text = product.tidemark("status", "--json")
    assert code == 0, text
    for each in map(json.loads, text.splitlines()):
        assert each["pending"].keys() <= BY_TIME, each
        assert each["last_failure"] is None or each["last_failure"]["is_over"], each
    for table in TABLES:
        code, text = product.tidemark("fsck", table, "--deep")
        assert code == 0, text


def rounds(watch: Watch, landed: Mapping[int, float]) -> list[int]:
    """Return the number of runs that began after a file landed and before its rows were visible.

    There is one number per landed file and table.
    """
    began = [each.start_time for each in watch.instance.get_run_records() if each.start_time]
    return [
        sum(landed[batch] < at < seen for at in began) for (_, batch), seen in watch.visible.items() if batch in landed
    ]


def assert_what_was_seen_is_good(watch: Watch, kills: Collection[object]) -> None:
    assert watch.twice == set(), "a step that waits was requested again"
    landed = {call.number: call.at for call in Journal(watch.folder, "land").calls()}
    assert len(watch.visible) == len(LANDED) * len(landed)
    found = rounds(watch, landed)
    print(f"runs that began until rows of a landed file were visible: {sorted(found)}")  # noqa: T201 -- of a soak
    assert median(found) <= SOON_RUNS
    if IS_SOAK:
        assert median(seen - landed[batch] for (_, batch), seen in watch.visible.items()) < SOON_SECONDS
    idle = [run for run in watch.idle_runs() if run.tags.get("dagster/sensor_name") == UPKEEP]
    assert len(idle) <= len(kills) + 2, [(run.job_name, run.tags) for run in idle]


def test_a_day_of_kills_loses_and_doubles_no_row_and_ends_well_by_itself(tmp_path: Path, free_port: int) -> None:
    declare(tmp_path, OFTEN, is_short=not IS_SOAK)
    product = Product(tmp_path, free_port)
    began = time.monotonic()
    try:
        with product, DagsterInstance.from_config(str(product.home)) as instance:
            code, text = product.tidemark("init")
            assert code == 0, text
            product.switch_on()
            watch = Watch(tmp_path, instance)
            try:
                with producers(tmp_path):
                    live(product, watch, Random(SECONDS))
                settle(product, watch)
            finally:
                for line in watch.report(Journal(tmp_path, "land").calls()):
                    print(line)  # noqa: T201 -- of a soak
                print(f"kills: {product.kills}")  # noqa: T201 -- of a soak
            assert_rows_are_those_acknowledged(product)
            assert_all_is_green(product, watch)
            assert_what_was_seen_is_good(watch, product.kills)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        worked = used.ru_utime + used.ru_stime
        print(f"{time.monotonic() - began:.0f} s, about {worked:.0f} s of a processor")  # noqa: T201 -- of a soak
        assert product.left() == []
    except BaseException as error:
        error.add_note(f"the trial is in {tmp_path}")
        raise
