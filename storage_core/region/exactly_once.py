"""Creating an object exactly once, also when the store loses the answer (design pages 01 and 03; lesson 01)."""

from __future__ import annotations

from storage_core.clock import Clock
from storage_core.errors import CommitUnknown, NotFound, Unavailable
from storage_core.objectstore.contract import Committed, Conflict, IfAbsent, ObjectStore, OutcomeUnknown, PutResult

_ATTEMPTS = 4
_FIRST_PAUSE_MS = 50


def create(store: ObjectStore, key: str, data: bytes, *, clock: Clock) -> bool:
    """Create `key` with `data` durably and return True, or return False when the key holds somebody else's bytes.

    The bytes must be unique to the caller (they carry a writer id and a number): equality then means "it is ours", so a
    lost reply, or a conflict with an earlier attempt of this very call, is a success and never a second object.
    One PUT; after a conflict one GET more; after a lost reply up to three more PUTs, each with a growing pause.

    Raises `CommitUnknown` when the store cannot be brought to say what happened: the object may appear later.
    """
    reason = ""
    for attempt in range(_ATTEMPTS):
        if attempt:
            clock.sleep_ms(_FIRST_PAUSE_MS * 2 ** (attempt - 1))
        match _put(store, key, data):
            case Committed():
                return True
            case Conflict():
                return _is_ours(store, key, data, "the store refused it as already there")
            case OutcomeUnknown(reason=reason):
                # Trying again cannot do harm: it can only take effect where nothing is yet.
                continue
    return _is_ours(store, key, data, reason)


def _put(store: ObjectStore, key: str, data: bytes) -> PutResult:
    try:
        return store.put(key, data, IfAbsent())
    except Unavailable as error:
        # A request that died on its way back may have taken effect.
        return OutcomeUnknown(str(error))


def _is_ours(store: ObjectStore, key: str, data: bytes, reason: str) -> bool:
    try:
        return store.get(key).data == data
    except (NotFound, Unavailable) as error:
        raise CommitUnknown(
            f"{key}: the outcome of a put is unknown ({reason}; then {error}). It may still take effect: "
            "open again, which reads back what is there; delete nothing",
            key=key,
        ) from error
