"""Three maintainers with separate clocks use leases on a failing store. Only commits with a valid lease may land.

Hypothesis chooses the steps of the test and their order. Clocks drift, jump and stop. Replies are lost, puts arrive
late or never, and reads are refused or torn. The lease object is lost, damaged or broken. A model records the commits
of each token. `TIDEMARK_SCALE` increases the number of steps.
"""

from __future__ import annotations

from contextlib import suppress

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from storage_core.base.errors import CommitConflict, CommitUnknown, Corrupt, Fenced, Held, NotFound, Unavailable
from storage_core.data.formats.keys import lock_key
from storage_core.log.actions import Action, Fence
from storage_core.log.lease import TTL_MS, Lease, acquire, break_lease, read_lease
from storage_core.log.snapshot import Snapshot
from storage_core.store.contract import Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import RequestKind
from tests.support.clock import START_MS, ManualClock
from tests.support.fault_store import FaultStore, GetFault, PutFault
from tests.support.log_oracle import LogOracle
from tests.support.log_tables import log_on, metadata, split
from tests.support.scale import scaled

EXAMPLES = scaled(60)
RESOURCE = "merge"
KEY = lock_key(RESOURCE)
MAINTAINERS = 3
FAILURES = (Unavailable, CommitUnknown, Corrupt)

WHO = st.integers(0, MAINTAINERS - 1)
FAULT = st.sampled_from([*PutFault, GetFault.REFUSED, GetFault.TORN, GetFault.EMPTY])


class Maintainer:
    """A process: its clock, its faulty store, and the lease that it last acquired."""

    def __init__(self, store: MemoryStore, number: int) -> None:
        self.clock = ManualClock(START_MS)
        self.store = FaultStore(store, seed=number)
        self.log = log_on(self.store, clock=self.clock, seed=100 + number)
        self.name = f"run-{number}"
        self.lease: Lease | None = None
        self.planned: Snapshot | None = None


class Leases(RuleBasedStateMachine):
    """A state machine with the rules and the model of a lease.

    `given` contains the tokens so far, and `lost` is True if the lease object with the last token was lost.
    """

    @initialize()
    def create(self) -> None:
        self.objects = MemoryStore("table", clock=ManualClock())
        self.log = log_on(self.objects, seed=1)
        self.log.create(metadata())
        self.maintainers = [Maintainer(self.objects, number) for number in range(MAINTAINERS)]
        self.given: list[int] = []
        self.lost = False
        self.splits = 0

    # Faults.

    @rule(who=WHO, by_ms=st.sampled_from([-600_000, -1, TTL_MS // 3, TTL_MS, 600_000]))
    def clock_moves(self, who: int, by_ms: int) -> None:
        self.maintainers[who].clock.now += by_ms

    @rule(who=WHO, fault=FAULT, of_the_lease=st.booleans(), times=st.integers(1, 5))
    def store_fails(self, who: int, fault: PutFault | GetFault, times: int, *, of_the_lease: bool) -> None:
        kind: RequestKind = "put" if isinstance(fault, PutFault) else "get"
        # A torn version file is damage, and the log reports damage. In this test, only the lease object may be torn.
        key = KEY if of_the_lease or fault in (GetFault.TORN, GetFault.EMPTY) else "_transaction_log/0"
        self.maintainers[who].store.on(kind, key, *[fault] * times)

    @rule(who=WHO)
    def late_puts_arrive(self, who: int) -> None:
        self.maintainers[who].store.deliver()

    @precondition(lambda self: not self.lost)
    @rule(left=st.sampled_from([None, b"", b"{}", b'{"format":1,"holder":"x"}']))
    def object_is_lost_or_damaged(self, left: bytes | None) -> None:
        if read_lease(self.objects, KEY) is None:
            return
        self.lost = True
        if left is None:
            self.objects.delete([KEY])
        else:
            self.objects.put(KEY, left, Overwrite())

    @precondition(lambda self: self.lost or len(self.holding()) > 1)
    @rule()
    def an_operator_breaks_it(self) -> None:
        with suppress(NotFound):
            token = break_lease(self.log, RESOURCE, "operator")
            assert self.lost or token > max(self.given, default=0)
            assert self._recorded()[-1] == token
            self.given.append(token)

    # Calls of maintainers.

    @rule(who=WHO, waits_ms=st.sampled_from([0, TTL_MS, 2 * TTL_MS]))
    def acquires(self, who: int, waits_ms: int) -> None:
        maintainer = self.maintainers[who]
        maintainer.clock.now += waits_ms
        try:
            planned = maintainer.log.snapshot()
            lease = acquire(maintainer.log, planned, RESOURCE, maintainer.name)
        except (Held, *FAILURES):
            return
        assert self.lost or lease.token not in self.given, "two holders of one token"
        assert self.lost or lease.token > max([*self.given, *self._recorded()], default=0)
        self.given.append(lease.token)
        maintainer.planned, maintainer.lease = planned, lease

    @precondition(lambda self: self.holding())
    @rule(who=WHO)
    def renews(self, who: int) -> None:
        _, lease, _ = self.one_of_the_holding(who)
        with suppress(Fenced, *FAILURES):
            lease.renew()

    @precondition(lambda self: self.holding())
    @rule(who=WHO)
    def looks(self, who: int) -> None:
        maintainer, lease, _ = self.one_of_the_holding(who)
        try:
            lease.require_held()
        except FAILURES:
            return
        except Fenced:
            maintainer.lease = None
            return
        stored = read_lease(self.objects, KEY)
        assert stored is not None
        assert stored.record is not None
        assert (stored.record.holder, stored.record.fencing_token) == (maintainer.name, lease.token)

    @precondition(lambda self: self.holding())
    @rule(who=WHO)
    def commits(self, who: int) -> None:
        maintainer, lease, planned = self.one_of_the_holding(who)
        highest = max(self._recorded(), default=0)
        self.splits += 1
        actions: list[Action] = [split(f"s{self.splits}"), lease.fence]
        try:
            done = maintainer.log.commit(planned, actions, operation="M", requirements=[lease.requirement])
        except Fenced:
            assert lease.token <= highest, "only a token that is spent or overtaken is refused"
        except (CommitConflict, *FAILURES):
            pass  # ten conflicts, or an unknown outcome. The `@invariant` method checks the log
        else:
            assert lease.token > highest
            assert dict(done.snapshot.fences)[RESOURCE] == lease.token

    @precondition(lambda self: self.holding())
    @rule(who=WHO, drops_it=st.booleans())
    def releases(self, who: int, *, drops_it: bool) -> None:
        maintainer, lease, _ = self.one_of_the_holding(who)
        lease.release()
        if drops_it:
            maintainer.lease = None

    def holding(self) -> list[Maintainer]:
        return [each for each in self.maintainers if each.lease is not None]

    def one_of_the_holding(self, pick: int) -> tuple[Maintainer, Lease, Snapshot]:
        maintainer = self.holding()[pick % len(self.holding())]
        assert maintainer.lease
        assert maintainer.planned
        return maintainer, maintainer.lease, maintainer.planned

    # Invariants.

    def _recorded(self) -> list[int]:
        """Return the tokens of all commits, in the order of their versions."""
        versions = LogOracle(self.objects).read()
        return [
            action.token
            for version in versions
            for action in version.actions
            if isinstance(action, Fence) and action.resource == RESOURCE
        ]

    @invariant()
    def each_token_commits_once_and_none_after_a_higher_one(self) -> None:
        if hasattr(self, "objects"):
            recorded = self._recorded()
            assert recorded == sorted(set(recorded))

    def teardown(self) -> None:
        """Deliver all late puts, and assert that the next maintainer gets a token above all recorded tokens."""
        if not hasattr(self, "objects"):
            return
        for maintainer in self.maintainers:
            maintainer.store.deliver()
        self.each_token_commits_once_and_none_after_a_higher_one()
        with suppress(NotFound):
            break_lease(self.log, RESOURCE, "operator")
        head = self.log.snapshot()
        late = log_on(self.objects, clock=ManualClock(START_MS + 10**12), seed=9)
        assert acquire(late, head, RESOURCE, "last").token > max(self._recorded(), default=0)


Leases.TestCase.settings = settings(max_examples=EXAMPLES, stateful_step_count=40)
test_each_token_commits_once_and_none_after_a_higher_one = Leases.TestCase
