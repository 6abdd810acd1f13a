"""Deal: the closed segments of a raw log go to its tables, each record once (design page 03, "Raw log").

python -m jobs.deal --raw-log raw_logs/x.yaml --table tables/a.yaml --table tables/b.yaml
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from jobs import tasks
from jobs.command import command, on_spark
from jobs.deal_request import DealRequest, parse, parser
from jobs.figures import Figures
from jobs.holder import holder_of, is_gone
from jobs.report import JobReport, with_report
from jobs.run import require_shared
from jobs.spark import Answer, Spark
from storage_core.clock import SystemClock
from storage_core.dealing.marks import log_marks
from storage_core.dealing.outcome import Dealt
from storage_core.dealing.plan import HeldChunks, Terms, by_gap, left
from storage_core.dealing.remaining import DealPlan
from storage_core.dealing.rounds import Dealer
from storage_core.dealing.work import DivideResult, DivideWork, FillResult, FillWork, Source
from storage_core.declaration import TableDeclaration, load
from storage_core.declaration_parts import below
from storage_core.errors import InvalidInput, TidemarkError
from storage_core.heartbeat import Heartbeat
from storage_core.ids import SystemIds
from storage_core.lease import Lease, acquire
from storage_core.objectstore.meter import MeteredStore, add_requests
from storage_core.objectstore.resolve import open_store
from storage_core.raw_declaration import RawLogDeclaration, load_raw_log
from storage_core.raw_log.history import History, union
from storage_core.rows.late import LateFigures
from storage_core.table import Table, exists

LOG = logging.getLogger(__name__)

SUMMARY = "Deal the closed segments of a raw log to its tables."


def run(request: DealRequest, spark: Spark) -> JobReport:
    """Deal everything that is closed and not in its table yet, all tables at once, by as many tasks as there are slots.

    The declared tables are made where they do not exist. What is missing of a writer holds back what it wrote later,
    and is in the report as `held`; records that no table takes go to quarantine. A table that cannot take its rows
    stops no other: when all are through, its error is raised, with the report in its context (`report_of`). So is
    `Held` of a table into which another run deals this raw log. A dry run changes nothing.
    """
    started, spark_before = time.perf_counter(), spark.seconds
    job = _Job.open(request)
    terms = Terms(closed_after_ms=job.raw.closed_after, pass_up_to=request.pass_up_to())
    if request.dry_run:
        return _planned(job, terms)
    work = _OnSpark(spark)
    done = _deal(job, work, terms, request.run_id)
    report = JobReport(
        job="deal",
        status="committed" if done.chunks else "nothing_to_do",
        version=0,
        figures=_figures(done),
        requests=add_requests(*(each.requests for each in job.stores), *work.requests),
        seconds=round(time.perf_counter() - started, 3),
        spark_seconds=round(spark.seconds - spark_before, 3),
        details=_details(job, done),
    )
    if done.failures:
        raise with_report(_failure(done.failures), report)
    return report


@dataclass(slots=True, kw_only=True)
class _Job:
    """The raw log and the tables of a run.

    `left_out` are tables whose files declare nothing sound: their rows wait. `failures` are those that could not be
    made or opened.
    """

    raw: RawLogDeclaration
    source: Source
    history: History
    declared: Mapping[str, TableDeclaration]
    stores: list[MeteredStore]
    left_out: Mapping[str, str]
    failures: dict[str, TidemarkError] = field(default_factory=dict)

    @classmethod
    def open(cls, request: DealRequest) -> _Job:
        """Read the declarations and list the stores of the raw log. Raises `InvalidInput`."""
        root = Path(request.root or ".")
        raw = load_raw_log(request.raw_log)
        declared, broken = _tables(request.tables, root)
        known = {*declared, *broken}
        if unknown := sorted(set(raw.tables) - known):
            raise InvalidInput(f"{request.raw_log}: {', '.join(unknown)} is declared by no file of tables/*.yaml")
        chosen = raw.tables or tuple(sorted(known))
        uris = tuple(require_shared(below(root, uri)) for uri in raw.uris)
        stores = [MeteredStore(open_store(uri)) for uri in uris]
        return cls(
            raw=raw,
            source=Source(name=raw.name, stores=uris, tables=chosen),
            history=union(list(stores)),
            declared={name: each for name, each in declared.items() if name in chosen},
            stores=stores,
            left_out={name: str(error) for name, error in broken.items() if name in chosen},
        )

    def tables(self, *, declaring: bool) -> dict[str, Table]:
        """Open the tables, making those that do not exist, or without them; those that fail are left out."""
        found: dict[str, Table] = {}
        for name, declaration in self.declared.items():
            try:
                uri = require_shared(declaration.uri)
                if declaring:
                    found[name] = Table.declare(declaration)
                    found[name].require_capable()
                elif exists(uri):
                    found[name] = Table.open(uri)
            except TidemarkError as error:
                LOG.warning("table %s: %s", name, error)
                self.failures[name] = error
        self.stores += [each.store for each in found.values()]
        return found


@dataclass(slots=True)
class _OnSpark:
    """Runs work items as Spark tasks and keeps their requests."""

    spark: Spark
    requests: list[Mapping[str, int]] = field(default_factory=list)

    def divide(self, works: Sequence[DivideWork]) -> list[DivideResult]:
        """Run `tasks.deal_divide` for each."""
        answers = self.spark.map(tasks.deal_divide, [{"work": each.to_json()} for each in works])
        return [DivideResult.from_json(each["result"]) for each in self._counted(answers)]

    def fill(self, works: Sequence[FillWork]) -> list[FillResult]:
        """Run `tasks.deal_fill` for each."""
        answers = self.spark.map(tasks.deal_fill, [{"work": each.to_json()} for each in works])
        return [FillResult.from_json(each["result"]) for each in self._counted(answers)]

    def _counted(self, answers: list[Answer]) -> list[Answer]:
        self.requests += [each["requests"] for each in answers]
        return answers


def _deal(job: _Job, work: _OnSpark, terms: Terms, run_id: str | None) -> Dealt:
    tables = job.tables(declaring=True)
    with _leased(job, tables, terms, run_id) as leases:
        dealer = Dealer(
            source=job.source,
            history=job.history,
            logs={name: each.log for name, each in tables.items() if name not in job.failures},
            tasks=work,
            clock=SystemClock(),
            ids=SystemIds(),
            run_id=run_id,
            guards={name: lease.requirement for name, lease in leases.items()},
        )
        # Without a lease there is nothing to deal, and no Spark is started.
        done = dealer.deal(replace(terms, slots=work.spark.slots) if leases else terms)
    done.failures |= job.failures
    return done


@contextmanager
def _leased(job: _Job, tables: Mapping[str, Table], terms: Terms, run_id: str | None) -> Iterator[Mapping[str, Lease]]:
    """Hold, for the block, dealing of this raw log into each table for which there is something.

    The commits carry no fence, since one lease is for all rounds: marks keep two runs apart, a lease only saves one of
    them the work. A table whose lease is not to be had joins the failures.
    """
    leases: dict[str, Lease] = {}
    with ExitStack() as held:
        for name, plan in sorted(_left(job, tables, terms).items()):
            table = tables[name]
            if plan.positions == log_marks(table.snapshot):
                continue
            try:
                lease = acquire(table.log, table.snapshot, f"deal.{job.raw.name}", holder_of(run_id), is_gone=is_gone)
            except TidemarkError as error:
                LOG.warning("table %s: %s", name, error)
                job.failures[name] = error
            else:
                held.callback(lease.release)
                leases[name] = lease
        held.enter_context(Heartbeat(list(leases.values())))
        yield leases


def _left(job: _Job, tables: Mapping[str, Table], terms: Terms) -> dict[str, DealPlan]:
    now = SystemClock().now_ms()
    return {name: left(job.history, log_marks(each.snapshot), terms, now_ms=now) for name, each in tables.items()}


def _planned(job: _Job, terms: Terms) -> JobReport:
    """What a run would read, and what is in its way; a table that does not exist yet would get everything."""
    tables = job.tables(declaring=False)
    new = sorted(set(job.declared) - set(tables) - set(job.failures))
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
    return JobReport(job="deal", status="planned", version=0, details=details)


def _figures(done: Dealt) -> Figures:
    tables = done.tables.values()
    return Figures(
        rows_in=done.records,
        rows_out=sum(each.rows for each in tables),
        bytes_out=sum(each.bytes for each in tables),
        splits_out=sum(each.splits for each in tables),
        **sum((each.late for each in tables), LateFigures()).as_mapping(),
    )


def _details(job: _Job, done: Dealt) -> dict[str, object]:
    return {
        "raw_log": job.raw.name,
        "chunks": done.chunks,
        "tables": {name: asdict(each) for name, each in done.tables.items()},
        "rejected": sum(done.unknown.values()) + sum(sum(each.rejected.values()) for each in done.tables.values()),
        "unknown_tables": dict(done.unknown),
        "left_out": dict(job.left_out),
        "damaged": [{"key": each.chunk.keys[0], "found": list(each.reasons)} for each in done.damaged.values()],
        **_gaps(job, done.held, done.given_up),
    }


def _gaps(job: _Job, held: Iterable[HeldChunks], given_up: Iterable[HeldChunks]) -> dict[str, object]:
    return {
        "held": [asdict(each) for each in held],
        "given_up": [asdict(each) for each in dict.fromkeys(given_up)],
        "unreachable": list(job.history.unreachable),
    }


def _tables(files: Sequence[str], root: Path) -> tuple[dict[str, TableDeclaration], dict[str, InvalidInput]]:
    """The declared tables by name, and by the names of their files those that are broken."""
    declared: dict[str, TableDeclaration] = {}
    broken: dict[str, InvalidInput] = {}
    for file in files:
        try:
            found = load(file).below(root)
            declared[found.name] = found
        except InvalidInput as error:
            LOG.warning("a table is left out: %s", error)
            broken[Path(file).stem] = error
    return declared, broken


def _failure(failures: Mapping[str, TidemarkError]) -> TidemarkError:
    """The error of the first table, with the messages of all."""
    told = "; ".join(f"table {name}: {error}" for name, error in sorted(failures.items()))
    first = failures[min(failures)]
    return type(first)(f"{told}; all other tables have their rows, deal again for the rest", **first.context)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job as a command and return its exit code."""
    return command("deal", parser(SUMMARY), on_spark(parse, run), argv)


if __name__ == "__main__":
    sys.exit(main())
