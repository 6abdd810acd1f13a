"""Writing one object to S3 exactly once, also when a reply is lost (lessons 01, 02, 04 and 60).

Each put carries a fresh *write id* in the object's user metadata. Whatever is no plain success is settled by a HEAD:
our write id is a success, another one a conflict, and where nothing has changed the same put is sent again with the
same write id, which cannot take effect twice. Nothing is ever cleaned up after an unknown outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Protocol, assert_never

from storage_core.objectstore.contract import (
    Committed,
    Conflict,
    IfAbsent,
    IfMatch,
    OutcomeUnknown,
    Overwrite,
    PutMode,
    PutResult,
)
from storage_core.objectstore.s3_calls import S3Calls
from storage_core.objectstore.s3_failures import Failure, Trouble

WRITE_ID = "tidemark-write-id"

# After these the request may have taken effect, also when the answer, say one without an ETag, is not understood. An
# upload that is gone may be so because it was completed.
_MAY_HAVE_APPLIED = frozenset({Trouble.BUSY, Trouble.NO_UPLOAD})
# After these it has not, and the object says whether another attempt makes sense.
_NOT_APPLIED = frozenset({Trouble.NOT_SENT, Trouble.CONTENTION, Trouble.PRECONDITION, Trouble.ABSENT})


@dataclass(frozen=True, slots=True)
class Stored:
    """What a HEAD tells of an object: metadata, and the write id of the put that made it, if a put of ours did.

    `age_ms` is by the clock that dated the answer, the server's; by this machine's where the answer has no date.
    """

    size: int
    etag: str
    last_modified_ms: int
    age_ms: int
    write_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a put goes and as which write: store and key, bucket and name in it, condition, and the write id."""

    uri: str
    key: str
    bucket: str
    name: str
    mode: PutMode
    write_id: str

    @property
    def place(self) -> dict[str, Any]:
        """Bucket and key as boto3 takes them."""
        return {"Bucket": self.bucket, "Key": self.name}

    @property
    def metadata(self) -> dict[str, Any]:
        """The write id as boto3 takes it."""
        return {"Metadata": {WRITE_ID: self.write_id}}

    @property
    def condition(self) -> dict[str, Any]:
        """The condition as boto3 takes it."""
        match self.mode:
            case IfAbsent():
                return {"IfNoneMatch": "*"}
            case IfMatch(etag):
                return {"IfMatch": etag}
            case Overwrite():
                return {}
            case _:
                assert_never(self.mode)


class Upload(Protocol):
    """The bytes of one put on their way."""

    def send(self) -> str | Failure:
        """Send what has not arrived, then the condition with the last request; return the object's ETag."""
        ...

    def give_up(self) -> None:
        """Remove what arrived, unless it became the object or may yet."""
        ...


def put_once(calls: S3Calls, upload: Upload, target: Target, look: Callable[[], Stored | Failure]) -> PutResult:
    """Send until it is settled whether this put made the object; `look` is a HEAD of it.

    One PUT, and one HEAD after each attempt that was no plain success; at most as many attempts as the policy has.
    When no attempt can have taken effect, raises `Unavailable`, or what the server refuses the request for.
    """
    doubt: Failure | None = None
    failure: Failure | None = None
    try:
        for attempt in range(calls.attempts):
            if failure is not None:
                calls.pause(attempt, failure)
            sent = upload.send()
            if not isinstance(sent, Failure):
                return Committed(sent)
            failure = sent
            if sent.trouble in _MAY_HAVE_APPLIED:
                doubt = sent
            if sent.trouble is Trouble.NOT_SENT and doubt is None:
                continue
            if sent.trouble not in _MAY_HAVE_APPLIED | _NOT_APPLIED:
                break
            found = look()
            verdict = _verdict(found, target.write_id, target.mode, in_doubt=doubt is not None)
            if verdict is not None:
                return verdict
            if isinstance(found, Failure) and found.trouble is not Trouble.ABSENT:
                # A gateway may have repeated what we sent once: without a look, its refusal proves nothing.
                doubt = doubt or (sent if sent.trouble is Trouble.PRECONDITION else None)
                break
    finally:
        upload.give_up()
    if doubt is None and failure is not None:
        raise failure.error(target.uri, target.key)
    return OutcomeUnknown(f"{doubt}, and the object does not show whether the write took effect")


def _verdict(found: Stored | Failure, write_id: str, mode: PutMode, *, in_doubt: bool) -> PutResult | None:
    """What became of the put, seeing the object; None where another attempt can tell."""
    if isinstance(found, Stored) and found.write_id == write_id:
        return Committed(found.etag)
    match mode:
        case IfAbsent():
            # A writer that replaces an object made it or read it: objects that are never replaced cannot hide ours.
            return Conflict() if isinstance(found, Stored) else None
        case IfMatch(etag):
            deleted = isinstance(found, Failure) and found.trouble is Trouble.ABSENT
            changed = isinstance(found, Stored) and found.etag != etag
            if changed and in_doubt:
                return OutcomeUnknown("the reply was lost, and the object was replaced since, perhaps ours")
            return Conflict() if changed or (deleted and not in_doubt) else None
        case Overwrite():
            return None
        case _:
            assert_never(mode)


class SinglePut:
    """All bytes in one request."""

    def __init__(self, calls: S3Calls, target: Target, data: bytes) -> None:
        self._calls = calls
        self._target = target
        self._data = data

    def send(self) -> str | Failure:
        """One PUT."""
        target = self._target
        return self._calls.once(
            lambda client: quoted(
                client.put_object(**target.place, **target.metadata, **target.condition, Body=self._data)["ETag"]
            )
        )

    def give_up(self) -> None:
        """Do nothing: S3 keeps no part of an object."""


class MultipartPut:
    """The bytes in parts, of which nothing shows before the last request completes them, under the condition.

    Requests: one to begin, one per part, one to complete; parts are tried again by themselves.
    """

    def __init__(self, calls: S3Calls, target: Target, data: memoryview, part_bytes: int) -> None:
        self._calls = calls
        self._target = target
        self._data = data
        self._part_bytes = part_bytes
        self._parts: list[dict[str, Any]] = []
        self._upload: str | None = None
        self._abandonable = False

    def send(self) -> str | Failure:
        """Upload what is missing and complete the upload; begin anew when it is gone."""
        failure = self._arrive()
        if failure is not None:
            return Failure(Trouble.PARTS, str(failure))
        target, parts = self._target, {"Parts": self._parts}
        self._abandonable = False  # from here on it may be completed, whatever interrupts us
        done = self._calls.once(
            lambda client: quoted(
                client.complete_multipart_upload(
                    **target.place, **target.condition, UploadId=self._upload, MultipartUpload=parts
                )["ETag"]
            )
        )
        if isinstance(done, Failure):
            self._abandonable = done.trouble not in _MAY_HAVE_APPLIED
            if done.trouble is Trouble.NO_UPLOAD:
                self._upload, self._parts = None, []
        return done

    def give_up(self) -> None:
        """Abort the upload unless it may have been completed. One DELETE; whether that succeeds changes nothing."""
        if self._abandonable and self._upload is not None:
            self._calls.once(lambda client: client.abort_multipart_upload(**self._target.place, UploadId=self._upload))
            self._abandonable = False

    def _arrive(self) -> Failure | None:
        target = self._target
        if self._upload is None:
            begun = self._calls.retried(
                lambda client: str(client.create_multipart_upload(**target.place, **target.metadata)["UploadId"])
            )
            if isinstance(begun, Failure):
                return begun
            self._upload, self._abandonable = begun, True
        for start in range(len(self._parts) * self._part_bytes, len(self._data), self._part_bytes):
            part = self._calls.retried(self._sending(start))
            if isinstance(part, Failure):
                return part
            self._parts.append(part)
        return None

    def _sending(self, start: int) -> Callable[[Any], dict[str, Any]]:
        number = start // self._part_bytes + 1
        body = bytes(self._data[start : start + self._part_bytes])

        def act(client: Any) -> dict[str, Any]:
            reply = client.upload_part(**self._target.place, UploadId=self._upload, PartNumber=number, Body=body)
            return {"PartNumber": number, "ETag": reply["ETag"]}

        return act


def head(calls: S3Calls, bucket: str, name: str) -> Stored | Failure:
    """Return what a HEAD tells of an object. One HEAD, more where the server is busy."""
    return calls.read(lambda client: _stored(client.head_object(Bucket=bucket, Key=name), calls.now_ms()))


def quoted(etag: str) -> str:
    """Return an ETag in the one spelling that is handed out: S3's HEAD, PUT and LIST do not all quote it."""
    return '"' + etag.strip('"') + '"'


def _stored(reply: Mapping[str, Any], now_ms: int) -> Stored:
    modified_ms = int(reply["LastModified"].timestamp()) * 1000
    return Stored(
        size=int(reply["ContentLength"]),
        etag=quoted(reply["ETag"]),
        last_modified_ms=modified_ms,
        age_ms=_answered_ms(reply, now_ms) - modified_ms,
        write_id=reply.get("Metadata", {}).get(WRITE_ID),
    )


def _answered_ms(reply: Mapping[str, Any], now_ms: int) -> int:
    try:
        return int(parsedate_to_datetime(reply["ResponseMetadata"]["HTTPHeaders"]["date"]).timestamp()) * 1000
    except (KeyError, ValueError):
        return now_ms
