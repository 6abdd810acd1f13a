"""A real S3 API server for tests, with scripted faults of requests (docs/architecture/object-store.md).

The server is moto's, over HTTP on a free loopback port. This module adds two guarantees of S3 that moto 5.2 lacks:

- Requests run one at a time. Moto compares, stores and attaches metadata in three steps, and other threads can run
  between these steps. In 1 of 20 races of 32 concurrent creates, two creates succeeded.
- The completion of a multipart upload checks `If-Match`, which moto ignores.

    with S3Server() as server:
        os.environ.update(server.environment)
        table = Table.create(server.uri("events"), schema)
"""

from __future__ import annotations

import io
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Self, assert_never
from urllib.parse import parse_qs, unquote, urlencode, urlsplit
from uuid import uuid4

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from moto.s3.models import s3_backends
from werkzeug.datastructures import Headers
from werkzeug.serving import BaseWSGIServer, make_server
from werkzeug.test import Client, run_wsgi_app

ACCESS_KEY = "test-access"
SECRET_KEY = "test-secret"  # noqa: S105 -- moto takes any
REGION = "eu-central-1"
CONDITIONS = ("If-None-Match", "If-Match")

_END_OF_HEAD = b"\r\n\r\n"


class HttpFault(StrEnum):
    """A fault of the connection between the client and the server. An `Answer` instead replaces the reply."""

    REPLY_LOST = "applied, the connection closed without an answer"
    REQUEST_LOST = "never applied, the connection closed without an answer"
    REPLY_CUT = "applied, the connection closed in the middle of the answer's body"


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply sent instead of the server's reply. The server applies the request only if `applied` is True.

    `code` is S3's name of an error, `body` replaces the XML of the error, `headers` are additional headers.
    """

    status: int
    code: str = ""
    body: bytes | None = None
    applied: bool = False
    headers: tuple[tuple[str, str], ...] = ()


Step = HttpFault | Answer


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as received: method, path and query, undecoded. `action` is the name of a request to a queue."""

    method: str
    target: str
    action: str = ""

    @property
    def kind(self) -> str:
        """`get`, `put`, `list`, `head` or `delete`. For a multipart upload: `create`, `part`, `complete` or `abort`.

        For a queue, the name of the action, such as `ReceiveMessage`.
        """
        if self.action:
            return self.action
        query = parse_qs(urlsplit(self.target).query, keep_blank_values=True)
        match self.method:
            case "GET" if "list-type" in query:
                return "list"
            case "POST":
                return "delete" if "delete" in query else "create" if "uploads" in query else "complete"
            case "PUT" if "uploadId" in query:
                return "part"
            case "DELETE" if "uploadId" in query:
                return "abort"
            case other:
                return other.lower()


@dataclass(slots=True)
class _Script:
    kind: str
    part: str
    steps: list[Step]


class Front:
    """The scripted faults of the server.

    A script selects requests by their kind and a part of their target. Each step of a script affects one request.

    The server handles a request normally if no script has a step for the request. `seen` contains all received
    requests, including dropped requests.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._scripts: list[_Script] = []
        self._seen: list[Seen] = []
        self._ignored: tuple[str, ...] = ()
        self._stop: tuple[int, bool] | None = None

    def stop_after(self, number: int, *, applied: bool = False) -> None:
        """Serve `number` more requests, and refuse all requests after these requests.

        With `applied`, the first refused request still takes effect.
        """
        with self._lock:
            self._stop = (len(self._seen) + number, applied)

    def on(self, kind: str, part: str, *steps: Step) -> None:
        """Apply these steps, in order, to the next requests of this kind (`Seen.kind`) whose target contains `part`."""
        with self._lock:
            self._scripts.append(_Script(kind, part, list(steps)))

    def ignore(self, *headers: str) -> None:
        """Drop these request headers from now on, like a server that ignores them. Without arguments, drop nothing."""
        self._ignored = headers

    def reset(self) -> None:
        """Pass every request unchanged from now on, and clear `seen`."""
        with self._lock:
            self._scripts.clear()
            self._seen.clear()
            self._ignored = ()
            self._stop = None

    @property
    def seen(self) -> tuple[Seen, ...]:
        """The requests since the last `reset`, in the order of arrival."""
        with self._lock:
            return tuple(self._seen)

    @property
    def requests(self) -> dict[str, int]:
        """The number of requests by kind since the last `reset`."""
        return dict(Counter(each.kind for each in self.seen))

    @property
    def ignored(self) -> tuple[str, ...]:
        """The request headers that are dropped."""
        return self._ignored

    def next_step(self, seen: Seen) -> Step | None:
        """Record the request. Return the oldest matching step, and remove it."""
        with self._lock:
            self._seen.append(seen)
            if self._stop is not None and len(self._seen) > self._stop[0]:
                return Answer(403, "AccessDenied", applied=self._stop[1] and len(self._seen) == self._stop[0] + 1)
            for script in self._scripts:
                if script.kind == seen.kind and script.part in seen.target and script.steps:
                    return script.steps.pop(0)
        return None


class S3Server:
    """An S3 API server of this process with one new bucket, reachable from other processes. A context manager."""

    def __init__(self) -> None:
        self.front = Front()
        self.bucket = f"tidemark-{uuid4()}"  # random, because requests over a socket cannot be replayed from a seed
        app = DomainDispatcherApplication(create_backend_app)
        handler = _handler(_Server(app, self.front, threading.Lock()))
        self._server: BaseWSGIServer = make_server("127.0.0.1", 0, app, threaded=True, request_handler=handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        created = Client(app).put(f"/{self.bucket}")
        assert created.status_code == HTTPStatus.OK, created.text

    def __enter__(self) -> Self:
        """Start to serve."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def endpoint(self) -> str:
        """The URL on which the server listens."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def uri(self, prefix: str) -> str:
        """Return the URI of a store below `prefix` of the bucket."""
        query = urlencode({"endpoint": self.endpoint, "path_style": "true", "region": REGION}, safe="/:")
        return f"s3://{self.bucket}/{prefix}?{query}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables with this server's credentials, so that clients use no other credentials."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_EC2_METADATA_DISABLED": "true",
            "NO_PROXY": "127.0.0.1",
        }


@dataclass(frozen=True, slots=True)
class _Reply:
    """The bytes to send, and whether the connection closes after them."""

    sent: bytes
    last: bool = False


@dataclass(frozen=True, slots=True)
class _Server:
    """The S3 application with its `Front`. The server handles one request at a time."""

    app: DomainDispatcherApplication
    front: Front
    turn: threading.Lock

    def reply(self, request: MotoRequestHandler) -> _Reply:
        for name in self.front.ignored:
            del request.headers[name]
        action = request.headers.get("X-Amz-Target", "").rpartition(".")[2]
        step = self.front.next_step(Seen(request.command, request.path, action))
        match step:
            case None:
                return _Reply(self._apply(request))
            case Answer():
                if step.applied:
                    self._apply(request)
                return _Reply(_answer(step, head=request.command == "HEAD"))
            case HttpFault.REQUEST_LOST:
                return _Reply(b"", last=True)
            case HttpFault.REPLY_LOST:
                self._apply(request)
                return _Reply(b"", last=True)
            case HttpFault.REPLY_CUT:
                whole = self._apply(request)
                body = whole.index(_END_OF_HEAD) + len(_END_OF_HEAD)
                return _Reply(whole[: (body + len(whole)) // 2], last=True)
            case _:
                assert_never(step)

    def _apply(self, request: MotoRequestHandler) -> bytes:
        with self.turn:
            if refusal := self._refusal_of_completion(request):
                return _answer(refusal)
            if request.command == "GET" and "Range" in request.headers:
                found = self._run(request, "HEAD")
                if found[0].startswith("206"):
                    return _message(found[0], found[1].items(), _bytes_of(request.path, found[1]["Content-Range"]))
            status, headers, body = self._run(request, request.command)
            return _message(status, headers.items(), body)

    def _run(self, request: MotoRequestHandler, method: str) -> tuple[str, Headers, bytes]:
        """Return the application's reply.

        A HEAD returns the headers of the range, without a copy of the whole object.
        """
        # When Werkzeug runs an application, it waits 10 ms per request for more input.
        environ = {**request.make_environ(), "REQUEST_METHOD": method}
        chunks, status, headers = run_wsgi_app(self.app, environ, buffered=True)
        return status, headers, b"".join(chunks)

    def _refusal_of_completion(self, request: MotoRequestHandler) -> Answer | None:
        expected = request.headers.get("If-Match")
        if expected is None or Seen(request.command, request.path).kind != "complete":
            return None
        signed = {"Authorization": request.headers["Authorization"]}
        found = Client(self.app).head(urlsplit(request.path).path, headers=signed)
        if found.status_code == HTTPStatus.NOT_FOUND:
            return Answer(404, "NoSuchKey")
        matches = found.headers["ETag"].strip('"') == expected.strip('"')
        return None if matches else Answer(412, "PreconditionFailed")


def _bytes_of(path: str, content_range: str) -> bytes:
    """Return the bytes of a range of an object. The range has the form of a reply: `bytes 0-9/100`."""
    _, bucket, key = unquote(urlsplit(path).path).split("/", 2)
    first, last = content_range.removeprefix("bytes ").partition("/")[0].split("-")
    held = s3_backends[DEFAULT_ACCOUNT_ID]["aws"].get_object(bucket, key)
    assert held is not None, key
    with held.lock:
        held._value_buffer.seek(int(first))  # moto's public reader would copy the whole object
        return bytes(held._value_buffer.read(int(last) - int(first) + 1))


def _handler(server: _Server) -> type[MotoRequestHandler]:
    class Handler(MotoRequestHandler):
        disable_nagle_algorithm = True  # otherwise TCP delays the reply after a `100 Continue` by 40 ms

        def run_wsgi(self) -> None:
            """Serve one request.

            Read the whole request first. Send the reply only after the server can handle other requests again.
            """
            connection = self.rfile
            self.rfile = io.BytesIO(connection.read(int(self.headers.get("Content-Length") or 0)))
            reply = server.reply(self)
            self.rfile = connection
            self.wfile.write(reply.sent)
            self.close_connection = reply.last

    return Handler


def _answer(answer: Answer, *, head: bool = False) -> bytes:
    """Return the bytes of a reply in S3's form. The reply to a HEAD has no body."""
    text = f"<Error><Code>{answer.code}</Code><Message>as the test asked</Message></Error>"
    body = b"" if head else text.encode() if answer.body is None else answer.body
    status = f"{answer.status} {HTTPStatus(answer.status).phrase}"
    return _message(status, [("Content-Type", "application/xml"), *answer.headers], body)


def _message(status: str, headers: Iterable[tuple[str, str]], body: bytes) -> bytes:
    """Return the bytes of a reply. The reply contains its length, so that the connection can be reused."""
    fields = {name.lower(): value for name, value in headers}
    if not status.startswith("204"):
        fields.setdefault("content-length", str(len(body)))
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join(lines).encode("latin-1") + _END_OF_HEAD + body
