"""Distribute: the closed segments of a raw log go to its tables, each record once (docs/architecture/ingestion.md, "Raw
log").

python -m jobs.distribute --raw-log raw_logs/x.yaml --table tables/a.yaml --table tables/b.yaml
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace

from jobs.process.holder import holder_of, is_dead
from jobs.reports.metrics import Metrics
from jobs.reports.report import JobReport, with_report
from jobs.requests.distribute import DistributeRequest, parse, parser
from jobs.running.command import command, on_spark
from jobs.running.costs import RunCosts
from jobs.running.distribute_tables import DistributeTables
from jobs.spark import tasks
from jobs.spark.spark import Answer, Spark
from storage_core.clock import SystemClock
from storage_core.distribution.backlog import collected_before
from storage_core.distribution.offsets import log_offsets
from storage_core.distribution.outcome import DistributionOutcome
from storage_core.distribution.plan import HeldChunks, by_gap, chunk_bytes
from storage_core.distribution.remaining import DistributionPlan, Terms, left
from storage_core.distribution.rounds import Distributor
from storage_core.distribution.work import DivideResult, DivideWork, FillResult, FillWork
from storage_core.errors import TidemarkError
from storage_core.ids import SystemIds
from storage_core.leases.heartbeat import Heartbeat
from storage_core.leases.lease import Lease, acquire
from storage_core.raw_log.chunks import RawChunkRef
from storage_core.raw_log.history import History
from storage_core.rows.late import LateMetrics
from storage_core.table import Table

LOG = logging.getLogger(__name__)

SUMMARY = "Distribute the closed segments of a raw log to its tables."


def run(request: DistributeRequest, spark: Spark) -> JobReport:
    """Distribute what is closed and not in its table yet, all tables at once, by as many tasks as there are slots.

    The declared tables are made where they do not exist. What is missing of a writer holds back what it wrote later,
    and is in the report as `held`; records that no table takes go to quarantine. A table that cannot take its rows
    stops no other: when all are through, its error is raised, with the report in its context (`report_of`). So is
    `Held` of a table into which another run distributes this raw log. A dry run changes nothing.
    """
    costs = RunCosts(spark)
    job = DistributeTables.open(request)
    terms = Terms(closed_after_ms=job.raw.closed_after, give_up_to=request.give_up_to())
    if request.dry_run:
        return _planned(job, terms)
    work = _Tasks(spark, costs, job.history)
    done = _distribute(job, work, terms, request.run_id)
    distributed = JobReport(
        job="distribute",
        status="committed" if done.chunks else "nothing_to_do",
        version=0,
        metrics=_metrics(done),
        details=_details(job, done),
    )
    report = costs.complete(distributed, job.stores)
    if done.failures:
        raise with_report(_failure(done.failures), report)
    return report


@dataclass(frozen=True, slots=True)
class _Tasks:
    """Runs work items as tasks and counts their requests."""

    spark: Spark
    costs: RunCosts
    history: History

    def slots(self, left: Mapping[str, DistributionPlan]) -> int:
        """Return how many works run at a time: one after the other where all that is left needs no Spark."""
        wanted = {chunk for plan in left.values() for chunk in plan.chunks}
        return self.spark.slots if self.spark.is_needed_for(self._bytes(wanted), 1) else 1

    def divide(self, works: Sequence[DivideWork]) -> list[DivideResult]:
        """Run `tasks.distribute_divide` for each."""
        items = [{"work": each.to_json()} for each in works]
        read = self._bytes(chunk for each in works for chunk in each.chunks)
        answers = self.spark.map(tasks.distribute_divide, items, input_bytes=read)
        return [DivideResult.from_json(each["result"]) for each in self._counted(answers)]

    def fill(self, works: Sequence[FillWork]) -> list[FillResult]:
        """Run `tasks.distribute_fill` for each; what they read was counted as it was divided."""
        answers = self.spark.map(tasks.distribute_fill, [{"work": each.to_json()} for each in works], input_bytes=0)
        return [FillResult.from_json(each["result"]) for each in self._counted(answers)]

    def _bytes(self, chunks: Iterable[RawChunkRef]) -> float:
        return sum(chunk_bytes(chunks, self.history.segments()))

    def _counted(self, answers: list[Answer]) -> list[Answer]:
        self.costs.take(answers)
        return answers


def _distribute(job: DistributeTables, work: _Tasks, terms: Terms, run_id: str | None) -> DistributionOutcome:
    tables = job.tables(declaring=True)
    job.collected = collected_before(job.history, {name: log_offsets(each.snapshot) for name, each in tables.items()})
    with _leased(job, tables, terms, run_id) as leases:
        distributor = Distributor(
            source=job.source,
            history=job.history,
            logs={name: each.log for name, each in tables.items() if name not in job.failures},
            tasks=work,
            clock=SystemClock(),
            ids=SystemIds(),
            run_id=run_id,
            guards={name: lease.requirement for name, lease in leases.items()},
        )
        # Without a lease there is nothing to distribute, and no Spark is started.
        done = distributor.distribute(replace(terms, slots=work.slots(_left(job, tables, terms))) if leases else terms)
    done.failures |= job.failures
    return done


@contextmanager
def _leased(
    job: DistributeTables, tables: Mapping[str, Table], terms: Terms, run_id: str | None
) -> Iterator[Mapping[str, Lease]]:
    """Hold, for the block, distribution of this raw log into each table for which there is something.

    The commits carry no fence, since one lease is for all rounds: offsets keep two runs apart, a lease only saves one
    of them the work. A table whose lease is not to be had joins the failures.
    """
    leases: dict[str, Lease] = {}
    with ExitStack() as held:
        for name, plan in sorted(_left(job, tables, terms).items()):
            table = tables[name]
            if plan.offsets == log_offsets(table.snapshot):
                continue
            try:
                lease = acquire(
                    table.log, table.snapshot, f"distribute.{job.raw.name}", holder_of(run_id), is_dead=is_dead
                )
            except TidemarkError as error:
                LOG.warning("table %s: %s", name, error)
                job.failures[name] = error
            else:
                held.callback(lease.release)
                leases[name] = lease
        held.enter_context(Heartbeat(list(leases.values())))
        yield leases


def _left(job: DistributeTables, tables: Mapping[str, Table], terms: Terms) -> dict[str, DistributionPlan]:
    now = SystemClock().now_ms()
    return {name: left(job.history, log_offsets(each.snapshot), terms, now_ms=now) for name, each in tables.items()}


def _planned(job: DistributeTables, terms: Terms) -> JobReport:
    """What a run would read, and what is in its way; a table that does not exist yet would get everything."""
    tables = job.tables(declaring=False)
    new = sorted(set(job.declared) - set(tables) - set(job.failures))
    offsets = {name: log_offsets(each.snapshot) for name, each in tables.items()} | {name: {} for name in new}
    job.collected = collected_before(job.history, offsets)
    now = SystemClock().now_ms()
    plans = _left(job, tables, terms) | {name: left(job.history, {}, terms, now_ms=now) for name in new}
    held = by_gap({name: each.held for name, each in plans.items()})
    given_up = by_gap({name: each.given_up for name, each in plans.items()})
    details = {
        "chunks": len({(ref.writer, ref.number) for each in plans.values() for ref in each.chunks}),
        "waiting_chunks": {name: len(each.chunks) for name, each in plans.items() if each.chunks},
        "new_tables": new,
        **_gaps(job, held, given_up),
    }
    return JobReport(job="distribute", status="planned", version=0, details=details)


def _metrics(done: DistributionOutcome) -> Metrics:
    tables = done.tables.values()
    return Metrics(
        rows_in=done.records,
        rows_out=sum(each.rows for each in tables),
        bytes_out=sum(each.bytes for each in tables),
        splits_out=sum(each.splits for each in tables),
        **sum((each.late for each in tables), LateMetrics()).as_mapping(),
    )


def _details(job: DistributeTables, done: DistributionOutcome) -> dict[str, object]:
    return {
        "raw_log": job.raw.name,
        "chunks": done.chunks,
        "tables": {name: asdict(each) for name, each in done.tables.items()},
        "rejected": sum(done.unknown.values()) + sum(sum(each.rejected.values()) for each in done.tables.values()),
        "unknown_tables": dict(done.unknown),
        "duplicates": dict(done.duplicates),
        "left_out": dict(job.left_out),
        "damaged": [{"key": each.chunk.keys[0], "found": list(each.reasons)} for each in done.damaged.values()],
        **_gaps(job, done.held, done.given_up),
    }


def _gaps(job: DistributeTables, held: Iterable[HeldChunks], given_up: Iterable[HeldChunks]) -> dict[str, object]:
    return {
        "held": [asdict(each) for each in held],
        "given_up": [asdict(each) for each in dict.fromkeys(given_up)],
        "unreachable": list(job.history.unreachable),
        "collected": dict(job.collected),
    }


def _failure(failures: Mapping[str, TidemarkError]) -> TidemarkError:
    """The error of the first table, with the messages of all."""
    message = "; ".join(f"table {name}: {error.found}" for name, error in sorted(failures.items()))
    first = failures[min(failures)]
    return first.reworded(f"{message}; all other tables have their rows, distribute again for the rest")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job as a command and return its exit code."""
    return command("distribute", parser(SUMMARY), on_spark(parse, run), argv)


if __name__ == "__main__":
    sys.exit(main())
