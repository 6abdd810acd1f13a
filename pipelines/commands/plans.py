"""What `explain`, and `sql` and `search` with --explain or --analyze, print."""

from __future__ import annotations

from pipelines.commands import output
from storage_core.engine.statement import TABLE
from storage_core.read.plan import Plan
from storage_core.search.plan import SearchPlan


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


def show_search(plan: SearchPlan, *, as_json: bool) -> None:
    """Print the plan of a search."""
    if as_json:
        output.json_line(plan.to_dict())
    else:
        output.line(str(plan))
