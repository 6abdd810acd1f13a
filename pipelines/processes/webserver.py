"""Dagster's webserver with a guard. The guard refuses requests from pages of other sites.

The program is `python -m pipelines.processes.webserver`. The program adds two parts to Dagster's webserver:

- The report of all tables. If a page of a server links to a local file, a browser does not open the file. The asset
  `report/written` therefore links to the report on this webserver.
- A guard against pages of other sites (decision 0040). A browser sends the requests of any page to any address. An
  attacker's host name may also point to the loopback address. The guard checks headers that only the browser sets and
  that a page cannot change. The checked headers are `Host`, `Origin`, `Sec-Fetch-Site` and the content type.
  Programs send neither `Origin` nor `Sec-Fetch-Site`, so the guard does not affect them.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qsl

import uvicorn
from dagster import DagsterInstance
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import WorkspaceFileTarget
from dagster_webserver.app import create_app_from_workspace_process_context
from dagster_webserver.cli import DEFAULT_DB_STATEMENT_TIMEOUT, DEFAULT_POOL_MAX_OVERFLOW, DEFAULT_POOL_RECYCLE
from graphql import GraphQLError, OperationDefinitionNode, OperationType, parse
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipelines.processes.programs import DEFAULT_PORTS, Authority, address_of, declared_hosts, host_names
from pipelines.report import POLICY, REPORT_PATH, report_file
from pipelines.tables import tables_folder

# The guard against pages of other sites.


_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_CONTENT = frozenset({"application/json", "application/graphql"})
"""Content types that a page of another site may send only with a permission. `BrowserGuard` never gives a permission.

An HTML form cannot send a request with one of these content types.
"""


class BrowserGuard:
    """An ASGI application that forwards only requests of the webserver's own pages and requests of programs.

    The application answers a request of a page of another site with status 403.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[Authority]) -> None:
        """Create a guard that checks each request before the application `app` receives it.

        People reach it by the names in `hosts` and by the names of the loopback address.
        """
        self._app = app
        self._hosts = tuple(hosts)
        self._names = _LOOPBACK | {each.host for each in self._hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request or one WebSocket connection."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
        elif (refusal := self._refusal(scope, Headers(scope=scope))) is None:
            await self._app(scope, receive, _deny_framing(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # the socket is not open yet, so the client gets 403
        else:
            await PlainTextResponse(f"{refusal}\n", 403)(scope, receive, send)

    def _refusal(self, scope: Scope, headers: Headers) -> str | None:
        """Return the reason to refuse the request, or None."""
        hosts = headers.getlist("host")
        if len(hosts) != 1 or (host := Authority.parse(hosts[0])) is None:
            return "The header Host is missing or not valid. Send one host, such as the address of the webserver."
        if host.host not in self._names and not _is_address_of(scope, host.host):
            return (
                f"The host {host.host!r} is not declared for this webserver. If people reach the webserver by this "
                f"name, start the webserver with --allow-host {host.host}."
            )
        if not all(self._is_own(each, host) for each in headers.getlist("origin")):
            return (
                "The request comes from a page of another origin. If a proxy serves this page, start the webserver "
                "with --allow-host and the host of the page."
            )
        sites = set(headers.getlist("sec-fetch-site"))
        if not sites <= {"same-origin", "none"} and not _opens_a_page(scope, headers):
            return "A page of another site has sent the request. Use the pages of this webserver."
        return None if scope["type"] == "websocket" else _refused_content(scope, headers)

    def _is_own(self, origin: str, host: Authority) -> bool:
        """Return whether the origin is a page from this host or from a declared host."""
        scheme, _, rest = origin.partition("://")
        if scheme not in DEFAULT_PORTS or (page := Authority.parse(rest)) is None:
            return False
        page = Authority(page.host, page.port or DEFAULT_PORTS[scheme])
        return any(each.has_origin(page) for each in (host, *self._hosts))


def _is_address_of(scope: Scope, host: str) -> bool:
    """Return whether the host is the IP address that received the connection.

    The host name of an attacker is never an IP address.
    """
    address = address_of(host)
    return address is not None and address == address_of((scope.get("server") or ("",))[0])


def _opens_a_page(scope: Scope, headers: Headers) -> bool:
    """Return whether a person followed a link, for example in an alert.

    The page with the link cannot read the content of the page that the link opens.
    """
    navigates = headers.getlist("sec-fetch-mode") == ["navigate"] and headers.getlist("sec-fetch-dest") == ["document"]
    return scope["type"] == "http" and scope["method"] == "GET" and navigates and scope["path"] != "/graphql"


def _refused_content(scope: Scope, headers: Headers) -> str | None:
    """Return the reason to refuse the content of a request, or None. The check applies to requests of all pages."""
    if any(name == "query" and _changes(text) for name, text in parse_qsl(scope["query_string"].decode("latin-1"))):
        return "A mutation in a URL is not allowed. Send the mutation by POST as application/json."
    types = [each.partition(";")[0].strip().lower() for each in headers.getlist("content-type")]
    if scope["method"] not in _READS and (len(types) != 1 or types[0] not in _CONTENT):
        return "The content type of the request is not accepted. Send the request as application/json."
    return None


def _changes(text: str) -> bool:
    """Return whether a GraphQL document contains an operation that is not a query.

    The result is True even if the request does not select the operation for execution.
    """
    try:
        operations = [each for each in parse(text).definitions if isinstance(each, OperationDefinitionNode)]
    except GraphQLError:
        return False  # Dagster does not run an invalid document, and reports the error
    except RecursionError:
        return True
    return any(each.operation is not OperationType.QUERY for each in operations)


def _deny_framing(send: Send) -> Send:
    """Return a `send` that prevents other sites from showing the answers in a frame.

    An attacker could use a frame with the answers to steal clicks.
    """

    async def send_framed(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message)["X-Frame-Options"] = "SAMEORIGIN"
        await send(message)

    return send_framed


# The application.


_LOOK_AGAIN_MS = 2000
_OF_THE_DATABASE = (DEFAULT_DB_STATEMENT_TIMEOUT, DEFAULT_POOL_RECYCLE, DEFAULT_POOL_MAX_OVERFLOW)
_HEADERS = {"Content-Security-Policy": POLICY, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_NO_REPORT = "No report is written yet: materialize the asset report/written, or run `tidemark report`.\n"


def app_of(context: WorkspaceProcessContext, report: Path, hosts: Iterable[str] = ()) -> Starlette:
    """Return Dagster's application behind a `BrowserGuard`, with the report file at `REPORT_PATH`.

    If the report is missing, the answer explains how to write a report. `hosts` contains the names under which people
    reach the webserver. The names of the loopback address are always valid.
    """

    def answer(_: Request) -> Response:
        if report.is_file():
            return FileResponse(report, media_type="text/html", headers=_HEADERS)
        return PlainTextResponse(_NO_REPORT, status_code=404)

    app = create_app_from_workspace_process_context(context, live_data_poll_rate=_LOOK_AGAIN_MS, lifespan=_lifespan)
    app.router.routes.insert(0, Route(REPORT_PATH, answer))  # Dagster's own last route accepts all paths
    app.add_middleware(BrowserGuard, hosts=declared_hosts(hosts))
    return app


@asynccontextmanager
async def _lifespan(_: Starlette) -> AsyncIterator[None]:
    with suppress(asyncio.CancelledError):  # Ctrl-C raises this error
        yield


def main() -> None:
    """Run the webserver until the process is ended. `DAGSTER_HOME` must contain the path of the Dagster instance."""
    summary, *_ = (__doc__ or "").splitlines()
    parser = argparse.ArgumentParser(prog="python -m pipelines.processes.webserver", description=summary)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--workspace", required=True, help="the file with the address of the code server")
    parser.add_argument(
        "--allow-host", action="append", default=[], help="a host name under which browsers reach the webserver"
    )
    given = parser.parse_args()
    with DagsterInstance.get() as instance:
        instance.optimize_for_webserver(*_OF_THE_DATABASE)
        with WorkspaceProcessContext(instance, WorkspaceFileTarget([given.workspace])) as context:
            report = report_file(tables_folder().parent)
            app = app_of(context, report, [*host_names(given.host), *given.allow_host])
            uvicorn.run(app, host=given.host, port=given.port, log_level="warning")


if __name__ == "__main__":
    main()
