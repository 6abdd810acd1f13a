"""Healing of a raw log: every store gets what it lacks from the others.

See docs/operations.md, "A store of a raw log was away".

A chunk is the same bytes wherever it lies. So a copy is made of a sound one only, whose checksum, writer and number
were compared, and put where nothing is; a damaged one is replaced only while it is the one that was read. What was done
is seen in a listing, so a run that ended anywhere goes on where it was. What was collected is not brought back.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from storage_core.clock import Clock
from storage_core.errors import CommitConflict, Corrupt, NotFound, TidemarkError, Unavailable
from storage_core.formats import raw_ids
from storage_core.formats.raw_chunk import read_head
from storage_core.formats.raw_keys import IDS_PREFIX, LIVE_PREFIX, ChunkKey, IdsKey, parse
from storage_core.gc.raw_collected import put_collected
from storage_core.ids import Ids
from storage_core.objectstore.contract import Committed, IfMatch, ObjectStore
from storage_core.objectstore.create import create_numbered, put_or_unknown
from storage_core.objectstore.prefetch import all_of
from storage_core.raw_log.collected import read_collected
from storage_core.raw_log.history import History, union

_logger = logging.getLogger(__name__)

OBJECTS_AT_ONCE = 4
"""Each is held whole while it is copied."""

_Identity = tuple[str, int]
"""Writer and number of a chunk; of record ids their key, and 0."""

_Sizes = Mapping[_Identity, int]


@dataclass(frozen=True, slots=True)
class _Item:
    """What every store is to have: a chunk, which may have several names, or the ids of records."""

    identity: _Identity
    keys: tuple[str, ...]

    def is_sound(self, data: bytes, key: str) -> bool:
        """Return whether these bytes are what was written under the key."""
        name = parse(key)
        try:
            if isinstance(name, IdsKey):
                raw_ids.decode(data, name)
                return True
            head = read_head(data, key)
        except Corrupt:
            return False
        return (head.key.writer, head.key.number) == self.identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Healing:
    """What one run found and did, by the URI of the store.

    `objects` are chunks, and objects of record ids. `lacking` are those that a store does not have, `copied` those that
    it has now, `replaced` damaged copies that are sound now, all counted. `failed` says by store and key what was
    refused; `damaged` are keys without a sound copy anywhere. `unreachable` are stores that did not answer: they stay
    as they are. `bytes` were written.
    """

    objects: int
    lacking: Mapping[str, int]
    copied: Mapping[str, int] = field(default_factory=dict)
    replaced: Mapping[str, int] = field(default_factory=dict)
    bytes: int = 0
    failed: Mapping[str, str] = field(default_factory=dict)
    damaged: tuple[str, ...] = ()
    unreachable: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether every store has everything that any store has whole, as far as this run looked."""
        left = sum(self.lacking.values()) - sum(self.copied.values())
        return not (left or self.failed or self.damaged or self.unreachable)


def heal(
    stores: Sequence[ObjectStore], *, clock: Clock, ids: Ids, verify: bool = False, dry_run: bool = False
) -> Healing:
    """Copy to each store that answers the chunks that it lacks and another has whole. Killed anywhere, run it again.

    So the ids of records. A copy of another size than the others is compared with its checksum, and replaced when it is
    damaged; with `verify` every copy is. With `dry_run` nothing is written, and damage is not looked for. Requests: two
    LISTs per 1,000 chunks and store, one of ids, a GET and a PUT per copy. Memory: `OBJECTS_AT_ONCE` objects. Raises
    `Unavailable` when no store answers.
    """
    history = union(stores)
    sizes = {store.uri: _sizes(store) for store in history.stores}
    wanted = [
        _Item((each.writer, each.number), each.keys)
        for each in history.chunks
        if each.number > history.collected_up_to(each.writer)
    ]
    noted = sorted({key for own in sizes.values() for key, number in own if not number})
    wanted += [_Item((key, 0), (key,)) for key in noted]
    lacking = {uri: sum(each.identity not in own for each in wanted) for uri, own in sizes.items()}
    found = Healing(objects=len(wanted), lacking=lacking, unreachable=history.unreachable)
    if dry_run:
        return found
    due = [each for each in wanted if verify or len({own.get(each.identity) for own in sizes.values()}) > 1]
    healed = all_of(partial(_heal, history, sizes, clock), due, OBJECTS_AT_ONCE)
    if history.collected:
        for store in history.stores:
            put_collected(store, read_collected(store), history.collected, ids=ids)
    return replace(
        found,
        copied=dict(Counter(uri for each in healed for uri in each.copied)),
        replaced=dict(Counter(uri for each in healed for uri in each.replaced)),
        bytes=sum(each.written for each in healed),
        failed={where: why for each in healed for where, why in each.failed.items()},
        damaged=tuple(each.item.keys[0] for each in healed if not each.is_sound),
    )


@dataclass(slots=True)
class _Healed:
    item: _Item
    is_sound: bool = False
    copied: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    written: int = 0

    def copy(self, store: ObjectStore, data: bytes, clock: Clock) -> None:
        """Put the object where the store has nothing."""
        key = self.item.keys[0]
        with self._noting(store, key):
            if not create_numbered(store, key, data, clock=clock):
                raise CommitConflict(f"{key}: something else was put there meanwhile; run it again", key=key)
            self.copied.append(store.uri)
            self.written += len(data)

    def replace(self, store: ObjectStore, key: str, etag: str, data: bytes) -> None:
        """Put the object in the place of a damaged copy, while that is the one that was read."""
        with self._noting(store, key):
            result = put_or_unknown(store, key, data, IfMatch(etag))
            if not isinstance(result, Committed) and store.get(key).data != data:
                raise CommitConflict(f"{key}: the damaged copy was replaced by something else; run it again", key=key)
            self.replaced.append(store.uri)
            self.written += len(data)
            _logger.warning("%s/%s was damaged, and is a sound copy again", store.uri, key)

    @contextmanager
    def _noting(self, store: ObjectStore, key: str) -> Iterator[None]:
        """A block about one copy: what fails is noted, and others go on."""
        try:
            yield
        except TidemarkError as error:
            self.failed[f"{store.uri}/{key}"] = str(error)


def _heal(history: History, sizes: Mapping[str, _Sizes], clock: Clock, item: _Item) -> _Healed:
    """Copy one object to the stores that lack it, and over the copies that are damaged."""
    done = _Healed(item)
    sound: bytes | None = None
    damaged: list[tuple[ObjectStore, str, str]] = []
    having = [store for store in history.stores if item.identity in sizes[store.uri]]
    for store in having:
        for key in item.keys:
            try:
                blob = store.get(key)
            except NotFound:
                continue
            except Unavailable as error:
                done.failed[f"{store.uri}/{key}"] = str(error)
                continue
            if item.is_sound(blob.data, key):
                sound = sound or blob.data
            else:
                damaged.append((store, key, blob.etag))
    if sound is None:
        return done
    done.is_sound = True
    for store in history.stores:
        if store not in having:
            done.copy(store, sound, clock)
    for store, key, etag in damaged:
        done.replace(store, key, etag, sound)
    return done


def _sizes(store: ObjectStore) -> dict[_Identity, int]:
    found: dict[_Identity, int] = {}
    for prefix in (LIVE_PREFIX, IDS_PREFIX):
        for info in store.list(prefix):
            match parse(info.key):
                case ChunkKey(writer=writer, number=number):
                    found[writer, number] = info.size
                case IdsKey():
                    found[info.key, 0] = info.size
    return found
