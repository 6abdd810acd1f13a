"""The check `no_rejected_lines` of landed files: it judges what stands in quarantine, not what a run put there."""

from __future__ import annotations

from dagster import AssetCheckResult, AssetCheckSeverity, AssetCheckSpec, AssetKey

from assets.launcher import Report
from assets.metadata import json_value, mapping
from storage_core.declaration import TableDeclaration
from storage_core.errors import Corrupt
from storage_core.ingest.quarantine import quarantined
from storage_core.table import Table
from storage_core.wording import counted
from tidemark.io_manager.failures import typed_failures

REJECTED_LINES = "no_rejected_lines"


def rejected_lines_spec(key: AssetKey) -> AssetCheckSpec:
    """Return what Dagster shows of the check before it ran."""
    description = "Every line that landed is a row. Lines that are none stand in quarantine until someone removes them."
    return AssetCheckSpec(REJECTED_LINES, asset=key, description=description)


def judged_by_quarantine(declaration: TableDeclaration, report: Report) -> AssetCheckResult:
    """Return the result after an ingest. By the lines of this run alone the next one would make it green."""
    rejected = mapping(report["details"]).get("rejected", 0)
    with typed_failures():
        try:
            found = quarantined(Table.open(declaration.uri).store)
        except Corrupt as error:  # the rows are in
            return AssetCheckResult(check_name=REJECTED_LINES, passed=False, description=str(error))
    passed = not (rejected or found.lines or found.unread)
    advice = f"look with: tidemark quarantine {declaration.name}"
    return AssetCheckResult(
        check_name=REJECTED_LINES,
        passed=passed,
        description=None if passed else f"{counted(found.lines, 'line')} in quarantine of {declaration.name}; {advice}",
        severity=AssetCheckSeverity.WARN,
        metadata={
            "rejected": json_value(rejected),
            "in_quarantine": found.lines,
            "reasons": json_value(found.reasons),
            "entries_not_read": found.unread,
        },
    )
