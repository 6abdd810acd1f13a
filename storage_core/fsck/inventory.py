"""Everything that lies under a table's root, listed once and sorted by kind; and a store that shows a part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from storage_core.errors import InvalidInput, NotFound
from storage_core.formats.generation_manifest import RECORDS_FILE
from storage_core.formats.keys import KeyKind, ParsedKey, parse
from storage_core.objectstore.contract import Blob, ObjectInfo, ObjectStore, PutMode, PutResult


@dataclass(frozen=True, slots=True)
class Inventory:
    """The objects that one listing showed, by key, and the parts of every key that is ours."""

    objects: Mapping[str, ObjectInfo]
    parsed: Mapping[str, ParsedKey]

    def of(self, kind: KeyKind) -> list[ParsedKey]:
        """Return the keys of a kind in order."""
        return [self.parsed[key] for key in sorted(self.parsed) if self.parsed[key].kind is kind]

    def versions(self, kind: KeyKind) -> list[int]:
        """Return the numbers of the version files or states that exist, ascending."""
        return sorted(each.version for each in self.of(kind) if each.version is not None)

    @property
    def regions(self) -> list[str]:
        """The regions that were claimed, in order.

        Not those of which there are parts only (`distribution.parts`): their writer ended before the claim.
        """
        parts = (KeyKind.GENERATION_FILE, RECORDS_FILE)
        claimed = (each for each in self.parsed.values() if (each.kind, each.name) != parts)
        return sorted({each.region for each in claimed if each.region is not None})

    @property
    def unknown(self) -> list[str]:
        """The keys that are not ours, in order."""
        return sorted(self.objects.keys() - self.parsed.keys())


def take_inventory(store: ObjectStore) -> Inventory:
    """Return what lies under the root. One LIST per 1,000 objects; memory: a key and its metadata per object."""
    objects = {info.key: info for info in store.list("")}
    parsed = {key: found for key in objects if (found := parse(key)) is not None}
    return Inventory(objects, parsed)


class PartOfStore:
    """The objects of a store that `shows` lets through; the others are absent, and nothing can be written.

    So the one reader of the log answers what it would say if only these objects were left.
    """

    def __init__(self, store: ObjectStore, shows: Callable[[str], bool]) -> None:
        self._store = store
        self._shows = shows

    @property
    def uri(self) -> str:
        """The URI of the wrapped store."""
        return self._store.uri

    def get(self, key: str) -> Blob:
        """Return a shown object. Raises `NotFound`."""
        return self._store.get(self._shown(key))

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return bytes of a shown object. Raises `NotFound`."""
        return self._store.get_range(self._shown(key), start, end)

    def head(self, key: str) -> ObjectInfo:
        """Return the metadata of a shown object. Raises `NotFound`."""
        return self._store.head(self._shown(key))

    def put(self, key: str, data: bytes | memoryview, mode: PutMode) -> PutResult:
        """Refuse."""
        del data, mode
        raise InvalidInput(f"{key}: this view of {self.uri} is for reading", key=key)

    def make_durable(self, key: str) -> None:
        """Return once a shown object is durable."""
        self._store.make_durable(self._shown(key))

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield the shown objects of a listing."""
        return (info for info in self._store.list(prefix, start_after) if self._shows(info.key))

    def delete(self, keys: Sequence[str]) -> Mapping[str, str | None]:
        """Refuse."""
        raise InvalidInput(f"{list(keys)[:3]}: this view of {self.uri} is for reading")

    def local_path(self, key: str) -> Path | None:
        """Return the path of a shown object's file."""
        return self._store.local_path(key) if self._shows(key) else None

    def _shown(self, key: str) -> str:
        if not self._shows(key):
            raise NotFound(f"{key}: no such object", key=key)
        return key
