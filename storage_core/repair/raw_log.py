"""Healing of a raw log: every store gets what it lacks from the others (docs/operations.md, "a store was away").

A chunk is the same bytes wherever it lies. So a copy is made of a sound one only, whose checksum, writer and number were
compared, and put where nothing is; a damaged one is replaced only while it is the one that was read. What was done is
seen in a listing, so a run that ended anywhere goes on where it was. What was collected is not brought back.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from storage_core.clock import Clock
from storage_core.errors import CommitConflict, Corrupt, NotFound, TidemarkError, Unavailable
from storage_core.formats.raw_chunk import read_head
from storage_core.formats.raw_keys import LIVE_PREFIX, ChunkKey, parse
from storage_core.gc.raw_collected import put_collected
from storage_core.ids import Ids
from storage_core.objectstore.contract import Blob, Committed, IfMatch, ObjectStore
from storage_core.objectstore.create import create_numbered, put_or_unknown
from storage_core.objectstore.prefetch import all_of
from storage_core.raw_log.chunks import RawChunkRef
from storage_core.raw_log.collected import read_collected
from storage_core.raw_log.history import History, union

_logger = logging.getLogger(__name__)

CHUNKS_AT_ONCE = 4
"""Each is held whole while it is copied."""

_Sizes = Mapping[tuple[str, int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Healing:
    """What one run found and did, by the URI of the store.

    `lacking` are chunks that a store does not have, `copied` those that it has now, `replaced` damaged copies that are
    sound now, all counted. `failed` says by store and key what was refused; `damaged` are keys of chunks without a
    sound copy anywhere. `unreachable` are stores that did not answer: they stay as they are. `bytes` were written.
    """

    chunks: int
    lacking: Mapping[str, int]
    copied: Mapping[str, int] = field(default_factory=dict)
    replaced: Mapping[str, int] = field(default_factory=dict)
    bytes: int = 0
    failed: Mapping[str, str] = field(default_factory=dict)
    damaged: tuple[str, ...] = ()
    unreachable: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether every store has every chunk that any store has whole, as far as this run looked."""
        left = sum(self.lacking.values()) - sum(self.copied.values())
        return not (left or self.failed or self.damaged or self.unreachable)


def heal(
    stores: Sequence[ObjectStore], *, clock: Clock, ids: Ids, verify: bool = False, dry_run: bool = False
) -> Healing:
    """Copy to each store that answers the chunks that it lacks and another has whole. Killed anywhere, run it again.

    A copy of another size than the others is compared with its checksum, and replaced when it is damaged; with `verify`
    every copy is. With `dry_run` nothing is written, and damage is not looked for. Requests: two LISTs per 1,000 chunks
    and store, a GET and a PUT per copy. Memory: `CHUNKS_AT_ONCE` chunks. Raises `Unavailable` when no store answers.
    """
    history = union(stores)
    sizes = {store.uri: _sizes(store) for store in history.stores}
    wanted = [each for each in history.chunks if each.number > history.collected_up_to(each.writer)]
    lacking = {uri: sum((each.writer, each.number) not in own for each in wanted) for uri, own in sizes.items()}
    found = Healing(chunks=len(wanted), lacking=lacking, unreachable=history.unreachable)
    if dry_run:
        return found
    due = [
        each for each in wanted if verify or len({own.get((each.writer, each.number)) for own in sizes.values()}) > 1
    ]
    healed = all_of(partial(_heal, history, sizes, clock), due, CHUNKS_AT_ONCE)
    for store in history.stores:
        stored = read_collected(store) if history.collected else None
        if stored is not None:
            put_collected(store, stored, history.collected, ids=ids)
    return Healing(
        chunks=found.chunks,
        lacking=lacking,
        copied=dict(Counter(uri for each in healed for uri in each.copied)),
        replaced=dict(Counter(uri for each in healed for uri in each.replaced)),
        bytes=sum(each.bytes for each in healed),
        failed={where: why for each in healed for where, why in each.failed.items()},
        damaged=tuple(each.ref.keys[0] for each in healed if not each.is_sound),
        unreachable=history.unreachable,
    )


@dataclass(slots=True)
class _Healed:
    ref: RawChunkRef
    is_sound: bool = False
    copied: list[str] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    bytes: int = 0


def _heal(history: History, sizes: Mapping[str, _Sizes], clock: Clock, ref: RawChunkRef) -> _Healed:
    """Copy one chunk to the stores that lack it, and over the copies that are damaged."""
    done = _Healed(ref)
    sound: bytes | None = None
    damaged: list[tuple[ObjectStore, str, str]] = []
    having = [store for store in history.stores if (ref.writer, ref.number) in sizes[store.uri]]
    for store in having:
        for key in ref.keys:
            try:
                blob = store.get(key)
            except NotFound:
                continue
            except Unavailable as error:
                done.failed[f"{store.uri}/{key}"] = str(error)
                continue
            if _is_sound(blob, key, ref):
                sound = sound or blob.data
            else:
                damaged.append((store, key, blob.etag))
    if sound is None:
        return done
    done.is_sound = True
    for store in history.stores:
        if store not in having:
            _copy(store, ref.keys[0], sound, done, clock)
    for store, key, etag in damaged:
        _replace(store, key, etag, sound, done)
    return done


def _copy(store: ObjectStore, key: str, data: bytes, done: _Healed, clock: Clock) -> None:
    try:
        if not create_numbered(store, key, data, clock=clock):
            raise CommitConflict(f"{key}: something else was put there meanwhile; run it again", key=key)
    except TidemarkError as error:
        done.failed[f"{store.uri}/{key}"] = str(error)
    else:
        done.copied.append(store.uri)
        done.bytes += len(data)


def _replace(store: ObjectStore, key: str, etag: str, data: bytes, done: _Healed) -> None:
    try:
        result = put_or_unknown(store, key, data, IfMatch(etag))
        if not isinstance(result, Committed) and store.get(key).data != data:
            raise CommitConflict(f"{key}: the damaged copy was replaced by something else; run it again", key=key)
    except TidemarkError as error:
        done.failed[f"{store.uri}/{key}"] = str(error)
    else:
        done.replaced.append(store.uri)
        done.bytes += len(data)
        _logger.warning("%s/%s was damaged, and is a sound copy again", store.uri, key)


def _is_sound(blob: Blob, key: str, ref: RawChunkRef) -> bool:
    try:
        head = read_head(blob.data, key)
    except Corrupt:
        return False
    return (head.key.writer, head.key.number) == (ref.writer, ref.number)


def _sizes(store: ObjectStore) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    for info in store.list(LIVE_PREFIX):
        key = parse(info.key)
        if isinstance(key, ChunkKey):
            found[key.writer, key.number] = info.size
    return found
