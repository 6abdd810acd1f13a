"""What `explain` prints: the pruning of a query, or the sources of a search."""

from __future__ import annotations

from typing import Any

from pipelines.commands import output
from storage_core.log.actions import Add
from storage_core.table import Table
from storage_core.wording import counted

Plan = dict[str, Any]


def query_plan(table: Table, query: str) -> Plan:
    """Return the plan of a SELECT as plain data: what each pruning step removed, and the splits that are left."""
    pruned = table.explain(query)
    return {
        "version": table.version,
        "live_splits": len(table.snapshot.splits),
        "live_bytes": table.snapshot.bytes,
        "steps": [{"name": step.name, "splits": step.splits, "bytes": step.bytes} for step in pruned.steps],
        "read_splits": len(pruned.splits),
        "read_bytes": sum(add.size for add in pruned.splits),
        "read": [_split(add) for add in pruned.splits],
    }


def show_query(plan: Plan, *, as_json: bool) -> None:
    """Print the plan of a SELECT."""
    if as_json:
        output.json_line(plan)
        return
    output.line(
        f"version {plan['version']}: {counted(plan['live_splits'], 'split')}, {counted(plan['live_bytes'], 'byte')}"
    )
    for step in plan["steps"]:
        output.line(f"  {step['name']} leaves out {counted(step['splits'], 'split')}, {counted(step['bytes'], 'byte')}")
    output.line(f"  reads {counted(plan['read_splits'], 'split')}, {counted(plan['read_bytes'], 'byte')}")
    shown = {"window_start": output.window, "rows": output.number, "size": output.number, "path": output.cell}
    output.records(plan["read"], shown, as_json=False, nothing="no split can hold a matching row")


def show_search(plan: Plan, *, as_json: bool) -> None:
    """Print the plan of a search."""
    if as_json:
        output.json_line(plan)
        return
    answered, scanned = len(plan["segments"]), len(plan["scanned"])
    output.line(f"index {plan['index']} ({plan['kind']}) at version {plan['version']}, watermark {plan['watermark']}")
    output.line(f"  splits answered from segments: {answered:,}; read and indexed on the fly: {scanned:,}")
    sources = [{"split": split, "from": segment} for split, segment in plan["segments"].items()]
    sources += [{"split": split, "from": "the split itself"} for split in plan["scanned"]]
    shown = {"split": output.cell, "from": output.cell}
    output.records(sources, shown, as_json=False, nothing="the table has no splits")


def _split(add: Add) -> Plan:
    return {
        "path": add.path,
        "size": add.size,
        "rows": None if add.numRecords is None else add.visible_rows,
        "window_start": add.windowStart,
    }
