"""The object store contract on S3 and servers that speak its protocol (docs/architecture/object-store.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from storage_core.clock import Clock, SystemClock
from storage_core.errors import Corrupt, InvalidInput, Unavailable, Unsupported
from storage_core.ids import Ids, SystemIds
from storage_core.objectstore.contract import PAGE_KEYS, Blob, ObjectInfo, PutMode, PutResult, Unnamed
from storage_core.objectstore.key_safety import check_key, check_prefix, check_range, is_safe_key, why_unsafe
from storage_core.objectstore.s3_calls import Retries, S3Calls
from storage_core.objectstore.s3_failures import Failure, Trouble, printable_code
from storage_core.objectstore.s3_location import S3Location
from storage_core.objectstore.s3_put import MultipartPut, SinglePut, Stored, Target, head, put_once, quoted

T = TypeVar("T")

PART_BYTES = 16 * 2**20
_MOST_NAME_BYTES = 1024


class S3Store:
    """A prefix of an S3 bucket as an object store; safe for any number of threads and processes.

    Create-only and compare-and-swap are S3's own conditional writes; a lost reply is settled by the write id that each
    put leaves in the object's metadata (`s3_put`). An ETag follows from the content: equal bytes have equal ETags, so
    whatever is replaced by compare-and-swap must hold a nonce. Modification times are whole seconds.

    A call is tried up to five times while the server is busy or out of reach, then raises `Unavailable`; denied access
    raises it at once. A bucket that does not exist is `InvalidInput`, one that the server says is elsewhere is
    `Unsupported`: no redirect is followed. An answer that S3 does not give counts as none: reads are `Unavailable` in
    the end, a put is looked for. Metrics below are without such repetitions.
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
        """Nothing is requested yet. Objects above `part_bytes` are uploaded in parts of that size."""
        self._location = location
        self._ids = ids or SystemIds()
        self._calls = S3Calls(location, retries or Retries(), clock=clock or SystemClock(), ids=self._ids)
        self._part_bytes = part_bytes

    def __repr__(self) -> str:
        return f"S3Store({self.uri})"

    @property
    def uri(self) -> str:
        """The canonical `s3://` URI; it holds no credentials."""
        return self._location.uri

    def get(self, key: str) -> Blob:
        """Return the whole object and the ETag of exactly these bytes. One GET. Raises `NotFound`."""
        place = self._place(key)
        return self._answer(lambda client: _blob(client.get_object(**place)), key)

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return bytes `start` to `end` (exclusive). One GET, for an empty range one HEAD.

        Raises `NotFound`; `Corrupt` when the object is shorter; `Unsupported` when the server serves no ranges.
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
            raise Unsupported(f"{key}: {self.uri} does not serve byte ranges; use a server that does", key=key)
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
        """Write one object; S3 answers when it is durable. One PUT, and one HEAD unless it is a plain success.

        An object above `part_bytes` takes a request per part and two more; a failed upload is aborted, and nothing of
        it ever shows. `Unavailable` says that nothing was written. A compare-and-swap whose reply was lost and whose
        object was replaced since is `OutcomeUnknown`: it may have been there in between.
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
        """Return: what S3 shows is durable. No request."""
        check_key(key)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield the objects whose key starts with `prefix`; what no key can name is none. One LIST per 1,000 keys."""
        found = self._listing(check_prefix(prefix), start_after)
        return (each for each in found if isinstance(each, ObjectInfo))

    def browse(self) -> Iterator[ObjectInfo | Unnamed]:
        """Yield every object, and what no key can name but an empty one that stands for a folder."""
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
        """Delete objects, one request per 1,000 keys; an illegal key raises `InvalidInput` before the first."""
        names = {self._name(key): key for key in keys}
        refused: dict[str, str] = {}
        for start in range(0, len(names), PAGE_KEYS):
            refused |= self._delete(list(names)[start : start + PAGE_KEYS])
        return {key: refused.get(name) for name, key in names.items()}

    def local_path(self, key: str) -> Path | None:
        """Return None: there are no files. No request."""
        check_key(key)
        return None

    def _name(self, key: str) -> str:
        name = self._location.object_key(check_key(key))
        if len(name.encode()) > _MOST_NAME_BYTES:
            raise InvalidInput(f"{key}: with the prefix of {self.uri} longer than {_MOST_NAME_BYTES} bytes", key=key)
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
        """One page, and where the next one begins. What is no listing, such as a proxy's own page, is no answer."""
        found, token = self._answer(lambda client: self._listed(client.list_objects_v2(**query)))
        if token is not None and token == query.get("ContinuationToken"):
            raise Unavailable(f"{self.uri}: the server lists the same page for ever; try again later", key=self.uri)
        return found, token

    def _listed(self, reply: Mapping[str, Any]) -> tuple[Sequence[ObjectInfo | Unnamed], str | None]:
        token = reply["NextContinuationToken"] if reply["IsTruncated"] else None
        table_key = self._location.table_key
        infos = [_info(table_key(each["Key"]), each) for each in reply.get("Contents", ())]
        there = [info for info in infos if info.size or (info.key and not info.key.endswith("/"))]
        return [info if is_safe_key(info.key) else Unnamed(info.key, why_unsafe(info.key)) for info in there], token

    def _delete(self, names: Sequence[str]) -> dict[str, str]:
        """The reasons by name for what could not be deleted."""
        request = {"Quiet": True, "Objects": [{"Key": name} for name in names]}
        bucket = self._location.bucket
        found = self._calls.retried(lambda client: _refusals(client.delete_objects(Bucket=bucket, Delete=request)))
        return dict.fromkeys(names, str(found)) if isinstance(found, Failure) else found


def _blob(reply: Mapping[str, Any]) -> Blob:
    # The body refuses to end before the announced length, which makes a cut reply a failure that is tried again.
    with reply["Body"] as body:
        _require_length(reply)
        return Blob(body.read(), quoted(reply["ETag"]))


def _require_length(reply: Mapping[str, Any]) -> None:
    """Raise where the reply does not say where its body ends: cut in its head, it would pass for an empty object."""
    if "transfer-encoding" not in reply["ResponseMetadata"]["HTTPHeaders"]:
        _ = reply["ContentLength"]


def _info(key: str, each: Mapping[str, Any]) -> ObjectInfo:
    modified_ms = int(each["LastModified"].timestamp()) * 1000
    return ObjectInfo(key, int(each["Size"]), quoted(each["ETag"]), modified_ms)


def _refusals(reply: Mapping[str, Any]) -> dict[str, str]:
    return {each["Key"]: printable_code(each.get("Code")) for each in reply.get("Errors", ())}


def _ranged(reply: Mapping[str, Any]) -> bytes | None:
    """The bytes of the range, or None when the whole object came instead; then it is not read."""
    with reply["Body"] as body:
        _require_length(reply)
        return body.read() if "ContentRange" in reply else None


def _short(key: str, wanted: tuple[int, int], where: str) -> Corrupt:
    start, end = wanted
    return Corrupt(f"{key}: expected bytes {start} to {end}, the object ends{where} before that", key=key)
