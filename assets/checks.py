"""Asset checks that judge a table by its files, its indexes and its regions (design pages 04, 05 and 03).

They read and never write. The compaction invariants are also checked inside the job before it commits; here the whole
table is read back, which is why these run in a job of their own.
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
    asset_check,
    multi_asset_check,
)

from assets.factory import asset_key, index_asset
from assets.launcher import typed_failures
from assets.names import identifier
from storage_core.compaction.invariants import Violation, audit
from storage_core.declaration import TableDeclaration
from storage_core.errors import Corrupt
from storage_core.index import catch_up
from storage_core.region import merge
from storage_core.table import Table, exists

# What `audit` reports, by the ids of design page 04.
AUDITED: Mapping[str, tuple[str, str]] = {
    "TW-1": ("tw_1_rows_lie_in_their_window", "Every row of a split lies in the window of the split."),
    "TW-2": ("tw_2_windows_divide_the_hour", "The window of every split is one that tables may have."),
    "SS-1": ("ss_1_splits_are_sorted", "The rows of every split are sorted as the split says."),
    "SS-5": ("ss_5_file_and_log_agree", "File, log and statistics of every split say the same."),
}
INDEX_COVERS_ALL = "covers_every_split"
NO_GAP = "no_generation_missing"

_MOST_SHOWN = 20


def build_table_checks(declaration: TableDeclaration) -> list[AssetChecksDefinition]:
    """Return the checks of a table: compaction invariants, coverage of every index, generations without a gap."""
    indexes = [_index_check(declaration, index.name) for index in declaration.indexes]
    merged = [_merge_check(declaration)] if declaration.primary_key else []
    return [_audit_check(declaration), *indexes, *merged]


def audit_check_keys(declaration: TableDeclaration) -> list[AssetCheckKey]:
    """Return the keys of the checks that read every file of the table."""
    return [AssetCheckKey(asset_key(declaration.name, "compacted"), name) for name, _ in AUDITED.values()]


def check_keys(declaration: TableDeclaration) -> list[AssetCheckKey]:
    """Return the keys of all checks of `build_table_checks`."""
    return [key for each in build_table_checks(declaration) for key in each.check_keys]


def _audit_check(declaration: TableDeclaration) -> AssetChecksDefinition:
    key = asset_key(declaration.name, "compacted")
    specs = [AssetCheckSpec(name, asset=key, description=text) for name, text in AUDITED.values()]

    @multi_asset_check(name=f"{identifier(declaration.name)}_invariants", specs=specs)
    def invariants(context: AssetCheckExecutionContext) -> Iterable[AssetCheckResult]:
        with typed_failures():
            table = _open(declaration)
            violations = audit(table.store, table.snapshot) if table else []
        context.log.info("audited %d splits", len(table.snapshot.splits) if table else 0)
        yield from _verdicts(key, violations)

    return invariants


def _verdicts(key: AssetKey, violations: Sequence[Violation]) -> Iterator[AssetCheckResult]:
    for invariant, (name, _) in AUDITED.items():
        found = [f"{each.path}: {each.message}" for each in violations if each.invariant == invariant]
        yield AssetCheckResult(
            asset_key=key,
            check_name=name,
            passed=not found,
            metadata={"violations": len(found), "first": MetadataValue.json(found[:_MOST_SHOWN])},
        )


def _index_check(declaration: TableDeclaration, index: str) -> AssetChecksDefinition:
    @asset_check(
        asset=asset_key(declaration.name, index_asset(index)),
        name=INDEX_COVERS_ALL,
        description="Every live split has a segment. A lag costs searches time, never answers.",
    )
    def covers_every_split() -> AssetCheckResult:
        with typed_failures():
            table = _open(declaration)
            missing = catch_up.plan(table.snapshot, index).work if table else ()
            watermark = catch_up.watermark(table.snapshot, index) if table else 0
        return AssetCheckResult(
            passed=not missing,
            severity=AssetCheckSeverity.WARN,
            metadata={"splits_missing": len(missing), "watermark": watermark},
        )

    return covers_every_split


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
