"""Stores of shallow clones, and the features that a table's protocol requires.

**Shallow clones.** The log of a shallow clone refers to objects of its source by the same keys. `TableStore` looks for
an object in the clone's own folder first, then in the source's folder (decision 0033). `TableStore` never writes, lists
or deletes anything in the source. So the collector of the clone sees only the clone's own objects. A tag in the source
keeps the shared objects there.

**Features.** A feature in the protocol makes older releases refuse a table that they would misread or damage
(`docs/spec.md`, 2.1). A table has only the features that it needs. For example, every release can open a table with one
region and without deletes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from storage_core.base.errors import Corrupt, InvalidInput, NotFound
from storage_core.data.formats.json_document import text
from storage_core.data.formats.keys import parse, source_key
from storage_core.data.formats.kinds import SHARED, KeyKind, document_of
from storage_core.data.rows.columns import COLUMN_ID
from storage_core.data.rows.vectors import VECTOR
from storage_core.data.settings.index import INDEX_PREFIX, IndexDefinition
from storage_core.data.settings.layout import HAND_REGIONS_KEY, PARTITION_BY_KEY, REGIONS_KEY
from storage_core.data.settings.table import FORMER_WINDOWS_KEY, SPLIT_METADATA_KEY
from storage_core.log.actions import (
    CHANGED_COLUMNS_FEATURE,
    HAND_REGIONS_FEATURE,
    KEY_INDEXES_FEATURE,
    OWN_FEATURE,
    PACKED_METADATA_FEATURE,
    PARTITIONS_FEATURE,
    PRUNED_FEATURE,
    REGIONS_FEATURE,
    SHARED_FEATURE,
    TRANSLATIONS_FEATURE,
    VECTOR_COLUMNS_FEATURE,
    VECTORS_FEATURE,
    WINDOW_CHANGES_FEATURE,
    Action,
    Add,
    Metadata,
    Protocol,
    RemoveTxn,
    Translation,
)
from storage_core.store.contract import Blob, ObjectInfo, ObjectStore, PutMode, PutResult
from storage_core.store.resolve import open_store, scheme_of
from storage_core.store.s3_location import parse_s3_uri

SOURCE = "tidemark.cloneOf"
"""The setting of a shallow clone.

The value of this setting contains the source table, the cloned version, and the tag that keeps this version in the
source.
"""

MOST_CLONES = 16

_Found = TypeVar("_Found")

_SOURCE = document_of(KeyKind.SOURCE)


def encode_source(uri: str) -> bytes:
    """Return the bytes of `_source.json` for this table. Equal locations produce equal bytes."""
    return _SOURCE.encode({"uri": uri})


def decode_source(data: bytes) -> str:
    """Return the location of the table with which a clone shares objects. Raises `Corrupt` or `Unsupported`."""
    return _SOURCE.decode(data, source_key(), lambda body: text(body["uri"]))


@dataclass(frozen=True, slots=True)
class Cloned:
    """A clone at its version 0.

    Attributes:
        source_version: The cloned version of the source.
        copied_bytes: The number of bytes that a deep clone copied.
        tag: The tag in the source that keeps the version for a shallow clone, while the tag exists.
        unmerged: The number of unmerged records of a keyed source. The clone does not contain these records. None if
            the number is unknown, as for a clone of an older version.
        commit_id: The id of the clone's commit. Empty if the clone already existed and nothing was done.
    """

    uri: str
    source_version: int
    rows: int
    splits: int
    copied_bytes: int = 0
    tag: str | None = None
    unmerged: int | None = 0
    commit_id: str = ""


class TableStore:
    """The objects of a table. If the table is a shallow clone, the objects of the source are included.

    The first read of each object in the source costs one more request. The first read of an object in the source also
    costs one GET of `_source.json`. A table that is not a shallow clone sends these additional requests only for
    missing objects. Reads also raise `InvalidInput` or `Corrupt` if the source is refused. Safe for threads.
    """

    def __init__(self, store: ObjectStore, opened: Callable[[str], ObjectStore] | None = None) -> None:
        self._store = store
        self._opened = opened or partial(open_table_store, clones=1)
        self._source: ObjectStore | None = None
        self._is_known = False
        self._shared: set[str] = set()

    @property
    def uri(self) -> str:
        """The URI of the table itself."""
        return self._store.uri

    def get(self, key: str) -> Blob:
        """Return the whole object, from the table or its source. Raises `NotFound`."""
        return self._read(key, lambda store: store.get(key))

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return bytes of the object, from the table or its source. Raises `NotFound`."""
        return self._read(key, lambda store: store.get_range(key, start, end))

    def head(self, key: str) -> ObjectInfo:
        """Return the metadata of the object, from the table or its source. Raises `NotFound`."""
        return self._read(key, lambda store: store.head(key))

    def put(self, key: str, data: bytes | memoryview, mode: PutMode) -> PutResult:
        """Write an object of this table, and not of the source of a clone."""
        return self._store.put(key, data, mode)

    def make_durable(self, key: str) -> None:
        """Ensure that an object of this table, and not of the source of a clone, is durable."""
        self._store.make_durable(key)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield the objects of this table, and not of the source of a clone."""
        return self._store.list(prefix, start_after)

    def delete(self, keys: Sequence[str]) -> Mapping[str, str | None]:
        """Delete objects of the table itself."""
        return self._store.delete(keys)

    def local_path(self, key: str) -> Path | None:
        """Return the path of the object's file in the table or its source.

        Only a table in a local directory has such files.

        If the file is not in the table's folder, the first call sends one GET of `_source.json`.
        """
        path = self._store.local_path(key)
        if path is not None or scheme_of(self.uri) != "file" or not _is_shared(key):
            return path
        source = self.source()
        return None if source is None else source.local_path(key)

    def source(self) -> ObjectStore | None:
        """Return the store of the source if this table is a shallow clone, else None. The first call sends one GET."""
        if not self._is_known:
            try:
                place = decode_source(self._store.get(source_key()).data)
                require_same_service(self.uri, place)
                self._source = self._opened(place)
            except NotFound:
                self._source = None
            self._is_known = True
        return self._source

    def _read(self, key: str, read: Callable[[ObjectStore], _Found]) -> _Found:
        if key not in self._shared:
            try:
                return read(self._store)
            except NotFound:
                source = self.source() if _is_shared(key) else None
                if source is None:
                    raise
        else:
            source = self.source()
            assert source is not None, "the object was found in the source"  # noqa: S101  # for the type checker
        try:
            found = read(source)
        except NotFound as error:
            raise NotFound(
                f"{key}: the object is neither in {self.uri} nor in the source {source.uri} of this shallow clone. "
                "Check whether the tag of the clone was removed in the source",
                key=key,
                source=source.uri,
            ) from error
        self._shared.add(key)
        return found


def _is_shared(key: str) -> bool:
    parsed = parse(key)
    return parsed is not None and parsed.kind in SHARED


def require_same_service(table: str, source: str) -> None:
    """Raise `InvalidInput` if a table on S3 has a clone source on an S3 service that is not allowed.

    Three services are allowed: Amazon S3, the service in the environment, and the service of the table itself. Requests
    are signed. A person who can write to a table can therefore not redirect the requests to another service.
    """
    if scheme_of(source) != "s3":
        return
    known = {None, parse_s3_uri("s3://any", os.environ).endpoint}
    if scheme_of(table) == "s3":
        known.add(parse_s3_uri(table, {}).endpoint)
    endpoint = parse_s3_uri(source, {}).endpoint
    if endpoint not in known:
        raise InvalidInput(
            f"{table}: the shallow clone reads from {endpoint}, which is neither the service of the clone nor of the "
            "environment. If you trust this service, set AWS_ENDPOINT_URL to it. Otherwise make a deep clone",
            uri=table,
        )


def open_table_store(uri: str | Path, clones: int = 0) -> TableStore:
    """Return the store of the table at `uri`, like `open_store`.

    The store includes the objects of a shallow clone's source.

    Args:
        clones: The number of shallow clones in the chain that leads to this table. If it exceeds `MOST_CLONES`,
            `Corrupt` is raised, because a chain of this length can only be a circle.
    """
    if clones > MOST_CLONES:
        raise Corrupt(
            f"{uri}: the chain of shallow clones has more than {MOST_CLONES} tables. Check whether one of these "
            "tables is a clone of itself"
        )
    return TableStore(open_store(uri), partial(open_table_store, clones=clones + 1))


_EVERY_TABLE = ("avroState", "schemaDeduplication", OWN_FEATURE)

_OF_SETTINGS: Final = {
    # Without this feature, writers claim only the region of the whole table, and readers read only this region.
    REGIONS_KEY: REGIONS_FEATURE,
    # Without this feature, files ingested under other windows are ingested again.
    FORMER_WINDOWS_KEY: WINDOW_CHANGES_FEATURE,
    SOURCE: SHARED_FEATURE,  # Without this feature, readers miss the splits of the source.
    # Without this feature, readers miss the rows of regions that no spec contains.
    HAND_REGIONS_KEY: HAND_REGIONS_FEATURE,
    # Without this feature, writers store no partition of a split, and merge splits of different partitions.
    PARTITION_BY_KEY: PARTITIONS_FEATURE,
}
"""The feature that each of these settings requires."""


def first_protocol(metadata: Metadata) -> Protocol:
    """Return the protocol of a new table with this metadata."""
    features = (*_EVERY_TABLE, *_needed((metadata,)))
    return Protocol(readerFeatures=features, writerFeatures=features)


def first_version(metadata: Metadata, others: Sequence[Action], known: Protocol | None) -> tuple[Action, ...]:
    """Return the actions of version 0: first the protocol, then these actions.

    If `known` is given, the protocol of version 0 also contains the features of `known`.
    """
    actions = (metadata, *others)
    protocol = first_protocol(metadata) if known is None else known
    found = with_features(actions, protocol)
    return found if found != actions else (protocol, *actions)


def with_features(actions: tuple[Action, ...], protocol: Protocol) -> tuple[Action, ...]:
    """Return the actions.

    If these actions need features that the table's protocol lacks, an upgraded protocol comes first.
    """
    needed = _needed(actions)
    upgraded = replace(
        protocol,
        readerFeatures=_and(protocol.readerFeatures, needed),
        writerFeatures=_and(protocol.writerFeatures, needed),
    )
    return (upgraded, *actions) if needed and upgraded != protocol else actions


def _needed(actions: Iterable[Action]) -> list[str]:
    return list(dict.fromkeys(feature for action in actions for feature in _needed_by(action)))


def _needed_by(action: Action) -> Iterable[str]:
    match action:
        case Add() if action.deletionVector is not None:
            yield VECTORS_FEATURE  # Without this feature, readers return deleted rows, and rewrites write them back.
        case Metadata():
            yield from (feature for key, feature in _OF_SETTINGS.items() if key in action.configuration)
            if action.configuration.get(SPLIT_METADATA_KEY, "plain") != "plain":
                yield PACKED_METADATA_FEATURE  # Without this feature, the checksums of new splits are not found.
            if VECTOR in action.schemaString:
                yield VECTOR_COLUMNS_FEATURE  # Without this feature, writers accept lists of any length.
            if COLUMN_ID in action.schemaString:
                # Without this feature, splits of earlier schemas appear damaged, or with other values.
                yield CHANGED_COLUMNS_FEATURE
            if any(_is_of_the_key(*entry) for entry in action.configuration.items()):
                yield KEY_INDEXES_FEATURE  # Without this feature, the settings of the table are invalid.
        case RemoveTxn():
            yield PRUNED_FEATURE  # Without this feature, a landed file that appears again is ingested again.
        case Translation():
            # Without this feature, readers use segments for the wrong rows, or ignore the segments.
            yield TRANSLATIONS_FEATURE
        case _:
            pass


def _is_of_the_key(key: str, text: str) -> bool:
    return key.startswith(INDEX_PREFIX) and IndexDefinition.from_text(key, text).kind == "primary_key"


def _and(features: tuple[str, ...] | None, needed: Iterable[str]) -> tuple[str, ...]:
    known = features or ()
    return (*known, *(each for each in needed if each not in known))
