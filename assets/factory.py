"""The assets of one table, made from its declaration (docs/architecture/orchestration.md, "Assets").

An asset asks the launcher for one job and records its report; what there is to do, the job finds out from storage. So
every asset can be materialized at any time, in any order and again: with nothing to do it says so.
"""

# No `from __future__ import annotations`: Dagster refuses a context whose annotation is text.

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dagster import (
    AssetCheckResult,
    AssetExecutionContext,
    AssetKey,
    AssetsDefinition,
    BackfillPolicy,
    BetaWarning,
    MaterializeResult,
    ResourceParam,
    asset,
)

from assets.definition_metadata import Project, code_version, metadata_of_asset, tags_of
from assets.freshness import freshness_policy
from assets.granted import granted_bytes
from assets.index_health import index_metadata
from assets.launcher import JobName, Launcher, PartlyDone, Report
from assets.metadata import metadata_of
from assets.names import identifier
from assets.partitions import Span, partitions_of, span_of, windows_of, windows_per_run
from assets.partly_done import record_part
from assets.recording import recorded
from assets.rejected_lines import judged_by_quarantine, rejected_lines_spec
from assets.run_tags import COMPACT_STATE, MODE_TAG, STATE_TAG
from jobs.requests.request import JobRequest
from storage_core.clock import Clock
from storage_core.compaction.debt import Task
from storage_core.compaction.policy import Mode
from storage_core.declaration import TableDeclaration
from storage_core.index.debt import debt
from storage_core.table import Table
from tidemark.io_manager.failures import typed_failures
from tidemark.io_manager.metadata import table_metadata

# What the UI shows on an asset: who does the work, and in which format the result is.
_KINDS: Mapping[JobName, set[str]] = {
    "ingest": {"spark", "parquet"},
    "merge": {"spark", "parquet"},
    "sort": {"spark"},
    "expire": {"python"},
    "compact": {"spark", "parquet"},
    "checkpoint": {"avro"},
    "catch_up": {"spark"},
    "collect": {"python"},
    "publish": {"python"},
}

_NEW_ROWS: frozenset[JobName] = frozenset({"ingest", "merge", "sort"})

Judge = Callable[[TableDeclaration, Report], AssetCheckResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One asset of a table: the job it runs, what it follows, and what the job's report has to show."""

    name: str
    job: JobName
    description: str
    after: tuple[str, ...] = ()
    windowed: bool = False
    request: JobRequest
    judge: Judge | None = None


def build_table_assets(
    declaration: TableDeclaration,
    *,
    file: str | None = None,
    clock: Clock | None = None,
    distributed: Sequence[AssetKey] = (),
    project: Project = Project(),  # noqa: B008  # nothing in it changes
) -> list[AssetsDefinition]:
    """Return the assets of a table in the order of their dependencies.

    `file` is the declaration's path, handed to the ingest job so that a changed landing place is in force at once.
    `distributed` are the assets of the raw logs that feed the table: what they bring, a keyed table merges and another
    one compacts. The assets show what is said of the `project`, and need the resource `launcher`.
    """
    span = span_of(declaration, clock)
    fed = "merged" if declaration.primary_key else "compacted"
    return [
        _asset(
            declaration,
            step,
            span=span if step.windowed else None,
            clock=clock,
            before=distributed if step.name == fed else (),
            project=project,
        )
        for step in steps_of(declaration, file)
    ]


def asset_key(table: str, name: str) -> AssetKey:
    """Return the key of one asset of a table."""
    return AssetKey([table, name])


def index_asset(index: str) -> str:
    """Return the name of the asset that keeps an index."""
    return f"index_{index}"


def steps_of(declaration: TableDeclaration, file: str | None = None) -> list[Step]:
    """Return the steps that a table has: what it does not declare (files, key, indexes, retention) has no asset."""
    base = JobRequest(table_uri=declaration.uri)
    sources = _sources(declaration, replace(base, declaration=file))
    expired = [_expired(base, sources)] if declaration.retention is not None else []
    compacted = Step(
        name="compacted",
        job="compact",
        description="The splits of each window as one sorted run: the rows of all of them, none lost, none twice.",
        after=_names([*sources, *expired]),
        windowed=declaration.window is not None,
        request=base,
    )
    tidied = [_sorted(base)] if declaration.primary_key else []
    return [*sources, *tidied, *expired, compacted, *_after_compaction(declaration, base)]


def _sources(declaration: TableDeclaration, request: JobRequest) -> list[Step]:
    ingested = Step(
        name="ingested",
        job="ingest",
        description="Rows of landed files, each exactly once; lines that are no rows are in quarantine.",
        windowed=declaration.window is not None and not (declaration.landing and declaration.landing.is_delta),
        request=request,
        judge=judged_by_quarantine,
    )
    merged = Step(
        name="merged",
        job="merge",
        description="Rows of region writers, applied to the base: per key the newest wins.",
        after=("ingested",) if declaration.landing else (),
        request=replace(request, declaration=None),
    )
    return ([ingested] if declaration.landing else []) + ([merged] if declaration.primary_key else [])


def _after_compaction(declaration: TableDeclaration, request: JobRequest) -> list[Step]:
    checkpointed = Step(
        name="checkpointed",
        job="checkpoint",
        description="The state of the newest version as Avro, so that opening the table stays fast.",
        after=("compacted",),
        request=request,
    )
    indexes = [
        Step(
            name=index_asset(index.name),
            job="catch_up",
            description=f"Segments of the {index.kind} index on {', '.join(index.columns)} for all live splits.",
            after=("compacted",),
            request=replace(request, index=index.name),
        )
        for index in declaration.indexes
    ]
    published = Step(
        name="published",
        job="publish",
        description="The newest versions as readers of Delta or Iceberg see them: a log that names the same splits.",
        after=("compacted",),
        request=request,
    )
    published_as = [published] if declaration.publish.formats else []
    collected = Step(
        name="collected",
        job="collect",
        description="Objects that no retained version needs, deleted once they are older than the horizon.",
        after=_names([checkpointed, *indexes, *published_as]),
        request=request,
    )
    return [checkpointed, *indexes, *published_as, collected]


def _names(steps: Sequence[Step]) -> tuple[str, ...]:
    return tuple(step.name for step in steps)


def _sorted(request: JobRequest) -> Step:
    # After the merge: what that is about to take is not worth sorting.
    return Step(
        name="sorted",
        job="sort",
        description="Generations that merges left behind: where many wait in a region, one sorted by key.",
        after=("merged",),
        request=request,
    )


def _expired(request: JobRequest, sources: Sequence[Step]) -> Step:
    # Before the compaction: what is about to leave is not worth rewriting.
    return Step(
        name="expired",
        job="expire",
        description="Windows older than the retention have left the table, each as a whole.",
        after=_names(sources),
        request=request,
    )


def _asset(
    declaration: TableDeclaration,
    step: Step,
    *,
    span: Span | None,
    clock: Clock | None,
    before: Sequence[AssetKey],
    project: Project,
) -> AssetsDefinition:
    table, key = declaration.name, asset_key(declaration.name, step.name)

    def now() -> Span | None:
        return span_of(declaration, clock) if span else None

    with warnings.catch_warnings():
        # Backfill policies and pools are marked as not final; the lock keeps the version they were tried with.
        warnings.simplefilter("ignore", BetaWarning)

        @asset(
            key=key,
            deps=[*(asset_key(table, name) for name in step.after), *before],
            description=step.description,
            partitions_def=partitions_of(span) if span else None,
            backfill_policy=BackfillPolicy.multi_run(windows_per_run(span)) if span else None,
            group_name=identifier(table),
            kinds=_KINDS[step.job],
            pool=_pool(table, step.job),
            check_specs=[rejected_lines_spec(key)] if step.judge else None,
            freshness_policy=freshness_policy(declaration, step.name),
            owners=declaration.owners,
            tags=tags_of(declaration, project),
            code_version=code_version(declaration),
            metadata={**metadata_of_asset(declaration, project), "job": f"python -m jobs.{step.job}"},
        )
        def materialize(context: AssetExecutionContext, launcher: ResourceParam[Launcher]) -> MaterializeResult:  # type: ignore[type-arg]  # Dagster recognises the bare class only
            with typed_failures():
                Table.declare(declaration)
            mode = Mode(context.run.tags.get(MODE_TAG, Mode.FINALIZE))
            request = replace(
                step.request,
                windows=windows_of(context),
                by_window=span is not None,
                run_id=context.run.run_id,
                mode=mode,
                compact_state=context.run.tags.get(STATE_TAG) == COMPACT_STATE,
                most_bytes=granted_bytes(context.run.tags).get(table),
            )
            try:
                report = launcher.submit(context, step.job, request)
            except PartlyDone as partly:
                raise record_part(context, key, partly, _debt_left(_opened(declaration), mode), span=now()) from partly
            left = _opened(declaration)
            metadata = {**metadata_of(report, _debt_left(left, mode)), **table_metadata(left, table)}
            if step.request.index is not None:
                with typed_failures():
                    metadata |= index_metadata(debt(left.snapshot, step.request.index))
            checks = [step.judge(declaration, report)] if step.judge else []
            return recorded(context, key, report, metadata, span=now(), checks=checks)

    return materialize


def _pool(table: str, job: JobName) -> str:
    """What brings new rows waits for no upkeep of its table (decision 0170)."""
    return f"tidemark_{identifier(table)}{'_rows' if job in _NEW_ROWS else ''}"


def _opened(declaration: TableDeclaration) -> Table:
    with typed_failures():
        return Table.open(declaration.uri)


def _debt_left(table: Table, mode: Mode) -> int:
    with typed_failures():
        return sum(each.task is Task.COMPACT for each in table.debt(mode))
