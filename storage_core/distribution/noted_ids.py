"""The objects beside a raw log in which distribution noted the ids of records (decision 0135): which there are, and
reading them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from storage_core.distribution.work import DivideWork
from storage_core.errors import Corrupt, NotFound, Unavailable
from storage_core.formats import raw_ids
from storage_core.formats.raw_ids import RecordIds
from storage_core.formats.raw_keys import IDS_PREFIX, IdsKey, ids_key, parse
from storage_core.objectstore.contract import ObjectStore


def keys_in_reach(work: DivideWork, raw: Sequence[ObjectStore]) -> Iterator[str]:
    """The keys of objects that may have an id of a record before ours, as any store lists them."""
    since = min(ref.segment_ms for ref in work.chunks) - work.source.unique_for_ms
    reasons: list[str] = []
    mandatory = raw[: work.source.mandatory]
    for store in raw:
        try:
            for info in store.list(IDS_PREFIX):
                key = parse(info.key)
                if isinstance(key, IdsKey) and key.last_ms >= since:
                    yield info.key
        except Unavailable as error:
            if store in mandatory:
                reasons.append(f"{store.uri}: {error}")
    if len(reasons) == len(mandatory):
        raise Unavailable(f"which ids were taken is not known: {'; '.join(reasons)}; distribute again later")


def read_all(keys: Sequence[str], raw: Sequence[ObjectStore], *, must_exist: bool) -> Iterator[RecordIds]:
    """Yield the objects; one that a collector took since it was listed is none any more, unless it must be there."""
    for key in keys:
        parsed = parse(key)
        found = _read(parsed, raw) if isinstance(parsed, IdsKey) else None
        if found is not None:
            yield found
        elif must_exist:
            raise Unavailable(f"{key}: was written in this round and is in no store; distribute again", key=key)


def _read(key: IdsKey, raw: Sequence[ObjectStore]) -> RecordIds | None:
    """Return the object from the first store that has it whole; None when no store has it."""
    reasons: list[str] = []
    for store in raw:
        try:
            return raw_ids.decode(store.get(ids_key(key)).data, key)
        except NotFound:
            continue
        except (Corrupt, Unavailable) as error:
            reasons.append(f"{store.uri}: {error.found}")
    if reasons:
        raise Unavailable(
            f"{ids_key(key)}: no store has it whole: {'; '.join(reasons)}; heal the raw log, or try later"
        )
    return None
