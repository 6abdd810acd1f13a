"""All forms of S3 messages about new objects are decoded. Messages that are not understood are recognized."""

from __future__ import annotations

import json
from typing import Any

import pytest

from storage_core.base.errors import InvalidInput
from storage_core.log.actions import Txn
from storage_core.log.transactions import Subjects, Transactions
from storage_core.write.ingest.announcements import CreatedObject, created_objects
from storage_core.write.ingest.landing import LandingSpec
from storage_core.write.ingest.progress import listed_app, until_listing_ms

QUEUE = "https://sqs.eu-central-1.amazonaws.com/123456789012/landed"


def record(name: str = "ObjectCreated:Put", source: str = "aws:s3", **found: Any) -> dict[str, Any]:
    return {"eventSource": source, "eventName": name, "s3": {"bucket": {"name": "b"}, "object": found}}


def event(*records: dict[str, Any]) -> str:
    return json.dumps({"Records": records})


def bridged(kind: str, **found: Any) -> str:
    detail = {"bucket": {"name": "b"}, "object": found, "reason": "PutObject"}
    return json.dumps({"version": "0", "detail-type": kind, "source": "aws.s3", "detail": detail})


def in_sns(body: str) -> str:
    return json.dumps({"Type": "Notification", "TopicArn": "arn:aws:sns:eu-central-1:1:landed", "Message": body})


ONE = CreatedObject("b", "in/a b+c=é.json", 7, '"0cc1"')
ENCODED: dict[str, Any] = {"key": "in/a+b%2Bc%3D%C3%A9.json", "size": 7, "eTag": "0cc1"}
PLAIN: dict[str, Any] = {"key": "in/a b+c=é.json", "size": 7, "etag": "0cc1"}


@pytest.mark.parametrize(
    "body",
    [
        event(record(**ENCODED)),
        event(record("s3:ObjectCreated:CompleteMultipartUpload", "minio:s3", **ENCODED)),
        event(record("ObjectRemoved:Delete", key="in/other"), record("ObjectCreated:Copy", **ENCODED)),
        in_sns(event(record(**ENCODED))),
        bridged("Object Created", **PLAIN),
        in_sns(bridged("Object Created", **PLAIN)),
    ],
)
def test_every_form_of_a_message_names_the_same_object(body: str) -> None:
    assert created_objects(body) == (ONE,)


def test_an_event_may_lack_the_size_and_the_etag() -> None:
    assert created_objects(event(record(key="a"), record(key="b", size=1))) == (
        CreatedObject("b", "a"),
        CreatedObject("b", "b", 1),
    )


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "b"}),
        in_sns(json.dumps({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "b"})),
        event(record("ObjectRemoved:Delete", key="a")),
        bridged("Object Deleted", key="a"),
    ],
)
def test_test_events_and_removals_announce_nothing(body: str) -> None:
    assert created_objects(body) == ()


@pytest.mark.parametrize(
    "body",
    [
        "",
        "not JSON",
        "[" * 100_000,
        "null",
        "[]",
        "{}",
        '"text"',
        json.dumps({"Records": None}),
        json.dumps({"Records": [{"eventSource": "aws:sns"}]}),
        event(record(**ENCODED), record(source="aws:sqs", key="a")),
        event(record()),
        event(record(key="%ff")),
        event(record(key=7)),
        event(record(key="a", size="large")),
        event(record(key="a", size=1)).replace("1}", "1e999}"),
        bridged("Object Created", key=None),
        json.dumps({"Type": "Notification", "Message": "hello"}),
        in_sns(in_sns(in_sns(event(record(**ENCODED))))),
        bridged("Object Created", **PLAIN).replace("aws.s3", "aws.ec2"),
    ],
)
def test_a_message_that_is_not_understood_is_recognized(body: str) -> None:
    assert created_objects(body) is None


def spec(**settings: Any) -> LandingSpec:
    return LandingSpec(**{"uri": "s3://bucket/in", "format": "ndjson", **settings})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"queue": "landed"}, "not the URL of an SQS queue"),
        ({"queue": "arn:aws:sqs:eu-central-1:1:landed"}, "not the URL of an SQS queue"),
        ({"queue": "https://sqs.eu-central-1.amazonaws.com"}, "not the URL of an SQS queue"),
        ({"queue": QUEUE + "\n"}, "not the URL of an SQS queue"),
        ({"queue": QUEUE.replace("//", "//key:secret@")}, "may contain credentials"),
        ({"queue": QUEUE + "?X-Amz-Signature=secret"}, "may contain credentials"),
        ({"queue": QUEUE + ".fifo"}, "FIFO"),
        ({"queue": QUEUE, "uri": "landing/in"}, "landing location on S3"),
        ({"queue": QUEUE, "format": "delta"}, "Delta table"),
        ({"list_every_ms": 1}, "landing location with a queue"),
        ({"queue": QUEUE, "list_every_ms": 59_999}, "shorter than 1m"),
    ],
)
def test_an_impossible_queue_is_refused_and_no_secret_is_repeated(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        spec(**settings)
    assert "secret" not in str(caught.value)


def test_a_spec_with_a_queue_travels_and_one_without_it_has_the_text_of_older_releases() -> None:
    with_queue = spec(queue=QUEUE, list_every_ms=60_000)
    assert LandingSpec.from_json(with_queue.to_json()) == with_queue
    assert "queue" not in spec().to_json()
    assert "list_every" not in spec().to_json()


def test_a_listing_is_due_at_first_after_the_interval_and_after_a_change_of_the_place() -> None:
    announced = spec(queue=QUEUE)
    assert until_listing_ms({}, announced, 5) == 0
    listed = {listed_app(announced): 1_000}
    assert until_listing_ms(listed, announced, 1_000) == 3_600_000
    assert until_listing_ms(listed, announced, 3_601_000) == 0
    assert until_listing_ms(listed, spec(queue=QUEUE, list_every_ms=60_000), 31_000) == 30_000
    for changed in (spec(queue=QUEUE + "2"), spec(queue=QUEUE, suffix=".json"), spec(queue=QUEUE, uri="s3://bucket/x")):
        assert until_listing_ms(listed, changed, 1_000) == 0


@pytest.mark.parametrize("low", ["landed:a", "landed:a-b", "landed:a@5", "landed:a@5+3600", "landed:b"])
@pytest.mark.parametrize("high", ["landed:a", "landed:a-b", "landed:a@5", "landed:a@5+3600", "landed:b@null"])
def test_bounds_never_hide_a_transaction_about_a_subject(low: str, high: str) -> None:
    apps = ["landed:a", "landed:a-b", "landed:a-b@7", "landed:a@5", "landed:a@5+3600", "landed:b", "landed:b@null"]
    inside = [each for each in apps if low <= each <= high]
    for subject in ("a", "a-b", "b", "c"):
        subjects = Subjects(["landed"], [subject])
        if any(map(subjects.has, inside)):
            assert subjects.may_be_within({"landed": (low, high)})
    assert not Subjects(["landed"], ["c"]).may_be_within({"landed": (low, high)})
    assert not Subjects(["rejected"], ["a"]).may_be_within({"landed": (low, high)})


def test_transactions_about_a_subject_are_those_that_name_it() -> None:
    apps = ["landed:a", "landed:a@5", "landed:a-b", "content:a@ff", "raw:a", "a"]
    txns = Transactions(recent={each: Txn(appId=each, version=1) for each in apps} | {"rejected:a": None})
    assert txns.about(Subjects(["landed", "content", "rejected"], ["a"])).keys() == {*apps[:2], "content:a@ff"}
