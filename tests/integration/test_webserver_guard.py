"""The webserver's guard against pages of other sites, tested with Dagster's application and a browser's requests.

A GraphQL mutation that passes the guard sets a limit in the Dagster instance. Each test checks the instance for
executed mutations.
"""

from __future__ import annotations

import http.client
import itertools
import json
import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import uvicorn
from dagster import DagsterInstance
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import EmptyWorkspaceTarget
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin, Subprotocol

from assets.launcher import PipesLauncher
from pipelines.catalog import build_definitions
from pipelines.processes.programs import declared_hosts
from pipelines.processes.webserver import app_of
from pipelines.tables import read_tables
from storage_core.base.errors import InvalidInput

MUTATION = 'mutation M { setConcurrencyLimit(concurrencyKey: "forged", limit: 1) }'
QUERY = "query Q { version }"
EVIL = "http://evil.example"
JSON = {"Content-Type": "application/json"}
PUBLIC = "tide.example"

Answer = tuple[int, str]


class Served:
    """A running webserver on the loopback interface, and the Dagster instance that it shows."""

    def __init__(self, instance: DagsterInstance, port: int) -> None:
        self.instance, self.port = instance, port
        self.own = f"127.0.0.1:{port}"

    def ask(self, method: str, path: str, headers: Mapping[str, str], body: str | None = None) -> Answer:
        """Send a request and return status and text. The default of the header `Host` is the host of the server."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        try:
            connection.request(method, path, body, dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        finally:
            connection.close()

    def post(self, headers: Mapping[str, str], query: str = MUTATION) -> Answer:
        """Send a POST request as the UI does, with additional headers."""
        return self.ask("POST", "/graphql", {**JSON, **headers}, json.dumps({"query": query}))

    def get(self, headers: Mapping[str, str], query: str, **more: str) -> Answer:
        """Send a GET request as a link or an image does."""
        return self.ask("GET", "/graphql?" + urllib.parse.urlencode({"query": query, **more}), headers)

    def carried_out(self) -> bool:
        """Return True if a mutation was executed since the last call."""
        storage = self.instance.event_log_storage
        if found := "forged" in storage.get_concurrency_keys():
            storage.delete_concurrency_limit("forged")
        return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serve Dagster's application with the guard.

    The application has no code location, and one public host is declared.
    """
    folder = tmp_path_factory.mktemp("webserver")
    with (
        DagsterInstance.local_temp(str(folder)) as instance,
        WorkspaceProcessContext(instance, EmptyWorkspaceTarget()) as context,
    ):
        app = app_of(context, folder / "report.html", [PUBLIC, "proxied.example:8443"])
        server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield Served(instance, server.servers[0].sockets[0].getsockname()[1])
        finally:
            server.should_exit = True
            thread.join()


def test_the_ui_and_programs_are_answered_as_before(served: Served) -> None:
    own = {"Host": served.own, "Origin": f"http://{served.own}", "Sec-Fetch-Site": "same-origin"}
    named = {"Host": f"localhost:{served.port}", "Origin": f"http://localhost:{served.port}"}
    for headers in ({}, own, named, {**JSON, "Content-Type": "application/json; charset=utf-8"}):
        assert served.post(headers)[0] == 200
        assert served.carried_out()
    assert served.ask("POST", "/graphql", {"Content-Type": "application/graphql"}, MUTATION)[0] == 200
    assert served.carried_out()
    assert served.get({}, QUERY)[0] == 200
    assert served.ask("GET", "/", {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"})[0] == 200
    assert served.ask("GET", "/favicon.png", own)[0] == 200
    assert "tidemark report" in served.ask("GET", "/tidemark/report", own)[1]


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        (PUBLIC, f"https://{PUBLIC}"),  # the proxy passes the public host name
        (f"{PUBLIC}:3000", f"http://{PUBLIC}:3000"),  # a browser without a proxy
        (None, f"https://{PUBLIC}"),  # the proxy sends the address of the webserver as Host
        (None, "https://proxied.example:8443"),
        ("localhost:8080", "http://localhost:8080"),  # through a forwarded port
        ("[::1]:3000", "http://[::1]:3000"),
        ("LOCALHOST", "http://localhost"),
    ],
)
def test_a_declared_host_and_a_forwarded_port_are_the_webservers_own(
    served: Served, host: str | None, origin: str
) -> None:
    headers = {"Host": host or served.own, "Origin": origin, "Sec-Fetch-Site": "same-origin"}
    assert served.post(headers)[0] == 200
    assert served.carried_out()


FOREIGN = {
    "origin": {"Origin": EVIL},
    "origin of a sandbox": {"Origin": "null"},
    "empty origin": {"Origin": ""},
    "origin on another port": {"Origin": "http://127.0.0.1:1"},
    "origin of another name of this machine": {"Origin": "http://localhost"},
    "origin with the name in it": {"Origin": f"http://{PUBLIC}.evil.example"},
    "origin on another port of the public name": {"Origin": f"https://{PUBLIC}:444"},
    "origin with a user": {"Origin": f"http://{PUBLIC}@evil.example"},
    "origin that is no web page": {"Origin": f"file://{PUBLIC}"},
    "cross-site": {"Sec-Fetch-Site": "cross-site"},
    "same-site": {"Sec-Fetch-Site": "same-site", "Origin": "http://localhost:8000"},
    "unknown site": {"Sec-Fetch-Site": "future-site"},
    "rebound name": {"Host": "evil.example"},
    "rebound name with its origin": {"Host": "evil.example", "Origin": EVIL, "Sec-Fetch-Site": "same-origin"},
    "address of no interface": {"Host": "0.0.0.0:3000", "Origin": "http://0.0.0.0:3000"},
    "another address": {"Host": "192.0.2.1"},
    "two names": {"Host": f"{PUBLIC},evil.example"},
    "no name": {"Host": ""},
    "trailing dot": {"Host": f"{PUBLIC}."},
    "user before the name": {"Host": f"evil.example@{PUBLIC}"},
}


@pytest.mark.parametrize("headers", FOREIGN.values(), ids=FOREIGN)
def test_no_request_of_a_foreign_page_or_name_is_answered(served: Served, headers: dict[str, str]) -> None:
    requests = [
        served.post(headers),
        served.post(headers, QUERY),
        served.get(headers, QUERY),
        served.ask("POST", "/report_asset_materialization/a", {**JSON, **headers}, "{}"),
        *(served.ask(method, "/server_info", headers) for method in ("GET", "OPTIONS", "DELETE")),
        *(served.ask("GET", path, headers) for path in ("/", "/tidemark/report", "/logs/a/b.out")),
    ]
    assert {status for status, _ in requests} == {403}
    assert served.ask("HEAD", "/", headers)[0] == 403
    assert not served.carried_out()


def test_a_refusal_says_what_is_wrong_and_what_to_do(served: Served) -> None:
    assert served.ask("GET", "/", {"Host": "evil.example"})[1] == (
        "The host 'evil.example' is not declared for this webserver. "
        "If people reach the webserver by this name, start the webserver with --allow-host evil.example.\n"
    )
    assert "--allow-host" in served.post({"Origin": "https://other.example"})[1]


def test_a_link_on_another_page_opens_a_page_and_nothing_else(served: Served) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert served.ask("GET", "/runs", link)[0] == 200
    refused = [
        served.ask("GET", "/runs", {**link, "Sec-Fetch-Dest": "iframe"}),
        served.ask("GET", "/runs", {**link, "Sec-Fetch-Mode": "no-cors"}),
        served.ask("GET", "/runs", {**link, "Origin": EVIL}),
        served.ask("POST", "/runs", {**link, **JSON}, "{}"),
        served.get(link, QUERY),
        served.get(link, MUTATION),
    ]
    assert {status for status, _ in refused} == {403}


def test_no_page_of_another_site_shows_the_ui_in_a_frame(served: Served) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.port)
    for path in ("/", "/graphql", "/tidemark/report"):
        connection.request("GET", path, headers={"Accept": "text/html"})
        answer = connection.getresponse()
        answer.read()
        assert answer.headers.get_all("X-Frame-Options") == ["SAMEORIGIN"]
    connection.close()


TEXTS = {
    "plain": MUTATION,
    "without a name": MUTATION.replace(" M ", " "),
    "aliased": MUTATION.replace("setConcurrencyLimit", "query: setConcurrencyLimit"),
    "by a fragment": "mutation { ...F } fragment F on Mutation { "
    'setConcurrencyLimit(concurrencyKey: "forged", limit: 1) }',
    "beside a query": f"{QUERY} {MUTATION}",
    "after a remark": f"# query\n,,\ufeff{MUTATION}",
    "subscription": "subscription { locationStateChangeEvents { __typename } }",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_no_mutation_is_carried_out_by_its_address(served: Served, text: str) -> None:
    by_name = {"operationName": "M"} if " M " in text else {}
    address = "/graphql?" + urllib.parse.urlencode({"query": text, **by_name})
    with_a_query = "/graphql?" + urllib.parse.urlencode([("query", QUERY), ("query", text)])
    assert served.get({}, text, variables="{}", **by_name)[0] == 403
    assert served.get({"Accept": "text/html"}, text, **by_name)[0] == 403
    for method, path in itertools.product(("GET", "HEAD", "POST", "PUT"), (address, with_a_query)):
        assert served.ask(method, path, JSON if method == "POST" else {}, "{}")[0] == 403
    assert not served.carried_out()


@pytest.mark.parametrize(
    "content_type",
    [
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=application/json",
        "text/plain",
        "text/plain; a=application/json",  # Dagster searches the whole header, and a browser checks only `text/plain`
        "text/plain; application/graphql",
        "",
        None,
    ],
)
def test_no_form_is_taken(served: Served, content_type: str | None) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}
    bodies = [json.dumps({"query": MUTATION}), MUTATION, urllib.parse.urlencode({"query": MUTATION}), None]
    address = urllib.parse.urlencode({"query": MUTATION})
    for body, path in itertools.product(bodies, ("/graphql", f"/graphql?{address}", "/report_asset_check/a")):
        assert served.ask("POST", path, headers, body)[0] in (403, 415)
    assert not served.carried_out()


def test_no_job_is_launched_by_another_site(served: Served, tmp_path: Path) -> None:
    text = "name: clicks\nuri: clicks\ncolumns: {time: timestamp!}\ntime_column: time\nwindow: 1h\n"
    (tmp_path / "clicks.yaml").write_text(text, encoding="utf-8")
    jobs = [each.name for each in build_definitions(read_tables(tmp_path), PipesLauncher()).resolve_all_job_defs()]
    assert {"forget", "compact", "collect"} <= {*jobs}
    for job in jobs:
        text = _launch(job)
        forged = [served.get({}, text), served.get({"Origin": EVIL}, text), served.post({"Origin": EVIL}, text)]
        assert [status for status, _ in forged] == [403, 403, 403]
    assert "PipelineNotFoundError" in served.post({}, _launch("forget"))[1]  # Dagster would execute the mutation


def _launch(job: str) -> str:
    selector = f'{{repositoryLocationName: "tidemark", repositoryName: "__repository__", jobName: "{job}"}}'
    return (
        f'mutation {{ launchRun(executionParams: {{selector: {selector}, runConfigData: "{{}}"}}) {{ __typename }} }}'
    )


def _socket(served: Served, origin: str | None, headers: Mapping[str, str]) -> str:
    """Return the reply of the subscription socket to a mutation."""
    with connect(
        f"ws://{headers.get('Host', served.own)}/graphql",
        origin=None if origin is None else Origin(origin),
        subprotocols=[Subprotocol("graphql-ws")],
        additional_headers={name: value for name, value in headers.items() if name != "Host"},
        sock=socket.create_connection(("127.0.0.1", served.port)),
    ) as opened:
        opened.send(json.dumps({"type": "connection_init"}))
        return str(opened.recv(5))


def test_a_socket_is_opened_for_the_ui_and_for_programs(served: Served) -> None:
    for origin in (None, f"http://{served.own}", f"https://{PUBLIC}"):
        assert json.loads(_socket(served, origin, {})) == {"type": "connection_ack"}


@pytest.mark.parametrize(
    ("origin", "headers"),
    [
        (EVIL, {}),
        ("null", {}),
        ("http://localhost:1", {}),
        (None, {"Sec-Fetch-Site": "cross-site"}),
        (None, {"Host": "evil.example"}),
        (EVIL, {"Host": "evil.example"}),
    ],
)
def test_no_socket_is_opened_for_a_foreign_page(served: Served, origin: str | None, headers: dict[str, str]) -> None:
    with pytest.raises(InvalidStatus, match="403"):
        _socket(served, origin, headers)


NO_HOSTS = (
    "https://tide.example",
    "tide.example/ui",
    "*",
    "*.tide.example",
    "a b",
    "",
    "a:b:1",
    "a:70000",
    "0.0.0.0:1",
)


@pytest.mark.parametrize("host", NO_HOSTS)
def test_a_declared_host_that_no_browser_could_send_is_refused(host: str) -> None:
    with pytest.raises(InvalidInput, match=r"--allow-host '.*' is not a host\. Write the name"):
        declared_hosts([host])
