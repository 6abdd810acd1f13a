"""Test of the whole product on PostgreSQL.

The test kills the daemon, the webserver and the database in turn while runs are in progress.

Only `make test-postgres` and `make soak` run this file, because it takes minutes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
from dagster import DagsterInstance, DagsterRunStatus, RunsFilter

from pipelines.instance import home, open_instance
from storage_core.table import Table, exists
from tests.chaos.live.product import DAEMON, WEBSERVER
from tests.support.postgres import Postgres
from tests.support.scale import scaled

pytestmark = [pytest.mark.dagster, pytest.mark.spark, pytest.mark.timeout(7200)]

Land = Callable[..., Path]

VICTIMS = (DAEMON, WEBSERVER, "database")
LINES = 200
SWITCH_ON = """
mutation {
  startSensor(sensorSelector: {repositoryName: "__repository__", repositoryLocationName: "tidemark",
    sensorName: "upkeep_sensor"}) { __typename }
}
"""
UNFINISHED = RunsFilter(
    statuses=[each for each in DagsterRunStatus if each.name not in ("SUCCESS", "FAILURE", "CANCELED")]
)


@contextmanager
def ui(port: int) -> Iterator[psutil.Process]:
    """Run `tidemark ui` in a separate process, which keeps the three processes of Dagster running."""
    command = [str(Path(sys.executable).parent / "tidemark"), "ui", "--port", str(port)]
    with subprocess.Popen(command) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            process.terminate()


def asked(port: int, query: str) -> Any:
    """Return the reply of the webserver, or None while it does not reply."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    with closing(connection), suppress(OSError, HTTPException):
        connection.request("POST", "/graphql", json.dumps({"query": query}), {"Content-Type": "application/json"})
        return json.load(connection.getresponse())["data"]
    return None


def wait_until(done: Callable[[], bool]) -> None:
    while not done():
        time.sleep(0.2)


def kill(victim: str, keeper: psutil.Process, postgres: Postgres) -> None:
    """Kill the daemon, the webserver or the database.

    The test restarts the database. `tidemark ui` restarts the daemon and the webserver.
    """
    if victim == "database":
        postgres.kill()
        postgres.start()
    else:
        (process,) = [each for each in keeper.children() if victim in each.cmdline()]
        process.kill()


def is_settled(instance: DagsterInstance, rows: int) -> bool:
    """Return True if all landed rows are in the table and no run is queued or in progress."""
    place = "warehouse/access_log"
    return exists(place) and Table.open(place).snapshot.rows >= rows and not instance.get_runs_count(UNFINISHED)


@pytest.mark.parametrize("history", ["postgresql"], indirect=True)
def test_whichever_is_killed_every_row_is_there_once_and_nobody_has_to_look(
    checkout: Path, land: Land, history: object, postgres: Postgres, free_port: int
) -> None:
    del history  # the environment contains the location of the history
    for file in (checkout / "tables").glob("*.yaml"):
        if file.name != "access_log.yaml":
            file.unlink()
    victims = VICTIMS * max(1, scaled(1) // 4)
    with ui(free_port) as keeper, open_instance(home(checkout)) as instance:
        wait_until(lambda: "Sensor" in str(asked(free_port, SWITCH_ON)))
        for number, victim in enumerate(victims):
            land(f"{number}.log", number * LINES % 8000, number * LINES % 8000 + LINES)
            wait_until(lambda: instance.get_runs_count(RunsFilter(statuses=[DagsterRunStatus.STARTED])) > 0)
            kill(victim, keeper, postgres)
            wait_until(partial(is_settled, instance, (number + 1) * LINES))
        assert Table.open("warehouse/access_log").snapshot.rows == len(victims) * LINES
        wait_until(lambda: asked(free_port, "{ version }") is not None)
