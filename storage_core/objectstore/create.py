"""Creating an object once, also when the store loses the answer (lessons 01, 02 and 04).

A put whose reply is lost may have taken effect, and a client library that tries again meets its own object as a
conflict. So after anything but `Committed` what is stored is read, and nothing is ever cleaned up.
"""

from __future__ import annotations

from typing import assert_never

from storage_core.clock import Clock
from storage_core.errors import CommitUnknown, NotFound, NotWritten, Unavailable
from storage_core.objectstore.contract import (
    Committed,
    Conflict,
    IfAbsent,
    ObjectStore,
    OutcomeUnknown,
    PutMode,
    PutResult,
)
from storage_core.objectstore.reading import exists

_ATTEMPTS = 4
_FIRST_PAUSE_MS = 50
_REFUSED = "the store refused it as already there"
_OPEN_AGAIN = "it may still take effect: open again, which reads back what is there; delete nothing"


def put_or_unknown(store: ObjectStore, key: str, data: bytes | memoryview, mode: PutMode) -> PutResult:
    """Put the object; a store that cannot be reached is an unknown outcome. One PUT. Raises `NotWritten`."""
    try:
        return store.put(key, data, mode)
    except NotWritten:
        raise
    except Unavailable as error:
        # A connection that broke after the request was sent looks the same as one that broke before.
        return OutcomeUnknown(str(error))


def create_once(store: ObjectStore, key: str, data: bytes | memoryview, *, advice: str) -> bool:
    """Create `key` with `data` durably and return True, or return False when the key holds other bytes.

    The key must be fresh to the caller. One PUT; after a conflict or a lost reply one GET more. Raises `CommitUnknown`
    when the store did not say and has nothing there, cannot be read, or cannot make it durable: `advice` ends its
    message with what to do. Raises `NotWritten`.
    """
    result = put_or_unknown(store, key, data, IfAbsent())
    match result:
        case Committed():
            return True
        case Conflict():
            return _is_ours(store, key, data, reason=_REFUSED, advice=advice)
        case OutcomeUnknown(reason):
            return _is_ours(store, key, data, reason=reason, advice=advice)
        case _:
            assert_never(result)


def create_derived(store: ObjectStore, key: str, data: bytes, *, advice: str) -> bool:
    """Make sure that the object is there; return True when this call wrote it, False when somebody had before.

    For keys that follow from the content: any writer writes the same. One PUT; after a conflict or a lost
    reply one HEAD more. Raises `CommitUnknown` when the store has nothing there nevertheless: `advice` says what to do.
    """
    result = store.put(key, data, IfAbsent())
    match result:
        case Committed():
            return True
        case Conflict():
            # A conflict may be transient (409): only what is there tells that somebody wrote it (lesson 04).
            _require(store, key, reason=_REFUSED, advice=advice)
            return False
        case OutcomeUnknown(reason):
            _require(store, key, reason=reason, advice=advice)
            return True
        case _:
            assert_never(result)


def create_numbered(store: ObjectStore, key: str, data: bytes, *, clock: Clock) -> bool:
    """Create `key` with `data` durably and return True, or return False when the key holds somebody else's bytes.

    For numbered keys that others want too. The bytes must be unique to the caller (they carry a writer id and a
    number): equality then means "it is ours", so a lost reply, or a conflict with an earlier attempt of this very call,
    is a success and never a second object. One PUT; after a conflict one GET more; after a lost reply up to three more
    PUTs, each with a growing pause.

    Raises `CommitUnknown` when the store cannot be brought to say what happened: the object may appear later; and
    `NotWritten`.
    """
    reason = ""
    for attempt in range(_ATTEMPTS):
        if attempt:
            clock.sleep_ms(_FIRST_PAUSE_MS * 2 ** (attempt - 1))
        try:
            result = put_or_unknown(store, key, data, IfAbsent())
        except NotWritten as error:
            if not reason:
                raise
            result = OutcomeUnknown(f"{reason}; then {error}")  # of the attempt before nobody knows
        match result:
            case Committed():
                return True
            case Conflict():
                return _is_ours(store, key, data, reason=reason or _REFUSED, advice=_OPEN_AGAIN)
            case OutcomeUnknown(reason=reason):
                # Trying again cannot do harm: it can only take effect where nothing is yet.
                continue
    return _is_ours(store, key, data, reason=reason, advice=_OPEN_AGAIN)


def require_durable(store: ObjectStore, key: str, *, advice: str) -> None:
    """Return once what a read showed at `key` is durable. Raises `CommitUnknown`: it may go with the power."""
    try:
        store.make_durable(key)
    except Unavailable as error:
        raise _unknown(key, error.found, advice) from error


def _require(store: ObjectStore, key: str, *, reason: str, advice: str) -> None:
    if not exists(store, key):
        raise _unknown(key, reason, advice)
    require_durable(store, key, advice=advice)


def _is_ours(store: ObjectStore, key: str, data: bytes | memoryview, *, reason: str, advice: str) -> bool:
    try:
        is_ours = store.get(key).data == data
    except (NotFound, Unavailable) as error:
        raise _unknown(key, f"{reason}; then {error}", advice) from error
    if is_ours:
        require_durable(store, key, advice=advice)
    return is_ours


def _unknown(key: str, reason: str, advice: str) -> CommitUnknown:
    return CommitUnknown(f"{key}: the store did not say whether it kept the object ({reason}); {advice}", key=key)
