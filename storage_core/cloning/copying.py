"""Objects of a version, copied byte for byte: each is what the log says when it is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import xxhash

from storage_core.errors import Corrupt, InvalidInput, NotFound, SnapshotExpired
from storage_core.log.actions import IndexSegment, Translation
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.objectstore.create import create_once
from storage_core.objectstore.prefetch import prefetch

AT_ONCE = 8
MOST_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class NamedObject:
    """An object, and what the log says of it; one that is `derived` may be missing."""

    key: str
    size: int
    xxh3: str | None
    derived: bool = False


@dataclass(frozen=True, slots=True)
class Copied:
    """How many bytes were copied, and which derived objects were not there."""

    bytes: int
    missing: Sequence[str]


def wanted_of(snapshot: Snapshot) -> Iterator[NamedObject]:
    """Yield the objects that reading a snapshot takes, each once."""
    vectors = set[str]()
    for add in snapshot.splits.values():
        yield NamedObject(add.path, add.size, add.xxh3)
        vector = add.deletionVector
        if vector is not None and vector.path is not None and vector.path not in vectors:
            vectors.add(vector.path)
            yield NamedObject(vector.path, vector.size, vector.xxh3)
    derived: list[IndexSegment | Translation] = [*snapshot.segments.values(), *snapshot.translations.values()]
    for named in derived:
        yield NamedObject(named.path, named.size, named.xxh3, derived=True)


def copy_objects(source: ObjectStore, target: ObjectStore, wanted: Iterable[NamedObject]) -> Copied:
    """Copy the objects; what is there already with the same bytes stays. A GET and a PUT each, eight at a time.

    In memory are 256 MiB, or one object that is larger. Raises `Corrupt` for an object that is not what the log says,
    `SnapshotExpired` for one that is gone, unless it is derived, `InvalidInput` where the target has other bytes.
    """
    size, missing = 0, list[str]()
    copying = prefetch(
        lambda each: _copy(source, target, each), wanted, AT_ONCE, weight=lambda each: each.size, most=MOST_BYTES
    )
    for key, found in copying:
        size += found or 0
        if found is None:
            missing.append(key)
    return Copied(size, missing)


def _copy(source: ObjectStore, target: ObjectStore, wanted: NamedObject) -> tuple[str, int | None]:
    key = wanted.key
    try:
        data = source.get(key).data
    except NotFound as error:
        if wanted.derived:
            return key, None
        raise SnapshotExpired(f"{key}: gone from {source.uri} while it was copied; clone a newer version") from error
    found = xxhash.xxh3_64_hexdigest(data)
    if len(data) != wanted.size or wanted.xxh3 not in (None, found):
        raise Corrupt(
            f"{source.uri}/{key}: expected {wanted.size} bytes with the xxh3-64 {wanted.xxh3}, found {len(data)} with "
            f"{found}",
            key=key,
        )
    if not create_once(target, key, data, advice="clone again"):
        raise InvalidInput(f"{key}: {target.uri} has other bytes there; clone to an empty place", key=key)
    return key, len(data)
