"""Leases: at most one maintenance run at a time works on a resource (lessons 01, 05, 07 to 10).

A lease only prevents duplicate work. Two rules of the log ensure correctness even if two runs work on the same
resource. The log refuses a commit whose fencing token is not higher than the recorded token. Put-if-absent creates each
version once. So clocks do not affect the content of a commit. With a wrong clock, a run only takes over a lease too
early or too late.

The lease object is replaced by compare-and-swap and never deleted. The token of a lease never decreases.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Protocol, Self, assert_never
from urllib.parse import unquote

from storage_core.base.clock import Clock
from storage_core.base.errors import (
    CommitUnknown,
    Corrupt,
    Fenced,
    Held,
    NotFound,
    NotWritten,
    TidemarkError,
    Unavailable,
)
from storage_core.base.process import HomeProcess
from storage_core.base.text import unknown_names
from storage_core.data.formats.documents import RELEASED_MS, LeaseRecord, decode_lease, encode_lease
from storage_core.data.formats.keys import LOCKS_PREFIX, lock_key
from storage_core.log.actions import Fence
from storage_core.log.conflicts import TokenUnused, require_writable
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.store.contract import Committed, Conflict, ObjectStore, OutcomeUnknown, put_or_unknown, unchanged

# Lease objects in the store (docs/architecture/ingestion.md, "Leases").


_ATTEMPTS = 4
_FIRST_PAUSE_MS = 50


@dataclass(frozen=True, slots=True)
class StoredLease:
    """A lease as it is stored. `record` is None if the object is not a valid lease."""

    record: LeaseRecord | None
    key: str
    etag: str

    @property
    def resource(self) -> str:
        """The resource of the lease. If the object is not a valid lease, the resource is taken from its key."""
        name = self.key.removeprefix(LOCKS_PREFIX).removesuffix(".json")
        return self.record.resource if self.record else unquote(name)


class CasLost(Exception):  # noqa: N818 -- an answer to who swaps, never seen by callers of `lease`
    """The error if another process wrote the lease object first. `found` is the stored lease."""

    def __init__(self, found: StoredLease | None) -> None:
        super().__init__()
        self.found = found


def stored_leases(store: ObjectStore) -> Iterator[StoredLease]:
    """Yield every lease object of the table, in key order.

    The cost is one LIST per 1,000 leases, and one GET per lease.
    """
    for key in sorted(info.key for info in store.list(LOCKS_PREFIX)):
        found = read_lease(store, key)
        if found is not None:
            yield found


def read_lease(store: ObjectStore, key: str, *, strict: bool = False) -> StoredLease | None:
    """Return the lease at `key`, or None if there is none. One GET.

    If the object is not a valid lease, the result has no record. With `strict`, an object that is not a valid lease
    raises `Corrupt`.
    """
    try:
        blob = store.get(key)
    except NotFound:
        return None
    try:
        return StoredLease(decode_lease(blob.data, key), key, blob.etag)
    except Corrupt:
        if strict:
            raise
        return StoredLease(None, key, blob.etag)


def swap_lease(store: ObjectStore, clock: Clock, wanted: LeaseRecord, before: StoredLease) -> StoredLease:
    """Replace the lease `before` with `wanted` exactly once, even if replies are lost.

    The reply to an earlier write of the same acquisition may be lost. The function then also replaces the lease that
    this earlier write stored.

    Raises:
        CasLost: Another process replaced the lease first.
        CommitUnknown: The store did not report an outcome in any attempt.

    Cost:
        One PUT. After any result except `Committed`, one GET, and another PUT if `before` is still stored. Repeated
        PUTs take effect only once.
    """
    reason = ""
    for attempt in range(_ATTEMPTS):
        if attempt:
            clock.sleep_ms(_FIRST_PAUSE_MS * 2 ** (attempt - 1))
        try:
            result = put_or_unknown(store, before.key, encode_lease(wanted), unchanged(before.etag or None))
        except NotWritten as error:
            if not reason:
                raise
            result = OutcomeUnknown(f"{reason}, then {error}")
        match result:
            case Committed(etag):
                return StoredLease(wanted, before.key, etag)
            case Conflict():
                reason = "a conflict, and yet nobody wrote"
            case OutcomeUnknown(reason):
                pass
            case unreachable:
                assert_never(unreachable)
        try:
            found = read_lease(store, before.key)
            # The object must be durable before it counts as ours. Otherwise a read could return the lease object, and a
            # power failure could then destroy the object.
            store.make_durable(before.key)
        except Unavailable as error:
            reason = f"{reason}, then {error}"
            continue
        if found is not None and found.record == wanted:
            return found
        if (found.etag if found else "") == before.etag:
            continue
        if found is None or found.record is None or found.record.acquisition != wanted.acquisition:
            raise CasLost(found)
        before = found
    raise CommitUnknown(f"{before.key}: the store did not say whether the lease was written ({reason})", key=before.key)


TTL_MS = 300_000
BEYOND_LOST = 1_000_000
"""If the lease object is lost, the next token is the recorded token plus `BEYOND_LOST`.

Fewer leases than this number are acquired between two commits for a resource. Two holders therefore never get the same
token.
"""


_logger = logging.getLogger(__name__)

IsDead = Callable[[str], bool]


class Lease:
    """A resource that this process holds or held. Another process may have taken the resource over.

    One thread may work under the lease while another thread renews the lease. A token is valid for one commit, and
    `advance` takes the next token. After a fork(), the child process does not hold the lease. In the child process,
    `release` does nothing, and every other call raises `CopiedProcess`.
    """

    def __init__(self, store: ObjectStore, stored: StoredLease, record: LeaseRecord, *, clock: Clock) -> None:
        """Create the lease from the record that `acquire` has just written."""
        self._store, self._clock = store, clock
        self._stored, self._record = stored, record
        self._home = HomeProcess()
        self._lock = threading.Lock()
        self._writes = 0
        self._highest_written = record.fencing_token
        self._lost: Fenced | None = None

    @property
    def resource(self) -> str:
        """The name of the resource."""
        return self._record.resource

    @property
    def token(self) -> int:
        """The fencing token, which is higher than the token of every earlier holder."""
        return self._record.fencing_token

    @property
    def fence(self) -> Fence:
        """The action for the commit under this lease. After that commit, no lower token can commit."""
        return Fence(resource=self.resource, token=self.token)

    @property
    def requirement(self) -> TokenUnused:
        """The requirement for the commit under this lease: no commit has used this token or a higher token."""
        return TokenUnused(self.resource, self.token)

    def renew(self) -> None:
        """Hold the resource for another five minutes. One PUT. A lost reply costs one more GET.

        An expired lease can also be renewed, unless another process took it over.

        Raises:
            Fenced: Another process took the lease over. All later calls raise the same error.
            CommitUnknown: The store did not report an outcome. Call `renew` again.
        """
        self._require_home()
        with self._lock:
            self._replace(self._clock.now_ms() + TTL_MS)

    def advance(self) -> None:
        """Take the next token, for another commit of the same holder, and renew the lease. One PUT.

        The next holder of the resource gets an even higher token. Raises the errors of `renew`. After `CommitUnknown`,
        the store may contain the new token, so the next write of this lease uses the new token.
        """
        self._require_home()
        with self._lock:
            following = replace(self._record, fencing_token=self._record.fencing_token + 1)
            self._replace(self._clock.now_ms() + TTL_MS, following)

    def require_held(self) -> None:
        """Raise `Fenced` if another process took the resource over. One GET. Call this method before the commit.

        The result does not depend on clocks. Raises `Unavailable` if the store cannot be read.
        """
        self._require_home()
        with self._lock:
            self._require_not_lost()
            found = read_lease(self._store, self._stored.key)
            if found is None or found.record is None or not self._is_mine(found.record):
                raise self._lose(found)
            self._stored = found

    def release(self) -> None:
        """Release the resource immediately, and keep the token in the store. One PUT.

        If the release fails, the lease expires later. If another process took the lease over, the lease is not changed
        (lesson 07).
        """
        if not self._home.is_here:
            return
        with self._lock:
            if self._lost is not None:
                return
            try:
                self._replace(RELEASED_MS)
            except TidemarkError as error:
                _logger.warning("%s of %s is not released: %s", self.resource, self._store.uri, error)

    def _replace(self, expires_at_ms: int, record: LeaseRecord | None = None) -> None:
        self._require_not_lost()
        self._writes += 1
        nonce = f"{self._record.acquisition}.{self._writes}"
        following = record or self._record
        # A write with an unknown outcome may have stored its token. No later write may store a lower token.
        self._highest_written = max(self._highest_written, following.fencing_token)
        wanted = replace(following, fencing_token=self._highest_written, expires_at_ms=expires_at_ms, nonce=nonce)
        try:
            self._stored = swap_lease(self._store, self._clock, wanted, self._stored)
        except CasLost as lost:
            raise self._lose(lost.found) from None
        self._record = wanted

    def _require_home(self) -> None:
        self._home.require(f"the lease of {self.resource}", "commit nothing. Acquire a lease in this process")

    def _require_not_lost(self) -> None:
        if self._lost is not None:
            raise self._lost

    def _lose(self, found: StoredLease | None) -> Fenced:
        record = found.record if found else None
        others = (
            "and its object is missing or damaged"
            if record is None
            else f"because {record.holder} has token {record.fencing_token}"
        )
        self._lost = Fenced(
            f"{self._stored.key}: the lease with token {self.token} is lost, {others}. Stop this process, and commit "
            "nothing",
            key=self._stored.key,
            expected=self.token,
            found=record.fencing_token if record else None,
        )
        return self._lost

    def _is_mine(self, record: LeaseRecord) -> bool:
        return record.acquisition == self._record.acquisition


def acquire(log: TransactionLog, head: Snapshot, resource: str, holder: str, *, is_dead: IsDead | None = None) -> Lease:
    """Acquire the resource for five minutes, with a token that is higher than all earlier tokens. One GET and one PUT.

    A lease is taken over if it has expired by this machine's clock. A lease is also taken over if `is_dead` returns
    True for the holder of the lease. If a lease expires more than five minutes from now, one of the clocks is wrong.
    The function then checks the age of the object by the store's clock, with one HEAD. If the object is at least five
    minutes old, the function takes the lease over.

    Args:
        head: The snapshot that contains the recorded token of the log.

    Raises:
        Held: A live holder has the lease.
        Corrupt: The object is not a valid lease.
        CommitUnknown: The store did not report an outcome. If the lease was acquired after all, it will expire.
        Unsupported: The log was not written by Tidemark.
    """

    def free(record: LeaseRecord) -> bool:
        if is_dead is not None and is_dead(record.holder):
            return True
        left_ms = record.expires_at_ms - log.clock.now_ms()
        if left_ms <= TTL_MS:
            return left_ms <= 0
        # By this clock, the lease lasts longer than five minutes, which is impossible. So one of the clocks is wrong.
        # The store's clock then determines the age of the lease.
        return log.store.head(lock_key(resource)).age_ms >= TTL_MS

    return _acquire(log, head, resource, holder, free=free)


def break_lease(log: TransactionLog, resource: str, holder: str) -> int:
    """Take the resource from its holder, record the new token in the log, release the lease, and return the token.

    The function also takes the resource from a holder that still runs. After the return, no commit with an earlier
    token can take effect. A commit of the old holder fails even if the holder has just checked the lease. The function
    also repairs an object that is not a valid lease. Raises `NotFound` if no lease has this name.

    Cost:
        Two GETs and two PUTs, plus the requests to open the table and to commit once.
    """
    if read_lease(log.store, lock_key(resource)) is None:
        known = [each.resource for each in stored_leases(log.store)]
        raise NotFound(unknown_names("lease", [resource], known), resource=resource)
    head = log.snapshot()
    lease = _acquire(log, head, resource, holder, free=lambda _: True, heal=True)
    try:
        log.commit(head, [lease.fence], operation="BREAK LEASE", requirements=[lease.requirement])
    finally:
        lease.release()
    return lease.token


def _acquire(
    log: TransactionLog,
    head: Snapshot,
    resource: str,
    holder: str,
    *,
    free: Callable[[LeaseRecord], bool],
    heal: bool = False,
) -> Lease:
    require_writable(head)  # Tidemark writes no object into a log of other software.
    key, acquisition = lock_key(resource), log.ids.uuid()
    for attempt in range(_ATTEMPTS):
        current = read_lease(log.store, key, strict=not heal)
        if current is not None and current.record is not None and not free(current.record):
            raise _held(log, current.record)
        now_ms = log.clock.now_ms()
        record = LeaseRecord(
            resource=resource,
            holder=holder,
            fencing_token=_next_token(current, head.fences.get(resource, 0)),
            acquired_at_ms=now_ms,
            expires_at_ms=now_ms + TTL_MS,
            nonce=f"{acquisition}.0{attempt}",
        )
        try:
            stored = swap_lease(log.store, log.clock, record, current or StoredLease(None, key, ""))
        except CasLost:
            continue
        _logger.info("%s holds %s of %s, token %d", holder, resource, log.store.uri, record.fencing_token)
        return Lease(log.store, stored, record, clock=log.clock)
    raise Held(f"{key}: other processes took the lease during each of {_ATTEMPTS} attempts. Try again later", key=key)


def _next_token(current: StoredLease | None, recorded: int) -> int:
    if current is not None and current.record is not None:
        return max(recorded, current.record.fencing_token) + 1
    never_held = current is None and recorded == 0
    return 1 if never_held else recorded + BEYOND_LOST


def _held(log: TransactionLog, record: LeaseRecord) -> Held:
    left = max(0, record.expires_at_ms - log.clock.now_ms()) // 1000
    return Held(
        f"{record.resource} of {log.store.uri} is held by {record.holder} (token {record.fencing_token}), for {left} s "
        "more unless renewed. Try again later, or wait for the lease. If that process is dead, see `Held` in "
        "docs/operations.md",
        resource=record.resource,
        holder=record.holder,
        token=record.fencing_token,
        expires_at_ms=record.expires_at_ms,
    )


# The heartbeat, which renews leases during work (docs/architecture/ingestion.md, "Leases").


INTERVAL_MS = TTL_MS // 3


class StopEvent(Protocol):
    """An event that wakes the heartbeat, for example a `threading.Event`.

    Tests inject their own event to control time.
    """

    def wait(self, timeout: float) -> bool:
        """Return False after `timeout` seconds, or True as soon as the event is set."""
        ...

    def set(self) -> None:
        """Set the event, so that every `wait` returns True."""
        ...


class Heartbeat:
    """A thread that renews leases until the block ends or all leases are lost.

    The interval between renewals is a third of the duration of a lease. A failed renewal is tried again after the
    interval, up to two times before the lease expires. The heartbeat does not report a lost lease to the working
    thread. The working thread calls `Lease.require_held` instead.
    """

    def __init__(self, leases: Sequence[Lease], stop: StopEvent | None = None) -> None:
        """Prepare to renew these leases. The renewals start when the block is entered."""
        self._leases = list(leases)
        self._stop = stop if stop is not None else threading.Event()
        self._home = HomeProcess()
        self._thread = threading.Thread(target=self._run, name="tidemark-heartbeat", daemon=True)

    def __enter__(self) -> Self:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the thread. After the return, no lease is renewed.

        In a child process after a fork(), the thread does not exist and nothing is done.
        """
        if not self._home.is_here:
            return
        self._stop.set()
        self._thread.join()

    def beat(self) -> None:
        """Renew each lease that is not lost. One PUT per lease."""
        for lease in list(self._leases):
            try:
                lease.renew()
            except Fenced as error:
                _logger.warning("%s", error)
                self._leases.remove(lease)
            except TidemarkError as error:
                _logger.warning("%s is not renewed, the next beat tries again: %s", lease.resource, error)

    def _run(self) -> None:
        while self._leases and not self._stop.wait(INTERVAL_MS / 1000):
            self.beat()
