"""The assets of a raw log (`<raw log>/distributed`, `raw_healed`, `raw_collected`) and the Dagster job `forget`.

A person starts the job `forget` to erase rows of a table. The config of the job contains the table and the condition.
The job has no asset, because it runs only once for each condition. Dagster stores the condition with the run
(docs/operations.md, "A person asks to be forgotten"). For the assets see docs/architecture/orchestration.md, "Assets".
"""

import hashlib
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dagster import (
    AssetCheckKey,
    AssetCheckResult,
    AssetCheckSeverity,
    AssetCheckSpec,
    AssetExecutionContext,
    AssetKey,
    AssetsDefinition,
    BetaWarning,
    DagsterInstance,
    DataVersion,
    Failure,
    Field,
    JobDefinition,
    JsonMetadataValue,
    MaterializeResult,
    MetadataValue,
    OpExecutionContext,
    ResourceParam,
    asset,
    job,
    op,
)
from dagster._core.storage.asset_check_execution_record import COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES

from assets.failures import failure_arguments as shown_failure
from assets.launcher import LAUNCHER, Launcher, PartlyDone, Report
from assets.metadata import entries_in, json_value, mapping, metadata_of
from assets.run_tags import TABLE, identifier
from storage_core.base.errors import InvalidInput
from storage_core.change.declaration import RawLogDeclaration, TableDeclaration
from storage_core.data.steps import STEP_OF, STEPS, CollectRaw, Distribute, Forget, HealRaw, RawLogOptions, Step
from storage_core.raw_log_steps import missing_chunks

NOTHING_MISSING = "nothing_is_missing"
NOTHING_REJECTED = "no_rejected_records"
EVERY_STORE_IS_WHOLE = "every_store_is_whole"
NOTHING_IS_DAMAGED = "nothing_is_damaged"


def distributed_key(raw_log: str) -> AssetKey:
    """Return the key of the asset that distributes a raw log."""
    return AssetKey([raw_log, STEPS["distribute"].asset])


def build_distributed_asset(declaration: RawLogDeclaration, request: Distribute) -> AssetsDefinition:
    """Return the asset that distributes a raw log to its tables. The asset needs the resource `launcher`."""
    name, key = declaration.name, distributed_key(declaration.name)

    with warnings.catch_warnings():
        # Pools are a beta feature of Dagster. The lock file pins the version that was tested.
        warnings.simplefilter("ignore", BetaWarning)

        @asset(
            key=key,
            description=STEPS["distribute"].promise,
            group_name=identifier(name),
            kinds=set(STEPS["distribute"].kinds),
            pool=f"tidemark_raw_{identifier(name)}",
            check_specs=[
                AssetCheckSpec(
                    NOTHING_MISSING,
                    asset=key,
                    description="No chunk is missing in all stores. The records after a missing chunk are "
                    "not distributed.",
                ),
                AssetCheckSpec(
                    NOTHING_REJECTED,
                    asset=key,
                    description="Every record of the last run fits a table. Other records are in quarantine.",
                ),
            ],
            owners=declaration.owners,
            tags=declaration.tags,
            metadata={"stores": ", ".join(declaration.uris), "job": "python -m jobs distribute"},
        )
        def distributed(
            context: AssetExecutionContext, launcher: ResourceParam[Launcher]
        ) -> Iterator[MaterializeResult[None]]:
            known = recorded_gaps(context.instance, name)
            try:
                report = launcher.submit(context, replace(request, run_id=context.run.run_id))
            except PartlyDone as partly:
                shown = {**_metadata(partly.report), **partly.metadata}
                raise Failure(partly.description, shown, partly.allow_retries) from partly
            yield _distributed(report)
            held = _held(report)
            if gaps_of(held) - known:  # the run fails once per gap, so each gap sends one alert
                error = missing_chunks(name, held)
                raise Failure(**shown_failure(error.kind, str(error)))

    return distributed


Gap = tuple[str, int, int]
"""A gap of missing chunks: the writer, the number of the first chunk, and the number of the last chunk."""


def gaps_of(held: Iterable[Mapping[str, Any]]) -> frozenset[Gap]:
    """Return the gaps in the list `held` of a distribution report."""
    return frozenset((str(each["writer"]), int(each["first"]), int(each["last"])) for each in held)


def recorded_gaps(instance: DagsterInstance, raw_log: str) -> frozenset[Gap]:
    """Return the gaps in the newest result of the check `nothing_is_missing`. Cost: one query."""
    key = AssetCheckKey(distributed_key(raw_log), NOTHING_MISSING)
    done = COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES
    for each in instance.event_log_storage.get_asset_check_execution_history(key, limit=1, status=done):
        event = each.event and each.event.dagster_event
        found = event and event.asset_check_evaluation_data.metadata.get("held")
        if isinstance(found, JsonMetadataValue) and isinstance(found.data, list):
            return gaps_of(found.data)
    return frozenset()


def _held(report: Report) -> list[Any]:
    """Return the gaps that prevent the distribution of later chunks."""
    return entries_in(mapping(report["details"]), "held")


def _metadata(report: Report) -> dict[str, MetadataValue[Any]]:
    return {**metadata_of(report), "gaps": MetadataValue.int(len(_held(report)))}


def _distributed(report: Report) -> MaterializeResult[None]:
    details = mapping(report["details"])
    held = _held(report)
    tables = mapping(details.get("tables", {}))
    versions = {name: mapping(each)["version"] for name, each in tables.items()}
    return MaterializeResult(
        metadata=_metadata(report),
        data_version=DataVersion(hashlib.sha256(json.dumps(versions, sort_keys=True).encode()).hexdigest()[:16]),
        check_results=[
            AssetCheckResult(
                check_name=NOTHING_MISSING,
                passed=not held,
                metadata={"held": json_value(held), "unreachable": json_value(details.get("unreachable", []))},
            ),
            AssetCheckResult(
                check_name=NOTHING_REJECTED,
                passed=not details.get("rejected"),
                severity=AssetCheckSeverity.WARN,
                metadata={
                    "rejected": json_value(details.get("rejected", 0)),
                    "unknown_tables": json_value(details.get("unknown_tables", {})),
                },
            ),
        ],
    )


@dataclass(frozen=True, slots=True)
class RawStep:
    """One asset of a raw log, with its step and its check. The check passes if the details in `empty` are empty."""

    options: type[RawLogOptions]
    check: str
    empty: tuple[str, ...]

    @property
    def step(self) -> Step:
        """The step of the asset."""
        return STEP_OF[self.options]

    @property
    def job(self) -> str:
        """The name of the step."""
        return self.step.name


_HEALED = RawStep(HealRaw, EVERY_STORE_IS_WHOLE, ("damaged", "failed", "unreachable"))
_COLLECTED = RawStep(CollectRaw, NOTHING_IS_DAMAGED, ("damaged", "failed"))


def raw_steps(declaration: RawLogDeclaration) -> Iterator[RawStep]:
    """Yield the steps of a raw log. Healing is a step only if there are several stores. Every raw log is collected."""
    if len(declaration.stores) > 1:
        yield _HEALED
    yield _COLLECTED


def raw_key(raw_log: str, step: RawStep) -> AssetKey:
    """Return the asset key of one step."""
    return AssetKey([raw_log, step.step.asset])


def build_raw_asset(declaration: RawLogDeclaration, step: RawStep, options: RawLogOptions) -> AssetsDefinition:
    """Return the asset of one step of a raw log. The asset needs the resource `launcher`."""
    key = raw_key(declaration.name, step)

    @asset(
        key=key,
        deps=[distributed_key(declaration.name)] if "distribute" in step.step.follows else [],
        description=step.step.promise,
        group_name=identifier(declaration.name),
        kinds=set(step.step.kinds),
        check_specs=[AssetCheckSpec(step.check, asset=key, description=f"{', '.join(step.empty)}: none.")],
        owners=declaration.owners,
        tags=declaration.tags,
        metadata={"stores": ", ".join(declaration.uris), "job": f"python -m jobs {step.job}"},
    )
    def kept_up(context: AssetExecutionContext, launcher: ResourceParam[Launcher]) -> MaterializeResult:  # type: ignore[type-arg]  # Dagster recognises the bare class only
        return _kept_up(step, launcher.submit(context, replace(options, run_id=context.run.run_id)))

    return kept_up


def _kept_up(step: RawStep, report: Report) -> MaterializeResult[None]:
    details = mapping(report["details"])
    found = {name: json_value(details[name]) for name in step.empty if details[name]}
    return MaterializeResult(
        metadata=metadata_of(report),
        check_results=[AssetCheckResult(check_name=step.check, passed=not found, metadata=found)],
    )


# The job `forget`.


Fed = tuple[TableDeclaration, Sequence[RawLogOptions]]
"""A table, and the raw logs that feed it."""


def build_forget_job(tables: Sequence[Fed], *, prefix: str = "") -> JobDefinition:
    """Return the job that erases rows from a table and from its raw logs. It needs the resource `launcher`.

    With `report`, the job only searches, and it fails if an object still contains the rows. The key `landed_files` in
    the metadata `details` contains the landed files with the rows.
    """

    @op(
        name=f"{prefix}forget_rows",
        config_schema={"table": str, "where": str, "report": Field(bool, default_value=False)},
        required_resource_keys={LAUNCHER},
        description="Erases the rows of `table` that meet `where`. With `report`, only lists the objects "
        "that contain these rows.",
    )
    def forget_rows(context: OpExecutionContext) -> None:
        table, raw_logs = _named(tables, context.op_config["table"])
        landing = table.landing_spec()
        context.instance.add_run_tags(context.run_id, {TABLE: table.name})  # alerts read the table's name here
        request = Forget(
            table_uri=table.uri,
            where=context.op_config["where"],
            table=table.name,
            raw_logs=tuple(each.raw_log for each in raw_logs),
            root=next((each.root for each in raw_logs), None),
            landing=None if landing is None else landing.to_json(),
            report=context.op_config["report"],
            run_id=context.run_id,
        )
        report = getattr(context.resources, LAUNCHER).submit(context, request)
        metadata = metadata_of(report)
        if request.report and not mapping(report["details"])["is_clean"]:
            raise Failure("objects still contain the rows", metadata=metadata, allow_retries=False)
        context.add_output_metadata(metadata)

    @job(
        name=f"{prefix}forget",
        description="Erases the rows of a person, or rows that meet a condition, from a table and its stores.",
    )
    def forget() -> None:
        forget_rows()

    return forget


def _named(tables: Sequence[Fed], name: str) -> Fed:
    for table, raw_logs in tables:
        if table.name == name:
            return table, raw_logs
    known = ", ".join(table.name for table, _ in tables)
    raise Failure(f"{InvalidInput.kind}: {name!r} is not a declared table (declared: {known})", allow_retries=False)
