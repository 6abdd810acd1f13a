"""GET, HEAD and LIST of S3 over kept connections, in the shape of boto3's client at a fraction of its cost.

`S3Calls` hands out this client or boto3's for the same three calls; what they return and what counts as no answer is
the same. It sends one request per call, repeats nothing, follows no redirect, and takes no answer whose head or body
ends too early. It waits in Python's own sockets: a signal ends the wait at once.
"""

from __future__ import annotations

import base64
import hashlib
import select
import ssl
import threading
import weakref
import zlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote_plus
from xml.etree import ElementTree as ET

from storage_core.objectstore.s3_failures import NoKeys, NotSent, Refused, WrongBytes
from storage_core.objectstore.s3_heads import WholeHead
from storage_core.objectstore.s3_route import Route
from storage_core.objectstore.s3_sign import Signer, target_of

_MOST_KEPT = 64
_FIRST_REFUSAL = 300
_METADATA = "x-amz-meta-"
_CHECKSUMS: Mapping[str, Callable[[bytes], bytes]] = {
    "x-amz-checksum-crc32": lambda data: zlib.crc32(data).to_bytes(4, "big"),
    "x-amz-checksum-sha1": lambda data: hashlib.sha1(data, usedforsecurity=False).digest(),
    "x-amz-checksum-sha256": lambda data: hashlib.sha256(data).digest(),
}


class S3Reader:
    """Sends reads of one bucket along a route. Safe for threads, of one process."""

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
        """Return the head of the answer and its `Body`, unread. Takes `Key`, and `Range`."""
        wanted = {"range": asked["Range"]} if "Range" in asked else {"x-amz-checksum-mode": "ENABLED"}
        return self._send("GET", self._target(asked["Key"]), wanted)

    def head_object(self, **asked: str) -> dict[str, Any]:
        """Return what the head tells. Takes `Key`."""
        reply = self._send("HEAD", self._target(asked["Key"]), {})
        with reply["Body"] as body:
            body.read()
        return reply

    def list_objects_v2(self, **asked: str) -> dict[str, Any]:
        """Return a page. Takes `Prefix`, and `StartAfter` or `ContinuationToken`."""
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
        """Send a request and return the head of its answer with the `Body`. Raises `Refused` for an error."""
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
        """A kept connection that the server has neither ended nor written to meanwhile, or a fresh one."""
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
        """Keep the connection for the next request when the answer was sound and read to its end, else end it."""
        if is_sound and response.isclosed() and not response.will_close:
            with self._lock:
                if len(self._kept) < _MOST_KEPT:
                    self._kept.append(connection)
                    return
        connection.close()


class _Body:
    """The body of an answer, to be used in a `with` block: its end keeps the connection, or closes it if unread."""

    def __init__(self, response: HTTPResponse, head: Mapping[str, Any], done: Callable[..., None]) -> None:
        self._response = response
        self._head = head["ResponseMetadata"]
        self._done = done

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        self._done(is_sound=error is None)

    def read(self) -> bytes:
        """Return all of it. Raises where it ends too early, or where the checksum that came with it is another's."""
        data = self._response.read()
        said = self._head["HTTPHeaders"] if self._head["HTTPStatusCode"] == HTTPStatus.OK else {}
        for name, digest in _CHECKSUMS.items():
            # With a "-" it is made of those of the parts that the object was uploaded in.
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
    """A context that believes those authorities, or those that boto3 believes."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    shipped = (find_spec(each) for each in ("certifi", "botocore"))
    files = (Path(spec.origin).with_name("cacert.pem") for spec in shipped if spec is not None and spec.origin)
    context.load_verify_locations(authorities or next(files))
    return context


def _head(response: HTTPResponse) -> dict[str, Any]:
    headers: dict[str, str] = {}
    for name, value in response.headers.items():  # two lengths are none, though http.client believes the first
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
    """What the XML of an error says, else its status."""
    try:
        root = ET.fromstring(body)  # noqa: S314  # as above
    except ET.ParseError:
        return {"Code": str(status)}
    return _fields(root) if _tag(root) == "Error" else {}


def _fields(node: ET.Element) -> dict[str, str]:
    return {_tag(each): each.text or "" for each in node}


def _tag(node: ET.Element) -> str:
    return node.tag.rpartition("}")[2]
