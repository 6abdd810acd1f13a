"""Tags: names that keep a version readable, for ever or until they expire.

All tags of a table are one small object, `_tags.json`, replaced by compare-and-swap: the collector finds every tag by
one GET of a name it knows, never by a listing that may miss one (lesson 49). Here they are read
and taken away; `history.tagging` sets them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from storage_core.errors import CommitConflict, NotFound
from storage_core.formats.keys import tags_key
from storage_core.formats.tags import Tag, Tags, decode, encode
from storage_core.log.log import TransactionLog
from storage_core.objectstore.compare_and_swap import ATTEMPTS, compare_and_swap
from storage_core.objectstore.contract import ObjectStore, PutResult, unchanged
from storage_core.objectstore.create import put_or_unknown

_logger = logging.getLogger(__name__)


Change = Callable[[Mapping[str, Tag]], Mapping[str, Tag]]


def read_tags(store: ObjectStore) -> Tags:
    """Return the table's tags. One GET.

    Raises `Corrupt` when they cannot be parsed: they are the only record of what has to be kept. `Unsupported` for a
    newer format.
    """
    try:
        blob = store.get(tags_key())
    except NotFound:
        return Tags()
    return decode(blob.data, etag=blob.etag)


def tagged(log: TransactionLog, name: str) -> Tag:
    """Return the live tag of this name. One GET. Raises `NotFound` naming the tags there are."""
    tags, now_ms = read_tags(log.store), log.clock.now_ms()
    tag = tags.by_name.get(name)
    if tag is None or not tag.is_live(now_ms):
        raise _no_tag(log, name, tags, now_ms)
    return tag


def remove_tag(log: TransactionLog, name: str) -> Tag:
    """Remove the tag and return it; from now on it keeps nothing. One GET and one PUT. Raises `NotFound`."""
    tags = read_tags(log.store)
    before = tags.by_name.get(name)
    if before is None:
        raise _no_tag(log, name, tags, log.clock.now_ms())
    replace_tag(log, name, before, None)
    _logger.info("tag %s of %s removed; it was version %d", name, log.store.uri, before.version)
    return before


def drop_expired(log: TransactionLog, *, now_ms: int) -> list[str]:
    """Remove the tags that have expired at `now_ms` and return their names. One GET, and one PUT if there are any."""
    deleted = sorted(tag.name for tag in read_tags(log.store).by_name.values() if not tag.is_live(now_ms))
    if deleted:
        _replace(log, lambda tags: {name: tag for name, tag in tags.items() if tag.is_live(now_ms)})
        _logger.info("expired tags of %s removed: %s", log.store.uri, ", ".join(deleted))
    return deleted


def replace_tag(log: TransactionLog, name: str, before: Tag | None, after: Tag | None) -> None:
    """Let `after` stand for `before` under this name; None is no tag. One GET and one PUT when nobody interferes.

    Nothing is written when it stands there already. Raises `CommitConflict` when somebody else changed the name or was
    faster every time, `CommitUnknown` when the store did not say.
    """
    _replace(log, partial(_replaced, name, before, after))


def _no_tag(log: TransactionLog, name: str, tags: Tags, now_ms: int) -> NotFound:
    why = "the tag has expired" if name in tags.by_name else "there is no such tag"
    known = ", ".join(each.name for each in tags.live(now_ms)) or "none"
    return NotFound(f"{name!r}: {why}; tags of {log.store.uri}: {known}", tag=name)


def _replaced(name: str, before: Tag | None, after: Tag | None, tags: Mapping[str, Tag]) -> Mapping[str, Tag]:
    """The tags with `after` for `before` under this name; unchanged when it stands there already."""
    if tags.get(name) == after:
        return tags
    if tags.get(name) != before:
        raise CommitConflict(f"the tag {name!r} was changed by somebody else meanwhile; look at it again", tag=name)
    rest = {other: tag for other, tag in tags.items() if other != name}
    return rest if after is None else {**rest, name: after}


def _replace(log: TransactionLog, change: Change) -> None:
    """Replace the tags by what `change` makes of them, once. One GET and one PUT when nobody interferes."""

    def changed(current: Tags) -> Tags:
        wanted = change(current.by_name)
        return current if wanted == current.by_name else replace(current, by_name=wanted)

    key = tags_key()
    done = compare_and_swap(
        partial(read_tags, log.store),
        changed,
        partial(_put, log),
        store=log.store,
        key=key,
        clock=log.clock,
        ids=log.ids,
    )
    if done is None:
        raise CommitConflict(f"{key}: {ATTEMPTS} attempts lost against others; nothing was changed, try again")


def _put(log: TransactionLog, wanted: Tags) -> PutResult:
    return put_or_unknown(log.store, tags_key(), encode(wanted, nonce=log.ids.uuid()), unchanged(wanted.etag))
