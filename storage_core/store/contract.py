"""The object store contract: the few operations that every guarantee of Tidemark needs.

See docs/architecture/object-store.md. The module has the protocol `ObjectStore` and the results of a put. The module
also has the rules for keys, and helpers that create or replace an object safely.

A key is a table-relative path of segments separated by `/`. `formats.keys` builds and parses all keys. A store contains
immutable objects, which readers see only as a whole. Only hints, tags and the collector's state can be replaced. Hints,
tags and the collector's state are always replaced by compare-and-swap.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from posixpath import commonpath
from typing import Any, Final, Protocol, TypeVar, assert_never

from storage_core.base.clock import Clock, Ids, random_pause_ms
from storage_core.base.errors import CommitUnknown, InvalidInput, NotFound, NotWritten, Unavailable
from storage_core.base.text import capitalized


class SeekableFile(io.RawIOBase):
    """A readable and seekable file of `size` bytes. Subclasses implement `read`, which starts at `position`."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.position = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position of the next read."""
        return self.position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Set the position and return the new position. A position before the start becomes 0."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.size}[whence]
        self.position = max(0, base + offset)
        return self.position


PAGE_KEYS: Final = 1000
"""The maximum number of keys in the result of one LIST, and in one request to delete."""


@dataclass(frozen=True, slots=True)
class IfAbsent:
    """The precondition that the key does not exist. A put with this precondition creates an object and never replaces
    one.
    """


@dataclass(frozen=True, slots=True)
class IfMatch:
    """The precondition that the object still has this ETag. The put is then a compare-and-swap.

    An ETag may be a hash of the content. If a caller replaces an object, each new body must therefore differ from all
    earlier bodies. A nonce in the body makes each body different.
    """

    etag: str


@dataclass(frozen=True, slots=True)
class Overwrite:
    """No precondition: the last writer wins. Use this mode only if no other process depends on the object's content."""


PutMode = IfAbsent | IfMatch | Overwrite


def unchanged(etag: str | None) -> IfAbsent | IfMatch:
    """Return the precondition that an object has not changed since it was read.

    Args:
        etag: The ETag that was read, or None if the object did not exist.
    """
    return IfAbsent() if etag is None else IfMatch(etag)


@dataclass(frozen=True, slots=True)
class Committed:
    """The put took effect and is durable."""

    etag: str


@dataclass(frozen=True, slots=True)
class Conflict:
    """The put did not take effect, because the precondition did not hold.

    The object that exists at the key is durable.
    """


@dataclass(frozen=True, slots=True)
class OutcomeUnknown:
    """The store did not report an outcome. The put may take effect now, later or never.

    The caller must read the key again, and must not delete anything.
    """

    reason: str


PutResult = Committed | Conflict | OutcomeUnknown


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """The metadata that a HEAD or a LIST returns.

    Attributes:
        size: The size in bytes.
        last_modified_ms: The time of the last modification, by the store's own clock.
        write_id: The id of the put that wrote the object. Only a HEAD returns the id, and only stores that can lose
            replies store an id.
        age_ms: The time from the write of the object to the HEAD that returned this record, by the store's clock. 0 in
            a LIST.
    """

    key: str
    size: int
    etag: str
    last_modified_ms: int
    write_id: str | None = field(default=None, compare=False)
    age_ms: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Unnamed:
    """A name in a store that does not identify an object.

    Either the name of the entry is not a valid key, or the entry is not a regular file.

    Attributes:
        name: The location of the entry, as the store reports it.
        may_hold_more: True if the entry may contain further files.
    """

    name: str
    reason: str
    may_hold_more: bool = False


@dataclass(frozen=True, slots=True)
class Blob:
    """The whole content of one object, with the ETag that the object had when it was read."""

    data: bytes
    etag: str


class ObjectStore(Protocol):
    """The storage of one table.

    Every method may raise `Unavailable`. A put that raises `NotWritten` has certainly written nothing.

    A put with `IfAbsent` or `IfMatch` is atomic. Of several concurrent puts with the same precondition, at most one
    returns `Committed`. A reader sees either the whole object or no object. A reader sees the object as soon as its put
    has returned `Committed`.
    """

    @property
    def uri(self) -> str:
        """The canonical URI of the root, without a trailing slash."""
        ...

    def get(self, key: str) -> Blob:
        """Return the whole object. One GET. Raises `NotFound`."""
        ...

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return the bytes from `start` to `end` (exclusive). One GET.

        Raises `NotFound`, or `Corrupt` if the object ends before `end`.
        """
        ...

    def head(self, key: str) -> ObjectInfo:
        """Return the object's metadata without its content. One HEAD. Raises `NotFound`."""
        ...

    def put(self, key: str, data: bytes | memoryview, mode: PutMode) -> PutResult:
        """Write one object. If the result is `Committed`, the object is durable. One PUT."""
        ...

    def make_durable(self, key: str) -> None:
        """Make the object at `key` durable. An earlier read must have returned the object. No request.

        If the put of an object returned `OutcomeUnknown`, in this or another process, the object may be visible and
        still be lost in a power failure. So a visible object counts as written only after this call. Raises
        `Unavailable`.
        """
        ...

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield the objects whose key starts with `prefix`, in any order. One LIST per 1,000 keys.

        The result may be incomplete while other writers are active. So a caller must work correctly with any order and
        with missing objects.
        """
        ...

    def delete(self, keys: Sequence[str]) -> Mapping[str, str | None]:
        """Delete objects. Return, for each key, None or the error text. The deletion of an absent object succeeds."""
        ...

    def local_path(self, key: str) -> Path | None:
        """Return the path of a file with exactly the content of this object, or None if the store has no such file.

        No request is sent. Only the store of a table sends one GET, on the first call for a file that is not in the
        table's folder.
        """
        ...


class Place(ObjectStore, Protocol):
    """A store that also contains objects of other programs. The other programs choose the names of their objects."""

    def browse(self) -> Iterator[ObjectInfo | Unnamed]:
        """Yield every object and every other entry of the store. One LIST per 1,000 keys.

        No entry is skipped or opened, and no symlink is followed.
        """
        ...


# Reads of stored objects.


LIST_FROM = 100

AHEAD_MOST = 2**24
"""The maximum number of bytes in one request of a file that is read sequentially."""


def exists(store: ObjectStore, key: str) -> bool:
    """Return whether the object is there. One HEAD."""
    try:
        store.head(key)
    except NotFound:
        return False
    return True


def missing(store: ObjectStore, keys: Collection[str]) -> list[str]:
    """Return the keys without an object, in ascending order.

    Cost:
        One HEAD per key. For more than `LIST_FROM` keys: a LIST of their common prefix, and one HEAD per key that the
        LIST did not return.
    """
    unseen = set(keys)
    if len(unseen) > LIST_FROM:
        # A listing may lack an existing object. Only a HEAD shows for certain that an object is absent.
        unseen.difference_update([info.key for info in store.list(commonpath(unseen))])
    return sorted(key for key in unseen if not exists(store, key))


class ObjectFile(SeekableFile):
    """A seekable file with the content of an object of known size.

    Each read costs at most one ranged GET, and never a HEAD.

    A read raises `NotFound` if the object was deleted.

    Args:
        ahead: The minimum number of bytes per GET. If a GET starts where the previous GET ended, it requests twice as
            many bytes, up to `AHEAD_MOST`. The bytes stay in memory until the next GET. A read within these bytes sends
            no request.
    """

    def __init__(self, store: ObjectStore, key: str, size: int, *, ahead: int = 0) -> None:
        super().__init__(size)
        self._store = store
        self._key = key
        self._least_ahead = self._ahead = ahead
        self._held_from = 0
        self._held = b""

    def read(self, size: int = -1, /) -> bytes:
        """Return `size` bytes, or all remaining bytes if `size` is negative or larger than the rest of the object."""
        end = self.size if size < 0 else min(self.position + size, self.size)
        if end <= self.position:
            return b""
        start, self.position = self.position, end
        if not self._held_from <= start <= end <= self._held_to:
            self._fetch(start, end)
        return self._held[start - self._held_from : end - self._held_from]

    def readinto(self, buffer: Any, /) -> int:
        """Fill a writable buffer with the next bytes of the object, and return the number of bytes."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    @property
    def _held_to(self) -> int:
        return self._held_from + len(self._held)

    def _fetch(self, start: int, end: int) -> None:
        continues = self._held_from <= start <= self._held_to + self._least_ahead
        self._ahead = min(2 * self._ahead, AHEAD_MOST) if continues and self._held else self._least_ahead
        last = min(max(end, start + self._ahead), self.size)
        self._held_from, self._held = start, self._store.get_range(self._key, start, last)


# Creation of an object exactly once, even if the store's reply is lost (lessons 01, 02 and 04).
# A put may have taken effect although its reply was lost. A client library that retries the put then gets a conflict
# with its own object. So after any result except `Committed`, these functions read the key again, and never delete an
# object.


_ATTEMPTS = 4
_FIRST_PAUSE_MS = 50
_REFUSED = "the store reported that the object already exists"
_OPEN_AGAIN = "the write may still take effect. Open the table again, which reads the object. Delete nothing"


def put_or_unknown(store: ObjectStore, key: str, data: bytes | memoryview, mode: PutMode) -> PutResult:
    """Put the object, and return `OutcomeUnknown` if the store is unreachable. One PUT. Raises `NotWritten`."""
    try:
        return store.put(key, data, mode)
    except NotWritten:
        raise
    except Unavailable as error:
        # The caller cannot determine whether the connection broke before or after the request was sent.
        return OutcomeUnknown(str(error))


def create_once(store: ObjectStore, key: str, data: bytes | memoryview, *, advice: str) -> bool:
    """Create `key` with `data` durably and return True. Return False if the object at the key already has other bytes.

    The caller must never have used the key before.

    Args:
        advice: The end of the message of `CommitUnknown`, which contains the next step for the user.

    Raises:
        CommitUnknown: The store did not report an outcome, and the object is absent, unreadable, or cannot be made
            durable.
        NotWritten: The put has certainly written nothing.

    Cost:
        One PUT. After a conflict or a lost reply, one more GET.
    """
    result = put_or_unknown(store, key, data, IfAbsent())
    match result:
        case Committed():
            return True
        case Conflict():
            return _is_ours(store, key, data, reason=_REFUSED, advice=advice)
        case OutcomeUnknown(reason):
            return _is_ours(store, key, data, reason=reason, advice=advice)
        case _:
            assert_never(result)


def create_derived(store: ObjectStore, key: str, data: bytes, *, advice: str) -> bool:
    """Ensure that the object exists. Return True if this call wrote the object, False if it already existed.

    Use this function for a key that is derived from the content. Every writer then writes the same bytes.

    Args:
        advice: The end of the message of `CommitUnknown`, which contains the next step for the user.

    Raises:
        CommitUnknown: The object is absent after the put, or cannot be made durable.

    Cost:
        One PUT. After a conflict or a lost reply, one more HEAD.
    """
    result = store.put(key, data, IfAbsent())
    match result:
        case Committed():
            return True
        case Conflict():
            # A conflict may be transient (409). Only a read of the key shows for certain that the object exists (lesson
            # 04).
            _require(store, key, reason=_REFUSED, advice=advice)
            return False
        case OutcomeUnknown(reason):
            _require(store, key, reason=reason, advice=advice)
            return True
        case _:
            assert_never(result)


def create_numbered(store: ObjectStore, key: str, data: bytes, *, clock: Clock) -> bool:
    """Create `key` with `data` durably and return True.

    Return False if the object at the key has another writer's bytes.

    Use this function for numbered keys if several writers compete for the same number. The bytes must be unique to the
    caller. Therefore the bytes contain a writer id and a number. If the stored bytes are equal to `data`, this call has
    written the object. So the call succeeds even if a reply is lost. The call also succeeds if an attempt conflicts
    with an earlier attempt of this call. The call never creates a second object.

    Raises:
        CommitUnknown: The store reported no outcome in any attempt. The object may appear later.
        NotWritten: The put has certainly written nothing.

    Cost:
        One PUT. After a conflict, one more GET. After a lost reply, up to three more PUTs, each after a longer pause.
    """
    reason = ""
    for attempt in range(_ATTEMPTS):
        if attempt:
            clock.sleep_ms(_FIRST_PAUSE_MS * 2 ** (attempt - 1))
        try:
            result = put_or_unknown(store, key, data, IfAbsent())
        except NotWritten as error:
            if not reason:
                raise
            result = OutcomeUnknown(f"{reason}, then {error}")  # The outcome of the previous attempt is still unknown.
        match result:
            case Committed():
                return True
            case Conflict():
                return _is_ours(store, key, data, reason=reason or _REFUSED, advice=_OPEN_AGAIN)
            case OutcomeUnknown(reason=reason):
                # Another attempt is harmless, because the put takes effect only if the key is still absent.
                continue
    return _is_ours(store, key, data, reason=reason, advice=_OPEN_AGAIN)


def require_durable(store: ObjectStore, key: str, *, advice: str) -> None:
    """Make the object at `key` durable. An earlier read must have returned the object.

    Raises `CommitUnknown` if the object may still be lost in a power failure.
    """
    try:
        store.make_durable(key)
    except Unavailable as error:
        raise _unknown(key, error.found, advice) from error


def _require(store: ObjectStore, key: str, *, reason: str, advice: str) -> None:
    if not exists(store, key):
        raise _unknown(key, reason, advice)
    require_durable(store, key, advice=advice)


def _is_ours(store: ObjectStore, key: str, data: bytes | memoryview, *, reason: str, advice: str) -> bool:
    try:
        is_ours = store.get(key).data == data
    except (NotFound, Unavailable) as error:
        raise _unknown(key, f"{reason}, then {error}", advice) from error
    if is_ours:
        require_durable(store, key, advice=advice)
    return is_ours


def _unknown(key: str, reason: str, advice: str) -> CommitUnknown:
    return CommitUnknown(
        f"{key}: the store did not say whether it kept the object ({reason}). {capitalized(advice)}", key=key
    )


# Replacement of one small object by compare-and-swap, even if the store's reply is lost.


ATTEMPTS = 10
_FIRST_SWAP_PAUSE_MS = 40
_LONGEST_PAUSE_MS = 10_240

_T = TypeVar("_T")


def compare_and_swap(
    read: Callable[[], _T],
    change: Callable[[_T], _T],
    put: Callable[[_T], PutResult],
    *,
    store: ObjectStore,
    key: str,
    clock: Clock,
    ids: Ids,
) -> _T | None:
    """Apply `change` to the object by compare-and-swap, and return the new value.

    Each attempt reads the value, changes it and puts the result. If `change` returns its argument unchanged, the
    function writes nothing. There are two reasons for this case. No change was needed, or an earlier put of this call
    took effect and its reply was lost. The stored value is made durable before it is returned. The pauses between
    attempts are random and become longer.

    Args:
        put: A function that writes the value. It must fail if the object has changed since the read, and must write
            different bytes each time.

    Returns:
        The value that is stored after the call, or None if other writers were faster in every attempt.

    Raises:
        CommitUnknown: The store did not report an outcome. The error names `key`.
        NotWritten: The put has certainly written nothing.
        Exception: Any error that `read` or `change` raises.

    Cost:
        One read and one put if no other writer changes the object meanwhile.
    """
    last: PutResult | None = None
    for attempt in range(ATTEMPTS):
        if attempt:
            clock.sleep_ms(random_pause_ms(ids, attempt, first_ms=_FIRST_SWAP_PAUSE_MS, longest_ms=_LONGEST_PAUSE_MS))
        current = read()
        wanted = change(current)
        if wanted is current:
            require_durable(store, key, advice="look, and try again")
            return current
        try:
            last = put(wanted)
        except NotWritten as error:
            if not isinstance(last, OutcomeUnknown):
                raise
            last = OutcomeUnknown(f"{last.reason}, then {error}")
        if isinstance(last, Committed):
            return wanted
    if isinstance(last, OutcomeUnknown):
        raise CommitUnknown(
            f"{key}: the store did not say whether it kept the object ({last.reason}). Check the object, then "
            "try again",
            key=key,
        )
    return None


# The rules for keys apply in every store, and are checked before the first request (lessons 80 and 81).


TEMPORARY_FOLDER = ".tmp"

_MAX_KEY_BYTES = 1024
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\\\\\ud800-\udfff]")


def check_key(key: str) -> str:
    """Return `key` if it is a valid name of an object inside the root.

    Raises `InvalidInput` for:

    - an empty or absolute key, or a key of more than 1,024 bytes
    - a key with an empty segment, or with the segment `.` or `..`
    - a key with control characters, backslashes or lone surrogates
    - a key in the store's own temporary folder
    """
    if not is_safe_key(key):
        raise InvalidInput(f"{key!r} is not the key of an object. Give a relative path inside the table", key=key)
    return key


def check_prefix(prefix: str) -> str:
    """Return `prefix` if keys can start with this text, else raise `InvalidInput`.

    A prefix of a key may be empty, and may end inside a part between two slashes.
    """
    complete = prefix == "" or is_safe_key(prefix + "x")
    if not complete or ".." in prefix.split("/"):
        raise InvalidInput(
            f"{prefix!r} is not the prefix of a key. Give a relative path inside the table", prefix=prefix
        )
    return prefix


def check_range(key: str, start: int, end: int) -> None:
    """Raise `InvalidInput` unless `start` and `end` are a valid range of bytes."""
    if start < 0 or end < start:
        raise InvalidInput(f"{key}: {start} to {end} is not a range of bytes", key=key, start=start, end=end)


def is_safe_key(key: str) -> bool:
    """Return whether `check_key` accepts the key."""
    segments = key.split("/")
    if any(segment in ("", ".", "..") for segment in segments) or segments[0] == TEMPORARY_FOLDER:
        return False
    return not _FORBIDDEN.search(key) and len(key.encode()) <= _MAX_KEY_BYTES


def why_unsafe(key: str) -> str:
    """Return the reason why `is_safe_key` refuses this name."""
    if re.search("[\ud800-\udfff]", key):
        return "the name is not UTF-8"
    if len(key.encode()) > _MAX_KEY_BYTES:
        return f"the name is longer than {_MAX_KEY_BYTES} bytes"
    if "\\" in key:
        return "the name contains a backslash"
    return "the name contains a control character" if _FORBIDDEN.search(key) else "the name is not a relative path"
