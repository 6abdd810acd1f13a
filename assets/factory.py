"""The assets of one table, created from its declaration (docs/architecture/orchestration.md, "Assets").

An asset submits one job to the launcher and records the report of the job. The job reads from storage which work is
pending. Every asset can therefore be materialized at any time, in any order, and repeatedly. If a job finds no work,
its report says so.
"""

# This module omits `from __future__ import annotations`, because Dagster rejects a context with a text annotation.

import warnings
from collections.abc import Sequence
from datetime import timedelta

from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetsDefinition,
    BackfillPolicy,
    BetaWarning,
    FreshnessPolicy,
    MaterializeResult,
    ResourceParam,
    asset,
)

from assets.checks import check_quarantine, index_metadata, rejected_lines_spec
from assets.failures import table_metadata, typed_failures
from assets.launcher import Launcher, PartlyDone
from assets.metadata import Project, code_version, metadata_of, metadata_of_asset, tags_of
from assets.recording import record_part, record_run, report_up_to_date
from assets.run_tags import ACCEPT_LATE, ACCEPT_LATE_TAG, COMPACT_STATE, MODE_TAG, STATE_TAG, granted_bytes, identifier
from assets.steps import (
    Span,
    TableStep,
    asset_key,
    is_of_all_windows,
    partitions_of,
    span_of,
    steps_of,
    windows_of,
    windows_per_run,
)
from jobs.due_runs import TableInputs
from storage_core.base.clock import Clock
from storage_core.base.errors import TidemarkError
from storage_core.change.declaration import TableDeclaration
from storage_core.compact.pending_work import Task
from storage_core.data.settings.layout import Mode
from storage_core.data.steps import Step
from storage_core.index.catch_up import measure_backlog
from storage_core.table import Table


def build_table_assets(
    declaration: TableDeclaration,
    *,
    file: str | None = None,
    clock: Clock | None = None,
    distributed: Sequence[AssetKey] = (),
    project: Project = Project(),  # noqa: B008  # the default is immutable
) -> list[AssetsDefinition]:
    """Return the assets of a table in the order of their dependencies. The assets need the resource `launcher`.

    Args:
        declaration: The table.
        file: The path of the declaration. The ingest job reads this file, so a change of the landing location takes
            effect at once.
        clock: The clock that decides which windows are partitions.
        distributed: The assets that distribute the raw logs of the table. The merge of a keyed table runs after
            these assets. In any other table, the compaction runs after these assets.
        project: The properties of the project that assets show.
    """
    span = span_of(declaration, clock)
    fed = "merged" if declaration.primary_key else "compacted"
    return [
        _asset(
            declaration,
            step,
            span=span if step.windowed else None,
            file=file,
            clock=clock,
            before=distributed if step.name == fed else (),
            project=project,
        )
        for step in steps_of(declaration)
    ]


def _asset(
    declaration: TableDeclaration,
    step: TableStep,
    *,
    span: Span | None,
    file: str | None,
    clock: Clock | None,
    before: Sequence[AssetKey],
    project: Project,
) -> AssetsDefinition:
    table, key = declaration.name, asset_key(declaration.name, step.name)

    def now() -> Span | None:
        return span_of(declaration, clock) if span else None

    with warnings.catch_warnings():
        # Backfill policies and pools are beta features of Dagster. The lock file pins the version that was tested.
        warnings.simplefilter("ignore", BetaWarning)

        @asset(
            key=key,
            deps=[*(asset_key(table, name) for name in step.after), *before],
            description=step.promise,
            partitions_def=partitions_of(span) if span else None,
            backfill_policy=BackfillPolicy.multi_run(windows_per_run(span)) if span else None,
            group_name=identifier(table),
            kinds=set(step.step.kinds),
            pool=_pool(table, step.step),
            check_specs=[rejected_lines_spec(key)] if step.job == "ingest" else None,
            freshness_policy=freshness_policy(declaration, step.name),
            owners=declaration.owners,
            tags=tags_of(declaration, project),
            code_version=code_version(declaration),
            metadata={**metadata_of_asset(declaration, project), "job": f"python -m jobs {step.job}"},
        )
        def materialize(context: AssetExecutionContext, launcher: ResourceParam[Launcher]) -> MaterializeResult:  # type: ignore[type-arg]  # Dagster recognises the bare class only
            with typed_failures():
                Table.declare(declaration)
            mode = Mode(context.run.tags.get(MODE_TAG, Mode.FINALIZE))
            options = step.options(
                declaration=file,
                windows=windows_of(context),
                by_window=span is not None,
                run_id=context.run.run_id,
                mode=mode,
                accept_late=context.run.tags.get(ACCEPT_LATE_TAG) == ACCEPT_LATE,
                compact_state=context.run.tags.get(STATE_TAG) == COMPACT_STATE,
                most_bytes=granted_bytes(context.run.tags).get(table),
            )
            try:
                report = launcher.submit(context, options)
            except PartlyDone as partly:
                raise record_part(context, key, partly, _debt_left(_opened(declaration), mode), span=now()) from partly
            context.log.info("%s: %s at version %s", key.to_user_string(), report["status"], report["version"])
            left = _opened(declaration)
            metadata = {**metadata_of(report, _debt_left(left, mode)), **table_metadata(left, table)}
            if step.index is not None:
                with typed_failures():
                    metadata |= index_metadata(measure_backlog(left.snapshot, step.index))
            checks = [check_quarantine(declaration, report, clock)] if step.job == "ingest" else []
            result = record_run(context, key, report, metadata, span=now(), checks=checks)
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
    """Report the other assets of the table that are up to date.

    An error is logged only as a warning, because the step has already succeeded.
    """
    apart = set(context.run.asset_selection or context.job_def.asset_layer.executable_asset_keys)
    if context.has_partition_key_range or is_of_all_windows(context):
        apart -= context.selected_asset_keys if is_windowed else set()  # the work of this step is already recorded
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
        context.log.warning("cannot check which other assets of %s are up to date: %s", declaration.name, error)


def _pool(table: str, step: Step) -> str:
    """Return the pool of a step.

    Steps that add rows have their own pool. These steps therefore do not wait for maintenance of the table (decision
    0037).
    """
    return f"tidemark_{identifier(table)}{'_rows' if step.brings_rows else ''}"


def _opened(declaration: TableDeclaration) -> Table:
    with typed_failures():
        return Table.open(declaration.uri)


def _debt_left(table: Table, mode: Mode) -> int:
    with typed_failures():
        return sum(each.task is Task.COMPACT for each in table.debt(mode))


def freshness_policy(declaration: TableDeclaration, step: str) -> FreshnessPolicy | None:
    """Return the freshness policy of the asset of this step, or None if it has none.

    If the declaration sets `freshness`, the policy belongs to the asset that adds rows. For a table with a landing
    location, this asset is `ingested`. For a keyed table without a landing location, this asset is `merged`. If a table
    has no primary key and no landing location, no step of the table adds rows.
    """
    brings = "ingested" if declaration.landing else "merged"
    if declaration.freshness is None or step != brings:
        return None
    return FreshnessPolicy.time_window(fail_window=timedelta(milliseconds=declaration.freshness))
