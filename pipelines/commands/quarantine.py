"""`quarantine`: what came in and is not in the table, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.commands import output
from pipelines.commands.arguments import Json, Uri
from pipelines.commands.target import open_table

if TYPE_CHECKING:
    from storage_core.formats.quarantine_entry import Entry, SetAsideRows
    from storage_core.table import Table

_NOTHING = "nothing is in quarantine"


def quarantine(
    uri: Uri,
    *,
    source: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only of this landed file, or of append or writer.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Print the lines and rows themselves.")] = False,
    as_json: Json = False,
) -> None:
    """List what came in and is not in the table, and why.

    Lines of landed files that are no rows, and late rows that the table does not accept.
    """
    found = _entries(open_table(uri), source)
    if show:
        _show(found, as_json=as_json)
        return
    shown = {"reason": output.cell, "source": output.cell, "kind": output.cell, "count": output.figure}
    shown |= {"arrived_at": output.moment_ms, "by": output.cell}
    listed = (each for key, entry in found for each in _counts(key, entry))
    output.records(listed, shown, as_json=as_json, nothing=_NOTHING)


def _entries(table: Table, source: str | None) -> Iterator[tuple[str, Entry]]:
    from storage_core.quarantine import read_entries

    for key, entry in read_entries(table.store):
        if source is None or entry.source == source:
            yield key, entry


def _counts(key: str, entry: Entry) -> Iterator[output.Record]:
    """One record per reason; a foreign file can make up any number of them, so the rare ones are taken together."""
    from storage_core.formats.quarantine_entry import SetAsideRows
    from storage_core.ingest.tally import tally

    rows = entry if isinstance(entry, SetAsideRows) else None
    about = {"kind": "rows" if rows else "lines", "key": key, "source": entry.source, "size": entry.size}
    about |= {"by": rows.by if rows else None, "arrived_at": rows.arrived_ms if rows else None}
    yield from ({**about, "reason": reason, "count": count} for reason, count in tally(entry.reasons).items())


def _show(found: Iterator[tuple[str, Entry]], *, as_json: bool) -> None:
    from storage_core.formats.quarantine_entry import SetAsideRows

    empty = True
    for key, entry in found:
        empty = False
        if isinstance(entry, SetAsideRows):
            _show_rows(key, entry, as_json=as_json)
            continue
        lines = ({"key": key, "source": entry.source, **each} for each in entry.rejected)
        shown = dict.fromkeys(("source", "line", "reason", "text"), output.cell)
        output.records(lines, shown, as_json=as_json, nothing="")
    if empty and not as_json:
        output.line(_NOTHING)


def _show_rows(key: str, entry: SetAsideRows, *, as_json: bool) -> None:
    from storage_core.rows.calendar import as_text

    if as_json:
        about = {"key": key, "source": entry.source, "reason": entry.reason, "by": entry.by}
        for row in as_text(entry.rows).to_pylist():
            output.json_line({**about, "arrived_at": entry.arrived_ms, "row": row})
        return
    arrived = output.moment_ms(entry.arrived_ms)
    output.line(output.printable(f"{entry.reason}, of {entry.source} by {entry.by}, arrived {arrived}:"))
    output.rows(entry.rows, as_json=False)
