"""One run of a job: the table it works on, the tasks it sends to Spark, its commits, and the report of it all."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Protocol, TypeVar

from pyarrow import RecordBatch

from jobs.process.holder import holder_of, is_dead
from jobs.reports.metrics import NO_METRICS, Metrics
from jobs.reports.prediction import Prediction
from jobs.reports.report import JobReport, Status
from jobs.running.as_completed import as_completed
from jobs.running.costs import RunCosts
from jobs.running.shared_place import require_shared
from jobs.spark.spark import Answer, Item, Spark
from storage_core.errors import CommitConflict, Held, TidemarkError
from storage_core.leases.heartbeat import Heartbeat
from storage_core.leases.lease import Lease, acquire
from storage_core.log.actions import Action
from storage_core.log.conflicts.requirements import Requirement
from storage_core.log.conflicts.settle import Rebase
from storage_core.log.snapshot import Snapshot
from storage_core.table import Table

LOG = logging.getLogger(__name__)

POLL_MS = 2_000
"""How often a run that waits for a lease looks whether it is free."""

Plan = TypeVar("Plan", bound=Sized)


class Requested(Protocol):
    """What a run reads of the request of its job."""

    @property
    def table_uri(self) -> str:
        """Where the table is."""
        ...

    @property
    def run_id(self) -> str | None:
        """What its commits and leases name as their run."""
        ...

    @property
    def wait_ms(self) -> int:
        """How long to wait while another run holds a lease."""
        ...

    @property
    def dry_run(self) -> bool:
        """Whether nothing is to be changed."""
        ...


class JobRun:
    """One run of one job on one table, planned against the snapshot that `before` holds."""

    def __init__(
        self, job: str, request: Requested, spark: Spark, table: Table | None = None, *, tells_windows: bool = False
    ) -> None:
        """Open the table unless it is given; `tells_windows`: the report has the metrics of each window committed.

        Raises `InvalidInput` for a table that other processes cannot see.
        """
        require_shared(request.table_uri)
        self._job = job
        self._request = request
        self._spark = spark
        self._costs = RunCosts(spark)
        self._leases: list[Lease] = []
        self._tokens_spent = False
        self._head: Snapshot | None = None
        self._by_window: list[dict[str, object]] | None = [] if tells_windows else None
        self._predicted: Prediction | None = None
        self._predicted_by_window: list[dict[str, object]] = []
        self.table = table if table is not None else Table.open(request.table_uri)
        self.before: Snapshot = self.table.snapshot

    @contextmanager
    def leased(self, plan: Callable[[Snapshot], Plan], resources: Sequence[str]) -> Iterator[Plan]:
        """Plan against `before`, and hold the resources as long as the block works on that plan.

        With nothing to do, or in a dry run, no lease is taken. After waiting for somebody `before` is the newest
        snapshot, and the plan is made anew. Raises as `holding` does.
        """
        planned = plan(self.before)
        if not planned or self._request.dry_run:
            yield planned
            return
        with self.holding(*resources) as waited:
            if waited:
                self.before = self.table.log.refresh(self.before)
                planned = plan(self.before)
            yield planned

    @contextmanager
    def holding(self, *resources: str) -> Iterator[bool]:
        """Hold the resources for the block, with a heartbeat; the value is whether somebody had to be waited for.

        A commit in the block carries their fences. Per resource: one GET and one PUT, one GET before the commit, one
        PUT at the end, one PUT per beat. Raises `Held` when another run has one of them, after the time that the
        request allows for waiting; then none is held.
        """
        self.table.require_capable()
        with ExitStack() as held:
            held.callback(self._leases.clear)
            left_ms = self._request.wait_ms
            for resource in sorted(resources):
                lease, left_ms = self._acquire(resource, left_ms)
                held.callback(lease.release)
                self._leases.append(lease)
            held.enter_context(Heartbeat(self._leases))
            yield left_ms < self._request.wait_ms

    def require_held(self) -> None:
        """Raise `Fenced` when another run took a resource over that this one works on. One GET each."""
        for lease in self._leases:
            lease.require_held()

    def _require_tokens(self) -> None:
        """Raise `Fenced` unless this run holds its resources, under tokens that no commit of it has used."""
        if self._tokens_spent:
            for lease in self._leases:
                lease.advance()
        else:
            self.require_held()
        self._tokens_spent = True

    def _acquire(self, resource: str, wait_ms: int) -> tuple[Lease, int]:
        """The lease, and what is left of the time for waiting."""
        log, holder = self.table.log, holder_of(self._request.run_id)
        while True:
            try:
                return acquire(log, self.before, resource, holder, is_dead=is_dead), wait_ms
            except Held as error:
                if wait_ms <= 0:
                    raise
                LOG.info("waiting: %s", error)
            pause_ms = min(wait_ms, POLL_MS)
            log.clock.sleep_ms(pause_ms)
            wait_ms -= pause_ms

    def map(
        self,
        execute: Callable[[Item], Answer],
        items: Sequence[Item],
        *,
        writes: bool = True,
        input_bytes: float = math.inf,
    ) -> list[Answer]:
        """Execute one task per item and return the answers in item order; their requests count as this run's.

        `writes`: whether the tasks write, which a store must be capable of. `input_bytes`: what they read in all,
        unless nobody knows, or a task may need much more memory than that; small work by it needs no Spark.
        """
        if items and writes:
            self.table.require_capable()
        uri = self.table.uri
        answers = self._spark.map(execute, [{"table_uri": uri, **item} for item in items], input_bytes=input_bytes)
        self._costs.take(answers)
        return answers

    def predict(self, predicted: Prediction, by_window: Mapping[int | None, Prediction] | None = None) -> None:
        """Let the report say what the plan does: all of it, and of a report that tells windows what of each window."""
        self._predicted = predicted
        if self._by_window is not None:
            self._predicted_by_window = [
                {"window": window, "benefit": each.benefit, "bytes_in": each.bytes_in, "bytes_out": each.bytes_out}
                for window, each in (by_window or {}).items()
            ]

    def look_again(self) -> None:
        """Let `before`, on which the next commit is planned, be the newest snapshot; the requests of `log.refresh`."""
        self.before, self._head = self.table.log.refresh(self._head or self.before), None

    def map_rows(
        self, execute: Callable[[Iterator[RecordBatch], Item], Answer], frame: object, item: Item
    ) -> list[Answer]:
        """Return the answer for each partition of a data frame; the requests of its tasks count as this run's."""
        self.table.require_capable()
        answers = self._spark.map_rows(execute, frame, {"table_uri": self.table.uri, **item})
        self._costs.take(answers)
        return answers

    def map_groups(
        self, execute: Callable[[Item], Answer], groups: Sequence[Sequence[Item]], *, input_bytes: int
    ) -> Generator[tuple[int, list[Answer] | TidemarkError]]:
        """Execute one task per item; yield the number and answers of each group as soon as its tasks have ended.

        Groups are begun in their order, and more of them are under way than tasks fit, so that a long task keeps
        nobody waiting. What Spark could not run is the answer of its group: the others go on. One group is small work
        where `input_bytes`, what all of them read, says so.
        """
        self.table.require_capable()
        uri = self.table.uri
        small = input_bytes if len(groups) == 1 else math.inf  # several groups are much work
        calls = [
            partial(self._spark.map, execute, [{"table_uri": uri, **item} for item in items], input_bytes=small)
            for items in groups
        ]
        at_once = self._spark.slots + 1 if len(calls) > 1 else 1
        for number, answers in as_completed(calls, at_once):
            if not isinstance(answers, TidemarkError):
                self._costs.take(answers)
            yield number, answers

    def commit(
        self,
        actions: Sequence[Action],
        *,
        operation: str,
        metrics: Metrics,
        requirements: Sequence[Requirement] = (),
        details: Mapping[str, object] | None = None,
        by_window: Mapping[int | None, Metrics] | None = None,
        benefit: int = 0,
        rebase: Rebase | None = None,
    ) -> JobReport:
        """Commit the actions once, planned against `before`, and return the report; raises what the log raises.

        `by_window` are the metrics of each window, for a report that tells them.

        With leases the commit carries their fences, and raises `Fenced` when another run has taken one over. A further
        commit of the run costs a PUT per lease for its next token.
        """
        self.table.require_capable()
        self._require_tokens()
        try:
            result = self.table.log.commit(
                self.before,
                [*actions, *(lease.fence for lease in self._leases)],
                operation=operation,
                requirements=[*requirements, *(lease.requirement for lease in self._leases)],
                metrics=metrics.as_mapping(),
                job_run_id=self._request.run_id,
                head=self._head,
                rebase=rebase,
            )
        except CommitConflict:
            self._tokens_spent = False  # nothing was written; of any other failure nobody knows
            raise
        self._head = result.snapshot
        LOG.info("%s committed version %d of %s", self._job, result.version, self.table.uri)
        status: Status = "nothing_to_do" if result.already_committed else "committed"
        if self._by_window is not None and status == "committed":
            commit = {"version": result.version, "commit_id": result.commit_id}
            self._by_window += [
                {"window": window, **commit, **done.as_mapping()} for window, done in (by_window or {}).items()
            ]
        return self.report(
            status, result.version, metrics=metrics, commit_id=result.commit_id, details=details, benefit=benefit
        )

    def report(
        self,
        status: Status,
        version: int | None = None,
        *,
        metrics: Metrics = NO_METRICS,
        commit_id: str | None = None,
        details: Mapping[str, object] | None = None,
        benefit: int = 0,
    ) -> JobReport:
        """Return the report of this run as it stands now; `benefit` is in the unit of what was predicted."""
        windows = {"by_window": self._by_window, "predicted_by_window": self._predicted_by_window}
        report = JobReport(
            job=self._job,
            status=status,
            version=self.before.version if version is None else version,
            metrics=metrics,
            commit_id=commit_id,
            details={**(details or {}), **{name: each for name, each in windows.items() if each}},
            predicted=self._predicted,
            benefit=benefit,
        )
        return self._costs.complete(report, [self.table.store])
