"""What `explain` prints: the pruning of a query, or the sources of a search."""

from __future__ import annotations

from typing import Any

from pipelines.commands import output
from storage_core.engine.statement import TABLE
from storage_core.read.plan import Plan


def show_query(plan: Plan, *, as_json: bool, with_splits: bool = False) -> None:
    """Print the plan of a SELECT, and `with_splits` those that it reads."""
    if as_json:
        output.json_line(plan.to_dict())
        return
    output.line(str(plan))
    if with_splits:
        shown = {"window_start": output.window, "rows": output.number, "size": output.number, "path": output.cell}
        read = plan[TABLE].to_dict()["read"]
        output.records(read, shown, as_json=False, nothing="no split can hold a matching row")


def show_search(plan: dict[str, Any], *, as_json: bool) -> None:
    """Print the plan of a search, or of each index of it."""
    if as_json:
        output.json_line(plan)
        return
    if "parts" in plan:
        for part in plan["parts"]:
            show_search(part, as_json=False)
        return
    answered, scanned = len(plan["segments"].keys() - {*plan["scanned"]}), len(plan["scanned"])
    output.line(f"index {plan['index']} ({plan['kind']}) at version {plan['version']}, watermark {plan['watermark']}")
    how = "scored exactly" if plan["kind"] == "vector" else "indexed on the fly"
    output.line(f"  splits answered from segments: {answered:,}; read and {how}: {scanned:,}")
    sources = [{"split": split, "from": segment} for split, found in plan["segments"].items() for segment in found]
    sources += [{"split": split, "from": "the split itself"} for split in plan["scanned"]]
    shown = {"split": output.cell, "from": output.cell}
    output.records(sources, shown, as_json=False, nothing="the table has no splits")
