"""Asset checks that judge a table by its files, its indexes and its regions.

They read and never write. The compaction invariants are also checked inside the job before it commits; here the files
are read back: after a compaction what that run wrote, in the job of all checks the whole table.
"""

# No `from __future__ import annotations`: Dagster refuses a context whose annotation is text.

from collections.abc import Iterable, Iterator, Mapping, Sequence

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

from assets.index_health import index_metadata
from assets.launcher import Launcher, Report
from assets.metadata import entries_in, json_value, mapping
from assets.names import identifier
from assets.run_tags import AUDIT_ALL, AUDIT_TAG
from assets.steps import asset_key, index_asset
from jobs.requests.audit import AuditRequest
from storage_core.declaration import TableDeclaration
from storage_core.errors import Corrupt
from storage_core.index.debt import debt
from storage_core.region import merge
from storage_core.settings.index import IndexDefinition
from storage_core.settings.vector_options import VectorOptions
from storage_core.table import Table, exists
from storage_core.wording import counted
from tidemark.io_manager.failures import typed_failures

# The groups of invariants of docs/architecture/compaction.md, each a check.
AUDITED: Mapping[str, tuple[str, str]] = {
    "TW": ("tw_windows", "Every row lies in the window of its split, and no merge crosses the border of a window."),
    "CS": ("cs_scopes", "Only splits of one compatibility scope and one window were merged, none of before the start."),
    "MC": ("mc_merges", "Every merge kept the visible rows, every value and every column, and left one sorted run."),
    "SS": ("ss_splits", "Every split is sorted as it says; file, log, statistics and native metadata say the same."),
}

INDEX_COVERS_ALL = "covers_every_split"
NO_GAP = "no_generation_missing"
RECALL = "recall_at_least_floor"

_MOST_SHOWN = 20
_K = 10


def build_table_checks(declaration: TableDeclaration) -> list[AssetChecksDefinition]:
    """Return the checks of a table: compaction invariants, coverage of every index, generations without a gap.

    And of vectors the recall, where the index says how low it may be.
    """
    indexes = [_index_check(declaration, index.name) for index in declaration.indexes]
    floors = {each.name: _recall_floor(each.definition()) for each in declaration.indexes}
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
        request = AuditRequest(table_uri=declaration.uri, last_run=only_last)
        report = launcher.submit(context.op_execution_context, "audit", request)
        yield from _verdicts(key, mapping(report["details"]))

    return invariants


def _verdicts(key: AssetKey, details: Report) -> Iterator[AssetCheckResult]:
    """One verdict per group of invariants; nobody has written to a table without details."""
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
    """The first of them in one line: which invariant, where, what was found and what to do."""
    for each in violations:
        where = f" {each['path']}" if each.get("path") else ""
        return f"{each['invariant']}{where}: {each['message']}; {each.get('advice') or 'see docs/operations.md'}"
    return None


def _index_check(declaration: TableDeclaration, index: str) -> AssetChecksDefinition:
    @asset_check(
        asset=asset_key(declaration.name, index_asset(index)),
        name=INDEX_COVERS_ALL,
        description="Every live split has a segment. A lag costs searches time, never answers.",
    )
    def covers_every_split() -> AssetCheckResult:
        with typed_failures():
            table = _open(declaration)
            found = debt(table.snapshot, index) if table else None
        lacking = 0 if found is None else found.uncovered_splits
        advice = f"run: tidemark catch-up {declaration.name} --index {index}"
        return AssetCheckResult(
            passed=not lacking,
            description=f"{index} has no segment of {counted(lacking, 'split')}; {advice}" if lacking else None,
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
        description=f"Searches find at least {floor:g} of the {_K} nearest rows, measured against all rows.",
    )
    def recall_at_least_floor() -> AssetCheckResult:
        with typed_failures():
            table = _open(declaration)
            if table is None or table.snapshot.config.index(index) is None:  # the next catch-up declares it
                return AssetCheckResult(passed=True, metadata={"recall_floor": floor})
            found = table.recall(index, k=_K)
        advice = f"run: tidemark catch-up {declaration.name} --retrain --index {index}"
        return AssetCheckResult(
            passed=found.recall >= floor,
            description=None if found.recall >= floor else f"recall {found.recall:.3f} is below {floor:g}; {advice}",
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
        description="The generations that wait follow those that are merged without a gap.",
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
    """Return the table, None where nobody has written to it yet: then no check has anything to object to."""
    return Table.open(declaration.uri) if exists(declaration.uri) else None
