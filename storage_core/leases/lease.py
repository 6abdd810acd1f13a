"""Leases: at most one maintainer at a time works on a resource (lessons 01, 05, 07 to 10).

A lease gives liveness only: it saves work that would be done twice. Correctness comes from the log, which refuses a
commit whose token is not higher than the recorded one, and from put-if-absent of the version. So no clock decides what
is committed: a clock that is wrong makes a lease be taken over too early or too late, and nothing else.

The object is replaced by compare-and-swap, never deleted, and its token never goes down.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from storage_core.clock import Clock
from storage_core.errors import Fenced, Held, NotFound, TidemarkError
from storage_core.formats.keys import lock_key
from storage_core.formats.lease import RELEASED_MS, LeaseRecord
from storage_core.leases.stored import CasLost, StoredLease, read_lease, stored_leases, swap_lease
from storage_core.log.actions import Fence
from storage_core.log.conflicts.requirements import TokenUnused
from storage_core.log.conflicts.settle import require_writable
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.objectstore.contract import ObjectStore
from storage_core.process import HomeProcess

TTL_MS = 300_000
BEYOND_LOST = 1_000_000
"""How far the next token lies beyond the recorded one where the last token given is lost with its object.

Between two commits under a resource fewer leases than that are ever given, so no two holders get one token.
"""

_ATTEMPTS = 4

_logger = logging.getLogger(__name__)

IsDead = Callable[[str], bool]


class Lease:
    """A resource that this process holds, or held: who acquired it later fences it.

    Safe for the thread that works under the lease and the one that renews it. A token is good for one commit;
    `advance` takes the next one. A copy of the process by fork() holds nothing: every call raises `CopiedProcess`
    there, but `release`, which does nothing.
    """

    def __init__(self, store: ObjectStore, stored: StoredLease, record: LeaseRecord, *, clock: Clock) -> None:
        """Hold what `acquire` has just written."""
        self._store, self._clock = store, clock
        self._stored, self._record = stored, record
        self._home = HomeProcess()
        self._lock = threading.Lock()
        self._writes = 0
        self._highest_written = record.fencing_token
        self._lost: Fenced | None = None

    @property
    def resource(self) -> str:
        """What is held."""
        return self._record.resource

    @property
    def token(self) -> int:
        """The fencing token: higher than that of every earlier holder."""
        return self._record.fencing_token

    @property
    def fence(self) -> Fence:
        """The action that the commit made under this lease carries: from then on no lower token commits."""
        return Fence(resource=self.resource, token=self.token)

    @property
    def requirement(self) -> TokenUnused:
        """What that commit demands: that nobody has committed under this token or a higher one."""
        return TokenUnused(self.resource, self.token)

    def renew(self) -> None:
        """Hold the resource for another five minutes. One PUT; after a lost reply one GET more.

        Also a lease that ran out is renewed, unless somebody took it over: only the store knows. Raises `Fenced` then,
        now and ever after; `CommitUnknown` when the store did not say: renew again.
        """
        self._require_home()
        with self._lock:
            self._replace(self._clock.now_ms() + TTL_MS)

    def advance(self) -> None:
        """Hold the resource under the next token, for another commit of the same holder, and renew it. One PUT.

        The next holder of the resource gets a higher token still. Raises as `renew` does; after `CommitUnknown` the
        next write of this lease takes the token that was tried, for it may be in the store.
        """
        self._require_home()
        with self._lock:
            following = replace(self._record, fencing_token=self._record.fencing_token + 1)
            self._replace(self._clock.now_ms() + TTL_MS, following)

    def require_held(self) -> None:
        """Return while nobody took the resource over, whatever the clocks say. One GET. Call it before the commit.

        Raises `Fenced` when somebody did, `Unavailable` when the store cannot tell.
        """
        self._require_home()
        with self._lock:
            self._require_not_lost()
            found = read_lease(self._store, self._stored.key)
            if found is None or found.record is None or not self._is_mine(found.record):
                raise self._lose(found)
            self._stored = found

    def release(self) -> None:
        """Let go at once, keeping the token. One PUT. A lease that cannot be released runs out by itself.

        Does nothing to a lease that somebody took over (lesson 07).
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
        # A token whose write nobody could tell about may be the one in the store, and no write may lower that.
        self._highest_written = max(self._highest_written, following.fencing_token)
        wanted = replace(following, fencing_token=self._highest_written, expires_at_ms=expires_at_ms, nonce=nonce)
        try:
            self._stored = swap_lease(self._store, self._clock, wanted, self._stored)
        except CasLost as lost:
            raise self._lose(lost.found) from None
        self._record = wanted

    def _require_home(self) -> None:
        self._home.require(f"the lease of {self.resource}", "commit nothing; acquire a lease of this process")

    def _require_not_lost(self) -> None:
        if self._lost is not None:
            raise self._lost

    def _lose(self, found: StoredLease | None) -> Fenced:
        record = found.record if found else None
        others = "its object is gone or damaged" if record is None else f"{record.holder} has {record.fencing_token}"
        self._lost = Fenced(
            f"{self._stored.key}: the lease with token {self.token} is lost, {others}; stop, and commit nothing",
            key=self._stored.key,
            expected=self.token,
            found=record.fencing_token if record else None,
        )
        return self._lost

    def _is_mine(self, record: LeaseRecord) -> bool:
        return record.acquisition == self._record.acquisition


def acquire(log: TransactionLog, head: Snapshot, resource: str, holder: str, *, is_dead: IsDead | None = None) -> Lease:
    """Hold the resource of the table for five minutes under a token higher than any before. One GET and one PUT.

    `head` tells which token the log has recorded. Take over a lease that has expired by this clock, or whose holder
    `is_dead`. A lease that expires later than any lease can was written by a clock that was ahead. Such a lease is
    taken over when its object is five minutes old by the store's clock (one HEAD). Raises `Held` when a live holder has
    it, `Corrupt` when the object is no lease, `CommitUnknown` when the store did not say: if it was acquired after all,
    it runs out by itself; `Unsupported` for a log of others.
    """

    def free(record: LeaseRecord) -> bool:
        if is_dead is not None and is_dead(record.holder):
            return True
        left_ms = record.expires_at_ms - log.clock.now_ms()
        if left_ms <= TTL_MS:
            return left_ms <= 0
        # No lease lasts so long: one of the two clocks is wrong, and the store tells how old the last renewal is.
        return log.store.head(lock_key(resource)).age_ms >= TTL_MS

    return _acquire(log, head, resource, holder, free=free)


def break_lease(log: TransactionLog, resource: str, holder: str) -> int:
    """Take the resource from its holder, dead or alive, record that, and release it. Returns the token it took.

    When this returns, no commit under an earlier token lands any more, also of a holder that looked a moment ago. Also
    heals an object that is no lease. Two GET and two PUT beside opening the table and one commit. Raises
    `NotFound` where there is nothing to break.
    """
    if read_lease(log.store, lock_key(resource)) is None:
        known = ", ".join(each.resource for each in stored_leases(log.store)) or "none"
        raise NotFound(f"{resource!r}: no such lease in {log.store.uri}; there are: {known}", resource=resource)
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
    require_writable(head)  # a log of others gets no object of ours
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
    raise Held(f"{key}: {_ATTEMPTS} races for the lease lost against others; try again later", key=key)


def _next_token(current: StoredLease | None, recorded: int) -> int:
    if current is not None and current.record is not None:
        return max(recorded, current.record.fencing_token) + 1
    never_held = current is None and recorded == 0
    return 1 if never_held else recorded + BEYOND_LOST


def _held(log: TransactionLog, record: LeaseRecord) -> Held:
    left = max(0, record.expires_at_ms - log.clock.now_ms()) // 1000
    return Held(
        f"{record.resource} of {log.store.uri} is held by {record.holder} (token {record.fencing_token}), for {left} s "
        "more unless renewed; try again later, wait for it, or, if that process is dead, see `Held` in "
        "docs/operations.md",
        resource=record.resource,
        holder=record.holder,
        token=record.fencing_token,
        expires_at_ms=record.expires_at_ms,
    )
