"""The asset of one raw log, `<raw log>/distributed`: its rows are in its tables (docs/architecture/orchestration.md,
"Assets").
"""

# No `from __future__ import annotations`: Dagster refuses a context whose annotation is text.

import hashlib
import json
import warnings
from dataclasses import replace
from typing import Any

from dagster import (
    AssetCheckResult,
    AssetCheckSeverity,
    AssetCheckSpec,
    AssetExecutionContext,
    AssetKey,
    AssetsDefinition,
    BetaWarning,
    DataVersion,
    Failure,
    MaterializeResult,
    MetadataValue,
    ResourceParam,
    asset,
)

from assets.launcher import Launcher, PartlyDone, Report
from assets.metadata import entries_in, json_value, mapping, metadata_of
from assets.names import identifier
from jobs.requests.distribute import DistributeRequest
from storage_core.raw_declaration import RawLogDeclaration

NOTHING_MISSING = "nothing_is_missing"
NOTHING_REJECTED = "no_rejected_records"


def distributed_key(raw_log: str) -> AssetKey:
    """Return the key of the asset of a raw log."""
    return AssetKey([raw_log, "distributed"])


def build_distributed_asset(declaration: RawLogDeclaration, request: DistributeRequest) -> AssetsDefinition:
    """Return the asset that distributes a raw log to its tables. It needs the resource `launcher`."""
    name, key = declaration.name, distributed_key(declaration.name)

    with warnings.catch_warnings():
        # Pools are marked as not final; the lock keeps the version they were tried with.
        warnings.simplefilter("ignore", BetaWarning)

        @asset(
            key=key,
            description="Records of closed segments, each exactly once in its table or in quarantine.",
            group_name=identifier(name),
            kinds={"spark", "parquet"},
            pool=f"tidemark_raw_{identifier(name)}",
            check_specs=[
                AssetCheckSpec(
                    NOTHING_MISSING,
                    asset=key,
                    description="No store lacks a chunk that another does not have; what is behind one waits.",
                ),
                AssetCheckSpec(
                    NOTHING_REJECTED,
                    asset=key,
                    description="Every record of the last run fits a table; others are in quarantine.",
                ),
            ],
            owners=declaration.owners,
            tags=declaration.tags,
            metadata={"stores": ", ".join(declaration.uris), "job": "python -m jobs.distribute"},
        )
        def distributed(context: AssetExecutionContext, launcher: ResourceParam[Launcher]) -> MaterializeResult:  # type: ignore[type-arg]  # Dagster recognises the bare class only
            try:
                report = launcher.submit(context, "distribute", replace(request, run_id=context.run.run_id))
            except PartlyDone as partly:
                shown = {**_metadata(partly.report), **partly.metadata}
                raise Failure(partly.description, shown, partly.allow_retries) from partly
            return _result(report)

    return distributed


def _metadata(report: Report) -> dict[str, MetadataValue[Any]]:
    return {**metadata_of(report), "gaps": MetadataValue.int(len(entries_in(mapping(report["details"]), "held")))}


def _result(report: Report) -> MaterializeResult[None]:
    details = mapping(report["details"])
    held = entries_in(details, "held")  # the gaps that hold chunks back
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
