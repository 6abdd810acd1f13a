"""The walk over a table: the objects in its folder, and the objects that its log references (decision 0041).

A listing contains the existing objects, and references contain the needed objects. The collector, the check,
forgetting, clones and repair compare the listing with the references. `formats.kinds` declares the properties of each
kind of object.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Final

from storage_core.base.errors import Unsupported
from storage_core.data.formats.keys import ParsedKey, parse
from storage_core.data.formats.kinds import KINDS, KeyKind
from storage_core.data.formats.region_manifest import RECORDS_FILE
from storage_core.log.actions import (
    Action,
    Add,
    CommitInfo,
    Fence,
    File,
    IndexSegment,
    MergedGenerations,
    MergeSkip,
    Protocol,
    Remove,
    RemoveIndexSegment,
    RemoveTranslation,
    RemoveTxn,
    Translation,
    Txn,
)
from storage_core.log.listing import Checkpointed
from storage_core.log.snapshot import Snapshot
from storage_core.store.contract import ObjectInfo, ObjectStore

KIND_OF: Final[Mapping[type[File], KeyKind]] = {
    Add: KeyKind.SPLIT,
    IndexSegment: KeyKind.SEGMENT,
    Translation: KeyKind.TRANSLATION,
}


@dataclass(frozen=True)
class Listing:
    """The objects of one listing by key, and the parsed form of every key that belongs to Tidemark."""

    objects: Mapping[str, ObjectInfo]
    parsed: Mapping[str, ParsedKey]

    def of(self, *kinds: KeyKind) -> list[ParsedKey]:
        """Return the keys of these kinds in order."""
        found = [each for kind in kinds for each in self._by_kind.get(kind, ())]
        return found if len(kinds) == 1 else sorted(found, key=lambda each: each.key)

    def of_region(self, region: str, kind: KeyKind) -> Sequence[ParsedKey]:
        """Return the keys of a kind in this region, in order."""
        return self._by_region.get((region, kind), ())

    def versions(self, kind: KeyKind) -> list[int]:
        """Return the numbers of the existing version files or states, ascending."""
        return sorted(each.version for each in self.of(kind) if each.version is not None)

    def checkpoints(self) -> list[Checkpointed]:
        """Return all checkpoints by version, in the Avro and JSON formats.

        A JSON checkpoint in parts is also `JSON`.
        """
        found = map(Checkpointed.at, self.of(KeyKind.STATE, KeyKind.JSON_CHECKPOINT))
        return sorted((each for each in found if each is not None), key=lambda each: (each.version, each.key))

    def size(self, key: str) -> int:
        """Return the bytes of an object, or 0 for an object that was not listed."""
        return self.objects[key].size if key in self.objects else 0

    @property
    def regions(self) -> list[str]:
        """The claimed regions, in order.

        A region with only parts of a distribution (`distribution.work`) is not claimed. Its writer ended before the
        claim.
        """
        parts = (KeyKind.GENERATION_FILE, RECORDS_FILE)
        claimed = (each for each in self.parsed.values() if (each.kind, each.name) != parts)
        return sorted({each.region for each in claimed if each.region is not None})

    @property
    def unknown(self) -> list[str]:
        """The keys that do not belong to Tidemark, in order."""
        return sorted(self.objects.keys() - self.parsed.keys())

    @cached_property
    def _by_kind(self) -> Mapping[KeyKind, Sequence[ParsedKey]]:
        found = defaultdict[KeyKind, list[ParsedKey]](list)
        for key in sorted(self.parsed):
            found[self.parsed[key].kind].append(self.parsed[key])
        return found

    @cached_property
    def _by_region(self) -> Mapping[tuple[str, KeyKind], Sequence[ParsedKey]]:
        found = defaultdict[tuple[str, KeyKind], list[ParsedKey]](list)
        for each in (each for several in self._by_kind.values() for each in several if each.region is not None):
            found[each.region or "", each.kind].append(each)
        return found


def list_table(store: ObjectStore) -> Listing:
    """Return the objects below the root. One LIST per 1,000 objects. Memory: a key and its metadata per object."""
    objects = {info.key: info for info in store.list("")}
    return Listing(objects, {key: found for key in objects if (found := parse(key)) is not None})


@dataclass(frozen=True, slots=True)
class Reference:
    """An object that a snapshot references, with its size and checksum from the log."""

    kind: KeyKind
    key: str
    size: int
    xxh3: str | None

    @property
    def is_derived(self) -> bool:
        """Whether the object can be created again. A snapshot can be read without such an object."""
        return KINDS[self.kind].derived


def references_of(file: File) -> Iterator[Reference]:
    """Yield the added object of an action, and its stored deletion vector."""
    yield Reference(KIND_OF[type(file)], file.path, file.size, file.xxh3)
    vector = file.deletionVector if isinstance(file, Add) else None
    if vector is not None and vector.path is not None:
        yield Reference(KeyKind.VECTOR, vector.path, vector.size, vector.xxh3)


def references(snapshot: Snapshot) -> Iterator[Reference]:
    """Yield each object that a reader of the snapshot needs. No object is yielded twice."""
    vectors = set[str]()
    for each in (each for file in files_of(snapshot) for each in references_of(file)):
        if each.key not in vectors:
            yield each
        if each.kind is KeyKind.VECTOR:
            vectors.add(each.key)


def files_of(snapshot: Snapshot) -> Iterator[File]:
    """Yield the actions of all files of a snapshot."""
    yield from snapshot.splits.values()
    yield from snapshot.segments.values()
    yield from snapshot.translations.values()


def keys_of(snapshot: Snapshot) -> frozenset[str]:
    """Return every key in the state of the snapshot."""
    return named_by([snapshot.metadata, *files_of(snapshot)])


ALL_FIELDS = "*"

# Fields whose text may look like a key, but does not protect an object from deletion. The mapping contains the reason
# for each field.
NOT_KEEPING: Mapping[tuple[type[Action], str], str] = {
    (CommitInfo, ALL_FIELDS): "describes the commit. The text and the metrics of the commit are not references",
    (Protocol, ALL_FIELDS): "names features",
    (Remove, ALL_FIELDS): "removes the reference to a split",
    (RemoveIndexSegment, ALL_FIELDS): "removes the reference to a segment",
    (MergeSkip, ALL_FIELDS): "refers to a split, and only the add action of the split keeps the split",
    (Txn, ALL_FIELDS): "application ids are text of the applications, landed paths among them",
    (RemoveTxn, ALL_FIELDS): "contains the id of a transaction, which is not a reference",
    (Fence, ALL_FIELDS): "names a resource, not an object",
    (MergedGenerations, ALL_FIELDS): "names a region, whose generations are found through its manifest",
    (IndexSegment, "covers"): "an index segment refers to a removed split, but does not keep the split in storage",
    (IndexSegment, "origins"): "contains the origin of the rows of a split, but does not keep the origin in storage",
    (
        IndexSegment,
        "coveredOrigins",
    ): "contains the origins of the rows of splits, but does not keep the origins in storage",
    (Translation, "inputs"): "contains splits that were removed, or that are kept by their add actions",
    (Translation, "outputs"): "contains splits that are kept by their add actions",
    (RemoveTranslation, ALL_FIELDS): "removes the reference to a translation",
}


def named_keys(action: Action) -> Iterator[str]:
    """Yield the key of every object that must stay while this action is part of a retained version.

    The function visits every field and nested value, also fields of later releases. The function skips only the fields
    in `NOT_KEEPING`. A test uses reflection to check that this function or `NOT_KEEPING` covers every field of every
    action.

    Raises:
        Unsupported: The path of a split, segment or translation is not a key of this release. The object is unknown, so
            nothing may be deleted in this table (lessons 42 and 80).
    """
    _require_own_path(action)
    if (type(action), ALL_FIELDS) in NOT_KEEPING:
        return
    for each in fields(action):
        if (type(action), each.name) not in NOT_KEEPING:
            yield from _keys_in(getattr(action, each.name))


def named_by(actions: Iterable[Action]) -> frozenset[str]:
    """Return every key that these actions keep."""
    return frozenset(key for action in actions for key in named_keys(action))


def removed_keys(action: Action) -> Iterator[str]:
    """Yield the key of the split, segment or translation that this action removes."""
    match action:
        case Remove() | RemoveIndexSegment() | RemoveTranslation():
            yield action.path
        case _:
            return


def _keys_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        if parse(value) is not None:
            yield value
    elif isinstance(value, Mapping):
        for name, nested in value.items():
            yield from _keys_in(name)
            yield from _keys_in(nested)
    elif isinstance(value, Sequence):
        for nested in value:
            yield from _keys_in(nested)
    elif is_dataclass(value):
        for each in fields(value):
            yield from _keys_in(getattr(value, each.name))


def _require_own_path(action: Action) -> None:
    if not isinstance(action, File):
        return
    parsed, expected = parse(action.path), KIND_OF[type(action)]
    if parsed is None or parsed.kind is not expected:
        raise Unsupported(
            f"{action.path!r} is live, but this release does not know it as the key of a {expected}. Nothing is "
            "collected here. Upgrade Tidemark",
            path=action.path,
        )
