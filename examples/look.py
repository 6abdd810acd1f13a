"""The end of the demo. It prints one line with the state of each table, and writes the report to a file."""

from __future__ import annotations

from pathlib import Path

from examples.narrator import Narrator
from pipelines.report import write_report
from pipelines.status import look_at_all, places_of
from pipelines.tables import load_tables, tables_folder

REPORT = Path("report.html")


def look(narrator: Narrator) -> None:
    """Show the status of the declared tables, and write their report."""
    narrator.step("Look", "Show late tables, pending work and cost: one line per table, and a page with plots.")
    places = places_of(load_tables(tables_folder()))
    rows: list[dict[str, object]] = [
        {
            "table": each.place.name,
            "status": each.state.value,
            "rows": each.status.rows,
            "bytes": each.status.bytes,
            "owed": ", ".join(f"{step} {owed.count:,}" for step, owed in each.status.owed.items()),
        }
        for each in look_at_all(places)
        if each.status is not None
    ]
    narrator.answer("How is every table?", "tidemark status", rows)
    write_report(REPORT, places, failures={})
    narrator.say(f"tidemark report wrote {REPORT}: open it in a browser")
