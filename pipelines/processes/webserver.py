"""Dagster's webserver, and the report of all tables beside its pages: `python -m pipelines.processes.webserver`.

A browser opens no file that a page of a server links to, so what Dagster shows of `report/written` links here.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import uvicorn
from dagster import DagsterInstance
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import WorkspaceFileTarget
from dagster_webserver.app import create_app_from_workspace_process_context
from dagster_webserver.cli import (
    DEFAULT_DB_STATEMENT_TIMEOUT,
    DEFAULT_POOL_MAX_OVERFLOW,
    DEFAULT_POOL_RECYCLE,
)
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route

from pipelines.processes.browser_guard import BrowserGuard
from pipelines.processes.web_hosts import declared_hosts, host_names
from pipelines.report.page import POLICY
from pipelines.report.written import REPORT_PATH, report_file
from pipelines.tables import tables_folder

_LOOK_AGAIN_MS = 2000
_OF_THE_DATABASE = (DEFAULT_DB_STATEMENT_TIMEOUT, DEFAULT_POOL_RECYCLE, DEFAULT_POOL_MAX_OVERFLOW)
_HEADERS = {"Content-Security-Policy": POLICY, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_NO_REPORT = "No report is written yet: materialize the asset report/written, or run `tidemark report`.\n"


def app_of(context: WorkspaceProcessContext, report: Path, hosts: Iterable[str] = ()) -> Starlette:
    """Return Dagster's application, which answers `REPORT_PATH` with this file, or says how to write it.

    Requests of other sites are refused. `hosts` are those by which people reach it, beside those of the loopback.
    """

    def answer(_: Request) -> Response:
        if report.is_file():
            return FileResponse(report, media_type="text/html", headers=_HEADERS)
        return PlainTextResponse(_NO_REPORT, status_code=404)

    app = create_app_from_workspace_process_context(context, live_data_poll_rate=_LOOK_AGAIN_MS, lifespan=_lifespan)
    app.router.routes.insert(0, Route(REPORT_PATH, answer))  # Dagster's last route takes every path
    app.add_middleware(BrowserGuard, hosts=declared_hosts(hosts))
    return app


@asynccontextmanager
async def _lifespan(_: Starlette) -> AsyncIterator[None]:
    with suppress(asyncio.CancelledError):  # which Ctrl-C makes of it
        yield


def main() -> None:
    """Serve until it is ended. The instance is that of `DAGSTER_HOME`."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.processes.webserver", description=__doc__)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--workspace", required=True, help="the file that says where the code server is")
    parser.add_argument("--allow-host", action="append", default=[], help="a host by which people reach it")
    given = parser.parse_args()
    with DagsterInstance.get() as instance:
        instance.optimize_for_webserver(*_OF_THE_DATABASE)
        with WorkspaceProcessContext(instance, WorkspaceFileTarget([given.workspace])) as context:
            report = report_file(tables_folder().parent)
            app = app_of(context, report, [*host_names(given.host), *given.allow_host])
            uvicorn.run(app, host=given.host, port=given.port, log_level="warning")


if __name__ == "__main__":
    main()
