"""Asset checks that examine the files, indexes and regions of a table.

The checks only read. A compaction job checks the same invariants before it commits. The asset checks read the committed
files again. After a compaction, the checks read only the files that this compaction wrote. The job that runs all checks
reads the files of the whole table.
"""

# This module omits `from __future__ import annotations`, because Dagster rejects a context with a text annotation.

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dagster import (
    AssetCheckExecutionContext,
    AssetCheckKey,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetCheckSpec,
    AssetKey,
    MetadataValue,
    ResourceParam,
    asset_check,
    multi_asset_check,
)

from assets.failures import typed_failures
from assets.launcher import Launcher, Report
from assets.metadata import entries_in, json_value, mapping
from assets.run_tags import AUDIT_ALL, AUDIT_TAG, identifier
from assets.steps import asset_key, index_asset
from storage_core.base.clock import Clock, SystemClock
from storage_core.base.errors import Corrupt
from storage_core.base.text import counted
from storage_core.change.declaration import TableDeclaration
from storage_core.data.settings.index import IndexDefinition, VectorOptions
from storage_core.data.steps import Audit
from storage_core.index.catch_up import IndexBacklog, measure_backlog
from storage_core.maintain.quarantine import count_rejected
from storage_core.maintain.rejections import measure_rejections, rejection_text
from storage_core.table import Table, exists
from storage_core.write.region import merge

# The groups of invariants in docs/architecture/compaction.md. Each group is one check.
AUDITED: Mapping[str, tuple[str, str]] = {
    "TW": ("tw_windows", "Every row is in the window of its split, and no merge combines two windows."),
    "CS": (
        "cs_scopes",
        "Every merge combined splits of one scope and one window, and no split before the start of compaction.",
    ),
    "MC": ("mc_merges", "Every merge kept the visible rows, every value and every column, and left one sorted run."),
    "SS": ("ss_splits", "Every split has its declared order. File, log, statistics and native metadata agree."),
}

INDEX_COVERS_ALL = "covers_every_split"
NO_GAP = "no_generation_missing"
RECALL = "recall_at_least_floor"
REJECTED_LINES = "no_rejected_lines"

CHECK_NAMES = (*(name for name, _ in AUDITED.values()), INDEX_COVERS_ALL, NO_GAP, RECALL, REJECTED_LINES)
"""The name of every check that an asset can have."""

INDEX_METADATA = frozenset(f"index_{name}" for name in IndexBacklog.__dataclass_fields__)
"""The metadata that a materialization of an index adds to the report of its job.

Only a vector index has all these keys.
"""

_MOST_SHOWN = 20
_K = 10


def build_table_checks(declaration: TableDeclaration) -> list[AssetChecksDefinition]:
    """Return the checks of a table.

    The checks examine the compaction invariants, the coverage of every index, and whether a generation is missing. If a
    vector index declares a lowest allowed recall, another check measures its recall.
    """
    indexes = [_index_check(declaration, index.name) for index in declaration.indexes]
    floors = {each.name: _recall_floor(each) for each in declaration.indexes}
    indexes += [_recall_check(declaration, name, floor) for name, floor in floors.items() if floor is not None]
    merged = [_merge_check(declaration)] if declaration.primary_key else []
    return [_audit_check(declaration), *indexes, *merged]


def check_keys(declaration: TableDeclaration) -> list[AssetCheckKey]:
    """Return the keys of all checks of `build_table_checks`."""
    return [key for each in build_table_checks(declaration) for key in each.check_keys]


def _audit_check(declaration: TableDeclaration) -> AssetChecksDefinition:
    key = asset_key(declaration.name, "compacted")
    specs = [AssetCheckSpec(name, asset=key, description=text) for name, text in AUDITED.values()]

    @multi_asset_check(name=f"{identifier(declaration.name)}_invariants", specs=specs)
    def invariants(
        context: AssetCheckExecutionContext,
        launcher: ResourceParam[Launcher],
    ) -> Iterable[AssetCheckResult]:
        if not exists(declaration.uri):
            yield from _verdicts(key, {})
            return
        only_last = context.run.tags.get(AUDIT_TAG) != AUDIT_ALL
        request = Audit(table_uri=declaration.uri, last_run=only_last)
        report = launcher.submit(context.op_execution_context, request)
        yield from _verdicts(key, mapping(report["details"]))

    return invariants


def _verdicts(key: AssetKey, details: Report) -> Iterator[AssetCheckResult]:
    """Yield one result per group of invariants. Empty details mean that the table does not exist yet."""
    counts = mapping(details.get("violated", {}))
    violations = entries_in(details, "violations")
    for group, (name, _) in AUDITED.items():
        found = {each: count for each, count in counts.items() if each.startswith(group)}
        shown = [each for each in violations if each["invariant"] in found]
        yield AssetCheckResult(
            asset_key=key,
            check_name=name,
            passed=not found,
            description=_first(shown),
            metadata={
                "violated": MetadataValue.json(found),
                "first": MetadataValue.json(shown[:_MOST_SHOWN]),
                **{each: json_value(details.get(each, 0)) for each in ("splits", "merges", "not_checkable")},
            },
        )


def _first(violations: Sequence[Report]) -> str | None:
    """Return the first violation in one line.

    The line contains the invariant, the location, the fault and the advice.
    """
    for each in violations:
        where = f" {each['path']}" if each.get("path") else ""
        return f"{each['invariant']}{where}: {each['message']}. {each.get('advice') or 'See docs/operations.md'}"
    return None


def _index_check(declaration: TableDeclaration, index: str) -> AssetChecksDefinition:
    @asset_check(
        asset=asset_key(declaration.name, index_asset(index)),
        name=INDEX_COVERS_ALL,
        description="Every live split has a segment. A missing segment makes searches slower, not wrong.",
    )
    def covers_every_split() -> AssetCheckResult:
        with typed_failures():
            table = _open(declaration)
            found = measure_backlog(table.snapshot, index) if table else None
        lacking = 0 if found is None else found.uncovered_splits
        advice = f"Run: tidemark catch-up {declaration.name} --index {index}"
        return AssetCheckResult(
            passed=not lacking,
            description=f"{index} has no segment for {counted(lacking, 'split')}. {advice}" if lacking else None,
            severity=AssetCheckSeverity.WARN,
            metadata=index_metadata(found) if found else {},
        )

    return covers_every_split


def _recall_floor(definition: IndexDefinition) -> float | None:
    is_vector = definition.kind == "vector"
    return VectorOptions.of(definition.name, definition.options).recall_floor if is_vector else None


def _recall_check(declaration: TableDeclaration, index: str, floor: float) -> AssetChecksDefinition:
    @asset_check(
        asset=asset_key(declaration.name, index_asset(index)),
        name=RECALL,
        description=f"Searches find at least {floor:g} of the {_K} nearest rows. The check compares with exact "
        "searches of all rows.",
    )
    def recall_at_least_floor() -> AssetCheckResult:
        with typed_failures():
            table = _open(declaration)
            if table is None or table.snapshot.config.index(index) is None:  # the next catch-up adds the index
                return AssetCheckResult(passed=True, metadata={"recall_floor": floor})
            found = table.recall(index, k=_K)
        advice = f"Run: tidemark catch-up {declaration.name} --retrain --index {index}"
        return AssetCheckResult(
            passed=found.recall >= floor,
            description=None if found.recall >= floor else f"recall {found.recall:.3f} is below {floor:g}. {advice}",
            metadata={
                "recall": MetadataValue.float(found.recall),
                "recall_floor": MetadataValue.float(floor),
                "queries": found.queries,
                "candidates": found.candidates,
                "rows": found.rows,
            },
        )

    return recall_at_least_floor


def _merge_check(declaration: TableDeclaration) -> AssetChecksDefinition:
    @asset_check(
        asset=asset_key(declaration.name, "merged"),
        name=NO_GAP,
        description="No generation is missing between the merged and the unmerged generations.",
    )
    def no_generation_missing() -> AssetCheckResult:
        with typed_failures():
            table = _open(declaration)
            try:
                work = merge.plan(table.store, table.snapshot) if table else []
            except Corrupt as error:
                return AssetCheckResult(passed=False, description=str(error))
        return AssetCheckResult(
            passed=True, metadata={"generations_waiting": sum(len(each.generations) for each in work)}
        )

    return no_generation_missing


def _open(declaration: TableDeclaration) -> Table | None:
    """Return the table, or None if it does not exist yet. Without a table, all checks pass."""
    return Table.open(declaration.uri) if exists(declaration.uri) else None


def rejected_lines_spec(key: AssetKey) -> AssetCheckSpec:
    """Return the specification of the check on rejected lines. Dagster shows the specification before the first run."""
    description = (
        "Every landed line is a valid row. Other lines stay in quarantine until someone removes them. The check is an "
        "error if the last 24 hours rejected more than `landing.max_rejected`, and otherwise a warning."
    )
    return AssetCheckSpec(REJECTED_LINES, asset=key, description=description)


def check_quarantine(declaration: TableDeclaration, report: Report, clock: Clock | None = None) -> AssetCheckResult:
    """Return the result of the check on rejected lines after an ingest. The check examines the whole quarantine.

    If the check examined only the lines of this run, it would pass in the next run. A failed check is an error if the
    rows rejected in 24 hours exceed the limit of the table. Otherwise, the failed check is a warning.
    """
    rejected = mapping(report["details"]).get("rejected", 0)
    with typed_failures():
        table = Table.open(declaration.uri)
        try:
            found = count_rejected(table.store, table.snapshot)
        except Corrupt as error:  # the rows are already ingested
            return AssetCheckResult(check_name=REJECTED_LINES, passed=False, description=str(error))
        passed = not (rejected or found.lines or found.unread)
        now_ms = (clock or SystemClock()).now_ms()
        day = None if passed else measure_rejections(table.store, table.snapshot, now_ms=now_ms)
    is_above = day is not None and day.is_above
    advice = f"Show the lines with: tidemark quarantine {declaration.name}"
    lines = f"{counted(found.lines, 'line')} in quarantine of {declaration.name}. {advice}"
    return AssetCheckResult(
        check_name=REJECTED_LINES,
        passed=passed,
        description=None if passed else rejection_text(day, declaration.name) if day and is_above else lines,
        severity=AssetCheckSeverity.ERROR if is_above else AssetCheckSeverity.WARN,
        metadata={
            "rejected": json_value(rejected),
            "rows_in": day.rows_in if day else 0,
            "rows_rejected": day.rows_rejected if day else 0,
            "share": MetadataValue.float(day.share if day else 0.0),
            "in_quarantine": found.lines,
            "reasons": json_value(found.reasons),
            "entries_not_read": found.unread,
        },
    )


def index_metadata(found: IndexBacklog) -> Mapping[str, MetadataValue[Any]]:
    """Return the pending work of an index as numbers.

    The result contains only the numbers that this kind of index has.
    """
    numbers = {f"index_{name}": value for name, value in asdict(found).items()}
    return {
        name: MetadataValue.float(value) if isinstance(value, float) else MetadataValue.int(value)
        for name, value in numbers.items()
        if value is not None
    }
