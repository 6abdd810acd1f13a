"""The object store contract (docs/architecture/object-store.md): the few operations every promise of Tidemark rests on.

A key is a table-relative path of `/`-separated segments (`formats.keys` builds and parses all of them). Stores hold
whole immutable objects; only hints, tags and the collector's state are ever replaced, by compare-and-swap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

PAGE_KEYS: Final = 1000
"""How many keys one LIST returns and one request deletes at most."""


@dataclass(frozen=True, slots=True)
class IfAbsent:
    """Create only: the put takes effect only when the key does not exist."""


@dataclass(frozen=True, slots=True)
class IfMatch:
    """Compare and swap: the put takes effect only while the object still has this ETag.

    An ETag may be a hash of the content, so a body that is ever swapped must differ from all earlier ones (a nonce).
    """

    etag: str


@dataclass(frozen=True, slots=True)
class Overwrite:
    """Last writer wins. Only for objects whose content does not matter to anybody else."""


PutMode = IfAbsent | IfMatch | Overwrite


def unchanged(etag: str | None) -> IfAbsent | IfMatch:
    """Return the precondition that an object is as it was read: with this ETag, or, None, not there."""
    return IfAbsent() if etag is None else IfMatch(etag)


@dataclass(frozen=True, slots=True)
class Committed:
    """The put took effect and is durable."""

    etag: str


@dataclass(frozen=True, slots=True)
class Conflict:
    """The put did not take effect: the precondition did not hold. What is there instead is durable."""


@dataclass(frozen=True, slots=True)
class OutcomeUnknown:
    """The store did not say. The put may take effect now, later or never; read back, and clean nothing up."""

    reason: str


PutResult = Committed | Conflict | OutcomeUnknown


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a HEAD or a LIST tells: key, size in bytes, ETag, and last modification by the store's own clock.

    `write_id` names the put that made the object: only a HEAD tells it, and only where replies can be lost. `age_ms` is
    how long before the HEAD that told it the object was written, by the same clock; 0 in a LIST.
    """

    key: str
    size: int
    etag: str
    last_modified_ms: int
    write_id: str | None = field(default=None, compare=False)
    age_ms: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Unnamed:
    """What lies in a store and is no object of it: no key can name it, or it is no regular file.

    `name` is where it lies, as the store says it; `may_hold_more` where it may stand for any number of files.
    """

    name: str
    reason: str
    may_hold_more: bool = False


@dataclass(frozen=True, slots=True)
class Blob:
    """The whole content of one object with the ETag it had when it was read."""

    data: bytes
    etag: str


class ObjectStore(Protocol):
    """One table's directory on some storage.

    Every method may raise `Unavailable`; a put that raises `NotWritten` has certainly written nothing. A put by
    `IfAbsent` or `IfMatch` is atomic: of any number of concurrent attempts with the same precondition at most one is
    `Committed`. A reader sees an object completely or not at all, and sees it as soon as its put returned `Committed`.
    """

    @property
    def uri(self) -> str:
        """The canonical URI of the root, without a trailing slash."""
        ...

    def get(self, key: str) -> Blob:
        """Return the whole object. One GET. Raises `NotFound`."""
        ...

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return bytes `start` to `end` (exclusive). One GET. Raises `NotFound`; `Corrupt` when it is shorter."""
        ...

    def head(self, key: str) -> ObjectInfo:
        """Return the object's metadata without its content. One HEAD. Raises `NotFound`."""
        ...

    def put(self, key: str, data: bytes | memoryview, mode: PutMode) -> PutResult:
        """Write one object, durable before `Committed` is returned. One PUT."""
        ...

    def make_durable(self, key: str) -> None:
        """Return once the object that a read showed at `key` is durable. No request.

        What is visible may be lost with the power where a put ended as `OutcomeUnknown`, also in another process. So
        nobody calls it written because a read shows it, but after this. Raises `Unavailable`.
        """
        ...

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield the objects whose key starts with `prefix`, in any order. One LIST per 1,000 keys.

        Callers must not rely on order or on completeness against concurrent writers for correctness.
        """
        ...

    def delete(self, keys: Sequence[str]) -> Mapping[str, str | None]:
        """Delete objects and return, per key, None or the error text. Deleting what is absent succeeds."""
        ...

    def local_path(self, key: str) -> Path | None:
        """Return the path of a file that holds exactly this object, where the store has one; else None.

        No request; of the store of a table one GET, once, where the file is not in the table's folder.
        """
        ...


class Place(ObjectStore, Protocol):
    """A store that others put things into, under names of theirs."""

    def browse(self) -> Iterator[ObjectInfo | Unnamed]:
        """Yield every object, and what else lies there: nothing is followed, opened or left out. A LIST."""
        ...
