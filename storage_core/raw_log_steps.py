"""The raw log steps `distribute`, `heal_raw` and `collect_raw`, and the step `forget`.

A raw log stores records before they are in their tables. The step `distribute` writes the records of closed segments to
the tables, each record once (docs/architecture/ingestion.md, "Raw log"). The step `forget` erases rows from a table and
its raw logs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from storage_core.base.clock import SystemClock, SystemIds
from storage_core.base.errors import Corrupt, InvalidInput, TidemarkError
from storage_core.base.process import holder_of, is_dead
from storage_core.change.declaration import RawLogDeclaration, TableDeclaration, load, load_raw_log
from storage_core.change.declaration_file import is_text
from storage_core.change.declaration_parts import below
from storage_core.data.rows.windows import LateMetrics
from storage_core.data.steps import CollectRaw, Distribute, Forget, HealRaw, RawLogOptions
from storage_core.log.job_run import (
    Answer,
    Item,
    JobReport,
    JobRun,
    Metrics,
    Status,
    TaskEnvironment,
    as_task,
    require_shared,
    with_report,
)
from storage_core.log.lease import Heartbeat, Lease, acquire
from storage_core.maintain.forget import with_landed_files
from storage_core.maintain.forget_report import ForgetReport, RawTable
from storage_core.maintain.raw_logs import HORIZON_MS, RawLogCollection, RawLogCollector, heal
from storage_core.store.meter import MeteredStore
from storage_core.store.resolve import open_store
from storage_core.table import Table, exists
from storage_core.write.distribution import execute as distribution
from storage_core.write.distribution.rounds import DistributionOutcome, Distributor, HeldChunks, by_gap, chunk_bytes
from storage_core.write.distribution.work import (
    DistributionPlan,
    DivideResult,
    DivideWork,
    FillResult,
    FillWork,
    Source,
    Terms,
    collected_before,
    left,
    log_offsets,
)
from storage_core.write.ingest.landing import LandingSpec
from storage_core.write.raw_log.history import History, RawChunkRef, union

LOG = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class DistributeTables:
    """The raw log and the tables of one run.

    `left_out` contains the tables with an invalid declaration, by name, with the error. Rows of these tables are not
    distributed. `failures` contains the errors of tables that could not be created or opened. `collected` contains, for
    each table, the number of older chunks that the collector deleted before the table was created.
    """

    raw: RawLogDeclaration
    source: Source
    history: History
    declared: Mapping[str, TableDeclaration]
    stores: list[MeteredStore]
    raw_stores: Sequence[MeteredStore]
    left_out: Mapping[str, str]
    failures: dict[str, TidemarkError] = field(default_factory=dict)
    collected: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def open(cls, options: RawLogOptions) -> DistributeTables:
        """Read the declarations and list the stores of the raw log. Raises `InvalidInput`."""
        root = Path(options.root or ".")
        raw, stores = raw_stores(options)
        declared, broken = _tables(options.tables, root)
        known = {*declared, *broken}
        if unknown := sorted(set(raw.tables) - known):
            raise InvalidInput(
                f"{options.raw_log}: {', '.join(unknown)} is not declared in tables/*.yaml. "
                "Declare the table in tables/*.yaml, or remove the table from `tables`"
            )
        chosen = raw.tables or tuple(sorted(known))
        uris = tuple(require_shared(below(root, uri)) for uri in raw.uris)
        return cls(
            raw=raw,
            source=Source(
                name=raw.name,
                stores=uris,
                tables=chosen,
                mandatory=sum(each.mandatory for each in raw.stores),
                unique_for_ms=raw.unique_for,
            ),
            history=union(list(stores)),
            declared={name: each for name, each in declared.items() if name in chosen},
            stores=[*stores],
            raw_stores=stores,
            left_out={name: str(error) for name, error in broken.items() if name in chosen},
        )

    def tables(self, *, declaring: bool) -> dict[str, Table]:
        """Open the declared tables. Create missing tables if `declaring`, else skip them. Skip failing tables."""
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

    def offsets(self) -> dict[str, Mapping[str, int]]:
        """Return the current offsets of every table.

        The offsets are empty for a table that does not exist, has an invalid declaration or fails to open.
        """
        opened = self.tables(declaring=False)
        return {name: log_offsets(opened[name].snapshot) if name in opened else {} for name in self.source.tables}


def raw_stores(options: RawLogOptions) -> tuple[RawLogDeclaration, list[MeteredStore]]:
    """Return the declaration and the stores of the raw log, mandatory stores first. Raises `InvalidInput`."""
    raw = load_raw_log(options.raw_log)
    root = Path(options.root or ".")
    return raw, [MeteredStore(open_store(require_shared(below(root, uri)))) for uri in raw.uris]


def _tables(files: Sequence[str], root: Path) -> tuple[dict[str, TableDeclaration], dict[str, InvalidInput]]:
    """Return the declared tables by name, and the errors of broken declarations by file name."""
    declared: dict[str, TableDeclaration] = {}
    broken: dict[str, InvalidInput] = {}
    for file in files:
        try:
            found = load(file).below(root)
            declared[found.name] = found
        except InvalidInput as error:
            LOG.warning("a table is skipped: %s", error)
            broken[Path(file).stem] = error
    return declared, broken


def run_distribute(job: JobRun[Distribute]) -> JobReport:
    """Write the records of closed segments to their tables.

    All tables are written concurrently, with one task per slot. Missing tables are created from their declarations.
    After a missing chunk, the later chunks of the same writer wait. The report contains the missing chunk under `held`.
    Records of unknown tables go to quarantine. A dry run changes nothing.

    A table that fails does not stop the other tables. The error is raised after all tables are done, with the report in
    its context (`report_of`). If another run distributes the raw log into a table, `Held` is also raised after all
    tables are done, with the report.
    """
    found = DistributeTables.open(job.options)
    terms = Terms(closed_after_ms=found.raw.closed_after, give_up_to=parse_give_up(job.options.skip_gaps))
    if job.options.dry_run:
        return job.report("planned", 0, details=_planned(found, terms))
    done = _distribute(found, _Tasks(job, found.history), terms, job)
    job.stores += found.stores
    status: Status = "committed" if done.chunks else "nothing_to_do"
    report = job.report(status, 0, metrics=_metrics(done), details=_details(found, done))
    if done.failures:
        raise with_report(_failure(done.failures), report)
    return report


@dataclass(frozen=True, slots=True)
class _Tasks:
    """Runs work items as tasks and counts their requests."""

    job: JobRun[Distribute]
    history: History

    def slots(self, left: Mapping[str, DistributionPlan]) -> int:
        """Return the number of concurrent work items. The number is 1 if the remaining work does not need Spark."""
        wanted = {chunk for plan in left.values() for chunk in plan.chunks}
        spark = self.job.executor
        return spark.slots if spark.is_needed_for(self._bytes(wanted), 1) else 1

    def divide(self, works: Sequence[DivideWork]) -> list[DivideResult]:
        """Run `divide` for each work item."""
        items = [{"work": each.to_json()} for each in works]
        read = self._bytes(chunk for each in works for chunk in each.chunks)
        answers = self.job.executor.map(divide, items, input_bytes=read)
        return [DivideResult.from_json(each["result"]) for each in self._counted(answers)]

    def fill(self, works: Sequence[FillWork]) -> list[FillResult]:
        """Run `fill` for each work item. `divide` has already counted the bytes that `fill` reads."""
        answers = self.job.executor.map(fill, [{"work": each.to_json()} for each in works], input_bytes=0)
        return [FillResult.from_json(each["result"]) for each in self._counted(answers)]

    def _bytes(self, chunks: Iterable[RawChunkRef]) -> float:
        return sum(chunk_bytes(chunks, self.history.segments()))

    def _counted(self, answers: list[Answer]) -> list[Answer]:
        self.job.count(answers)
        return answers


def parse_give_up(skip_gaps: Iterable[str]) -> Mapping[str, int]:
    """Return for each writer the number of the last chunk that may be missing. Raises `InvalidInput`."""
    found: dict[str, int] = {}
    for text in skip_gaps:
        writer, _, last = text.rpartition(":")
        if not writer or not last.isascii() or not last.isdigit():
            raise InvalidInput(
                f"--skip-gap {text!r} is not valid. Write the writer and the number of the last missing chunk "
                "as WRITER:LAST"
            )
        found[writer] = max(int(last), found.get(writer, 0))
    return found


def missing_chunks(raw_log: str, held: Iterable[Mapping[str, Any]]) -> Corrupt:
    """Return the error for missing chunks that make later records wait.

    The error contains the command to give up these chunks. `held` is the list `held` in the report of a distribution.
    """
    last: dict[str, int] = {}
    for each in held:
        last[each["writer"]] = max(each["last"], last.get(each["writer"], 0))
    gaps = " ".join(f"--skip-gap {writer}:{until}" for writer, until in last.items())
    return Corrupt(
        "chunks are missing in all stores of the raw log, so later records of their writers wait",
        advice=(
            "copy a backup of live/ into any store. If there is no backup, skip the chunks: tidemark distribute "
            f"{raw_log} {gaps}"
        ),
    )


def _distribute(job: DistributeTables, work: _Tasks, terms: Terms, run: JobRun[Distribute]) -> DistributionOutcome:
    tables = job.tables(declaring=True)
    job.collected = collected_before(job.history, {name: log_offsets(each.snapshot) for name, each in tables.items()})
    with _leased(job, tables, terms, run) as leases:
        distributor = Distributor(
            source=job.source,
            history=job.history,
            logs={name: each.log for name, each in tables.items() if name not in job.failures},
            tasks=work,
            clock=SystemClock(),
            ids=SystemIds(),
            run_id=run.options.run_id,
            guards={name: lease.requirement for name, lease in leases.items()},
        )
        # If the run holds no lease, the run cannot write to a table, and Spark is not started.
        done = distributor.distribute(replace(terms, slots=work.slots(_left(job, tables, terms))) if leases else terms)
    done.failures |= job.failures
    return done


@contextmanager
def _leased(
    job: DistributeTables, tables: Mapping[str, Table], terms: Terms, run: JobRun[Distribute]
) -> Iterator[Mapping[str, Lease]]:
    """Hold a lease for each table with pending chunks during the block.

    A lease allows this run to distribute the raw log into the table.

    The commits are not fenced, because one lease covers several commits of the run. The offsets ensure that two runs do
    not write a record twice. The lease only prevents duplicate work. A table without an available lease is added to the
    failures.
    """
    leases: dict[str, Lease] = {}
    resource = run.step.lease.format(raw_log=job.raw.name)
    holder = holder_of(run.options.run_id)
    with ExitStack() as held:
        for name, plan in sorted(_left(job, tables, terms).items()):
            table = tables[name]
            if plan.offsets == log_offsets(table.snapshot):
                continue
            try:
                lease = acquire(table.log, table.snapshot, resource, holder, is_dead=is_dead)
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


def _planned(job: DistributeTables, terms: Terms) -> dict[str, object]:
    """Return the chunks that a run would read, and the gaps. For a new table, the result has all chunks."""
    tables = job.tables(declaring=False)
    new = sorted(set(job.declared) - set(tables) - set(job.failures))
    offsets = {name: log_offsets(each.snapshot) for name, each in tables.items()} | {name: {} for name in new}
    job.collected = collected_before(job.history, offsets)
    now = SystemClock().now_ms()
    plans = _left(job, tables, terms) | {name: left(job.history, {}, terms, now_ms=now) for name in new}
    held = by_gap({name: each.held for name, each in plans.items()})
    given_up = by_gap({name: each.given_up for name, each in plans.items()})
    return {
        "raw_log": job.raw.name,
        "chunks": len({(ref.writer, ref.number) for each in plans.values() for ref in each.chunks}),
        "waiting_chunks": {name: len(each.chunks) for name, each in plans.items() if each.chunks},
        "new_tables": new,
        **_gaps(job, held, given_up),
        **_note(job),
    }


def _metrics(done: DistributionOutcome) -> Metrics:
    tables = done.tables.values()
    return Metrics(
        rows_in=done.records,
        rows_out=sum(each.rows for each in tables),
        bytes_out=sum(each.bytes for each in tables),
        splits_out=sum(each.splits for each in tables),
        rows_rejected=_rejected(done),
        **sum((each.late for each in tables), LateMetrics()).as_mapping(),
    )


def _rejected(done: DistributionOutcome) -> int:
    """Return the number of records that no table takes. This number includes the records of unknown tables."""
    return done.unknown.total() + sum(sum(each.rejected.values()) for each in done.tables.values())


def _details(job: DistributeTables, done: DistributionOutcome) -> dict[str, object]:
    return {
        "raw_log": job.raw.name,
        "chunks": done.chunks,
        "tables": {name: asdict(each) for name, each in done.tables.items()},
        "rejected": _rejected(done),
        "unknown_tables": dict(done.unknown),
        "duplicates": dict(done.duplicates),
        "left_out": dict(job.left_out),
        "damaged": [{"key": each.chunk.keys[0], "found": list(each.reasons)} for each in done.damaged.values()],
        **_gaps(job, done.held, done.given_up),
        **_note(job),
    }


def _note(job: DistributeTables) -> dict[str, object]:
    """Return a note if the stores have no record. In this case, the locations of the stores may be wrong."""
    if job.history.unreachable or job.history.segments():
        return {}
    stores = ", ".join(each.uri for each in job.raw.stores)
    return {"note": f"no record is in {stores}. If a producer has written records, correct `stores` in its declaration"}


def _gaps(job: DistributeTables, held: Iterable[HeldChunks], given_up: Iterable[HeldChunks]) -> dict[str, object]:
    return {
        "held": [asdict(each) for each in held],
        "given_up": [asdict(each) for each in dict.fromkeys(given_up)],
        "unreachable": list(job.history.unreachable),
        "collected": dict(job.collected),
    }


def _failure(failures: Mapping[str, TidemarkError]) -> TidemarkError:
    """Return the error of the first table, with the messages of all tables."""
    message = "; ".join(f"table {name}: {error.found}" for name, error in sorted(failures.items()))
    first = failures[min(failures)]
    return first.reworded(f"{message}. All other tables have their rows. Distribute again for the rest")


def run_heal_raw(job: JobRun[HealRaw]) -> JobReport:
    """Copy missing objects between the stores, in this process.

    The key `unreachable` of the report contains the stores that do not answer.
    """
    options = job.options
    raw, stores = raw_stores(options)
    job.stores += stores
    found = heal(stores, clock=SystemClock(), ids=SystemIds(), verify=options.verify, dry_run=options.dry_run)
    done: Status = "committed" if found.bytes else "nothing_to_do"
    details = {"raw_log": raw.name, **asdict(found), "is_whole": found.is_whole}
    status: Status = "planned" if options.dry_run else done
    return job.report(status, 0, metrics=Metrics(bytes_out=found.bytes), details=details)


def run_collect_raw(job: JobRun[CollectRaw]) -> JobReport:
    """Run both passes of the collector in this process. Without a declared retention nothing is deleted.

    The collector deletes no chunk while a declared table does not exist or cannot be opened. The report contains the
    table under `protecting`.

    Raises:
        InvalidInput: The horizon is negative.
        CommitConflict: Another collector is running.
    """
    options = job.options
    if options.horizon_ms is not None and options.horizon_ms < 0:
        raise InvalidInput(
            f"a horizon is at least 0 ms, found {options.horizon_ms}. Give 0 or more", horizon_ms=options.horizon_ms
        )
    log = DistributeTables.open(options)
    collector = RawLogCollector(
        source=log.source,
        stores=log.raw_stores,
        offsets=log.offsets,
        retention_ms=log.raw.retention,
        clock=SystemClock(),
        ids=SystemIds(),
        horizon_ms=HORIZON_MS if options.horizon_ms is None else options.horizon_ms,
    )
    found = collector.collect(dry_run=options.dry_run)
    done: Status = "committed" if any(found.deleted.values()) else "nothing_to_do"
    due = sum(each.size for several in found.candidates.values() for each in several)
    job.stores += log.stores
    status: Status = "planned" if options.dry_run else done
    metrics = Metrics(bytes_in=due, bytes_out=due - found.bytes)
    return job.report(status, 0, metrics=metrics, details=_collection_details(log, found))


def _collection_details(log: DistributeTables, found: RawLogCollection) -> dict[str, object]:
    return {
        "raw_log": log.raw.name,
        "retention_ms": log.raw.retention,
        "horizon_ms": found.horizon_ms,
        **asdict(found.backlog),
        "candidates": {uri: len(several) for uri, several in found.candidates.items()},
        "deleted": {uri: len(several) for uri, several in found.deleted.items()},
        "deleted_bytes": found.bytes,
        "failed": dict(found.failed),
        "unknown_tables": dict(found.unknown),
        "damaged": list(found.damaged),
        "unreachable": list(found.unreachable),
        "protecting": {**log.left_out, **{name: str(error) for name, error in log.failures.items()}},
    }


def run_forget(job: JobRun[Forget]) -> JobReport:
    """Erase rows in this process.

    The details contain the outcome and the report (`docs/spec.md`, section 17). With the option `report`, nothing is
    written, and the report describes the current state. `landed_files` contains the landed files with the rows. A
    person must remove these files. Raises the errors of `Table.forget`.
    """
    options = job.options
    raw_logs, table = _raw_logs(options), Table.open(options.table_uri)
    job.stores.append(table.store)
    if options.report:
        found = table.forget_report(options.where, raw_logs=raw_logs)
        return job.report("planned", found.version, details=_forget_details(table, options, found))
    done = table.forget(options.where, raw_logs=raw_logs)
    details = {
        "rows": done.rows,
        "splits_rewritten": done.splits_rewritten,
        **_forget_details(table, options, done.report),
    }
    return job.report(
        done.status,
        done.version,
        metrics=Metrics(rows_in=done.rows, splits_in=done.splits_rewritten),
        commit_id=done.commit_id or None,
        details=details,
    )


def _forget_details(table: Table, options: Forget, found: ForgetReport) -> dict[str, object]:
    if options.landing is not None:
        spec = LandingSpec.from_json(options.landing)
        found = with_landed_files(found, table.store, table.refresh().snapshot, where=options.where, spec=spec)
    landed = [f"{each.store}/{each.key}" for each in found.held if each.kind == "landed_file"]
    return {"landed_files": landed, **found.to_dict()}


def _raw_logs(options: Forget) -> list[RawTable]:
    if options.raw_logs and options.table is None:
        raise InvalidInput("give --table, the name of the table in the records of the raw logs")
    root = Path(options.root or ".")
    declared = [load_raw_log(each if is_text(each) else root / each) for each in options.raw_logs]
    return [RawTable(options.table or "", [require_shared(below(root, uri)) for uri in each.uris]) for each in declared]


@as_task
def divide(place: TaskEnvironment, item: Item) -> Answer:
    """Divide the records of some chunks of a raw log by table."""
    work = DivideWork.from_json(item["work"])
    raw = [place.open(uri) for uri in work.source.stores]
    return {"result": distribution.divide(work, raw, place.open, clock=place.clock, ids=place.ids).to_json()}


@as_task
def fill(place: TaskEnvironment, item: Item) -> Answer:
    """Write the records of a raw log for one region as the next generation of the region."""
    work = FillWork.from_json(item["work"])
    return {"result": distribution.fill(work, place.open(work.uri), clock=place.clock, ids=place.ids).to_json()}
