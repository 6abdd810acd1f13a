"""What is not merged yet: `regions` says how much of it there is where, `tail` prints its newest records."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.commands import output
from pipelines.commands.arguments import Json, Uri
from pipelines.commands.output import cell, number
from pipelines.commands.target import open_table
from storage_core.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

    from storage_core.read.tail import CollectedEntries, Tail, TailRecord
    from storage_core.read.unmerged_metrics import UnmergedMetrics
    from storage_core.table import Table

_NOTHING = "nothing waits: every acknowledged record is merged"
_PAUSE_MS = 500


def regions(uri: Uri, *, as_json: Json = False) -> None:
    """List the regions of a table, and what of them waits."""
    from storage_core.clock import SystemClock
    from storage_core.read.unmerged_metrics import unmerged_metrics

    table = _keyed(uri)
    now_ms = SystemClock().now_ms()
    found = (_about(each, now_ms) for each in unmerged_metrics(table.store, table.snapshot))
    shown = {"region_id": cell, "values": cell, "epoch": number, "current_generation": number}
    shown |= {"merged_generation": number, "generations": number, "generation_records": number}
    shown |= {"wal_entries": number, "wal_records": number, "age_seconds": number}
    output.records(found, shown, as_json=as_json, nothing="no region was ever written to")


def tail(
    uri: Uri,
    *,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Of each region only the newest N records.")] = 10,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with what writers acknowledge, until Ctrl-C.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print the newest records that are not merged yet.

    These are acknowledged; the newest comes last, and regions one after the other.
    """
    from storage_core.read.tail import Tail

    table = _keyed(uri)
    waiting = Tail(table.store, table.snapshot)
    found = waiting.newest(limit)
    _print(found, table.schema, as_json=as_json)
    if follow:
        _follow(table, waiting, as_json=as_json)
    elif not found and not as_json:
        output.line(_NOTHING)


def _keyed(uri: str) -> Table:
    table = open_table(uri)
    if table.config.kind != "keyed":
        raise InvalidInput(f"{uri}: an append table has no records that wait for a merge; every row is in its splits")
    return table


def _follow(table: Table, waiting: Tail, *, as_json: bool) -> None:
    clock = table.log.clock
    try:
        while True:
            newest = table.refresh()
            _print(waiting.new(newest.snapshot), newest.schema, as_json=as_json)
            sys.stdout.flush()
            clock.sleep_ms(_PAUSE_MS)
    except KeyboardInterrupt:
        return


def _about(found: UnmergedMetrics, now_ms: int) -> output.Record:
    """A store's clock may be ahead of this one: nothing is younger than now."""
    oldest = found.oldest_ms
    flat = asdict(found)
    return {**flat.pop("progress"), **flat, "age_seconds": None if oldest is None else max(0, now_ms - oldest) // 1000}


def _print(found: Iterable[TailRecord | CollectedEntries], schema: pa.Schema, *, as_json: bool) -> None:
    from pipelines.commands.row_values import shown
    from storage_core.read.tail import CollectedEntries

    for each in found:
        if isinstance(each, CollectedEntries):
            _print_collected(each, as_json=as_json)
            continue
        fields = shown(each.fields, schema)
        record = {"region_id": each.region_id, "operation": each.operation.name.lower(), "fields": fields}
        if as_json:
            output.json_line(record)
        else:
            output.line(f"{record['operation']:<6} {output.excerpt(fields)}")


def _print_collected(found: CollectedEntries, *, as_json: bool) -> None:
    if as_json:
        output.json_line({"region_id": found.region_id, "collected_entries": found.entries})
    else:
        output.line(
            f"not shown: {found.entries:,} WAL entries of region {found.region_id}, merged or sorted and collected "
            "before they were read; the table has their rows"
        )
