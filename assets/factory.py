"""The assets of one table, made from its declaration (docs/architecture/orchestration.md, "Assets").

An asset asks the launcher for one job and records its report; what there is to do, the job finds out from storage. So
every asset can be materialized at any time, in any order and again: with nothing to do it says so.
"""

# No `from __future__ import annotations`: Dagster refuses a context whose annotation is text.

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dagster import (
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
from assets.due_runs import TableInputs
from assets.freshness import freshness_policy
from assets.granted import granted_bytes
from assets.index_health import index_metadata
from assets.launcher import JobName, Launcher, PartlyDone
from assets.metadata import metadata_of
from assets.names import identifier
from assets.partitions import Span, is_of_all_windows, partitions_of, span_of, windows_of, windows_per_run
from assets.partly_done import record_part
from assets.recording import recorded
from assets.rejected_lines import rejected_lines_spec
from assets.run_tags import COMPACT_STATE, MODE_TAG, STATE_TAG
from assets.steps import Step, asset_key, steps_of
from assets.up_to_date import report_up_to_date
from storage_core.clock import Clock
from storage_core.compaction.debt import Task
from storage_core.compaction.policy import Mode
from storage_core.declaration import TableDeclaration
from storage_core.errors import TidemarkError
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
            context.log.info("%s: %s at version %s", key.to_user_string(), report["status"], report["version"])
            left = _opened(declaration)
            metadata = {**metadata_of(report, _debt_left(left, mode)), **table_metadata(left, table)}
            if step.request.index is not None:
                with typed_failures():
                    metadata |= index_metadata(debt(left.snapshot, step.request.index))
            checks = [step.judge(declaration, report)] if step.judge else []
            result = recorded(context, key, report, metadata, span=now(), checks=checks)
            _report_up_to_date_assets(context, declaration, left, is_windowed=span is not None, clock=clock)
            return result

    return materialize


def _report_up_to_date_assets(
    context: AssetExecutionContext,
    declaration: TableDeclaration,
    table: Table,
    *,
    is_windowed: bool,
    clock: Clock | None,
) -> None:
    """Report what else of the table is up to date. The step is done, so a look that fails is only a warning."""
    apart = set(context.run.asset_selection or context.job_def.asset_layer.executable_asset_keys)
    if context.has_partition_key_range or is_of_all_windows(context):
        apart -= context.selected_asset_keys if is_windowed else set()  # what the step did is recorded already
    try:
        report_up_to_date(
            context.instance,
            declaration,
            table,
            lambda: TableInputs.of(declaration, clock),
            apart=apart,
            clock=clock,
        )
    except TidemarkError as error:
        context.log.warning("not looked at: which other assets of %s are up to date: %s", declaration.name, error)


def _pool(table: str, job: JobName) -> str:
    """What brings new rows waits for no upkeep of its table (decision 0170)."""
    return f"tidemark_{identifier(table)}{'_rows' if job in _NEW_ROWS else ''}"


def _opened(declaration: TableDeclaration) -> Table:
    with typed_failures():
        return Table.open(declaration.uri)


def _debt_left(table: Table, mode: Mode) -> int:
    with typed_failures():
        return sum(each.task is Task.COMPACT for each in table.debt(mode))
