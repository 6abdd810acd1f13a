"""Calls of the S3 API with two clients: `S3Reader` for reads with a known route, and boto3 for all other calls.

`s3_location.route` chooses the client. Neither client repeats a call or follows a redirect. A repeated conditional
write would conflict with its own object (lesson 01).
"""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import select
import ssl
import threading
import weakref
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache, partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection, RemoteDisconnected
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar
from urllib.parse import unquote_plus
from xml.etree import ElementTree as ET

from storage_core.base.clock import Clock, Ids
from storage_core.base.errors import InvalidInput, TidemarkError
from storage_core.base.process import HomeProcess
from storage_core.store.s3_failures import RETRIED, Failure, NoKeys, NotSent, Refused, WrongBytes, answered, unanswered
from storage_core.store.s3_location import Route, S3Location, Signer, route, target_of

# Detection of answers with incomplete headers. Python's `http.client` treats the end of a connection as the end of the
# headers.
#
# An answer with incomplete headers lacks some headers or the end of a header. Without the write id, or with a truncated
# ETag, our own object would look like another writer's object. So each answer must have the empty line after its
# headers. Otherwise the connection counts as lost, and the call is tried again.


class _Lines:
    """A stream with the headers of an answer. The stream remembers the last line."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.last = b""

    def readline(self, limit: int = -1) -> bytes:
        self.last = self._stream.readline(limit)
        return self.last

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class WholeHead(HTTPResponse):
    """A response.

    If the headers are incomplete, this class raises `RemoteDisconnected`. This is the error for a missing answer.
    """

    def begin(self) -> None:
        """Read the headers."""
        if getattr(self, "headers", None) is not None:
            return
        stream: Any = self.fp
        lines: Any = _Lines(stream)
        self.fp = lines
        try:
            super().begin()
        finally:
            if self.fp is lines:
                self.fp = stream
        if lines.last not in (b"\r\n", b"\n"):
            raise RemoteDisconnected("the connection ended within the head of the answer")


def require_whole_heads(client: Any) -> None:
    """Make this boto3 client reject answers with incomplete headers. Call this function before the first request."""
    http = client._endpoint.http_session  # noqa: SLF001  # boto3 has no way in; a test notices when this one closes
    pools = {scheme: _watching(pool) for scheme, pool in http._pool_classes_by_scheme.items()}  # noqa: SLF001
    http._pool_classes_by_scheme = pools  # noqa: SLF001  # for proxies, which are made later
    http._manager.pool_classes_by_scheme = pools  # noqa: SLF001


def _watching(pool: Any) -> Any:
    connection = type(pool.ConnectionCls.__name__, (pool.ConnectionCls,), {"response_class": WholeHead})
    return type(pool.__name__, (pool,), {"ConnectionCls": connection})


# GET, HEAD and LIST of S3 over persistent connections. The client has the interface of boto3's client, but its calls
# take a fraction of the time.
#
# `S3Calls` uses either this client or boto3's client for these three calls, with the same results and the same
# failures. The client sends one request per call. The client repeats no request and follows no redirect. The client
# refuses an answer if the headers or the body end too early. The client waits in Python's own sockets, so a signal ends
# the wait at once.


_MOST_KEPT = 64
_FIRST_REFUSAL = 300
_METADATA = "x-amz-meta-"
_CHECKSUMS: Mapping[str, Callable[[bytes], bytes]] = {
    "x-amz-checksum-crc32": lambda data: zlib.crc32(data).to_bytes(4, "big"),
    "x-amz-checksum-sha1": lambda data: hashlib.sha1(data, usedforsecurity=False).digest(),
    "x-amz-checksum-sha256": lambda data: hashlib.sha256(data).digest(),
}


class S3Reader:
    """A client that reads one bucket with the host and keys of a `Route`. Safe for threads of one process."""

    def __init__(
        self, route: Route, *, now_ms: Callable[[], int], connect_timeout_seconds: float, read_timeout_seconds: float
    ) -> None:
        self._route = route
        self._signer = Signer(route.region)
        self._now_ms = now_ms
        self._connect_timeout = connect_timeout_seconds
        self._read_timeout = read_timeout_seconds
        self._lock = threading.Lock()
        self._kept: list[HTTPConnection] = []
        weakref.finalize(self, _close, self._kept)
        self._trust = _trust(route.authorities) if route.is_secure else None

    def get_object(self, **asked: str) -> dict[str, Any]:
        """Return the headers of the answer, with an unread `Body`. Takes `Key`, and optionally `Range`."""
        wanted = {"range": asked["Range"]} if "Range" in asked else {"x-amz-checksum-mode": "ENABLED"}
        return self._send("GET", self._target(asked["Key"]), wanted)

    def head_object(self, **asked: str) -> dict[str, Any]:
        """Return the headers of the answer. Takes `Key`."""
        reply = self._send("HEAD", self._target(asked["Key"]), {})
        with reply["Body"] as body:
            body.read()
        return reply

    def list_objects_v2(self, **asked: str) -> dict[str, Any]:
        """Return a page of the listing. Takes `Prefix`, and optionally `StartAfter` or `ContinuationToken`."""
        query = {"list-type": "2", "encoding-type": "url", "prefix": asked["Prefix"]}
        for name, parameter in (("StartAfter", "start-after"), ("ContinuationToken", "continuation-token")):
            if name in asked:
                query[parameter] = asked[name]
        bucket = self._route.base.removesuffix("/") or "/"
        with self._send("GET", target_of(bucket, query), {})["Body"] as body:
            return _page(body.read())

    def _target(self, name: str) -> str:
        return target_of(self._route.base + name, {})

    def _send(self, method: str, target: str, headers: Mapping[str, str]) -> dict[str, Any]:
        """Send a request. Return the headers of the answer with the `Body`. Raises `Refused` for an error answer."""
        keys = self._route.keys()
        if keys is None:
            raise NoKeys
        asked = {"host": self._route.host, **headers}
        signed = self._signer.signed(method, target, asked, keys=keys, now_ms=self._now_ms())
        connection = self._connection()
        try:
            connection.putrequest(method, target, skip_host=True)
            for name, value in signed.items():
                connection.putheader(name, value)
            connection.endheaders()
            response = connection.getresponse()
            head = _head(response)
            error = _error(response.status, response.read()) if response.status >= _FIRST_REFUSAL else None
            reply = {} if error is not None else _reply(head["ResponseMetadata"]["HTTPHeaders"])
        except BaseException:
            connection.close()
            raise
        if error is not None:
            self._done(connection, response, is_sound=True)
            raise Refused({**head, "Error": error}, self._route.region)
        return {**head, **reply, "Body": _Body(response, head, partial(self._done, connection, response))}

    def _connection(self) -> HTTPConnection:
        """Return a kept connection if the server has not closed it and has sent nothing on it.

        Otherwise return a new connection.
        """
        while True:
            with self._lock:
                connection = self._kept.pop() if self._kept else None
            if connection is None:
                return self._connected()
            if _is_quiet(connection):
                return connection
            connection.close()

    def _connected(self) -> HTTPConnection:
        host, timeout = self._route.host, self._connect_timeout
        connection = (
            HTTPConnection(host, timeout=timeout)
            if self._trust is None
            else HTTPSConnection(host, timeout=timeout, context=self._trust)
        )
        connection.response_class = WholeHead
        try:
            connection.connect()
        except ssl.SSLError:
            raise
        except OSError as error:
            raise NotSent(type(error).__name__) from None
        connection.sock.settimeout(self._read_timeout)
        return connection

    def _done(self, connection: HTTPConnection, response: HTTPResponse, *, is_sound: bool) -> None:
        """Keep the connection for the next request if the answer was valid and read completely. Otherwise close it."""
        if is_sound and response.isclosed() and not response.will_close:
            with self._lock:
                if len(self._kept) < _MOST_KEPT:
                    self._kept.append(connection)
                    return
        connection.close()


class _Body:
    """The body of an answer, for use in a `with` block.

    If the body was read, the connection is kept at the end of the block. Otherwise the connection is closed.
    """

    def __init__(self, response: HTTPResponse, head: Mapping[str, Any], done: Callable[..., None]) -> None:
        self._response = response
        self._head = head["ResponseMetadata"]
        self._done = done

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        self._done(is_sound=error is None)

    def read(self) -> bytes:
        """Return the whole body.

        Raises an error if the body ends too early or does not match the checksum of the answer.
        """
        data = self._response.read()
        said = self._head["HTTPHeaders"] if self._head["HTTPStatusCode"] == HTTPStatus.OK else {}
        for name, digest in _CHECKSUMS.items():
            # A checksum with "-" is computed from the checksums of the uploaded parts.
            if name in said and "-" not in said[name] and digest(data) != base64.b64decode(said[name]):
                raise WrongBytes
        return data


def _close(connections: list[HTTPConnection]) -> None:
    for each in connections:
        each.close()


def _is_quiet(connection: HTTPConnection) -> bool:
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return not poll.poll(0)


def _trust(authorities: Path | None) -> ssl.SSLContext:
    """Return a TLS context that trusts these authorities. The default authorities are those of boto3."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    shipped = (find_spec(each) for each in ("certifi", "botocore"))
    files = (Path(spec.origin).with_name("cacert.pem") for spec in shipped if spec is not None and spec.origin)
    context.load_verify_locations(authorities or next(files))
    return context


def _head(response: HTTPResponse) -> dict[str, Any]:
    headers: dict[str, str] = {}
    # A repeated length header is invalid, though `http.client` uses the first of these headers.
    for name, value in response.headers.items():
        key = name.lower()
        headers[key] = f"{headers[key]}, {value}" if key in headers else value
    return {"ResponseMetadata": {"HTTPStatusCode": response.status, "HTTPHeaders": headers}}


def _reply(headers: Mapping[str, str]) -> dict[str, Any]:
    reply: dict[str, Any] = {
        "Metadata": {name[len(_METADATA) :]: value for name, value in headers.items() if name.startswith(_METADATA)}
    }
    if "content-length" in headers:
        reply["ContentLength"] = int(headers["content-length"])
    if "content-range" in headers:
        reply["ContentRange"] = headers["content-range"]
    if "etag" in headers:
        reply["ETag"] = headers["etag"]
    if "last-modified" in headers:
        modified = parsedate_to_datetime(headers["last-modified"])
        reply["LastModified"] = modified.replace(tzinfo=modified.tzinfo or UTC)
    return reply


def _page(body: bytes) -> dict[str, Any]:
    root = ET.fromstring(body)  # noqa: S314  # as boto3 reads it; Python's parser bounds what entities expand to
    fields = _fields(root)
    is_encoded = fields.get("EncodingType") == "url"
    contents = [_fields(each) for each in root if _tag(each) == "Contents"]
    page: dict[str, Any] = {
        "IsTruncated": {"true": True, "false": False}[fields["IsTruncated"]],
        "Contents": [
            {
                **each,
                "Key": unquote_plus(each["Key"]) if is_encoded else each["Key"],
                "LastModified": datetime.fromisoformat(each["LastModified"]),
            }
            for each in contents
        ],
    }
    if "NextContinuationToken" in fields:
        page["NextContinuationToken"] = fields["NextContinuationToken"]
    return page


def _error(status: int, body: bytes) -> dict[str, str]:
    """Return the fields of an error's XML. If the body is not valid XML, return the HTTP status."""
    try:
        root = ET.fromstring(body)  # noqa: S314  # as above
    except ET.ParseError:
        return {"Code": str(status)}
    return _fields(root) if _tag(root) == "Error" else {}


def _fields(node: ET.Element) -> dict[str, str]:
    return {_tag(each): each.text or "" for each in node}


def _tag(node: ET.Element) -> str:
    return node.tag.rpartition("}")[2]


_logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """The number of attempts, the pauses and the timeouts.

    Each pause is twice the previous pause, minus a random part.
    """

    attempts: int = 5
    first_pause_ms: int = 100
    longest_pause_ms: int = 5_000
    connect_timeout_seconds: float = 10.0
    read_timeout_seconds: float = 60.0


class S3Calls:
    """The clients of one store. Safe for threads. Nothing is resolved, opened or sent before the first call.

    After a fork(), the child process gets its own clients. If two processes shared a connection, each process could
    read the answer to a request of the other process. A process could then mistake the other process's write for its
    own write.
    """

    def __init__(self, location: S3Location, retries: Retries, *, clock: Clock, ids: Ids) -> None:
        self._location = location
        self._retries = retries
        self._clock = clock
        self._ids = ids
        self._begin()

    @property
    def attempts(self) -> int:
        """The maximum number of attempts of a call."""
        return self._retries.attempts

    def now_ms(self) -> int:
        """Return the milliseconds since the epoch, by this machine's clock."""
        return self._clock.now_ms()

    def once(self, act: Callable[[Any], T]) -> T | Failure:
        """Call `act` once with boto3's client, and return its result or the failure.

        Any error of `act` counts as a failure of the call. So `act` must only send the call and read the answer.
        """
        return self._tried(partial(self._through_boto3, act))

    def retried(self, act: Callable[[Any], T]) -> T | Failure:
        """Return the result of `act` with boto3's client.

        If the server is busy, a call that may be repeated is tried again.
        """
        return self._repeated(lambda: self.once(act))

    def read(self, act: Callable[[Any], T]) -> T | Failure:
        """Return the result of `act`. If the server is busy, a call is tried again, as in `retried`.

        `act` may use only `get_object`, `head_object` and `list_objects_v2`.
        """
        return self._repeated(lambda: self._tried(partial(self._through_reader, act)))

    def _tried(self, call: Callable[[], T]) -> T | Failure:
        try:
            return call()
        except TidemarkError:
            raise
        except Refused as refused:
            return answered(refused.response, refused.region)
        except Exception as error:  # noqa: BLE001  # boto3 raises whatever its parsers do, of any class
            return unanswered(error)

    def _repeated(self, once: Callable[[], T | Failure]) -> T | Failure:
        found = once()
        for attempt in range(1, self.attempts):
            if not isinstance(found, Failure) or found.trouble not in RETRIED:
                break
            self.pause(attempt, found)
            found = once()
        return found

    def pause(self, attempt: int, failure: Failure) -> None:
        """Wait before the next attempt, after `attempt` failed attempts."""
        longest = min(self._retries.longest_pause_ms, self._retries.first_pause_ms * 2 ** (attempt - 1))
        _logger.debug("%s: %s, attempt %d of %d", self._location.uri, failure, attempt, self.attempts)
        # Half of the pause is random. Otherwise, writers that collided once would collide again.
        self._clock.sleep_ms(longest * (1 + self._ids.fraction()) / 2)

    def _through_boto3(self, act: Callable[[Any], T]) -> T:
        import botocore.exceptions  # This import takes a third of a second, and most calls do not need it.

        client = self._connected()
        try:
            return act(client)
        except botocore.exceptions.ClientError as error:
            raise Refused(error.response, client.meta.region_name) from None

    def _through_reader(self, act: Callable[[Any], T]) -> T:
        reader = self._reading()
        return self._through_boto3(act) if reader is None else act(reader)

    def _begin(self) -> None:
        self._home = HomeProcess()
        self._lock = threading.Lock()
        self._client: Any = None
        self._reader: S3Reader | None = None
        self._is_routed = False
        self._session: Any = None

    def _own_lock(self) -> threading.Lock:
        if not self._home.is_here:  # After a fork, a thread of the parent process may still hold the lock.
            self._begin()
        return self._lock

    def _connected(self) -> Any:
        with self._own_lock():
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _reading(self) -> S3Reader | None:
        """Return the client for reads, or None if boto3's client is needed."""
        with self._own_lock():
            if not self._is_routed:
                found = route(self._location, os.environ, self._botocore)
                self._reader = None if found is None else self._reader_along(found)
                self._is_routed = True
            return self._reader

    def _reader_along(self, found: Route) -> S3Reader:
        return S3Reader(
            found,
            now_ms=self._clock.now_ms,
            connect_timeout_seconds=self._retries.connect_timeout_seconds,
            read_timeout_seconds=self._retries.read_timeout_seconds,
        )

    def _botocore(self) -> Any:
        """Return the session that both clients share. So only one lookup of the credentials is necessary."""
        if self._session is None:
            self._session = new_session()
        return self._session

    def _connect(self) -> Any:
        from boto3.session import Session

        session = Session(botocore_session=self._botocore())
        from botocore.config import Config

        config = Config(
            connect_timeout=self._retries.connect_timeout_seconds,
            read_timeout=self._retries.read_timeout_seconds,
            retries={"total_max_attempts": 1, "mode": "standard"},
            s3={"addressing_style": self._location.addressing_style},
            max_pool_connections=64,
        )
        region = self._location.region or session.region_name or "us-east-1"
        # boto3 raises this error for an invalid endpoint in the AWS configuration. The text of the error repeats the
        # endpoint.
        with suppress(ValueError):
            client = session.client("s3", endpoint_url=self._location.endpoint, region_name=region, config=config)
            client.meta.events.register_last("before-parameter-build.s3", _follow_no_redirect)
            require_whole_heads(client)
            return client
        raise InvalidInput(f"{self._location.uri}: the endpoint in the AWS configuration is not an address. Correct it")


def _keep_requests_out_of_logs() -> None:
    """Raise the level of boto3's loggers above DEBUG, unless it was set explicitly. DEBUG prints session tokens.

    If a process logs only warnings, the function does not lower the level to INFO.
    """
    for name in ("botocore", "boto3"):
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(max(logging.INFO, logger.getEffectiveLevel()))


def _follow_no_redirect(context: dict[str, Any], **_: object) -> None:
    """Mark a request as redirected before it is sent.

    Otherwise boto3 follows one redirect, and sends requests to other servers to find the target of the redirect.
    """
    context.get("s3_redirect", {})["redirected"] = True


def new_session() -> Any:
    """Return a new session of botocore. The session looks up its own credentials, and logs no request.

    The descriptions of an API are read once per process.
    """
    from botocore.session import Session

    _keep_requests_out_of_logs()

    session = Session()
    session.register_component("data_loader", _descriptions())
    return session


@cache
def _descriptions() -> Any:
    """Return boto3's descriptions of its APIs. The descriptions never change, and parsing takes 0.1 s."""
    from botocore.loaders import create_loader

    return create_loader()
