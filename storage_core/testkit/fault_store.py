"""A store whose requests fail as real ones do: lost replies, drops, late arrivals, outages, crashes, others in between.

What happens is scripted per kind of request and part of the key, one step per request; without a step for it a request
is answered by the wrapped store (design page 10, lessons 01 to 05 and 41).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import assert_never

from storage_core.errors import TidemarkError, Unavailable
from storage_core.objectstore.contract import (
    Blob,
    Conflict,
    ObjectInfo,
    ObjectStore,
    OutcomeUnknown,
    PutMode,
    PutResult,
)
from storage_core.objectstore.meter import RequestKind


class PutFault(StrEnum):
    """What happens to one put."""

    APPLIED_THEN_CONFLICT = "applied, the client library retried, the retry met our own object"
    APPLIED_THEN_UNKNOWN = "applied, the reply was lost"
    APPLIED_THEN_UNAVAILABLE = "applied, the connection broke"
    DROPPED_THEN_UNKNOWN = "never applied, the reply was lost"
    DELAYED_THEN_UNKNOWN = "applied only when `deliver` is called"
    CONFLICT_WITH_NOTHING = "never applied, a transient conflict"
    REFUSED = "never applied, the store cannot be reached"


Act = Callable[[], object]
Watch = Callable[[RequestKind, str], object]


@dataclass(slots=True)
class _Script:
    """What happens to the next requests of one kind whose key contains `part`, a step each."""

    kind: RequestKind
    part: str
    steps: list[PutFault | TidemarkError | Act]


class FaultStore:
    """The wrapped store with a script of what goes wrong. Of several scripts that fit a request the oldest is used up.

    A step is an error to raise instead of the request, an act of somebody else right before the request goes through,
    or, for puts, a `PutFault`. A delete of several keys is that many requests, so it can stop in the middle.
    """

    def __init__(self, store: ObjectStore, *, watch: Watch | None = None) -> None:
        """Wrap `store`. `watch` is called with kind and key before every request; what it raises the request raises."""
        self._store = store
        self._watch = watch
        self._scripts: list[_Script] = []
        self._delayed: list[Callable[[], PutResult]] = []
        self.deleted: list[str] = []

    def on_put(self, key: str, *steps: PutFault | TidemarkError | Act) -> None:
        """Let this happen to the next puts of keys that contain `key`, in order."""
        self._scripts.append(_Script("put", key, list(steps)))

    def on(self, kind: RequestKind, key: str, *steps: TidemarkError | Act) -> None:
        """Let this happen to the next requests of a kind whose key contains `key`, in order."""
        self._scripts.append(_Script(kind, key, list(steps)))

    def forget(self) -> None:
        """Drop all steps that have not happened. Delayed puts stay on their way."""
        self._scripts.clear()

    def deliver(self) -> list[PutResult]:
        """Apply the delayed puts now, under the conditions they were sent with, and return what became of them."""
        delayed, self._delayed = self._delayed, []
        return [put() for put in delayed]

    @property
    def uri(self) -> str:
        """The URI of the wrapped store."""
        return self._store.uri

    def get(self, key: str) -> Blob:
        """One GET."""
        self._before("get", key)
        return self._store.get(key)

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """One GET."""
        self._before("get", key)
        return self._store.get_range(key, start, end)

    def head(self, key: str) -> ObjectInfo:
        """One HEAD."""
        self._before("head", key)
        return self._store.head(key)

    def put(self, key: str, data: bytes | memoryview, mode: PutMode) -> PutResult:
        """One PUT."""
        fault = self._before("put", key)
        return self._store.put(key, data, mode) if fault is None else self._fail(fault, key, bytes(data), mode)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """One LIST."""
        self._before("list", prefix)
        return self._store.list(prefix, start_after)

    def delete(self, keys: Sequence[str]) -> Mapping[str, str | None]:
        """One DELETE per key; the keys before one that fails are deleted. `deleted` remembers them all."""
        passed: list[str] = []
        try:
            for key in keys:
                self._before("delete", key)
                passed.append(key)
        finally:
            self.deleted += passed
            results = self._store.delete(passed)
        return results

    def local_path(self, key: str) -> Path | None:
        """No request."""
        return self._store.local_path(key)

    def _before(self, kind: RequestKind, key: str) -> PutFault | None:
        """Let the next step for this request happen; return it when it is up to the put."""
        if self._watch is not None:
            self._watch(kind, key)
        step = self._next_step(kind, key)
        if isinstance(step, TidemarkError):
            raise step
        if isinstance(step, PutFault):
            return step
        if step is not None:
            step()
        return None

    def _next_step(self, kind: RequestKind, key: str) -> PutFault | TidemarkError | Act | None:
        for script in self._scripts:
            if script.kind == kind and script.part in key and script.steps:
                # Used up before it happens: an act may put the same key itself.
                return script.steps.pop(0)
        return None

    def _fail(self, fault: PutFault, key: str, data: bytes, mode: PutMode) -> PutResult:
        match fault:
            case PutFault.APPLIED_THEN_CONFLICT:
                self._store.put(key, data, mode)
                return Conflict()
            case PutFault.APPLIED_THEN_UNKNOWN:
                self._store.put(key, data, mode)
                return OutcomeUnknown(fault)
            case PutFault.APPLIED_THEN_UNAVAILABLE:
                self._store.put(key, data, mode)
                raise Unavailable(f"{key}: {fault}", key=key)
            case PutFault.DROPPED_THEN_UNKNOWN:
                return OutcomeUnknown(fault)
            case PutFault.DELAYED_THEN_UNKNOWN:
                self._delayed.append(lambda: self._store.put(key, data, mode))
                return OutcomeUnknown(fault)
            case PutFault.CONFLICT_WITH_NOTHING:
                return Conflict()
            case PutFault.REFUSED:
                raise Unavailable(f"{key}: {fault}", key=key)
            case unreachable:
                assert_never(unreachable)


class Interruption:
    """A `watch` that ends everything at one moment, as a crash does.

    The request number `fail_at` (from 0) and all later ones raise `Unavailable`. `counts` says which requests are
    numbered, by default all. Without `fail_at` they are only counted.
    """

    def __init__(self, fail_at: int | None = None, counts: Callable[[RequestKind, str], bool] | None = None) -> None:
        self._fail_at = fail_at
        self._counts = counts
        self.requests = 0

    def __call__(self, kind: RequestKind, key: str) -> None:
        """Number the request, and fail it when its time has come."""
        if self._counts is not None and not self._counts(kind, key):
            return
        self.requests += 1
        if self._fail_at is not None and self.requests > self._fail_at:
            raise Unavailable(f"{kind} {key}: interrupted at request {self.requests - 1}", key=key)
