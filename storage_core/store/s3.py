"""An object store on S3 and on servers with its protocol (docs/architecture/object-store.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar, assert_never

from storage_core.base.clock import Clock, Ids, SystemClock, SystemIds
from storage_core.base.errors import Corrupt, InvalidInput, Unavailable, Unsupported
from storage_core.store.contract import (
    PAGE_KEYS,
    Blob,
    Committed,
    Conflict,
    IfAbsent,
    IfMatch,
    ObjectInfo,
    OutcomeUnknown,
    Overwrite,
    PutMode,
    PutResult,
    Unnamed,
    check_key,
    check_prefix,
    check_range,
    is_safe_key,
    why_unsafe,
)
from storage_core.store.s3_calls import Retries, S3Calls
from storage_core.store.s3_failures import Failure, Trouble, printable_code
from storage_core.store.s3_location import S3Location

# A put of one object to S3 exactly once, even if a reply is lost (lessons 01, 02, 04 and 60).
#
# Each put stores a new *write id* in the object's user metadata. After any result except a plain success, a HEAD
# determines the outcome. If the object has our write id, the put succeeded. If the object has another write id, the put
# is in conflict. If the object has not changed, the same put is sent again. The repeated put has the same write id, so
# it cannot take effect twice. After an unknown outcome, nothing is ever deleted.


WRITE_ID = "tidemark-write-id"

# After these failures, the request may have taken effect, for example if the answer has no ETag. If S3 reports that an
# upload does not exist, the upload may already be complete.
_MAY_HAVE_APPLIED = frozenset({Trouble.BUSY, Trouble.NO_UPLOAD})
# After these failures, the request has not taken effect. Whether another attempt is useful depends on the stored
# object.
_NOT_APPLIED = frozenset(
    {Trouble.NOT_SENT, Trouble.NOT_TRUSTED, Trouble.CONTENTION, Trouble.PRECONDITION, Trouble.ABSENT}
)


@dataclass(frozen=True, slots=True)
class Stored:
    """The result of a HEAD.

    Attributes:
        age_ms: The age of the object. The current time is the server's time in the answer, or this machine's time if
            the answer contains no time.
        write_id: The write id of the put that made the object. None if Tidemark did not make it.
    """

    size: int
    etag: str
    last_modified_ms: int
    age_ms: int
    write_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The destination of a put, its condition and its write id.

    Attributes:
        uri: The URI of the store.
        name: The name of the object in the bucket.
    """

    uri: str
    key: str
    bucket: str
    name: str
    mode: PutMode
    write_id: str

    @property
    def place(self) -> dict[str, Any]:
        """The bucket and the key, as arguments of boto3."""
        return {"Bucket": self.bucket, "Key": self.name}

    @property
    def metadata(self) -> dict[str, Any]:
        """The write id, as an argument of boto3."""
        return {"Metadata": {WRITE_ID: self.write_id}}

    @property
    def condition(self) -> dict[str, Any]:
        """The condition, as an argument of boto3."""
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
    """An active transfer of the bytes of one put."""

    def send(self) -> str | Failure:
        """Send the bytes that are not yet sent, with the condition in the last request. Return the object's ETag."""
        ...

    def give_up(self) -> None:
        """Remove the transferred bytes from the store. Keep bytes that may be the stored object."""
        ...


def put_once(calls: S3Calls, upload: Upload, target: Target, look: Callable[[], Stored | Failure]) -> PutResult:
    """Send the object until the outcome is known or no attempt is left. `look` sends a HEAD of the object.

    If no attempt can have taken effect, the error of the last failure is raised, for example `Unavailable`.

    Cost:
        One PUT, and one HEAD after each attempt without a plain success. The number of attempts is limited by `calls`.
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
                # A gateway may have repeated a request that we sent once. Only a HEAD shows whether the first request
                # took effect.
                doubt = doubt or (sent if sent.trouble is Trouble.PRECONDITION else None)
                break
    finally:
        upload.give_up()
    if doubt is None and failure is not None:
        raise failure.error(target.uri, target.key)
    return OutcomeUnknown(f"{doubt}, and the object does not show whether the write took effect")


def _verdict(found: Stored | Failure, write_id: str, mode: PutMode, *, in_doubt: bool) -> PutResult | None:
    """Return the outcome of the put according to the stored object. Return None if another attempt is necessary."""
    if isinstance(found, Stored) and found.write_id == write_id:
        return Committed(found.etag)
    match mode:
        case IfAbsent():
            # A writer replaces an object only after it has created or read this object. So if objects at this key are
            # never replaced, an object with a different write id proves that our put created nothing.
            return Conflict() if isinstance(found, Stored) else None
        case IfMatch(etag):
            deleted = isinstance(found, Failure) and found.trouble is Trouble.ABSENT
            changed = isinstance(found, Stored) and found.etag != etag
            if changed and in_doubt:
                return OutcomeUnknown(
                    "the reply was lost. Another write has replaced the object since, so the outcome is unknown"
                )
            return Conflict() if changed or (deleted and not in_doubt) else None
        case Overwrite():
            return None
        case _:
            assert_never(mode)


class SinglePut:
    """A put of all bytes in one request."""

    def __init__(self, calls: S3Calls, target: Target, data: bytes) -> None:
        self._calls = calls
        self._target = target
        self._data = data

    def send(self) -> str | Failure:
        """Send one PUT."""
        target = self._target
        return self._calls.once(
            lambda client: quoted(
                client.put_object(**target.place, **target.metadata, **target.condition, Body=self._data)["ETag"]
            )
        )

    def give_up(self) -> None:
        """Do nothing: S3 stores no incomplete object."""


class MultipartPut:
    """A put that uploads the bytes of an object in several parts.

    The object becomes visible only when the last request completes it. This request contains the condition.

    Cost:
        One request to begin, one per part, and one to complete. Parts are retried separately.
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
        """Upload the missing parts and complete the upload. Start again if the upload no longer exists."""
        failure = self._arrive()
        if failure is not None:
            return Failure(Trouble.PARTS, str(failure))
        target, parts = self._target, {"Parts": self._parts}
        self._abandonable = False  # From here on, the upload may be completed, even if this process is interrupted.
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
        """Abort the upload unless it may have been completed. One DELETE. A failure of the DELETE is ignored."""
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
    """Return the result of a HEAD of the object. The HEAD is repeated if the server is busy."""
    return calls.read(lambda client: _stored(client.head_object(Bucket=bucket, Key=name), calls.now_ms()))


def quoted(etag: str) -> str:
    """Return an ETag with quotes. S3 does not quote the ETag in every reply, but callers always get the quoted form."""
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


T = TypeVar("T")

PART_BYTES = 16 * 2**20
_MOST_NAME_BYTES = 1024


class S3Store:
    """A prefix of an S3 bucket as an object store. Safe for any number of threads and processes.

    Create-only and compare-and-swap are S3's own conditional writes. Each put stores a write id in the object's
    metadata. The write id shows the outcome after a lost reply (`put_once`). An ETag depends only on the content.
    Therefore a body that compare-and-swap replaces must contain a nonce. Modification times are whole seconds.

    A call is tried up to five times while the server is busy or unreachable. After the last attempt, the call raises
    `Unavailable`. Denied access raises `Unavailable` at once. A missing bucket raises `InvalidInput`. If the server
    reports that the bucket is elsewhere, the call raises `Unsupported`, because no redirect is followed. An answer that
    S3 never sends counts as a missing answer. In this case, a read raises `Unavailable` after the last attempt, and a
    put checks the object. The costs below do not include retries.
    """

    def __init__(
        self,
        location: S3Location,
        *,
        clock: Clock | None = None,
        ids: Ids | None = None,
        retries: Retries | None = None,
        part_bytes: int = PART_BYTES,
    ) -> None:
        """Create the store without a request. Objects above `part_bytes` are uploaded in parts of that size."""
        self._location = location
        self._ids = ids or SystemIds()
        self._calls = S3Calls(location, retries or Retries(), clock=clock or SystemClock(), ids=self._ids)
        self._part_bytes = part_bytes

    def __repr__(self) -> str:
        return f"S3Store({self.uri})"

    @property
    def uri(self) -> str:
        """The canonical `s3://` URI, without credentials."""
        return self._location.uri

    def get(self, key: str) -> Blob:
        """Return the whole object, with the ETag of exactly these bytes. One GET. Raises `NotFound`."""
        place = self._place(key)
        return self._answer(lambda client: _blob(client.get_object(**place)), key)

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return bytes `start` to `end` (exclusive). One GET, or one HEAD for an empty range.

        Raises:
            NotFound: The object does not exist.
            Corrupt: The object is shorter.
            Unsupported: The server does not support ranges.
        """
        check_range(key, start, end)
        if start == end:
            self.head(key)
            return b""
        place = self._place(key)
        found = self._calls.read(lambda client: _ranged(client.get_object(**place, Range=f"bytes={start}-{end - 1}")))
        if isinstance(found, Failure):
            raise _short(key, (start, end), "") if found.trouble is Trouble.RANGE else found.error(self.uri, key)
        if found is None or len(found) > end - start:
            raise Unsupported(
                f"{key}: {self.uri} does not serve byte ranges. Use a server that serves byte ranges", key=key
            )
        if len(found) < end - start:
            raise _short(key, (start, end), f" at {start + len(found)}")
        return found

    def head(self, key: str) -> ObjectInfo:
        """Return the metadata of the object. One HEAD. Raises `NotFound`."""
        found = self._stored(self._name(key))
        if isinstance(found, Failure):
            raise found.error(self.uri, key)
        return ObjectInfo(
            key, found.size, found.etag, found.last_modified_ms, write_id=found.write_id, age_ms=found.age_ms
        )

    def put(self, key: str, data: bytes | memoryview, mode: PutMode) -> PutResult:
        """Write one object. S3 sends its reply when the object is durable.

        `Unavailable` means that nothing was written. If the reply of a compare-and-swap was lost and the object was
        replaced since, the result is `OutcomeUnknown`, because our object may have existed meanwhile.

        Cost:
            One PUT, and one HEAD unless the PUT is a plain success. An object above `part_bytes` costs one request per
            part and two more requests. A failed upload is aborted, and no part of it is ever visible.
        """
        name = self._name(key)
        write_id = self._ids.uuid()
        target = Target(uri=self.uri, key=key, bucket=self._location.bucket, name=name, mode=mode, write_id=write_id)
        upload: SinglePut | MultipartPut
        if memoryview(data).nbytes > self._part_bytes:
            upload = MultipartPut(self._calls, target, memoryview(data).cast("B"), self._part_bytes)
        else:
            upload = SinglePut(self._calls, target, bytes(data))
        return put_once(self._calls, upload, target, lambda: self._stored(name))

    def make_durable(self, key: str) -> None:
        """Do nothing: every visible object on S3 is durable. No request."""
        check_key(key)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield the objects whose key starts with `prefix`.

        One LIST per 1,000 keys. Names that are not valid keys are skipped.
        """
        found = self._listing(check_prefix(prefix), start_after)
        return (each for each in found if isinstance(each, ObjectInfo))

    def browse(self) -> Iterator[ObjectInfo | Unnamed]:
        """Yield every object of the store, and every stored name that is not a valid key. Empty objects that represent
        a folder are skipped.
        """
        return self._listing("", None)

    def _listing(self, prefix: str, start_after: str | None) -> Iterator[ObjectInfo | Unnamed]:
        location = self._location
        query: dict[str, Any] = {"Bucket": location.bucket, "Prefix": location.object_key(prefix)}
        if start_after is not None:
            query["StartAfter"] = location.object_key(start_after)
        while True:
            found, token = self._page(query)
            yield from found
            if token is None:
                return
            query = {**query, "ContinuationToken": token}

    def delete(self, keys: Sequence[str]) -> Mapping[str, str | None]:
        """Delete objects, one request per 1,000 keys. An invalid key raises `InvalidInput` before the first request."""
        names = {self._name(key): key for key in keys}
        refused: dict[str, str] = {}
        for start in range(0, len(names), PAGE_KEYS):
            refused |= self._delete(list(names)[start : start + PAGE_KEYS])
        return {key: refused.get(name) for name, key in names.items()}

    def local_path(self, key: str) -> Path | None:
        """Return None, because the store has no files. No request."""
        check_key(key)
        return None

    def _name(self, key: str) -> str:
        name = self._location.object_key(check_key(key))
        if len(name.encode()) > _MOST_NAME_BYTES:
            raise InvalidInput(
                f"{key}: the name and the prefix of {self.uri} have more than {_MOST_NAME_BYTES} bytes. Use a "
                "shorter prefix or name",
                key=key,
            )
        return name

    def _place(self, key: str) -> dict[str, Any]:
        return {"Bucket": self._location.bucket, "Key": self._name(key)}

    def _stored(self, name: str) -> Stored | Failure:
        return head(self._calls, self._location.bucket, name)

    def _answer(self, act: Callable[[Any], T], key: str = "") -> T:
        found = self._calls.read(act)
        if isinstance(found, Failure):
            raise found.error(self.uri, key)
        return found

    def _page(self, query: Mapping[str, Any]) -> tuple[Sequence[ObjectInfo | Unnamed], str | None]:
        """Return one page of the listing, and the start of the next page.

        A reply that is not a listing, for example a proxy's page, does not count as an answer.
        """
        found, token = self._answer(lambda client: self._listed(client.list_objects_v2(**query)))
        if token is not None and token == query.get("ContinuationToken"):
            raise Unavailable(
                f"{self.uri}: the server lists the same page again and again. Try again later", key=self.uri
            )
        return found, token

    def _listed(self, reply: Mapping[str, Any]) -> tuple[Sequence[ObjectInfo | Unnamed], str | None]:
        token = reply["NextContinuationToken"] if reply["IsTruncated"] else None
        table_key = self._location.table_key
        infos = [_info(table_key(each["Key"]), each) for each in reply.get("Contents", ())]
        there = [info for info in infos if info.size or (info.key and not info.key.endswith("/"))]
        return [info if is_safe_key(info.key) else Unnamed(info.key, why_unsafe(info.key)) for info in there], token

    def _delete(self, names: Sequence[str]) -> dict[str, str]:
        """Return the reason for each object that could not be deleted, by name."""
        request = {"Quiet": True, "Objects": [{"Key": name} for name in names]}
        bucket = self._location.bucket
        found = self._calls.retried(lambda client: _refusals(client.delete_objects(Bucket=bucket, Delete=request)))
        return dict.fromkeys(names, str(found)) if isinstance(found, Failure) else found


def _blob(reply: Mapping[str, Any]) -> Blob:
    # The body must have the announced length. So an incomplete reply is a failure, and the call is tried again.
    with reply["Body"] as body:
        _require_length(reply)
        return Blob(body.read(), quoted(reply["ETag"]))


def _require_length(reply: Mapping[str, Any]) -> None:
    """Raise an error if the reply does not contain the length of its body.

    Otherwise a reply with incomplete headers would look like an empty object.
    """
    if "transfer-encoding" not in reply["ResponseMetadata"]["HTTPHeaders"]:
        _ = reply["ContentLength"]


def _info(key: str, each: Mapping[str, Any]) -> ObjectInfo:
    modified_ms = int(each["LastModified"].timestamp()) * 1000
    return ObjectInfo(key, int(each["Size"]), quoted(each["ETag"]), modified_ms)


def _refusals(reply: Mapping[str, Any]) -> dict[str, str]:
    return {each["Key"]: printable_code(each.get("Code")) for each in reply.get("Errors", ())}


def _ranged(reply: Mapping[str, Any]) -> bytes | None:
    """Return the bytes of the range. Return None, without reading the body, if the server sent the whole object."""
    with reply["Body"] as body:
        _require_length(reply)
        return body.read() if "ContentRange" in reply else None


def _short(key: str, wanted: tuple[int, int], where: str) -> Corrupt:
    start, end = wanted
    return Corrupt(f"{key}: expected bytes {start} to {end}, the object ends{where} before that", key=key)
