"""The fault store: a wrapped store whose requests fail as real requests do, by script or by seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import assert_never

from storage_core.base.clock import Clock
from storage_core.base.errors import NotFound, TidemarkError, Unavailable
from storage_core.store.contract import (
    PAGE_KEYS,
    Blob,
    Conflict,
    ObjectInfo,
    ObjectStore,
    OutcomeUnknown,
    PutMode,
    PutResult,
)
from storage_core.store.meter import RequestKind
from tests.support.fault_store.answers import changed_content, changed_listing
from tests.support.fault_store.faults import (
    Crash,
    CrashFault,
    DeleteFault,
    Fault,
    GetFault,
    HeadFault,
    ListFault,
    PutFault,
)
from tests.support.fault_store.script import Chances, Fate, Happening, Rates, Request, Script, Step

TIMEOUT_MS = 60_000

_REFUSALS: Mapping[Fault, int] = {
    GetFault.REFUSED: 0,
    GetFault.TIMED_OUT: TIMEOUT_MS,
    HeadFault.REFUSED: 0,
    HeadFault.TIMED_OUT: TIMEOUT_MS,
    ListFault.REFUSED: 0,
    ListFault.TIMED_OUT: TIMEOUT_MS,
    DeleteFault.REFUSED: 0,
}
"""With these faults, a get, list or delete request does not take effect.

The value of each fault is the time in milliseconds after which the caller gets the error.
"""

Watch = Callable[[RequestKind, str], object]


class FaultStore:
    """A wrapped store with scripted faults and random faults.

    Each step of a script is a fault, an error that the store raises instead of the request, or an action directly
    before the request. An action simulates another process. If several scripts match a request, the step comes from the
    oldest of these scripts. For a request without a step, faults occur at the given rates. The seed decides these
    faults, so the same seed and the same requests give the same `trace`. A delete of several keys counts as one request
    per key, so it can stop in the middle.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        watch: Watch | None = None,
        seed: int = 0,
        rates: Rates | None = None,
        clock: Clock | None = None,
        page_keys: int = PAGE_KEYS,
    ) -> None:
        """Wrap `store`.

        Args:
            watch: Called with kind and key before every request. If `watch` raises an error, the request raises it.
            clock: Advances by a minute when a reply never arrives.
            page_keys: Page length of a listing that loses or repeats a page.
        """
        self._store = store
        self._watch = watch
        self._fate = Fate(Chances(seed, rates or {}))
        self._seed = seed
        self._clock = clock
        self._page_keys = page_keys
        self._delayed: list[Callable[[], PutResult]] = []
        self._crashed = False
        self.deleted: list[str] = []

    def __repr__(self) -> str:
        return f"FaultStore({self.uri}, seed={self._seed}, {len(self.trace)} requests)"

    @property
    def trace(self) -> Sequence[Happening]:
        """All requests so far in order, each with its outcome."""
        return self._fate.trace

    def on_put(self, key: str, *steps: Step) -> None:
        """Apply these steps to the next puts of keys that contain `key`, in order."""
        self.on("put", key, *steps)

    def on(self, kind: RequestKind, key: str, *steps: Step) -> None:
        """Apply these steps, in order, to the next requests of this kind for keys that contain `key`."""
        self._fate.add(Script(lambda request: request.kind == kind and key in request.key, list(steps)))

    def at(self, number: int, step: Step) -> None:
        """Apply the step to the request with this number. The first request to this store has number 0."""
        self._fate.add(Script(lambda request: request.number == number, [step]))

    def clear_script(self) -> None:
        """Remove all scripted steps that were not applied yet. Delayed puts still wait for `deliver`."""
        self._fate.clear_script()

    def deliver(self, count: int | None = None) -> list[PutResult]:
        """Apply the delayed puts, or the oldest `count` of them, and return their results.

        Each put is applied with its original condition.
        """
        due = len(self._delayed) if count is None else count
        delayed, self._delayed = self._delayed[:due], self._delayed[due:]
        return [put() for put in delayed]

    @property
    def uri(self) -> str:
        """The URI of the wrapped store."""
        return self._store.uri

    def get(self, key: str) -> Blob:
        """Return the object with one GET."""
        with self._request("get", key) as (request, fault):
            blob = self._store.get(key)
            return Blob(self._content(request, fault, blob.data, lambda other: self._store.get(other).data), blob.etag)

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return a range of the object with one GET."""
        with self._request("get", key) as (request, fault):
            data = self._store.get_range(key, start, end)
            return self._content(request, fault, data, lambda other: self._store.get(other).data[start:end])

    def head(self, key: str) -> ObjectInfo:
        """Return the metadata of the object with one HEAD."""
        with self._request("head", key):
            return self._store.head(key)

    def put(self, key: str, data: bytes | memoryview, mode: PutMode) -> PutResult:
        """Put the object with one PUT."""
        with self._request("put", key) as (_, fault):
            if isinstance(fault, PutFault):
                return self._put(fault, key, bytes(data), mode)
            return self._store.put(key, data, mode)

    def make_durable(self, key: str) -> None:
        """Make the object durable, without a request."""
        self._store.make_durable(key)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield the objects below `prefix` with one LIST."""
        with self._request("list", prefix) as (request, fault):
            found = self._store.list(prefix, start_after)
            if not isinstance(fault, ListFault):
                return found
            first = self._start(prefix, start_after) if fault is ListFault.START_INCLUDED else []
            return iter(changed_listing(fault, [*first, *found], self._fate.details(request), self._page_keys))

    def delete(self, keys: Sequence[str]) -> Mapping[str, str | None]:
        """Delete with one DELETE per key.

        Keys before a failing key are deleted. `deleted` contains all deleted keys.
        """
        passed: list[str] = []
        kept: dict[str, str | None] = {}
        try:
            for key in keys:
                with self._request("delete", key) as (_, fault):
                    if fault is DeleteFault.KEPT:
                        kept[key] = f"{key}: {fault}"
                    else:
                        passed.append(key)
                    if fault is DeleteFault.APPLIED_THEN_UNAVAILABLE:
                        raise Unavailable(f"{key}: {fault}", key=key)
        finally:
            self.deleted += passed
            results = self._store.delete(passed)
        return {**results, **kept}

    def local_path(self, key: str) -> Path | None:
        """Return the local path of the object, without a request."""
        return self._store.local_path(key)

    @contextmanager
    def _request(self, kind: RequestKind, key: str) -> Iterator[tuple[Request, Fault | None]]:
        """Apply the next step to a request, before or after the request takes effect.

        Yield the fault that changes the effect or the reply.
        """
        self._require_alive(kind, key)
        if self._watch is not None:
            self._watch(kind, key)
        request, step = self._fate.next_step(kind, key)
        if step is CrashFault.AFTER:
            try:
                yield request, None
            finally:
                self._crashed = True
                self._require_alive(kind, key)
        else:
            yield request, self._before(request, step)

    def _before(self, request: Request, step: Step | None) -> Fault | None:
        """Run a step that happens before or instead of the request. Return a fault that happens after the request."""
        if step is CrashFault.BEFORE:
            self._crashed = True
            self._require_alive(request.kind, request.key)
        if isinstance(step, TidemarkError):
            raise step
        if isinstance(step, Fault):
            if step in _REFUSALS:
                self._wait(_REFUSALS[step])
                raise Unavailable(f"{request.key}: {step}", key=request.key)
            return step
        if callable(step):
            step()
        return None

    def _put(self, fault: PutFault, key: str, data: bytes, mode: PutMode) -> PutResult:
        match fault:
            case PutFault.APPLIED_THEN_CONFLICT:
                self._store.put(key, data, mode)
                return Conflict()
            case PutFault.APPLIED_THEN_UNKNOWN:
                self._store.put(key, data, mode)
                return self._unknown(fault)
            case PutFault.APPLIED_THEN_UNAVAILABLE:
                self._store.put(key, data, mode)
                raise Unavailable(f"{key}: {fault}", key=key)
            case PutFault.DROPPED_THEN_UNKNOWN:
                return self._unknown(fault)
            case PutFault.DELAYED_THEN_UNKNOWN:
                self._delayed.append(lambda: self._store.put(key, data, mode))
                return self._unknown(fault)
            case PutFault.CONFLICT_WITH_NOTHING:
                return Conflict()
            case PutFault.REFUSED:
                raise Unavailable(f"{key}: {fault}", key=key)
            case unreachable:
                assert_never(unreachable)

    def _content(self, request: Request, fault: Fault | None, data: bytes, read: Callable[[str], bytes]) -> bytes:
        if not isinstance(fault, GetFault):
            return data
        random = self._fate.details(request)
        return changed_content(fault, data, random, lambda: read(self._another(request.key, random)))

    def _another(self, key: str, random: Random) -> str:
        """Return the key of a random other object in the folder of `key`. If there is no other object, return `key`."""
        folder = key.rpartition("/")[0]
        others = sorted(info.key for info in self._store.list(f"{folder}/" if folder else "") if info.key != key)
        return random.choice(others) if others else key

    def _start(self, prefix: str, start_after: str | None) -> Sequence[ObjectInfo]:
        if start_after is None or not start_after.startswith(prefix):
            return []
        try:
            return [self._store.head(start_after)]
        except NotFound:
            return []

    def _unknown(self, fault: PutFault) -> OutcomeUnknown:
        self._wait(TIMEOUT_MS)
        return OutcomeUnknown(fault)

    def _wait(self, duration_ms: int) -> None:
        if self._clock is not None and duration_ms:
            self._clock.sleep_ms(duration_ms)

    def _require_alive(self, kind: RequestKind, key: str) -> None:
        if self._crashed:
            raise Crash(f"the process ended at {kind} {key}")
