"""S3 replies over HTTP are lost, cut or refused.

The store then reports the outcome, or reports that the outcome is unknown.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from uuid import uuid4

import pytest

from storage_core.base.errors import Corrupt, InvalidInput, NotFound, TidemarkError, Unavailable, Unsupported
from storage_core.store.contract import (
    Blob,
    Committed,
    Conflict,
    IfAbsent,
    IfMatch,
    OutcomeUnknown,
    Overwrite,
    PutMode,
    PutResult,
)
from storage_core.store.s3 import S3Store
from storage_core.store.s3_calls import Retries
from storage_core.store.s3_location import parse_s3_uri
from tests.support.clock import ManualClock
from tests.support.ids import SeededIds
from tests.support.s3_server import Answer, Front, HttpFault, S3Server, Step

SLOW_DOWN = Answer(503, "SlowDown")
INTERNAL_ERROR = Answer(500, "InternalError")
CONTENTION = Answer(409, "ConditionalRequestConflict")
PRECONDITION = Answer(412, "PreconditionFailed")
DENIED = Answer(403, "AccessDenied")
APPLIED_BUT_REFUSED = Answer(412, "PreconditionFailed", applied=True)
APPLIED_BUT_BUSY = Answer(503, "SlowDown", applied=True)
LOST = HttpFault.REPLY_LOST
DROPPED = HttpFault.REQUEST_LOST
NO_ETAG = Answer(200, body=b"")
GARBAGE = Answer(200, body=b"<html><body>Please log in")
ANOTHER_PAGE = Answer(200, body=b"<html><body>Please log in</body></html>")
APPLIED_WITHOUT_ETAG = Answer(200, body=b"", applied=True)
APPLIED_AND_GARBAGE = Answer(200, body=b"<html><body>Please log in", applied=True)

PART = 5 * 2**20
RETRIES = Retries(attempts=3)


@pytest.fixture
def uri(s3_server: S3Server) -> str:
    return s3_server.uri(f"lost/{uuid4()}")


@pytest.fixture
def front(s3_server: S3Server) -> Front:
    return s3_server.front


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(0)


@pytest.fixture
def store(uri: str, clock: ManualClock) -> S3Store:
    return S3Store(parse_s3_uri(uri, {}), clock=clock, ids=SeededIds(1), retries=RETRIES, part_bytes=PART)


@pytest.fixture
def other(uri: str) -> S3Store:
    return S3Store(parse_s3_uri(uri, {}), ids=SeededIds(2))


@pytest.mark.parametrize(
    ("steps", "requests"),
    [
        ([], {"put": 1}),
        ([LOST], {"put": 1, "head": 1}),
        ([APPLIED_BUT_BUSY], {"put": 1, "head": 1}),
        ([APPLIED_BUT_REFUSED], {"put": 1, "head": 1}),
        ([APPLIED_WITHOUT_ETAG], {"put": 1, "head": 1}),
        ([APPLIED_AND_GARBAGE], {"put": 1, "head": 1}),
        ([NO_ETAG], {"put": 2, "head": 1}),
        ([DROPPED], {"put": 2, "head": 1}),
        ([SLOW_DOWN], {"put": 2, "head": 1}),
        ([INTERNAL_ERROR, LOST], {"put": 2, "head": 2}),
        ([CONTENTION, CONTENTION], {"put": 3, "head": 2}),
        ([DROPPED, APPLIED_BUT_REFUSED], {"put": 2, "head": 2}),
    ],
)
@pytest.mark.parametrize("swap", [False, True])
def test_a_put_that_nobody_contends_commits_exactly_once(
    store: S3Store, other: S3Store, front: Front, swap: bool, steps: list[Step], requests: dict[str, int]
) -> None:
    mode: PutMode = IfMatch(etag_of(other.put("k", b"before", IfAbsent()))) if swap else IfAbsent()
    front.reset()
    front.on("put", "/k", *steps)
    etag = etag_of(store.put("k", b"ours", mode))
    assert front.requests == requests
    assert store.get("k").data == b"ours"
    assert store.get("k").etag == etag


@pytest.mark.parametrize("steps", [[], [DROPPED], [SLOW_DOWN], [CONTENTION], [PRECONDITION]])
def test_a_create_behind_another_object_is_a_conflict_and_changes_nothing(
    store: S3Store, other: S3Store, front: Front, steps: list[Step]
) -> None:
    etag_of(other.put("k", b"theirs", IfAbsent()))
    front.reset()
    front.on("put", "/k", *steps)
    assert store.put("k", b"ours", IfAbsent()) == Conflict()
    assert front.requests == {"put": 1, "head": 1}
    assert store.get("k").data == b"theirs"


@pytest.mark.parametrize("step", [None, CONTENTION, PRECONDITION])
def test_a_swap_of_a_changed_object_is_a_conflict(
    store: S3Store, other: S3Store, front: Front, step: Step | None
) -> None:
    stale = etag_of(other.put("k", b"1", IfAbsent()))
    etag_of(other.put("k", b"2", IfMatch(stale)))
    front.on("put", "/k", *([step] if step else []))
    assert store.put("k", b"ours", IfMatch(stale)) == Conflict()
    assert store.get("k").data == b"2"


@pytest.mark.parametrize("status", [404, 412])
def test_a_swap_of_a_missing_object_is_a_conflict_whichever_way_the_server_says_so(
    store: S3Store, front: Front, status: int
) -> None:
    front.on("put", "/k", Answer(status, "NoSuchKey" if status == 404 else "PreconditionFailed"))
    assert store.put("k", b"ours", IfMatch('"gone"')) == Conflict()
    assert front.requests == {"put": 1, "head": 1}


def test_a_swap_whose_reply_was_lost_and_whose_object_was_replaced_is_unknown(
    store: S3Store, other: S3Store, front: Front
) -> None:
    first = etag_of(other.put("k", b"1", IfAbsent()))
    front.on("put", "/k", LOST)
    front.on("head", "/k", SLOW_DOWN)

    class Meanwhile(ManualClock):
        def sleep_ms(self, duration_ms: float) -> None:
            """Read the object of this test, and replace it before the store checks the object."""
            super().sleep_ms(duration_ms)
            blob = other.get("k")
            assert blob.data == b"ours"
            etag_of(other.put("k", b"theirs", IfMatch(blob.etag)))

    watched = S3Store(
        parse_s3_uri(store.uri, {}), clock=Meanwhile(0), ids=SeededIds(3), retries=RETRIES, part_bytes=PART
    )
    result = watched.put("k", b"ours", IfMatch(first))
    assert isinstance(result, OutcomeUnknown)
    assert other.get("k").data == b"theirs"


def test_a_put_and_a_look_that_are_not_answered_as_s3_does_are_unknown(store: S3Store, front: Front) -> None:
    front.on("put", "/k", APPLIED_WITHOUT_ETAG)
    front.on("head", "/k", *[NO_ETAG] * 3)
    result = store.put("k", b"ours", IfAbsent())
    assert isinstance(result, OutcomeUnknown)
    assert "no usable answer" in result.reason
    assert front.requests == {"put": 1, "head": 3}
    assert store.get("k").data == b"ours"


@pytest.mark.parametrize("mode", [IfAbsent(), Overwrite()])
def test_a_put_that_stays_unanswered_is_unknown_and_cleans_nothing_up(
    store: S3Store, front: Front, clock: ManualClock, mode: PutMode
) -> None:
    front.on("put", "/k", DROPPED, DROPPED, DROPPED)
    result = store.put("k", b"ours", mode)
    assert isinstance(result, OutcomeUnknown)
    assert front.requests == {"put": 3, "head": 3}
    assert 0 < clock.now <= 300


def test_a_put_whose_object_cannot_be_looked_at_is_unknown(store: S3Store, front: Front) -> None:
    front.on("put", "/k", LOST)
    front.on("head", "/k", *[SLOW_DOWN] * 3)
    assert isinstance(store.put("k", b"ours", IfAbsent()), OutcomeUnknown)
    assert front.requests == {"put": 1, "head": 3}
    assert store.get("k").data == b"ours"


def test_a_refusal_that_cannot_be_checked_is_unknown_for_a_gateway_may_have_sent_it_twice(
    store: S3Store, front: Front
) -> None:
    front.on("put", "/k", APPLIED_BUT_REFUSED)
    front.on("head", "/k", *[SLOW_DOWN] * 3)
    assert isinstance(store.put("k", b"ours", IfAbsent()), OutcomeUnknown)


def test_an_overwrite_is_sent_until_it_is_ours(store: S3Store, other: S3Store, front: Front) -> None:
    etag_of(other.put("k", b"theirs", IfAbsent()))
    front.on("put", "/k", DROPPED, LOST)
    etag_of(store.put("k", b"ours", Overwrite()))
    assert store.get("k").data == b"ours"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (DENIED, Unavailable),
        (Answer(400, "ExpiredToken"), Unavailable),
        (Answer(400, "InvalidArgument"), InvalidInput),
        (Answer(501, "NotImplemented"), Unsupported),
        (Answer(404, "NoSuchBucket"), InvalidInput),
    ],
)
def test_a_refused_request_is_not_repeated_and_says_why(
    store: S3Store, front: Front, answer: Answer, error: type[TidemarkError]
) -> None:
    for kind in ("put", "get"):
        front.on(kind, "/k", answer)
    for call in (lambda: store.put("k", b"x", IfAbsent()), lambda: store.get("k")):
        with pytest.raises(error, match=f"{answer.status} {answer.code}"):
            call()
    assert front.requests == {"put": 1, "get": 1}


def test_a_put_that_never_reached_the_server_is_unavailable_and_not_unknown(
    clock: ManualClock, s3_server: S3Server
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        uri = f"s3://bucket/x?endpoint=http://127.0.0.1:{unused.getsockname()[1]}"
    store = S3Store(parse_s3_uri(uri, {}), clock=clock, retries=RETRIES)
    with pytest.raises(Unavailable, match="cannot be reached"):
        store.put("k", b"x", IfAbsent())
    with pytest.raises(Unavailable, match=r"cannot be reached\. Check the endpoint \(AWS_ENDPOINT_URL"):
        store.get("k")
    assert s3_server.front.requests == {}


@pytest.mark.parametrize(
    ("status", "code", "headers", "said"),
    [
        (307, "TemporaryRedirect", {"x-amz-bucket-region": "eu-west-3"}, "to region eu-west-3"),
        (301, "PermanentRedirect", {"location": "https://s3.other.example:9000/x?y=z"}, "to s3.other.example:9000"),
        (302, "", {"location": "/login"}, "302"),
        (308, "", {}, "308"),
        (400, "AuthorizationHeaderMalformed", {"x-amz-bucket-region": "eu-west-3"}, "to region eu-west-3"),
    ],
)
def test_a_redirect_is_not_followed_and_says_where_to(
    store: S3Store, front: Front, status: int, code: str, headers: dict[str, str], said: str
) -> None:
    answer = Answer(status, code, headers=tuple(headers.items()))
    calls: dict[str, Callable[[], object]] = {
        "get": lambda: store.get("k"),
        "head": lambda: store.head("k"),
        "list": lambda: list(store.list("")),
        "put": lambda: store.put("k", b"x", IfAbsent()),
    }
    for kind, call in calls.items():
        front.on(kind, "", *[answer] * 3)
        with pytest.raises(Unsupported, match="Redirects are not followed") as refused:
            call()
        assert said in str(refused.value)
    assert front.requests == dict.fromkeys(calls, 1)


def test_a_redirect_after_a_lost_reply_leaves_the_put_unknown(store: S3Store, front: Front) -> None:
    front.on("put", "/k", DROPPED, Answer(307, "TemporaryRedirect"))
    assert isinstance(store.put("k", b"ours", IfAbsent()), OutcomeUnknown)


def test_a_400_that_names_the_region_asked_is_no_redirect(store: S3Store, front: Front) -> None:
    front.on("head", "/k", Answer(400, headers=(("x-amz-bucket-region", "eu-central-1"),)))
    with pytest.raises(InvalidInput, match="400"):
        store.head("k")


def test_a_read_that_is_not_answered_as_s3_does_is_unavailable(store: S3Store, front: Front) -> None:
    etag_of(store.put("k", b"0123", IfAbsent()))
    reads: tuple[tuple[str, Answer, Callable[[], object]], ...] = (
        ("get", NO_ETAG, lambda: store.get("k")),
        ("get", GARBAGE, lambda: store.get("k")),
        ("head", NO_ETAG, lambda: store.head("k")),
        ("list", NO_ETAG, lambda: list(store.list(""))),
        ("list", GARBAGE, lambda: list(store.list(""))),
        ("list", ANOTHER_PAGE, lambda: list(store.list(""))),
    )
    for kind, answer, read in reads:
        front.reset()
        front.on(kind, "", *[answer] * 3)
        with pytest.raises(Unavailable, match="no usable answer"):
            read()
        assert front.requests == {kind: 3}


def test_the_age_of_an_object_is_by_the_clock_of_the_server_where_it_dates_its_answers(
    store: S3Store, front: Front, clock: ManualClock
) -> None:
    told = (("ETag", '"e"'), ("Last-Modified", "Sun, 17 May 2015 10:00:00 GMT"))
    clock.now = 1_431_856_800_000 + 7_000  # seven seconds later
    dates = {None: 7_000, "nonsense": 7_000, "Sun, 17 May 2015 11:00:00 GMT": 3_600_000}
    for date, age_ms in dates.items():
        dated = () if date is None else (("Date", date),)
        front.on("head", "/k", Answer(200, body=b"", headers=(*told, *dated)))
        assert store.head("k").age_ms == age_ms


def test_a_listing_that_never_goes_on_is_unavailable(store: S3Store, front: Front) -> None:
    onward = "<IsTruncated>true</IsTruncated><NextContinuationToken>a</NextContinuationToken>"
    page = Answer(200, body=f"<ListBucketResult>{onward}</ListBucketResult>".encode())
    front.on("list", "", *[page] * 3)
    with pytest.raises(Unavailable, match="same page"):
        list(store.list(""))
    assert front.requests == {"list": 2}


def test_a_delete_that_is_answered_with_garbage_is_a_reason_per_key(store: S3Store, front: Front) -> None:
    front.on("delete", "", *[GARBAGE] * 3)
    assert "no usable answer" in str(store.delete(["k"])["k"])


@pytest.mark.parametrize("step", [HttpFault.REPLY_CUT, LOST, SLOW_DOWN, INTERNAL_ERROR, Answer(429, "TooManyRequests")])
def test_a_read_is_tried_again_and_then_unavailable(
    store: S3Store, front: Front, clock: ManualClock, step: Step
) -> None:
    body = bytes(range(256)) * 100
    etag = etag_of(store.put("k", body, IfAbsent()))
    reads: tuple[tuple[str, str, Callable[[], object], object], ...] = (
        ("get", "/k", lambda: store.get("k").data, body),
        ("get", "/k", lambda: store.get_range("k", 10, 20_000), body[10:20_000]),
        ("head", "/k", lambda: store.head("k").etag, etag),
        ("list", "", lambda: [info.key for info in store.list("")], ["k"]),
    )
    for kind, part, read, expected in reads:
        if kind == "head" and step is HttpFault.REPLY_CUT:
            continue  # has no body
        front.reset()
        front.on(kind, part, step, step)
        assert read() == expected
        assert front.requests == {kind: 3}
        front.on(kind, part, step, step, step)
        with pytest.raises(Unavailable):
            read()
    assert clock.now > 0


def test_a_range_of_a_server_that_sends_everything_is_unsupported(store: S3Store, front: Front) -> None:
    front.on("get", "/k", Answer(200, body=b"0123456789"))
    with pytest.raises(Unsupported, match="byte ranges"):
        store.get_range("k", 2, 4)


def test_a_range_that_comes_longer_than_asked_is_unsupported(store: S3Store, front: Front) -> None:
    front.on("get", "/k", Answer(206, body=b"0123456789", headers=(("content-range", "bytes 0-9/10"),)))
    with pytest.raises(Unsupported, match="byte ranges"):
        store.get_range("k", 2, 4)


def test_a_range_behind_the_end_is_corrupt(store: S3Store) -> None:
    etag_of(store.put("k", b"0123", IfAbsent()))
    for start, end in ((4, 5), (2, 5)):
        with pytest.raises(Corrupt, match="the object ends"):
            store.get_range("k", start, end)


def test_keys_that_could_not_be_deleted_are_told_one_by_one(store: S3Store, front: Front) -> None:
    etag_of(store.put("kept", b"", IfAbsent()))
    name = parse_s3_uri(store.uri, {}).object_key("kept")
    refusal = f"<DeleteResult><Error><Key>{name}</Key><Code>AccessDenied</Code></Error></DeleteResult>"
    front.on("delete", "", Answer(200, body=refusal.encode()))
    assert store.delete(["gone", "kept"]) == {"gone": None, "kept": "AccessDenied"}
    front.on("delete", "", *[SLOW_DOWN] * 3)
    results = store.delete(["gone", "kept"])
    assert all("503 SlowDown" in str(reason) for reason in results.values())
    front.on("delete", "", LOST)
    assert store.delete(["gone", "kept"]) == {"gone": None, "kept": None}


def test_thousands_of_keys_are_listed_and_deleted_by_pages(store: S3Store, front: Front) -> None:
    keys = [f"k{number:04}" for number in range(1003)]
    for key in keys:
        etag_of(store.put(key, b"", IfAbsent()))
    front.reset()
    assert [info.key for info in store.list("k")] == keys
    assert len([*store.list("k", "k0001")]) == 1001
    assert store.delete(keys) == dict.fromkeys(keys)
    assert front.requests == {"list": 4, "delete": 2}
    assert [*store.list("")] == []


class TestLargeObjects:
    """Tests of a conditional create of more than two parts: no failure makes an incomplete object visible."""

    body = bytes(range(256)) * (PART * 9 // 4 // 256)

    def test_a_lost_reply_to_any_of_its_requests_is_made_good(self, store: S3Store, front: Front) -> None:
        for step in (LOST, DROPPED, SLOW_DOWN):
            for kind in ("create", "part", "complete"):
                key = f"{step.name if isinstance(step, HttpFault) else step.code}-{kind}"
                front.on(kind, key, step)
                etag = etag_of(store.put(key, self.body, IfAbsent()))
                assert store.get(key) == Blob(self.body, etag)
        assert "abort" not in front.requests

    def test_its_requests_are_one_per_part_and_two(self, store: S3Store, front: Front) -> None:
        etag_of(store.put("k", self.body, IfAbsent()))
        assert front.requests == {"create": 1, "part": 3, "complete": 1}

    def test_a_conflict_publishes_nothing_and_leaves_no_upload(
        self, store: S3Store, other: S3Store, front: Front
    ) -> None:
        etag = etag_of(other.put("k", b"theirs", IfAbsent()))
        etag_of(other.put("k", b"theirs 2", IfMatch(etag)))
        front.reset()
        assert store.put("k", self.body, IfAbsent()) == Conflict()
        assert store.put("k", self.body, IfMatch(etag)) == Conflict()
        assert front.requests == {"create": 2, "part": 6, "complete": 2, "head": 2, "abort": 2}
        assert store.get("k").data == b"theirs 2"

    @pytest.mark.parametrize(("kind", "aborts"), [("create", 0), ("part", 1)])
    def test_parts_that_never_arrive_are_unavailable_and_aborted(
        self, store: S3Store, front: Front, kind: str, aborts: int
    ) -> None:
        front.on(kind, "/k", *[SLOW_DOWN] * 3)
        with pytest.raises(Unavailable, match="nothing was published"):
            store.put("k", self.body, IfAbsent())
        assert front.requests.get("abort", 0) == aborts
        with pytest.raises(NotFound):
            store.head("k")

    def test_an_upload_that_may_be_completed_yet_is_not_aborted(self, store: S3Store, front: Front) -> None:
        front.on("complete", "/k", DROPPED, DROPPED, DROPPED)
        assert isinstance(store.put("k", self.body, IfAbsent()), OutcomeUnknown)
        assert "abort" not in front.requests

    def test_an_upload_that_is_gone_is_begun_anew(self, store: S3Store, front: Front) -> None:
        front.on("complete", "/k", Answer(404, "NoSuchUpload"))
        etag_of(store.put("k", self.body, IfAbsent()))
        assert front.requests == {"create": 2, "part": 6, "complete": 2, "head": 1}
        assert store.get("k").data == self.body

    def test_an_interruption_between_parts_aborts_the_upload(self, store: S3Store, front: Front) -> None:
        class Interrupted(ManualClock):
            def sleep_ms(self, duration_ms: float) -> None:
                super().sleep_ms(duration_ms)
                raise KeyboardInterrupt

        interrupted = S3Store(parse_s3_uri(store.uri, {}), clock=Interrupted(0), retries=RETRIES, part_bytes=PART)
        front.on("part", "partNumber=2", SLOW_DOWN)
        with pytest.raises(KeyboardInterrupt):
            interrupted.put("k", self.body, IfAbsent())
        assert front.requests == {"create": 1, "part": 2, "abort": 1}


def etag_of(result: PutResult) -> str:
    assert isinstance(result, Committed), result
    return result.etag
