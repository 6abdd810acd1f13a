"""Refuses requests to the webserver that pages of other sites make in a browser of its machine (decision 0183).

A browser sends requests of every page to any address, and a name of the attacker may stand for the loopback. The guard
looks at what a browser adds and a page cannot change: `Host`, `Origin`, `Sec-Fetch-Site` and the type of the content.
Programs send neither `Origin` nor `Sec-Fetch-Site`, so they are answered as before.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import parse_qsl

from graphql import GraphQLError, OperationDefinitionNode, OperationType, parse
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipelines.processes.web_hosts import DEFAULT_PORTS, Authority, address_of

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_CONTENT = frozenset({"application/json", "application/graphql"})
"""What a page of another site may not send without a request for permission, which is refused. A form sends neither."""


class BrowserGuard:
    """An ASGI application that passes on what its own pages and programs send, and answers the rest with 403."""

    def __init__(self, app: ASGIApp, hosts: Iterable[Authority]) -> None:
        """Guard this application, which people reach by these hosts and those of the loopback."""
        self._app = app
        self._hosts = tuple(hosts)
        self._names = _LOOPBACK | {each.host for each in self._hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or one socket."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
        elif (refusal := self._refusal(scope, Headers(scope=scope))) is None:
            await self._app(scope, receive, _deny_framing(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # before it is accepted: the answer is 403
        else:
            await PlainTextResponse(f"{refusal}\n", 403)(scope, receive, send)

    def _refusal(self, scope: Scope, headers: Headers) -> str | None:
        """The reason to refuse it, or None."""
        hosts = headers.getlist("host")
        if len(hosts) != 1 or (host := Authority.parse(hosts[0])) is None:
            return "The header Host is not one host. Send the address that the webserver listens on."
        if host.host not in self._names and not _is_address_of(scope, host.host):
            return (
                f"The host {host.host!r} is not declared for this webserver. If people reach the webserver by this "
                f"name, start the webserver with --allow-host {host.host}."
            )
        if not all(self._is_own(each, host) for each in headers.getlist("origin")):
            return (
                "The origin of the page is not this webserver. If the page is that of a proxy in front of the "
                "webserver, start the webserver with --allow-host and the host of the page."
            )
        sites = set(headers.getlist("sec-fetch-site"))
        if not sites <= {"same-origin", "none"} and not _opens_a_page(scope, headers):
            return "A page of another site has sent the request. Use the pages of this webserver."
        return None if scope["type"] == "websocket" else _refused_content(scope, headers)

    def _is_own(self, origin: str, host: Authority) -> bool:
        """Whether it is the origin of pages that came by this host, or by a declared one."""
        scheme, _, rest = origin.partition("://")
        if scheme not in DEFAULT_PORTS or (page := Authority.parse(rest)) is None:
            return False
        page = Authority(page.host, page.port or DEFAULT_PORTS[scheme])
        return any(each.has_origin(page) for each in (host, *self._hosts))


def _is_address_of(scope: Scope, host: str) -> bool:
    """Whether the host is the very address that the connection has come to: no name of an attacker is one."""
    address = address_of(host)
    return address is not None and address == address_of((scope.get("server") or ("",))[0])


def _opens_a_page(scope: Scope, headers: Headers) -> bool:
    """Whether somebody has followed a link, as that of an alert; pages read nothing of what it opens."""
    navigates = headers.getlist("sec-fetch-mode") == ["navigate"] and headers.getlist("sec-fetch-dest") == ["document"]
    return scope["type"] == "http" and scope["method"] == "GET" and navigates and scope["path"] != "/graphql"


def _refused_content(scope: Scope, headers: Headers) -> str | None:
    """The reason to refuse a request for what it may change, whatever page it is of; or None."""
    if any(name == "query" and _changes(text) for name, text in parse_qsl(scope["query_string"].decode("latin-1"))):
        return "A mutation in an address is not carried out. Send the mutation by POST as application/json."
    types = [each.partition(";")[0].strip().lower() for each in headers.getlist("content-type")]
    if scope["method"] not in _READS and (len(types) != 1 or types[0] not in _CONTENT):
        return "The content type of the request is not accepted. Send the request as application/json."
    return None


def _changes(text: str) -> bool:
    """Whether a GraphQL document has an operation that is more than a query, whichever of them is asked for."""
    try:
        operations = [each for each in parse(text).definitions if isinstance(each, OperationDefinitionNode)]
    except GraphQLError:
        return False  # Dagster carries nothing of it out, and says why
    except RecursionError:
        return True
    return any(each.operation is not OperationType.QUERY for each in operations)


def _deny_framing(send: Send) -> Send:
    """Send answers that a browser shows in no frame of another site, where a click could be stolen."""

    async def send_framed(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message)["X-Frame-Options"] = "SAMEORIGIN"
        await send(message)

    return send_framed
