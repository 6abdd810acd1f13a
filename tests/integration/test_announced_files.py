"""Files that a queue announces are ingested exactly once, and a listing finds the files that nothing announced.

The queue and the landing location are on a real S3 and SQS server, over HTTP.
"""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import boto3
import pytest

from jobs.due_runs import TableInputs, due_run, plan_next_run
from pipelines.maintenance.due_runs import IdleFingerprint
from pipelines.status import ExternalBacklogReader
from pipelines.tables import read_tables
from storage_core.base.errors import InvalidInput, TidemarkError, Unavailable
from storage_core.change.declaration import load
from storage_core.data.rows.window_range import WindowRange
from storage_core.log.job_run import JobReport, report_of
from storage_core.maintain.status import PendingWork
from storage_core.store.contract import Overwrite
from storage_core.store.resolve import open_store
from storage_core.write.ingest import announcements
from storage_core.write.ingest.landing import Landed
from tests.support.announcing import AnnouncedPlace, queue_client, s3_event
from tests.support.s3_server import SECRET_KEY, Answer, S3Server
from tidemark import Table


@pytest.fixture
def place(s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AnnouncedPlace:
    """Return a landing location that was listed before. Therefore the next run finds only announced files."""
    monkeypatch.setattr(announcements, "_WAIT_SECONDS", 0)  # this server finds each message at once
    made = AnnouncedPlace(s3_server, tmp_path)
    made.ingest()
    s3_server.front.reset()
    return made


def counts(report: JobReport) -> dict[str, object]:
    """Return the counts of a report, without the requests."""
    details = report.details["announced"]
    assert isinstance(details, dict)
    return {name: value for name, value in details.items() if name != "requests"}


def test_announced_files_are_ingested_once_without_a_listing_and_their_messages_are_deleted(
    place: AnnouncedPlace,
) -> None:
    names = place.land(*range(25))
    place.announce(*names[:20])
    report = place.ingest()
    assert place.ids() == list(range(20)), "the others were never announced"
    assert counts(report) == {"messages": 20, "files": 20, "heads": 20, "deleted": 20}
    assert report.details["announced"]["requests"] == {"receive": 4, "delete": 2}  # type: ignore[index]
    assert place.messages() == {"visible": 0, "hidden": 0}
    seen = place.server.front.requests
    assert seen.get("list", 0) == 0
    assert (seen["head"], seen["get"]) == (20 + 20, 20), "20 HEADs are of this test, which reads sizes and ETags"
    assert place.ingest().status == "nothing_to_do"


def test_repeated_messages_out_of_order_add_each_row_once(place: AnnouncedPlace) -> None:
    names = place.land(*range(30))
    order = random.Random(7)
    for part in (names[10:20], names[:10], names[5:30], names):
        place.announce(*order.sample([*part, *part[:3]], len(part) + 3))
        place.ingest()
    assert place.ids() == list(range(30))
    place.announce(*names)
    report = place.ingest()
    assert counts(report) == {"messages": 30, "files": 30, "known": 30, "deleted": 30}, "no HEAD of a known content"
    assert report.status == "nothing_to_do"


def test_an_old_event_of_a_file_that_was_written_again_gives_the_present_content_once(place: AnnouncedPlace) -> None:
    (name,) = place.land(1)
    old = place.event(name)
    open_store(place.uri).put(name, b'{"at": "2026-01-01T00:00:00Z", "id": 22222}\n', Overwrite())
    place.send(old)
    place.ingest()
    place.announce(name)
    place.send(old)
    report = place.ingest()
    assert place.ids() == [22222]
    assert counts(report) == {"messages": 2, "repeated": 1, "files": 1, "heads": 1, "deleted": 2}


def test_the_same_content_under_the_same_name_adds_no_row(place: AnnouncedPlace) -> None:
    (name,) = place.land(1)
    place.announce(name)
    place.ingest()
    place.land(1)
    place.announce(name)
    place.ingest()
    assert place.ids() == [1]


def test_a_file_that_is_gone_is_reported_and_its_message_deleted(place: AnnouncedPlace) -> None:
    names = place.land(1, 2)
    place.announce(*names)
    open_store(place.uri).delete(names[:1])
    report = place.ingest()
    assert place.ids() == [2]
    found = counts(report)
    assert (found["missing"], found["missing_names"], found["deleted"]) == (1, names[:1], 2)
    assert place.messages() == {"visible": 0, "hidden": 0}


def test_a_file_that_disappears_between_the_look_and_the_read_is_reported(place: AnnouncedPlace) -> None:
    names = place.land(1, 2)
    place.announce(*names)
    place.server.front.on("get", "000001.json", Answer(404, "NoSuchKey"))
    report = place.ingest()
    assert place.ids() == [2]
    assert counts(report)["missing"] == 1
    assert place.messages() == {"visible": 0, "hidden": 0}


def test_a_file_that_changes_between_the_look_and_the_read_keeps_its_message(
    place: AnnouncedPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    (name,) = place.land(1)
    place.announce(name)
    find = announcements.Announcements.find

    def find_and_replace(self: announcements.Announcements, *given: Any) -> Landed:
        found = find(self, *given)
        open_store(place.uri).put(name, b'{"at": "2026-01-01T01:00:00Z", "id": 2}\n', Overwrite())
        return found

    with monkeypatch.context() as patch:
        patch.setattr(announcements.Announcements, "find", find_and_replace)
        report = place.ingest()
    assert report.status == "nothing_to_do"
    assert counts(report) == {"messages": 1, "files": 1, "heads": 1}
    assert place.messages() == {"visible": 0, "hidden": 1}
    place.announce(name)
    place.ingest()
    assert place.ids() == [2]


def test_messages_that_are_not_understood_stay_and_the_others_are_counted(place: AnnouncedPlace) -> None:
    (name,) = place.land(1)
    bucket = place.server.bucket
    place.announce(name)
    place.send(
        "not JSON",
        {"hello": "world"},
        {"Service": "Amazon S3", "Event": "s3:TestEvent"},
        s3_event(bucket, f"{place.prefix}/{name}", name="ObjectRemoved:Delete"),
        s3_event(bucket, "another/place.json", size=1),
        s3_event("another-bucket", f"{place.prefix}/{name}", size=1),
        s3_event(bucket, f"{place.prefix}/_hidden/a.json", size=1),
        s3_event(bucket, f"{place.prefix}/a.csv", size=1),
        s3_event(bucket, f"{place.prefix}/empty.json", size=0),
    )
    open_store(place.uri).put("empty.json", b"", Overwrite())
    report = place.ingest()
    found = counts(report)
    ids = found.pop("not_understood_ids")
    assert isinstance(ids, list)
    assert len(ids) == 2
    assert found == {
        "messages": 10,
        "files": 4,
        "elsewhere": 6,
        "not_understood": 2,
        "heads": 2,
        "deleted": 8,
    }
    assert place.messages() == {"visible": 0, "hidden": 2}
    assert place.ids() == [1]


def test_a_name_that_is_not_a_key_and_a_suffix_in_another_case_are_reported_as_not_read(place: AnnouncedPlace) -> None:
    bucket = place.server.bucket
    place.send(
        s3_event(bucket, f"{place.prefix}/a//b.json", size=9), s3_event(bucket, f"{place.prefix}/A.JSON", size=9)
    )
    report = place.ingest()
    assert report.details["not_read"] == 2
    assert place.messages() == {"visible": 0, "hidden": 0}


def test_a_listing_finds_what_was_never_announced_and_the_log_has_its_time(place: AnnouncedPlace) -> None:
    place.declare(list_every="1h")
    place.ingest()
    names = place.land(1, 2, 3)
    place.announce(names[0])
    before = place.ingest().details["last_listed_ms"]
    assert place.ids() == [1]
    place.clock.now += 3_600_000
    place.server.front.reset()
    listed = place.ingest().details["last_listed_ms"]
    assert isinstance(listed, int)
    assert listed - 3_600_000 >= before > 0  # type: ignore[operator]
    assert place.ids() == [1, 2, 3]
    assert place.server.front.requests["list"] == 1
    place.announce(*names)
    assert place.ingest().details["last_listed_ms"] == listed


def test_a_listing_that_finds_nothing_is_recorded_once_per_interval(place: AnnouncedPlace) -> None:
    place.declare(list_every="1h")
    before = Table.open(place.table_uri).version
    for _ in range(3):
        place.ingest()
    assert Table.open(place.table_uri).version == before, "the first listing is from the fixture"
    place.clock.now += 3_600_000
    assert place.ingest().status == "committed"
    assert place.ingest().status == "nothing_to_do"
    assert Table.open(place.table_uri).version == before + 1


def test_announced_files_of_a_run_that_lists_need_no_request_each(place: AnnouncedPlace) -> None:
    place.declare(list_every="1m")
    names = place.land(*range(10))
    place.announce(*names)
    place.clock.now += 60_000
    report = place.ingest()
    assert counts(report) == {"messages": 10, "files": 10, "deleted": 10}
    assert place.ids() == list(range(10))


def test_a_dry_run_and_a_run_of_some_windows_list_and_receive_no_message(place: AnnouncedPlace) -> None:
    place.announce(*place.land(0, 1))
    assert place.ingest(dry_run=True).details["files"] == 2
    hour = 1_767_225_600
    place.ingest(windows=WindowRange(start=hour, end=hour + 3600))
    assert place.ids() == [0]
    assert place.messages() == {"visible": 2, "hidden": 0}
    place.ingest()
    assert place.ids() == [0, 1]
    assert place.messages() == {"visible": 0, "hidden": 0}


def test_a_run_receives_a_bounded_number_of_messages(place: AnnouncedPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcements, "MOST_MESSAGES", 20)
    place.announce(*place.land(*range(30)))
    place.ingest()
    assert len(place.ids()) == 20
    place.ingest()
    assert place.ids() == list(range(30))


def test_the_commit_precedes_the_deletion_and_messages_that_come_again_add_nothing(place: AnnouncedPlace) -> None:
    names = place.land(1, 2)
    place.announce(*names)
    place.server.front.on("DeleteMessageBatch", "", Answer(403, body=b'{"__type": "AccessDenied"}'))
    with pytest.raises(Unavailable, match="sqs:DeleteMessage") as caught:
        place.ingest()
    report = report_of(caught.value)
    assert report is not None
    assert report.status == "committed"
    assert place.ids() == [1, 2]
    place.announce(*names)  # as the queue does after the visibility timeout
    assert place.ingest().status == "nothing_to_do"
    assert place.ids() == [1, 2]


def test_a_run_that_another_run_overtakes_plans_again_and_adds_each_row_once(
    place: AnnouncedPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = place.land(1, 2, 3)
    place.announce(*names)
    find, overtakes = announcements.Announcements.find, [names[1]]

    def find_while_another_run_commits(self: announcements.Announcements, *given: Any) -> Landed:
        found = find(self, *given)
        if overtakes:
            place.announce(overtakes.pop())
            place.ingest()
            assert place.ids() == [2]
        return found

    monkeypatch.setattr(announcements.Announcements, "find", find_while_another_run_commits)
    place.ingest()
    assert place.ids() == [1, 2, 3]


def test_an_absent_queue_and_refused_credentials_are_named(place: AnnouncedPlace) -> None:
    place.declare(queue=f"{place.server.endpoint}/123456789012/absent", list_every="1000d")
    with pytest.raises(InvalidInput, match=r"absent: the queue does not exist\. Create the queue"):
        place.ingest()
    place.declare()
    place.ingest()
    place.server.front.on("ReceiveMessage", "", Answer(403, body=b'{"__type": "AccessDenied"}'))
    with pytest.raises(Unavailable, match=r"access denied.*sqs:ReceiveMessage") as caught:
        place.ingest()
    assert SECRET_KEY not in str(caught.value)


def test_a_run_is_due_when_messages_wait_or_a_listing_is_due(place: AnnouncedPlace) -> None:
    place.declare(list_every="1h")
    place.ingest()
    declaration = load(str(place.declaration))

    def inputs() -> TableInputs:
        return TableInputs.of(declaration, place.clock)

    place.server.front.reset()
    found = plan_next_run("ingest", inputs())
    assert found.due is None
    assert 0 < (found.in_ms or 0) <= 3_600_000
    assert place.server.front.requests == {"GetQueueAttributes": 1}
    place.announce(*place.land(1))
    due = due_run("ingest", inputs())
    assert due is not None
    assert (due.items, due.reason) == (1, "1 message of the queue")
    place.ingest()
    place.clock.now += 3_600_000
    due = due_run("ingest", inputs())
    assert due is not None
    assert due.reason == "a listing of the landing location"


def test_the_notifications_of_the_server_itself_are_ingested(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcements, "_WAIT_SECONDS", 0)
    place = AnnouncedPlace(s3_server, tmp_path, list_every="1000d")
    client = queue_client(s3_server, "us-east-1")  # the region of the server's bucket
    url = client.create_queue(QueueName="notified")["QueueUrl"]
    arn = client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    s3 = boto3.client("s3", endpoint_url=s3_server.endpoint, region_name="us-east-1")
    rule = {"QueueArn": arn, "Events": ["s3:ObjectCreated:*"]}
    s3.put_bucket_notification_configuration(
        Bucket=s3_server.bucket, NotificationConfiguration={"QueueConfigurations": [rule]}
    )
    try:
        uri = place.uri.replace("region=eu-central-1", "region=us-east-1")
        place.declare(queue=f"{s3_server.endpoint}/{url.rpartition('//')[2].partition('/')[2]}", uri=uri)
        place.ingest()
        place.land(1, 2)
        s3_server.front.reset()
        place.ingest()
    finally:
        s3.put_bucket_notification_configuration(Bucket=s3_server.bucket, NotificationConfiguration={})
    assert s3_server.front.requests.get("list", 0) == 0
    assert place.ids() == [1, 2]


def test_a_run_that_stops_at_any_request_adds_each_row_once(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcements, "_WAIT_SECONDS", 0)
    whole = stopped_at(s3_server, tmp_path / "whole", None)
    assert whole > 10
    for applied in (False, True):
        for number in range(whole):
            stopped_at(s3_server, tmp_path / f"{number}-{applied}", number, applied=applied)


def stopped_at(server: S3Server, folder: Path, number: int | None, *, applied: bool = False) -> int:
    """Stop a run at this request and at all later requests. Then send the messages again, and check the rows."""
    folder.mkdir()
    place = AnnouncedPlace(server, folder, table_uri=server.uri(f"tables/{folder.name}-{folder.parent.name}"))
    place.ingest()
    bodies = [place.event(name) for name in place.land(1, 2)]
    place.send(*bodies)
    server.front.reset()
    if number is not None:
        server.front.stop_after(number, applied=applied)
        with suppress(TidemarkError):
            place.ingest()
        server.front.reset()
        assert set(place.ids()) <= {1, 2}
        place.send(*bodies)  # as the queue does after the visibility timeout
    place.ingest()
    requests = len(server.front.seen)
    server.front.reset()
    assert place.ids() == [1, 2]
    assert place.messages()["visible"] == 0
    return requests


def test_an_idle_table_is_checked_with_one_request_until_a_message_waits(place: AnnouncedPlace) -> None:
    declaration = load(str(place.declaration))
    seen = IdleFingerprint.of(TableInputs.of(declaration, place.clock))
    place.server.front.reset()
    for _ in range(4):  # the checks of the log and of the landing location take turns
        is_same, seen = seen.is_same(declaration)
        assert is_same
    assert place.server.front.requests == {"GetQueueAttributes": 2}
    place.announce(*place.land(1))
    assert not all(seen.is_same(declaration)[0] for _ in range(2))


def test_the_status_counts_the_waiting_messages_with_one_request(place: AnnouncedPlace) -> None:
    declaration = load(str(place.declaration))
    place.announce(*place.land(1, 2))
    place.server.front.reset()
    found = ExternalBacklogReader(
        Table.open(place.table_uri), declaration.landing_spec(), place.clock.now_ms()
    ).measure()
    assert found.ingest == PendingWork(count=2, unit="messages")
    assert place.server.front.requests == {"GetQueueAttributes": 1}


def test_two_declared_tables_cannot_have_the_same_queue(place: AnnouncedPlace, tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    folder.mkdir()
    body = place.declaration.read_text()
    (folder / "a.yaml").write_text(body)
    (folder / "b.yaml").write_text(body.replace('"events"', '"others"').replace(place.table_uri, f"{tmp_path}/other"))
    declared = read_tables(folder)
    (problem,) = declared.problems
    assert "the queue already belongs to" in problem.message
    assert "a.yaml" in problem.message
    assert [each.declaration.name for each in declared.tables] == ["events"]


def test_announced_files_change_a_keyed_table_once(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcements, "_WAIT_SECONDS", 0)
    monkeypatch.setattr("jobs.keyed_ingest.ROUND_FILES", 4)
    place = AnnouncedPlace(s3_server, tmp_path, is_keyed=True)
    place.ingest()
    names = place.land(*range(10))
    place.announce(*names[:8], *names[:3])
    open_store(place.uri).delete(names[:1])
    report = place.ingest()
    assert place.ids() == list(range(1, 8))
    assert (counts(report)["missing"], counts(report)["deleted"]) == (1, 11)
    assert place.messages() == {"visible": 0, "hidden": 0}
    assert place.ingest().status == "nothing_to_do"
    place.list_every = "1m"
    place.declare()
    place.clock.now += 60_000
    place.ingest()
    assert place.ids() == list(range(1, 10)), "the listing finds the files that nothing announced"
