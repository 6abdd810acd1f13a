"""Read the announcements of landed files from an SQS queue. S3 sends an event to this queue for each new object.

A run of ingest receives at most `MOST_MESSAGES` messages, and ingests the files in these messages. The run deletes a
message only after the commit of its files. If a run ends earlier, SQS delivers its messages again. Later runs find the
files that are already in the table. Events can be lost, so a full listing finds files without a message
(`progress.until_listing_ms`).

| Message | Treatment |
|---|---|
| for a file in the landing location | deleted after the commit |
| for a file that no longer exists, or that is already in the table | counted, and deleted |
| a test event, a removal event, or an event for another object | counted, and deleted. A queue serves one table |
| not understood | counted, and left in the queue |

S3 can send its events directly to the queue, through SNS, or through EventBridge. Each of these three ways has its own
message format.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final, TypeVar
from urllib.parse import unquote_plus, urlsplit

from storage_core.base.errors import InvalidInput, NotFound, TidemarkError, Unavailable
from storage_core.log.snapshot import Snapshot
from storage_core.store.contract import ObjectInfo, Place, Unnamed, is_safe_key, why_unsafe
from storage_core.store.meter import prefetch
from storage_core.store.resolve import open_store
from storage_core.store.s3_calls import new_session
from storage_core.store.s3_failures import Trouble, answered, unanswered
from storage_core.store.s3_location import parse_s3_uri
from storage_core.write.ingest.landing import (
    MOST_NAMES,
    Landed,
    LandedFile,
    LandingSpec,
    is_wanted,
    landed_of,
    printable_name,
)
from storage_core.write.ingest.progress import Durations, progress

MOST_MESSAGES: Final = 10_000
"""The maximum number of messages that one run receives.

The messages take about 10 MB of memory, and one commit adds their files.
"""

HIDDEN_SECONDS: Final = 900
"""The seconds for which the messages of a run are hidden from other runs.

If the run fails, SQS delivers the messages again after this time.
"""

_WAIT_SECONDS: Final = 1
_MESSAGES_PER_REQUEST: Final = 10
_REQUESTS_AT_ONCE: Final = 8
_HEADS_AT_ONCE: Final = 16
_REGION_IN_HOST = re.compile(r"(?:.+\.)?sqs\.([a-z0-9-]+)\.(?:vpce\.)?amazonaws\.com(?:\.cn)?", re.ASCII)
_PERMISSIONS = "Allow sqs:ReceiveMessage, sqs:DeleteMessage and sqs:GetQueueAttributes"
_ABSENT = ("NonExistentQueue", "QueueDoesNotExist")

_logger = logging.getLogger(__name__)

T = TypeVar("T")


# Messages.


@dataclass(frozen=True, slots=True)
class CreatedObject:
    """An object in an event. The event may lack the size and the ETag of the object."""

    bucket: str
    key: str
    size: int | None = None
    etag: str | None = None


def created_objects(body: str) -> tuple[CreatedObject, ...] | None:
    """Return the objects that a message announces, or None if the message is not understood.

    For test events, and for events that do not report a new object, the result is empty.
    """
    try:
        return _created(json.loads(body), depth=2)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return None


def _created(body: Any, *, depth: int) -> tuple[CreatedObject, ...] | None:
    if body.get("Type") == "Notification" and depth:  # the envelope of SNS
        return _created(json.loads(body["Message"]), depth=depth - 1)
    if body.get("Event") == "s3:TestEvent":
        return ()
    if "detail-type" in body:
        return _of_event_bridge(body)
    records = body["Records"]
    if not all(each["eventSource"].endswith(":s3") for each in records):
        return None
    created = [each for each in records if each["eventName"].removeprefix("s3:").startswith("ObjectCreated:")]
    return tuple(_object(each["s3"], unquote_plus(each["s3"]["object"]["key"], errors="strict")) for each in created)


def _of_event_bridge(body: Mapping[str, Any]) -> tuple[CreatedObject, ...] | None:
    if body["source"] != "aws.s3":
        return None
    detail = body["detail"]
    is_new = body["detail-type"] == "Object Created"
    return (_object(detail, detail["object"]["key"]),) if is_new else ()  # these keys are not encoded


def _object(event: Mapping[str, Any], key: object) -> CreatedObject:
    found = event["object"]
    if not isinstance(key, str):
        raise TypeError("the key is not a text")
    size, etag = found.get("size"), found.get("eTag") or found.get("etag")
    return CreatedObject(
        bucket=str(event["bucket"]["name"]),
        key=key,
        size=None if size is None else int(size),
        etag=None if etag is None else '"' + str(etag).strip('"') + '"',
    )


@dataclass(frozen=True, slots=True)
class Message:
    """A received message: its id, the receipt for its deletion, and its objects (`created_objects`)."""

    id: str
    receipt: str
    objects: tuple[CreatedObject, ...] | None


# The queue.


class Queue:
    """A client of an SQS queue, based on boto3. The client loads boto3 at its first request.

    The endpoint is the host of the queue URL. The region comes from the host, otherwise from the landing location,
    otherwise from the profile. The credentials come from the usual sources of boto3. `requests` counts the requests by
    kind.
    """

    def __init__(self, url: str, region: str | None = None) -> None:
        self.url = url
        self.requests: Counter[str] = Counter()
        self._region = region
        self._client: Any = None

    @staticmethod
    def of(spec: LandingSpec) -> Queue:
        """Return the queue of a landing location. No request."""
        return Queue(spec.queue or "", parse_s3_uri(spec.uri, os.environ).region)

    def receive(self, most: int) -> list[Message]:
        """Return up to about `most` messages of the queue. The messages are hidden from other runs for 15 minutes.

        Cost: a request per 10 messages, several at a time, and one that finds no message.
        """
        found: list[Message] = []
        width = 1
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
            while len(found) < most:
                width = min(width, -(-(most - len(found)) // _MESSAGES_PER_REQUEST))
                batches = self._sent("receive", [self._receive] * width, pool)
                found += chain.from_iterable(batches)
                if not any(batches):
                    break
                is_full = all(len(each) == _MESSAGES_PER_REQUEST for each in batches)
                width = min(2 * width, _REQUESTS_AT_ONCE) if is_full else 1
        return found

    def delete(self, receipts: Sequence[str]) -> int:
        """Delete messages, and return how many were deleted.

        SQS delivers the other messages again. One request per 10 messages.
        """
        starts = range(0, len(receipts), _MESSAGES_PER_REQUEST)
        parts = [receipts[start : start + _MESSAGES_PER_REQUEST] for start in starts]
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
            return sum(self._sent("delete", [_deletion(self.url, each) for each in parts], pool))

    def waiting(self) -> int:
        """Return the approximate number of messages that a run would receive. One request."""
        name = "ApproximateNumberOfMessages"

        def count(client: Any) -> int:
            return int(client.get_queue_attributes(QueueUrl=self.url, AttributeNames=[name])["Attributes"][name])

        self.requests["count"] += 1
        return self._call(count)

    def _sent(self, kind: str, acts: Sequence[Callable[[Any], T]], pool: ThreadPoolExecutor) -> list[T]:
        self.requests[kind] += len(acts)
        self._call(lambda _: None)  # this call connects the client before several threads use the client
        return list(pool.map(self._call, acts))

    def _receive(self, client: Any) -> list[Message]:
        reply = client.receive_message(
            QueueUrl=self.url,
            MaxNumberOfMessages=_MESSAGES_PER_REQUEST,
            WaitTimeSeconds=_WAIT_SECONDS,  # without a wait, SQS searches only some of its servers
            VisibilityTimeout=HIDDEN_SECONDS,
        )
        found = reply.get("Messages", ())
        return [Message(each["MessageId"], each["ReceiptHandle"], created_objects(each["Body"])) for each in found]

    def _call(self, act: Callable[[Any], T]) -> T:
        import botocore.exceptions

        try:
            return act(self._connect())
        except botocore.exceptions.ClientError as error:
            raise self._refused(error.response) from None
        except Exception as error:  # noqa: BLE001  # boto3 raises whatever its parsers do, of any class
            failure = unanswered(error)
            raise Unavailable(f"{self.url}: {failure}. Check `queue` and the credentials, or try again later") from None

    def _refused(self, response: Any) -> TidemarkError:
        if str(response.get("Error", {}).get("Code", "")).endswith(_ABSENT):
            return InvalidInput(
                f"{self.url}: the queue does not exist. Create the queue, or correct `queue` in `landing`"
            )
        failure = answered(response, "")
        if failure.trouble is Trouble.ACCESS:
            return Unavailable(f"{self.url}: {failure}. {_PERMISSIONS}")
        return Unavailable(f"{self.url}: {failure}. Check `queue` and its region, or try again later")

    def _connect(self) -> Any:
        if self._client is None:
            from boto3.session import Session
            from botocore.config import Config

            session = Session(botocore_session=new_session())
            place = urlsplit(self.url)
            found = _REGION_IN_HOST.fullmatch(place.hostname or "")
            region = found[1] if found else self._region or session.region_name or "us-east-1"
            self._client = session.client(
                "sqs",
                endpoint_url=f"{place.scheme}://{place.netloc}",
                region_name=region,
                config=Config(
                    retries={"total_max_attempts": 5, "mode": "standard"},
                    max_pool_connections=_REQUESTS_AT_ONCE,
                    connect_timeout=10,
                    read_timeout=60,
                ),
            )
        return self._client


def _deletion(url: str, receipts: Sequence[str]) -> Callable[[Any], int]:
    entries = [{"Id": str(number), "ReceiptHandle": each} for number, each in enumerate(receipts)]
    return lambda client: len(client.delete_message_batch(QueueUrl=url, Entries=entries).get("Successful", ()))


# The files of a run.


class Announcements:
    """The messages of one run, and the files in these messages.

    Create the object, and call `find`. Then commit the files, and call `settle`.
    """

    def __init__(self, spec: LandingSpec) -> None:
        """Receive the messages. Raises the errors of the queue. The cost is that of `Queue.receive`."""
        self._spec = spec
        self._queue = Queue.of(spec)
        self._place = parse_s3_uri(spec.uri, os.environ)
        self.messages = self._queue.receive(MOST_MESSAGES)
        self._named: dict[str, set[CreatedObject]] = {}
        self._missing: set[str] = set()
        self._counts: Counter[str] = Counter(messages=len(self.messages))
        for each in self.messages:
            if each.objects is None:
                self._counts["not_understood"] += 1
                continue
            names = [(path, found) for found in each.objects if (path := self._path(found)) is not None]
            self._counts["elsewhere"] += not any(is_wanted(path, spec.suffix) for path, _ in names)
            for path, found in names:
                self._counts["repeated"] += path in self._named
                self._named.setdefault(path, set()).add(found)
        self._counts["files"] = len(self._named)

    def find(self, snapshot: Snapshot | None, listing: Landed | None = None) -> Landed:
        """Return the announced files that exist and may have new rows, together with the files of the listing.

        Cost: one HEAD per file that is neither in the listing nor in the table.
        """
        store = open_store(self._spec.uri)
        listed = frozenset(file.path for file in listing.files) if listing else frozenset[str]()
        names = sorted(self._named.keys() - listed)
        settled = self._settled(snapshot, store.uri, names)
        self._counts["known"] = len(settled)
        present = list(self._looked_up(store, [name for name in names if name not in settled]))
        found = landed_of(present, self._spec, store.uri)
        if listing is None:
            return found
        files = sorted([*listing.files, *found.files], key=lambda file: file.path)
        return replace(listing, files=files)

    def _path(self, found: CreatedObject) -> str | None:
        """Return the path in the landing location, or None for an object elsewhere."""
        is_here = found.bucket == self._place.bucket and found.key.startswith(self._place.object_key(""))
        return self._place.table_key(found.key) if is_here else None

    def _settled(self, snapshot: Snapshot | None, uri: str, names: Sequence[str]) -> frozenset[str]:
        """Return the names of files whose announced contents are all in the table.

        No HEAD is needed for these files.
        """
        if snapshot is None:
            return frozenset()
        announced = [
            LandedFile(name, -1 if each.size is None else each.size, uri, None, each.etag)
            for name in names
            for each in self._named[name]
        ]
        known = progress(snapshot.txns, announced, Durations.of(snapshot.config))
        open_ = {file.path for file in announced if file.etag is None or not known[file.path].is_settled(file)}
        return frozenset(names) - open_

    def _looked_up(self, store: Place, names: Sequence[str]) -> Iterator[ObjectInfo | Unnamed]:
        wanted: list[str] = []
        for name in names:
            if not is_safe_key(name):
                yield Unnamed(name, why_unsafe(name))
            elif is_wanted(name, self._spec.suffix):
                wanted.append(name)
            else:
                yield ObjectInfo(name, max((each.size or 0 for each in self._named[name]), default=0), "", 0)
        self._counts["heads"] = len(wanted)

        def look_up(name: str) -> ObjectInfo | None:
            try:
                found = store.head(name)
            except NotFound:
                return None
            return ObjectInfo(name, found.size, found.etag, found.last_modified_ms)

        for name, found in zip(wanted, prefetch(look_up, wanted, _HEADS_AT_ONCE), strict=True):
            if found is None:
                self._missing.add(name)
            else:
                yield found

    def settle(self, *, gone: Collection[str] = (), changed: Collection[str] = ()) -> None:
        """Delete the messages whose files are in the table, in quarantine, or gone. Call this after the commit.

        The messages of changed files, and those that are not understood, stay in the queue. Raises the errors of the
        queue. The messages then come again. One request per 10 messages.

        Args:
            gone: The files that disappeared before they were read.
            changed: The files that changed while they were read. A later run reads them.
        """
        self._missing |= self._named.keys() & set(gone)
        left = set(changed)
        done = [each for each in self.messages if each.objects is not None]
        done = [each for each in done if not left or left.isdisjoint(map(self._path, each.objects or ()))]
        self._counts["deleted"] = self._queue.delete([each.receipt for each in done])
        if self._counts["not_understood"]:
            _logger.warning("%s: %d messages are not understood", self._queue.url, self._counts["not_understood"])

    @property
    def details(self) -> dict[str, object]:
        """The counts of messages and files, and the requests, for the report of a run."""
        unread = [each.id for each in self.messages if each.objects is None]
        found: dict[str, object] = dict(self._counts)
        if self._missing:
            found |= {"missing": len(self._missing)}
            found |= {"missing_names": [printable_name(each) for each in sorted(self._missing)[:MOST_NAMES]]}
        if unread:
            found["not_understood_ids"] = unread[:MOST_NAMES]
        return {name: value for name, value in found.items() if value} | {"requests": dict(self._queue.requests)}
