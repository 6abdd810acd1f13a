"""The time to list 100,000 events in Dagster's UI, in SQLite and PostgreSQL, before and after a purge.

The benchmark sends the GraphQL queries of the UI's pages. The benchmark reads the queries from the JavaScript that the
browser loads. The benchmark measures the wall-clock time of the webserver's GraphQL schema, from the query until the
answer. Processor time would omit the database, because the database is another process.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.metrics import Metric, command, median, seconds

if TYPE_CHECKING:
    from dagster import DagsterInstance, EventLogEntry

    from benchmarks.programs.ui_queries import Queries

EVENTS, SMALL, A_RUN = 100_000, 400, 200
MADE_BY_A_RUN, SHOWN = 10, 0.1
"""The number of partitions per run, and the share of the runs with the newest materializations.

No later run materializes the partitions of these runs again.
"""
TRIES = 3
AIM_SECONDS = 1.0
"""The longest acceptable wait for a person who opens a page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page of the UI: the page's first query, the query's variables, and the path to the rows in the answer."""

    name: str
    query: str
    variables: Mapping[str, object]
    lines: tuple[str, ...]


def measure(*, small: bool) -> Iterator[Metric]:
    """Yield the metrics of each database."""
    from benchmarks.programs.ui_queries import Queries
    from tests.support import postgres

    queries, events = Queries.of_the_webserver(), SMALL if small else EVENTS
    with tempfile.TemporaryDirectory(prefix="tidemark-benchmark-") as folder, postgres.running(hurried=False) as server:
        for database, url in (("SQLite", None), ("PostgreSQL", server.place())):
            with _instance(Path(folder) / database, url) as instance:
                run_id = _fill(instance, events // A_RUN)
                yield from _listed(instance, queries, _pages(run_id), f"{events:,} events in {database}")
                yield from _purged(instance, f"{events:,} events in {database}")
                yield from _listed(instance, queries, _pages(run_id), f"after the purge in {database}")


@contextmanager
def _instance(folder: Path, url: str | None) -> Iterator[DagsterInstance]:
    """Open an instance with the settings of the package, on the database at the URL, or on SQLite without a URL."""
    from pipelines.instance import home, open_instance
    from pipelines.tables import DAGSTER_HOME, POSTGRES

    environment = {POSTGRES: url} if url else {}
    kept = {name: os.environ.pop(name, None) for name in (POSTGRES, DAGSTER_HOME)}
    os.environ.update(environment)
    try:
        with open_instance(home(folder, environment)) as opened:
            yield opened
    finally:
        os.environ.pop(POSTGRES, None)
        os.environ.update({name: value for name, value in kept.items() if value is not None})


def _fill(instance: DagsterInstance, runs: int) -> str:
    """Run an asset once. Store the run and its events many times, as different runs. Return the id of the last run."""
    from dagster import AssetExecutionContext, AssetMaterialization, DagsterRun, asset, materialize
    from dagster._core.storage.dagster_run import DagsterRunStatus
    from dagster._core.utils import make_new_run_id

    def written(context: AssetExecutionContext) -> None:
        for number in range(MADE_BY_A_RUN):
            metrics: dict[str, Any] = {f"metric_{each}": each for each in range(20)}
            context.log_event(AssetMaterialization("written", partition=str(number), metadata=metrics))
        said = len(instance.all_logs(context.run.run_id)) + 5  # the other events follow
        for number in range(A_RUN - said):
            context.log.info("line %d of what a job says while it works", number)

    written.__annotations__ = {"context": AssetExecutionContext, "return": None}  # Dagster requires a type, not text
    quiet = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}
    first = materialize([asset(written)], instance=instance, run_config=quiet).run_id
    events = instance.all_logs(first)
    if len(events) != A_RUN:
        raise AssertionError(f"{len(events)} events")
    partitions = MADE_BY_A_RUN * max(1, round(SHOWN * runs))
    run = DagsterRun("written", status=DagsterRunStatus.SUCCESS)
    run_id = first
    for number in range(1, runs):
        run_id = make_new_run_id()
        instance.run_storage.add_run(run._replace(run_id=run_id))
        _store(instance, [_of(each, run_id, number * MADE_BY_A_RUN % partitions) for each in events])
    return run_id


def _of(event: EventLogEntry, run_id: str, first: int) -> EventLogEntry:
    """Return the event as if another run had logged it. The partition number of the event increases by `first`."""
    from dagster import DagsterEventType

    found, now = event.dagster_event, time.time()
    if found is None or found.event_type is not DagsterEventType.ASSET_MATERIALIZATION or found.partition is None:
        return event._replace(run_id=run_id, timestamp=now)
    made = found.step_materialization_data.materialization._replace(partition=str(first + int(found.partition)))
    data = found.step_materialization_data._replace(materialization=made)
    return event._replace(run_id=run_id, timestamp=now, dagster_event=found._replace(event_specific_data=data))


def _store(instance: DagsterInstance, events: list[EventLogEntry]) -> None:
    """Store the events of one run.

    Asset events are stored one by one with Dagster's own method. All other events are stored with one SQL statement.
    """
    from dagster._core.events import ASSET_EVENTS
    from dagster._core.storage.event_log.schema import SqlEventLogStorageTable

    storage: Any = instance.event_log_storage
    others = []
    for each in events:
        if each.is_dagster_event and each.dagster_event_type in ASSET_EVENTS:
            storage.store_event(each)
        else:
            others.append(storage.prepare_insert_event(each).compile().params)
    with storage.run_connection(events[0].run_id) as connection:
        connection.execute(SqlEventLogStorageTable.insert(), others)


def _pages(run_id: str) -> list[Page]:
    kinds = ["MATERIALIZATION", "OBSERVATION", "FAILED_TO_MATERIALIZE"]
    history = {"assetKey": {"path": ["written"]}, "eventTypeSelectors": kinds, "limit": 100}
    return [
        Page(
            name="page of runs",
            query="RunsFeedRootQuery",
            variables={"limit": 31, "view": "RUNS"},
            lines=("runsFeedOrError", "results"),
        ),
        Page(
            name="page of an asset",
            query="RecentAssetEventsQuery",
            variables=history,
            lines=("assetOrError", "assetEventHistory", "results"),
        ),
        Page(
            name="event log of a run",
            query="RunLogsQuery",
            variables={"runId": run_id, "limit": 1000},
            lines=("logsForRun", "events"),
        ),
    ]


def _listed(instance: DagsterInstance, queries: Queries, pages: list[Page], name: str) -> Iterator[Metric]:
    """Yield the median load time and the number of lines for each page."""
    from dagster._core.workspace.context import WorkspaceProcessContext
    from dagster._core.workspace.load_target import EmptyWorkspaceTarget
    from dagster_graphql.schema import create_schema

    schema = create_schema()
    with WorkspaceProcessContext(instance, EmptyWorkspaceTarget()) as workspace:

        def answer(page: Page) -> Any:
            context, text = workspace.create_request_context(), queries.text(page.query)
            asked = schema.execute_async(text, context_value=context, variable_values=dict(page.variables))
            found = asyncio.run(asked)
            if found.errors:
                raise AssertionError(found.errors)
            lines = found.data
            for each in page.lines:
                lines = lines[each]
            return lines

        for page in pages:
            lines = len(answer(page))
            took = median([seconds(partial(answer, page)) for _ in range(TRIES)])
            ratio = AIM_SECONDS / took
            yield Metric(name=f"{name}, {page.name}", value=took, unit="s", against="1 s", ratio=ratio, aim=1.0)
            yield Metric(name=f"{name}, {page.name}, lines", value=lines, unit="lines")


def _purged(instance: DagsterInstance, name: str) -> Iterator[Metric]:
    """Yield the duration of a purge for runs of any age, and the number of runs that remain."""
    from pipelines.runs import purge
    from storage_core.base.clock import SystemClock

    yield Metric(name=f"{name}, runs", value=instance.get_runs_count(), unit="runs")
    took = seconds(lambda: purge(instance, older_than_ms=0, clock=SystemClock()))
    yield Metric(name=f"{name}, purge", value=took, unit="s")
    yield Metric(name=f"{name}, runs that assets show", value=instance.get_runs_count(), unit="runs")


if __name__ == "__main__":
    sys.exit(command(measure, __doc__.partition("\n")[0]))
