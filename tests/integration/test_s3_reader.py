"""Reads of S3 without boto3's client give the same results and errors as with boto3, over persistent connections."""

from __future__ import annotations

import base64
import datetime as dt
import os
import signal
import socketserver
import ssl
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from uuid import uuid4

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from storage_core.base.errors import NotFound, TidemarkError, Unavailable
from storage_core.store.contract import IfAbsent
from storage_core.store.resolve import open_store
from storage_core.store.s3 import S3Store
from storage_core.store.s3_calls import Retries
from storage_core.store.s3_location import S3Location, parse_s3_uri
from tests.support.s3_server import Answer, HttpFault, S3Server, Step

ROOT = Path(__file__).resolve().parents[2]
LEFT_TO_BOTO3 = "AWS_OF_A_LATER_VERSION"
KEYS = ("k", "a%2Fb/x", "ä €/x y", "plus+and~tilde'()!*&=?#:@,;$", "empty", "tab/<&>\"'")


@pytest.fixture
def uri(s3_server: S3Server) -> str:
    return s3_server.uri(f"reader/ä {uuid4()}")


@pytest.fixture
def both(uri: str, monkeypatch: pytest.MonkeyPatch) -> tuple[S3Store, S3Store]:
    """Return two stores of one location.

    The first store reads with Tidemark's own client. The second store reads through boto3.
    """
    stores = []
    for more in (False, True):
        if more:
            monkeypatch.setenv(LEFT_TO_BOTO3, "x")
        store = S3Store(parse_s3_uri(uri, {}), retries=Retries(attempts=2, first_pause_ms=0))
        assert (store._calls._reading() is None) == more
        stores.append(store)
    return stores[0], stores[1]


def said(call: Callable[[], object]) -> object:
    """Return the result of a call, or the class and text of its error."""
    try:
        return call()
    except TidemarkError as error:
        return type(error), str(error)


def test_objects_are_the_same_through_both(both: tuple[S3Store, S3Store]) -> None:
    ours, boto3 = both
    for key in KEYS:
        ours.put(key, b"" if key == "empty" else key.encode(), IfAbsent())
    for key in (*KEYS, "none", "none/a b"):
        assert said(partial(ours.get, key)) == said(partial(boto3.get, key))
        assert said(partial(ours.head, key)) == said(partial(boto3.head, key))
        for start, end in ((0, 1), (0, 3), (5, 9), (900, 901)):
            assert said(partial(ours.get_range, key, start, end)) == said(partial(boto3.get_range, key, start, end))
    assert ours.head("k").write_id == boto3.head("k").write_id is not None
    for prefix, after in (("", None), ("ä", None), ("", "k"), ("plus+", None), ("none", None)):
        assert list(ours.list(prefix, after)) == list(boto3.list(prefix, after))
    assert {info.key for info in ours.list("")} == set(KEYS)


@pytest.mark.parametrize(
    "step",
    [
        *(Answer(status, code) for status, code in ((403, "AccessDenied"), (400, "ExpiredToken"), (400, "Odd"))),
        *(Answer(status, code) for status, code in ((404, "NoSuchBucket"), (404, "NoSuchKey"), (412, "x"), (304, ""))),
        *(Answer(status, code) for status, code in ((503, "SlowDown"), (500, ""), (501, "NotImplemented"), (418, "T"))),
        Answer(403, body=b""),
        Answer(403, body=b"<html>no"),
        Answer(502, body=b"<html><body>gateway</body></html>"),
        Answer(416, "InvalidRange"),
        Answer(200, body=b"<Error><Code>InternalError</Code></Error>"),
        Answer(200, body=b"<ListBucketResult></ListBucketResult>"),
        Answer(307, body=b"<Error><Code>TemporaryRedirect</Code><Endpoint>b.s3.example.com</Endpoint></Error>"),
        Answer(400, "AuthorizationHeaderMalformed", headers=(("x-amz-bucket-region", "eu-west-3"),)),
        Answer(200, body=b"x", headers=(("last-modified", "when"), ("etag", '"e"'))),
        HttpFault.REQUEST_LOST,
        HttpFault.REPLY_CUT,
    ],
    ids=str,
)
def test_failures_are_of_the_same_kind_through_both(
    both: tuple[S3Store, S3Store], s3_server: S3Server, step: Step
) -> None:
    both[0].put("k", b"0123456789", IfAbsent())
    calls: dict[str, Callable[[S3Store], object]] = {
        "get": lambda store: store.get("k"),
        "head": lambda store: store.head("k"),
        "list": lambda store: list(store.list("")),
    }
    for kind, call in calls.items():
        found: list[tuple[object, ...]] = []
        for store in both:
            s3_server.front.reset()
            s3_server.front.on(kind, "", step, step)
            try:
                found.append((call(store), s3_server.front.requests))
            except TidemarkError as error:
                found.append((type(error), error.kind, s3_server.front.requests))
        assert found[0] == found[1], kind


def test_threads_read_each_its_own_answers(uri: str) -> None:
    store = open_store(uri)
    for number in range(8):
        store.put(f"k{number}", b"%d" % number * 10_000, IfAbsent())

    def read(number: int) -> None:
        key, digit = f"k{number % 8}", b"%d" % (number % 8)
        assert store.get(key).data == digit * 10_000
        assert store.get_range(key, 1, 3) == digit * 2
        assert store.head(key).size == 10_000
        with pytest.raises(NotFound):
            store.get(f"none{number}")

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(read, range(200)))


WHOLE = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nLast-Modified: Sun, 22 Nov 2026 10:00:00 GMT\r\nContent-Length: 3\r\n%b\r\n'
GONE = b"HTTP/1.1 404 Not Found\r\nContent-Length: 37\r\n\r\n<Error><Code>NoSuchKey</Code></Error>"


@contextmanager
def answering(
    answer: Callable[[bytes], bytes], secure: ssl.SSLContext | None = None
) -> Iterator[tuple[str, list[int]]]:
    """Start a server and count the requests per connection. An empty answer closes the connection."""
    connections: list[int] = []

    class Handler(socketserver.BaseRequestHandler):
        def setup(self) -> None:
            if secure is not None:
                self.request = secure.wrap_socket(self.request, server_side=True)

        def finish(self) -> None:
            self.request.close()

        def handle(self) -> None:
            number = len(connections)
            connections.append(0)
            while requested := self.request.recv(65_536):
                connections[number] += 1
                reply = answer(requested)
                self.request.sendall(reply)
                if not reply:
                    return

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Print nothing, because the tests include clients that close a connection."""

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.001})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", connections
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def entered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def store_at(endpoint: str, attempts: int = 1) -> S3Store:
    location = S3Location(bucket="bucket", endpoint=endpoint, region="eu-central-1", path_style=True)
    return S3Store(location, retries=Retries(attempts=attempts, first_pause_ms=0))


def test_one_connection_serves_one_thread_also_after_objects_that_are_missing() -> None:
    def answer(requested: bytes) -> bytes:
        if b"none" in requested:
            return GONE
        return WHOLE % b"" + (b"" if requested.startswith(b"HEAD") else b"abc")

    with answering(answer) as (endpoint, connections):
        store = store_at(endpoint)
        for _ in range(3):
            assert store.get("k").data == b"abc"
            assert store.head("k").size == 3
            with pytest.raises(NotFound):
                store.get("none")
        assert connections == [9]


def test_a_connection_that_the_server_ended_meanwhile_costs_no_attempt() -> None:
    ended = threading.Semaphore(0)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65_536)
            self.request.sendall(WHOLE % b"" + b"abc")

        def finish(self) -> None:
            self.request.close()
            ended.release()

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.001})
        thread.start()
        store = store_at(f"http://127.0.0.1:{server.server_address[1]}")
        for _ in range(3):
            assert store.get("k").data == b"abc"
            assert ended.acquire(timeout=60)
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("data", "is_whole"), [(b"abc", True), (b"abd", False)])
def test_bytes_that_differ_from_their_checksum_are_asked_for_again(data: bytes, is_whole: bool) -> None:
    checksum = b"x-amz-checksum-crc32: %b\r\n" % base64.b64encode(zlib.crc32(b"abc").to_bytes(4, "big"))
    with answering(lambda _: WHOLE % checksum + data) as (endpoint, connections):
        store = store_at(endpoint, attempts=3)
        if is_whole:
            assert store.get("k").data == data
        else:
            with pytest.raises(Unavailable, match="no usable answer"):
                store.get("k")
        assert sum(connections) == (1 if is_whole else 3)


@pytest.mark.parametrize("second", [b"3", b"5"])
def test_an_answer_that_tells_two_lengths_is_none(second: bytes) -> None:
    with answering(lambda _: WHOLE % b"Content-Length: %b\r\n" % second + b"abcde") as (endpoint, _):
        store = store_at(endpoint)
        for read in (store.get, store.head):
            with pytest.raises(Unavailable, match="no usable answer"):
                read("k")


def test_a_connection_whose_answer_could_not_be_read_is_not_used_again() -> None:
    garbled = WHOLE.replace(b"Content-Length: 3", b"Transfer-Encoding: chunked") % b"" + b"no number\r\n"
    replies = iter((garbled, WHOLE % b"" + b"abc"))
    with answering(lambda _: next(replies)) as (endpoint, connections):
        store = store_at(endpoint, attempts=2)
        assert store.get("k").data == b"abc"
        assert connections == [1, 1]


def test_bytes_are_asked_for_as_they_are_stored() -> None:
    asked: list[bytes] = []

    def answer(requested: bytes) -> bytes:
        asked.append(requested.lower())
        return WHOLE % b"" + b"abc"

    with answering(answer) as (endpoint, _):
        store_at(endpoint).get("k")
    assert b"\r\naccept-encoding: identity\r\n" in asked[0]


def test_a_signal_ends_the_wait_for_an_answer() -> None:
    done = threading.Event()

    def answer(_: bytes) -> bytes:
        os.kill(os.getpid(), signal.SIGUSR1)
        done.wait()  # without the timeout, the wait would never end
        return b""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with answering(answer) as (endpoint, _):
            with pytest.raises(KeyboardInterrupt):
                store_at(endpoint).get("k")
            done.set()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_process_that_reads_loads_nothing_of_boto3(uri: str) -> None:
    open_store(uri).put("k", b"x", IfAbsent())
    program = (
        "import sys\n"
        "from storage_core.store.resolve import open_store\n"
        "store = open_store(sys.argv[1])\n"
        "assert store.get('k').data == b'x' and store.head('k').size == 1 and len(list(store.list(''))) == 1\n"
        "print({name.partition('.')[0] for name in sys.modules} & {'boto3', 'botocore', 'urllib3'})\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_CONFIG")}
    command = [sys.executable, "-c", program, uri]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (ended.stdout.strip(), ended.stderr) == ("set()", "")


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Make a self-signed certificate for this machine, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = dt.datetime.now(dt.UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file = tmp_path / "certificate.pem"
    file.write_bytes(secret + signed.public_bytes(Encoding.PEM))
    return file


@pytest.mark.parametrize("is_believed", [True, False])
def test_a_server_is_believed_by_its_certificate(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, is_believed: bool
) -> None:
    for name in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    if is_believed:
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with answering(lambda _: WHOLE % b"" + b"abc", context) as (endpoint, connections):
        store = store_at(endpoint.replace("http://", "https://"))
        assert store._calls._reading() is not None
        if is_believed:
            assert [store.get("k").data for _ in range(3)] == [b"abc"] * 3
            assert connections == [3]
        else:
            with pytest.raises(Unavailable, match="certificate of the server cannot be verified"):
                store.get("k")
            assert connections == []
