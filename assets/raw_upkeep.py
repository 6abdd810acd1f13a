"""The assets that keep up a raw log: `<raw log>/raw_healed` and `<raw log>/raw_collected`
(docs/architecture/orchestration.md, "Assets").
"""

# No `from __future__ import annotations`: Dagster refuses a context whose annotation is text.

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dagster import (
    AssetCheckResult,
    AssetCheckSpec,
    AssetExecutionContext,
    AssetKey,
    AssetsDefinition,
    MaterializeResult,
    ResourceParam,
    asset,
)

from assets.distribution import distributed_key
from assets.launcher import JobName, Launcher, Report
from assets.metadata import json_value, mapping, metadata_of
from assets.names import identifier
from jobs.requests.raw_log import RawLogRequest
from storage_core.raw_declaration import RawLogDeclaration

EVERY_STORE_IS_WHOLE = "every_store_is_whole"
NOTHING_IS_DAMAGED = "nothing_is_damaged"


@dataclass(frozen=True, slots=True)
class RawStep:
    """One asset: its name, its job, what it promises, and its check with the details that must be empty."""

    name: str
    job: JobName
    description: str
    check: str
    empty: tuple[str, ...]


_HEALED = RawStep(
    "raw_healed",
    "heal_raw",
    "Every store has every chunk that any of them has whole.",
    EVERY_STORE_IS_WHOLE,
    ("damaged", "failed", "unreachable"),
)
_COLLECTED = RawStep(
    "raw_collected",
    "collect_raw",
    "Chunks that every table has are gone once they are past the retention.",
    NOTHING_IS_DAMAGED,
    ("damaged", "failed"),
)


def raw_steps(declaration: RawLogDeclaration) -> Iterator[RawStep]:
    """Yield the steps of a raw log: healing where there are several stores, and collection."""
    if len(declaration.stores) > 1:
        yield _HEALED
    yield _COLLECTED


def raw_key(raw_log: str, step: RawStep) -> AssetKey:
    """Return the key of the asset of one step."""
    return AssetKey([raw_log, step.name])


def build_raw_asset(declaration: RawLogDeclaration, step: RawStep, request: RawLogRequest) -> AssetsDefinition:
    """Return the asset of one step of a raw log. It needs the resource `launcher`."""
    key = raw_key(declaration.name, step)

    @asset(
        key=key,
        deps=[distributed_key(declaration.name)] if step is _COLLECTED else [],
        description=step.description,
        group_name=identifier(declaration.name),
        kinds={"python"},
        check_specs=[AssetCheckSpec(step.check, asset=key, description=f"{', '.join(step.empty)}: none.")],
        owners=declaration.owners,
        tags=declaration.tags,
        metadata={"stores": ", ".join(declaration.uris), "job": f"python -m jobs.{step.job}"},
    )
    def kept_up(context: AssetExecutionContext, launcher: ResourceParam[Launcher]) -> MaterializeResult:  # type: ignore[type-arg]  # Dagster recognises the bare class only
        return _result(step, launcher.submit(context, step.job, replace(request, run_id=context.run.run_id)))

    return kept_up


def _result(step: RawStep, report: Report) -> MaterializeResult[None]:
    details = mapping(report["details"])
    found = {name: json_value(details[name]) for name in step.empty if details[name]}
    return MaterializeResult(
        metadata=metadata_of(report),
        check_results=[AssetCheckResult(check_name=step.check, passed=not found, metadata=found)],
    )
