"""The store of a table, which finds what a shallow clone shares with its source (decision 0146).

A clone's log names objects by the keys that they have in the source, relative to either root. What is not in the
clone's own folder is read from the source's. Nothing there is ever written, listed or deleted: a collector of the clone
sees its own objects, and what the source keeps for it is what its tag keeps.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from storage_core.errors import Corrupt, InvalidInput, NotFound
from storage_core.formats import clone_source
from storage_core.formats.keys import KeyKind, parse, source_key
from storage_core.objectstore.contract import Blob, ObjectInfo, ObjectStore, PutMode, PutResult
from storage_core.objectstore.resolve import open_store, scheme_of
from storage_core.objectstore.s3_location import parse_s3_uri

SOURCE = "tidemark.cloneOf"
"""The setting that says of which version of which table this is a shallow clone, and which tag keeps that there."""

SHARED = frozenset({KeyKind.SPLIT, KeyKind.VECTOR, KeyKind.SEGMENT, KeyKind.TRANSLATION})
"""What may lie in the source, each under a fresh id."""

MOST_CLONES = 16

_Found = TypeVar("_Found")


class TableStore:
    """The objects of a table: its own, and behind them those of the source of a shallow clone.

    An object of the source costs one request more when it is met first, and once the GET of `_source.json`; a table
    that is no clone pays that only where an object is missing. What reads also raises `InvalidInput` and `Corrupt` of a
    source that is refused. Safe for threads.
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
        """Return the whole object, wherever it is. Raises `NotFound`."""
        return self._read(key, lambda store: store.get(key))

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return bytes of the object, wherever it is. Raises `NotFound`."""
        return self._read(key, lambda store: store.get_range(key, start, end))

    def head(self, key: str) -> ObjectInfo:
        """Return the metadata of the object, wherever it is. Raises `NotFound`."""
        return self._read(key, lambda store: store.head(key))

    def put(self, key: str, data: bytes | memoryview, mode: PutMode) -> PutResult:
        """Write an object of the table itself."""
        return self._store.put(key, data, mode)

    def make_durable(self, key: str) -> None:
        """Return once an object of the table itself is durable."""
        self._store.make_durable(key)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield the objects of the table itself."""
        return self._store.list(prefix, start_after)

    def delete(self, keys: Sequence[str]) -> Mapping[str, str | None]:
        """Delete objects of the table itself."""
        return self._store.delete(keys)

    def local_path(self, key: str) -> Path | None:
        """Return the path of the object's file, wherever it is, where the table is in a directory.

        One GET, once, where the file is not in the table's folder.
        """
        path = self._store.local_path(key)
        if path is not None or scheme_of(self.uri) != "file" or not _is_shared(key):
            return path
        source = self.source()
        return None if source is None else source.local_path(key)

    def source(self) -> ObjectStore | None:
        """Return the store of the table that this is a shallow clone of, None where it is none. One GET, once."""
        if not self._is_known:
            try:
                place = clone_source.decode(self._store.get(source_key()).data)
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
            assert source is not None, "it was found there"  # noqa: S101  # for the type checker
        try:
            found = read(source)
        except NotFound as error:
            raise NotFound(
                f"{key}: neither in {self.uri} nor in {source.uri}, of which this is a shallow clone; was its tag "
                "there removed?",
                key=key,
                source=source.uri,
            ) from error
        self._shared.add(key)
        return found


def _is_shared(key: str) -> bool:
    parsed = parse(key)
    return parsed is not None and parsed.kind in SHARED


def require_same_service(table: str, source: str) -> None:
    """Return when a table may send its readers to this source: on S3 to the service that they reach anyway.

    That is Amazon's, the one of the environment, or that of the table. Requests are signed, so nobody who can write a
    table shall send them elsewhere. Raises `InvalidInput`.
    """
    if scheme_of(source) != "s3":
        return
    known = {None, parse_s3_uri("s3://any", os.environ).endpoint}
    if scheme_of(table) == "s3":
        known.add(parse_s3_uri(table, {}).endpoint)
    endpoint = parse_s3_uri(source, {}).endpoint
    if endpoint not in known:
        raise InvalidInput(
            f"{table}: a shallow clone of a table at {endpoint}, which is neither its own service nor that of the "
            "environment; set AWS_ENDPOINT_URL where that is trusted, or clone deep",
            uri=table,
        )


def open_table_store(uri: str | Path, clones: int = 0) -> TableStore:
    """Return the store of the table at `uri`, as `open_store` does; what a shallow clone shares is found in it.

    `clones` lead there, each of the next. Raises `Corrupt` for more than there are: they lead in a circle.
    """
    if clones > MOST_CLONES:
        raise Corrupt(f"{uri}: more than {MOST_CLONES} shallow clones, each of the next, lead there; is one its own?")
    return TableStore(open_store(uri), partial(open_table_store, clones=clones + 1))
