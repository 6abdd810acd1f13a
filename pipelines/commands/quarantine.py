"""`quarantine`: what came in and is not in the table, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.commands import output
from pipelines.commands.arguments import Everything, Json, Uri
from pipelines.commands.target import open_table

if TYPE_CHECKING:
    from storage_core.formats.quarantine_entry import Entry
    from storage_core.table import Table

_MOST_SHOWN = 20
_NOTHING = "nothing is in quarantine"


def quarantine(
    uri: Uri,
    *,
    source: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only of this landed file, or of append or writer.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Print the lines and rows themselves.")] = False,
    everything: Everything = False,
    as_json: Json = False,
) -> None:
    """List what came in and is not in the table, and why.

    Lines of landed files that are no rows, and late rows that the table does not accept.
    """
    found = _entries(open_table(uri), source)
    if show and as_json:
        _show_json(found)
        return
    if show:
        _show(found, everything=everything)
        return
    shown = {"reason": output.cell, "source": output.cell, "kind": output.cell, "count": output.number}
    shown |= {"arrived_at": output.instant_ms, "by": output.cell}
    listed = (each for key, entry in found for each in _counts(key, entry))
    most = None if everything else output.MOST_TEXT_ROWS
    output.records(listed, shown, as_json=as_json, nothing=_NOTHING, most=most, more="--all")


def _entries(table: Table, source: str | None) -> Iterator[tuple[str, Entry]]:
    from storage_core.quarantine import read_entries

    for key, entry in read_entries(table.store):
        if source is None or entry.source == source:
            yield key, entry


def _counts(key: str, entry: Entry) -> Iterator[output.Record]:
    """One record per reason; a foreign file can make up any number of them, so the rare ones are taken together."""
    from storage_core.formats.quarantine_entry import QuarantinedRows
    from storage_core.ingest.tally import tally

    rows = entry if isinstance(entry, QuarantinedRows) else None
    about = {"kind": "rows" if rows else "lines", "key": key, "source": entry.source, "size": entry.size}
    about |= {"by": rows.by if rows else None, "arrived_at": rows.arrived_ms if rows else None}
    yield from ({**about, "reason": reason, "count": count} for reason, count in tally(entry.reasons).items())


def _show_json(found: Iterator[tuple[str, Entry]]) -> None:
    from pipelines.commands.row_values import shown_rows
    from storage_core.formats.quarantine_entry import QuarantinedRows

    for key, entry in found:
        if isinstance(entry, QuarantinedRows):
            about = {"key": key, "source": entry.source, "reason": entry.reason, "by": entry.by}
            for row in shown_rows(entry.rows):
                output.json_line({**about, "arrived_at": entry.arrived_ms, "row": row})
        else:
            for each in entry.rejected:
                output.json_line({"key": key, "source": entry.source, **each})


def _show(found: Iterator[tuple[str, Entry]], *, everything: bool) -> None:
    """Print lines and rows for a person: the first `_MOST_SHOWN` of all entries, and how many more there are."""
    shown = total = 0
    for _, entry in found:
        count = sum(entry.reasons.values())
        wanted = count if everything else min(count, _MOST_SHOWN - shown)
        if wanted:
            _show_first(wanted, entry, everything=everything)
        shown, total = shown + wanted, total + count
    if not total:
        output.line(_NOTHING)
    output.not_shown(total - shown)


def _show_first(count: int, entry: Entry, *, everything: bool) -> None:
    from storage_core.formats.quarantine_entry import QuarantinedRows

    if isinstance(entry, QuarantinedRows):
        arrived = output.instant_ms(entry.arrived_ms)
        output.line(f"{entry.reason}, of {entry.source} by {entry.by}, arrived {arrived}:")
        output.rows(entry.rows.slice(0, count), as_json=False, everything=everything)
        return
    lines = ({"source": entry.source, **each} for each in entry.rejected[:count])
    text = output.whole if everything else output.excerpt
    shown = {**dict.fromkeys(("source", "line", "reason"), output.cell), "text": text}
    output.records(lines, shown, as_json=False, nothing="", most=None)
