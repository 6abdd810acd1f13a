"""The end of the demo. The module prints the state of each table in one line and writes the report to a file."""

from __future__ import annotations

from pathlib import Path

from examples.narrator import Narrator
from pipelines.report import write_report
from pipelines.status import collect_all_statuses, status_targets
from pipelines.tables import load_tables, tables_folder

REPORT = Path("report.html")


def look(narrator: Narrator) -> None:
    """Show the status of the declared tables, and write their report."""
    narrator.step("Look", "Show late tables, pending work and cost: one line per table, and a page with plots.")
    places = status_targets(load_tables(tables_folder()))
    rows: list[dict[str, object]] = [
        {
            "table": each.place.name,
            "status": each.state.value,
            "rows": each.status.rows,
            "bytes": each.status.bytes,
            "pending": ", ".join(f"{step} {work.count:,}" for step, work in each.status.pending.items()),
        }
        for each in collect_all_statuses(places)
        if each.status is not None
    ]
    narrator.answer("What is the status of each table?", "tidemark status", rows)
    write_report(REPORT, places, failures={})
    narrator.say(f"tidemark report wrote {REPORT}: open it in a browser")
