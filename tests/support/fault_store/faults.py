"""The faults of one request. Each kind of request has a fixed set of faults (lessons 01 to 05, 41, 49, 61).

Every member has its own text. Without distinct texts, members of two text enumerations would be equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from storage_core.store.meter import RequestKind


class PutFault(StrEnum):
    """Faults of a put. With S3, HTTP 409 or 412 is a conflict, 503 is a refusal, a timeout is an unknown outcome."""

    APPLIED_THEN_CONFLICT = "applied, the client library retried, the retry met our own object"
    APPLIED_THEN_UNKNOWN = "applied, the reply was lost"
    APPLIED_THEN_UNAVAILABLE = "applied, the connection broke"
    DROPPED_THEN_UNKNOWN = "never applied, the reply was lost"
    DELAYED_THEN_UNKNOWN = "applied only when `deliver` is called"
    CONFLICT_WITH_NOTHING = "never applied, a transient conflict"
    REFUSED = "never applied, the store cannot be reached"


class GetFault(StrEnum):
    """Ways in which a get request, with or without a byte range, can fail. The stored object does not change."""

    REFUSED = "the get did not reach the store"
    TIMED_OUT = "no answer to the get came in time"
    TORN = "the end of the content is missing"
    EMPTY = "the content is missing"
    FLIPPED = "one bit of the content is another"
    SWAPPED = "the content is that of another object of the same folder"


class HeadFault(StrEnum):
    """Faults that a head request can have."""

    REFUSED = "the head did not reach the store"
    TIMED_OUT = "no answer to the head came in time"


class ListFault(StrEnum):
    """Faults that a list request can have."""

    REFUSED = "the list did not reach the store"
    TIMED_OUT = "no answer to the list came in time"
    REORDERED = "the keys come in any order"
    DOUBLED = "one page comes twice"
    CUT = "it ends after one of its pages, never the last; a single page comes whole"
    START_INCLUDED = "`start_after` itself is in it when it exists"


class DeleteFault(StrEnum):
    """Ways in which a request to delete one key can fail."""

    REFUSED = "the delete did not reach the store"
    APPLIED_THEN_UNAVAILABLE = "deleted, the connection broke"
    KEPT = "not deleted, the store answered an internal error"


class CrashFault(StrEnum):
    """The process crashes at one request of any kind. Every later request of this process raises `Crash`, too."""

    BEFORE = "the process ended before the request took effect"
    AFTER = "the process ended after the request took effect, before it heard of it"


Fault = PutFault | GetFault | HeadFault | ListFault | DeleteFault

FAULTS: Mapping[RequestKind, type[Fault]] = {
    "put": PutFault,
    "get": GetFault,
    "head": HeadFault,
    "list": ListFault,
    "delete": DeleteFault,
}


class Crash(BaseException):
    """The process is dead. The class is not an `Exception`, because error handlers must not catch a crash."""
