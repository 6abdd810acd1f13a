from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import boto3
import pytest

from storage_core.base.errors import InvalidInput, NotFound
from storage_core.store.contract import Committed, Conflict, IfAbsent, IfMatch, ObjectStore, Overwrite
from storage_core.store.resolve import open_store
from tests.support.s3_server import REGION, S3Server
from tests.support.store_conformance import StoreConformance


@pytest.fixture
def uri(s3_server: S3Server) -> str:
    return s3_server.uri(f"stores/{uuid4()}")


@pytest.fixture
def store(uri: str) -> ObjectStore:
    return open_store(uri)


class TestS3Store(StoreConformance):
    """Tests of the store contract over HTTP, against a server that handles one request at a time."""


@pytest.mark.parametrize(
    ("call", "requests"),
    [
        (lambda store: store.get("k"), {"get": 1}),
        (lambda store: store.get_range("k", 1, 2), {"get": 1}),
        (lambda store: store.get_range("k", 1, 1), {"head": 1}),
        (lambda store: store.head("k"), {"head": 1}),
        (lambda store: store.put("new", b"", IfAbsent()), {"put": 1}),
        (lambda store: store.put("k", b"", IfAbsent()), {"put": 1, "head": 1}),
        (lambda store: store.put("k", b"", IfMatch('"stale"')), {"put": 1, "head": 1}),
        (lambda store: store.put("k", b"", Overwrite()), {"put": 1}),
        (lambda store: list(store.list("")), {"list": 1}),
        (lambda store: store.delete(["k", "none"]), {"delete": 1}),
        (lambda store: store.delete([]), {}),
        (lambda store: store.local_path("k"), {}),
        (lambda store: store.uri, {}),
    ],
)
def test_every_call_costs_the_requests_that_it_says(
    store: ObjectStore, s3_server: S3Server, call: Callable[[ObjectStore], object], requests: dict[str, int]
) -> None:
    store.put("k", b"0123", IfAbsent())
    s3_server.front.reset()
    call(store)
    assert s3_server.front.requests == requests


def test_equal_bytes_have_equal_etags_so_that_a_swap_needs_a_nonce(store: ObjectStore) -> None:
    # This test covers the sentence "an ETag may be a hash of the content" of the contract.
    first, second = (store.put(key, b"same", IfAbsent()) for key in ("a", "b"))
    assert isinstance(first, Committed)
    assert first == second
    assert store.put("a", b"same", IfMatch(first.etag)) == first


def test_stores_of_one_bucket_see_their_own_prefix_only(s3_server: S3Server) -> None:
    base = f"stores/{uuid4()}"
    outer, inner, sibling = (open_store(s3_server.uri(base + end)) for end in ("", "/in", "x"))
    for store in (outer, inner, sibling):
        store.put("k", store.uri.encode(), IfAbsent())
    assert [info.key for info in inner.list("")] == ["k"]
    assert [info.key for info in outer.list("")] == ["in/k", "k"]
    assert inner.delete(["k"]) == {"k": None}
    assert outer.get("k").data == outer.uri.encode()
    assert sibling.get("k").data == sibling.uri.encode()
    with pytest.raises(NotFound):
        outer.get("in/k")


def test_names_that_are_no_keys_are_left_alone(store: ObjectStore, s3_server: S3Server) -> None:
    prefix = store.uri.split("?")[0].removeprefix(f"s3://{s3_server.bucket}/")
    client = boto3.session.Session().client("s3", endpoint_url=s3_server.endpoint, region_name=REGION)
    for name in ("/", "/folder/", "/.tmp/x", "//x"):
        client.put_object(Bucket=s3_server.bucket, Key=prefix + name, Body=b"")
    store.put("folder/k", b"", IfAbsent())
    assert [info.key for info in store.list("")] == ["folder/k"]


def test_a_name_that_is_too_long_with_the_prefix_is_refused_before_any_request(
    store: ObjectStore, s3_server: S3Server
) -> None:
    for call in (store.get, store.head, lambda key: store.delete([key])):
        with pytest.raises(InvalidInput, match="have more than 1024 bytes"):
            call("k" * 1000)
    assert s3_server.front.requests == {}


def test_a_bucket_that_does_not_exist_is_bad_input_and_is_named(s3_server: S3Server) -> None:
    store = open_store(s3_server.uri("x").replace(s3_server.bucket, "no-such-bucket"))
    for call in (lambda: store.get("k"), lambda: list(store.list("")), lambda: store.put("k", b"", IfAbsent())):
        with pytest.raises(InvalidInput, match=r"^s3://no-such-bucket/[^ ]*: the bucket does not exist"):
            call()


def test_the_first_call_may_come_from_many_threads_at_once(store: ObjectStore) -> None:
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda racer: store.put("k", b"%d" % racer, IfAbsent()), range(16)))
    assert sum(isinstance(each, Committed) for each in results) == 1
    assert results.count(Conflict()) == 15


def test_a_store_shows_where_it_is_and_nothing_else(store: ObjectStore, uri: str) -> None:
    assert repr(store) == f"S3Store({store.uri})"
    assert store.uri == open_store(uri).uri == open_store(store.uri).uri
