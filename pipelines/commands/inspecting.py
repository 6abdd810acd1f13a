"""Commands that show the current and past state: tables, files, history, versions and regions."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pipelines.commands import output
from pipelines.commands.arguments import At, Everything, Json, Policy, Uri, declared, duration_ms, open_table
from pipelines.commands.output import cell, instant_ms, number, window
from storage_core.base.errors import InvalidInput, TidemarkError, Unavailable, as_tidemark_error
from storage_core.base.text import counted

if TYPE_CHECKING:
    import pyarrow as pa

    from pipelines.tables import DeclaredTable
    from storage_core.data.formats.documents import Tag
    from storage_core.read.describe import CollectedEntries, Tail, TailRecord, UnmergedMetrics
    from storage_core.table import Table


_MOST_DESCRIBED = 10
_APART = ("sort_schema", "indexes")
_METRICS = {"rows": number, "bytes": number}
_NOT_MADE: Final = {"exists": False, "version": None, "live_splits": 0, "rows": 0, "bytes": 0}


def tables(*, as_json: Json = False) -> None:
    """List the tables declared in tables/*.yaml.

    The exit code is 2 if a declaration or a shared configuration file is invalid. Otherwise, the exit code is the error
    code of the first table that cannot be read. If a receiver of alerts needs an environment variable that is not set,
    a warning is printed.

    Example: tidemark tables
    """
    from pipelines.shared_config import problems_of_all, unset_variables
    from pipelines.status import PARALLEL_TABLES
    from pipelines.tables import require_valid
    from storage_core.store.meter import all_of

    known = declared()
    shown = {"name": cell, "kind": cell, "version": number, "live_splits": number, **_METRICS, "uri": cell}
    nothing = "No table is declared here. Run this in a folder with tables/*.yaml."
    if known.problems:
        nothing = "no declaration here is valid"
    found = all_of(_found, known.tables, PARALLEL_TABLES)
    output.records([record for record, _ in found], shown, as_json=as_json, nothing=nothing)
    failed = [(record["name"], error) for record, error in found if error is not None]
    for name, error in () if as_json else failed:
        output.line(f"{name}: {error.kind}: {error}")
    for warning in unset_variables(known.root):
        output.warning(warning)
    require_valid([*known.problems, *problems_of_all(known.root)])
    if failed:
        name, error = failed[0]
        raise error.reworded(f"{name}: {error.found}")


def _found(table: DeclaredTable) -> tuple[output.Record, TidemarkError | None]:
    """Return the record of a table. If the table cannot be read, also return the error."""
    name, uri, kind = table.declaration.name, table.declaration.uri, table.declaration.config().kind
    about: dict[str, object] = {"name": name, "uri": uri, "file": str(table.file), "kind": kind}
    try:
        return {**about, **_metrics_of(uri)}, None
    except Exception as error:  # noqa: BLE001  # any error concerns only this table
        typed = as_tidemark_error(error)
        about |= {**dict.fromkeys(_NOT_MADE), "error": typed.kind, "message": str(typed)}
        return about, typed


def _metrics_of(uri: str) -> output.Record:
    from storage_core.table import Table, exists

    if not exists(uri):
        return _NOT_MADE
    snapshot = Table.open(uri).snapshot
    metrics = {"live_splits": len(snapshot.splits), "rows": snapshot.rows, "bytes": snapshot.bytes}
    return {"exists": True, "version": snapshot.version, **metrics}


def describe(
    uri: Uri,
    *,
    at: At = None,
    recall: Annotated[bool, typer.Option("--recall", help="Also measure the recall of vector indexes.")] = False,
    state: Annotated[
        bool, typer.Option("--state", help="Show the parts of the table's state, and the cost of opening it.")
    ] = False,
    everything: Everything = False,
    as_json: Json = False,
) -> None:
    """Show a table's columns, windows, indexes and regions.

    For each index, the output contains the number of rows that the index does not yet cover. For each region, the
    output shows how much of the data is merged.

    Example: tidemark describe clicks
    """
    if state:
        _describe_state(open_table(uri, at).describe_state(), everything=everything, as_json=as_json)
        return
    about: dict[str, Any] = open_table(uri, at).describe(recall=recall)
    if as_json:
        output.json_line(about)
        return
    own = ("columns", "sort_schemas", "windows", "indexes", "regions", "settings")
    output.fields(
        about, {**{name: number for name in about if name not in own}, "timestamp": instant_ms, "settings": _settings}
    )
    most = None if everything else _MOST_DESCRIBED
    columns = dict.fromkeys(("name", "type", "nullable", "default"), cell)
    output.records(about["columns"], columns, as_json=False, nothing="", most=most, more="--all")
    if any(not each["is_declared"] for each in about["sort_schemas"]):
        followed = {"sort_schema": cell, "is_declared": cell, "splits": number, **_METRICS}
        output.records(about["sort_schemas"], followed, as_json=False, nothing="")
    windows = {"window_start": window, "splits": number, **_METRICS}
    nothing = "no rows yet" if about["kind"] == "append" else "no rows are merged yet"
    newest_first = reversed(about["windows"])
    output.records(newest_first, windows, as_json=False, nothing=nothing, most=most, more="--all")
    if about["indexes"]:
        numbers = ("watermark", "segments", "covered_splits", "uncovered_rows", "merges_due", "translation_depth")
        indexes = {"name": cell, "kind": cell, **dict.fromkeys(numbers, number)}
        if recall:
            indexes["recall"] = number
        output.records(about["indexes"], indexes, as_json=False, nothing="", most=most, more="--all")
    if about["regions"]:
        regions = dict.fromkeys(about["regions"][0], cell)
        output.records(about["regions"], regions, as_json=False, nothing="", most=most, more="--all")


def _describe_state(about: dict[str, Any], *, everything: bool, as_json: bool) -> None:
    if as_json:
        output.json_line(about)
        return
    opening = about["opening"]
    requests = ", ".join(f"{count} {kind}" for kind, count in opening["requests"].items() if count)
    shown = {name: number for name in about if name not in ("manifests", "opening")}
    output.fields({**about, "opening": f"{requests}, {opening['bytes']:,} bytes"}, {**shown, "opening": cell})
    manifests = {"path": cell, "size": number, "entries": number, "added_at": _words, "windows": _words}
    most = None if everything else _MOST_DESCRIBED
    output.records(about["manifests"], manifests, as_json=False, nothing="no manifests", most=most, more="--all")


def _settings(found: object) -> str:
    """Return the settings that differ from the defaults. The command prints indexes and sort order separately."""
    from storage_core.data.settings.table import TableConfig, shown

    usual = shown(TableConfig())
    own = found if isinstance(found, dict) else {}
    other = {name: value for name, value in own.items() if value != usual[name] and name not in _APART}
    return ", ".join(f"{name}={_words(value)}" for name, value in other.items()) or "the defaults"


def files(uri: Uri, *, at: At = None, as_json: Json = False) -> None:
    """List the live splits, by window.

    Example: tidemark files clicks
    """
    shown = {"window_start": window, "rows": number, "size": number, "path": cell}
    output.records(open_table(uri, at).files(), shown, as_json=as_json, nothing="no live splits")


def history(
    uri: Uri,
    *,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the newest N versions.")] = None,
    at: At = None,
    as_json: Json = False,
) -> None:
    """List the retained versions, newest first.

    Example: tidemark history clicks --limit 10
    """
    found = (
        {
            "version": entry.version,
            "timestamp": entry.timestamp,
            "operation": entry.operation,
            "commit_id": entry.commit_id,
            "metrics": dict(entry.metrics),
        }
        for entry in open_table(uri, at).history(limit)
    )
    shown = {"version": number, "timestamp": instant_ms, "operation": cell, "commit_id": cell, "metrics": _metrics}
    output.records(found, shown, as_json=as_json, nothing="no version is retained")


def _metrics(metrics: object) -> str:
    found = metrics if isinstance(metrics, dict) else {}
    return ", ".join(f"{name} {number(value)}" for name, value in found.items() if value)


def _words(found: object) -> str:
    return ", ".join(map(cell, found)) if isinstance(found, list | tuple) else cell(found)


def debt(uri: Uri, *, at: At = None, policy: Policy = False, as_json: Json = False) -> None:
    """List the pending work of each window with its reasons.

    The list contains windows that a compaction would rewrite, and windows that are older than the retention. The list
    also contains splits that a compaction failed on. Compactions skip these splits for a while. The last three columns
    are about the next run: the bytes to read, the bytes to write, and the number of output files.

    Example: tidemark debt clicks
    """
    from storage_core.data.settings.layout import Mode

    mode = Mode.POLICY if policy else Mode.FINALIZE
    found: list[dict[str, Any]] = [asdict(each) for each in open_table(uri, at).debt(mode)]
    if as_json:
        for each in found:
            output.json_line(each)
        return
    shown = {"window_start": window, "task": cell, "reasons": _words, "splits": number, **_METRICS, "merges": number}
    cost = dict.fromkeys(("read_bytes", "written_bytes", "outputs"), number)
    lines = [{**each, **each["next_run"], "splits": each["splits"]} for each in found]
    output.records(lines, {**shown, **cost}, as_json=False, nothing="no pending work in any window")
    skips = [{**skip, "window_start": each["window_start"]} for each in found for skip in each["skipped"]]
    if skips:
        skipped = {"window_start": window, "path": cell, "count": number, "until": instant_ms, "reason": cell}
        output.records(skips, skipped, as_json=False, nothing="")


# Commands about changes, versions and tags.


VERSION = "VERSION|TIME|TAG"

From = Annotated[str, typer.Option("--from", metavar=VERSION, help="List the changes after this version.")]
To = Annotated[
    str | None, typer.Option("--to", metavar=VERSION, help="List the changes up to this version (default: the newest).")
]


def changes(
    uri: Uri,
    *,
    start: From,
    end: To = None,
    arrow: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write all changes to this file, as an Arrow IPC stream.")
    ] = None,
    everything: Everything = False,
    as_json: Json = False,
) -> None:
    """List the rows that commits added and removed.

    Each row has the columns of the table and three more columns. The additional columns are _change_type (delete or
    insert), _commit_version and _commit_timestamp. A compaction changes no row. For a keyed table, the list contains
    only merged rows.

    Example: tidemark changes clicks --from 12
    """
    found = open_table(uri).changes(start, end)
    if arrow is None:
        output.stream(found, as_json=as_json, everything=everything)
        return
    rows = _write(found, arrow)
    if as_json:
        output.json_line({"status": "written", "file": str(arrow), "rows": rows})
    else:
        output.line(f"{counted(rows, 'row')} written to {arrow}")


def restore(
    uri: Uri,
    *,
    to: Annotated[str, typer.Option(metavar=VERSION, help="The version to restore.")],
    as_json: Json = False,
) -> None:
    """Set a table back to an older version with a new commit.

    No data is lost. The versions between the older and the current version are kept, and another restore can undo a
    restore. After a restore, the table does not ingest or merge again the data that came after the restored version.
    Unmerged rows of a keyed table are also kept, and the next merge applies these rows.

    Example: tidemark restore clicks --to 12
    """
    done = open_table(uri).restore(to)
    if as_json:
        output.json_line(
            {
                "status": "committed" if done.commit_id else "nothing_to_do",
                "version": done.snapshot.version,
                "restored_version": done.restored_version,
                "commit_id": done.commit_id or None,
                "splits_added": done.splits_added,
                "splits_removed": done.splits_removed,
            }
        )
    elif done.commit_id:
        output.line(
            f"version {done.snapshot.version:,} has the content of version {done.restored_version:,}: "
            f"{counted(done.splits_added, 'split')} added, {done.splits_removed:,} removed"
        )
    else:
        output.line(f"nothing to do, because the table already has the content of version {done.restored_version:,}")


def tag(
    uri: Uri,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Name of the tag: small letters, digits, . _ and -.")
    ] = None,
    *,
    version: Annotated[str | None, typer.Option(metavar=VERSION, help="The version (default: the newest).")] = None,
    expires: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Remove the tag after this time, such as 30d (default: never)."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the tags, as without NAME.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Remove the tag.")] = False,
    as_json: Json = False,
) -> None:
    """Give a version a name, so that it stays readable.

    Garbage collection keeps a tagged version until the tag expires or is removed. If you set an existing tag again, it
    moves to the new version.

    Example: tidemark tag clicks audit --version 12
    """
    table = open_table(uri)
    if name is None or list_:
        if (name, version, expires, delete) != (None, None, None, False):
            raise InvalidInput("--list takes no other option. To set or remove a tag, give its NAME without --list.")
        shown = {"name": cell, "version": number, "created_at": instant_ms, "expires_at": instant_ms}
        output.records(map(_about_version, table.tags()), shown, as_json=as_json, nothing="no tags")
    elif delete:
        if (version, expires) != (None, None):
            raise InvalidInput("--delete cannot be combined with --version or --expires. Leave one of them out")
        _show(table.untag(name), "removed", as_json=as_json)
    else:
        _show(_set(table, name, version, expires), "set", as_json=as_json)


def _set(table: Table, name: str, version: str | None, expires: str | None) -> Tag:
    lasts_ms = duration_ms("--expires", expires)
    return table.tag(name, version, expires=None if lasts_ms is None else dt.timedelta(milliseconds=lasts_ms))


def _show(found: Tag, status: str, *, as_json: bool) -> None:
    about = _about_version(found)
    if as_json:
        output.json_line({"status": status, **about})
    elif status == "removed":
        output.line(f"tag {found.name} of version {found.version:,} removed")
    else:
        until = (
            "until you delete the tag" if found.expires_at_ms is None else f"until {instant_ms(found.expires_at_ms)}"
        )
        output.line(f"tag {found.name} keeps version {found.version:,} {until}")


def _about_version(found: Tag) -> dict[str, object]:
    return {
        "name": found.name,
        "version": found.version,
        "created_at": found.created_at_ms,
        "expires_at": found.expires_at_ms,
    }


def _write(found: pa.RecordBatchReader, file: Path) -> int:
    import pyarrow as pa

    rows = 0
    try:
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, found.schema) as writer:
            for batch in found:
                writer.write_batch(batch)
                rows += batch.num_rows
    except OSError as error:
        raise Unavailable(
            f"{file}: {error.strerror or error}. The file is incomplete. Delete the file and run the command again."
        ) from error
    return rows


# Commands about regions and unmerged records.


_NOTHING = "no unmerged records: every acknowledged record is merged"
_PAUSE_MS = 500


def regions(uri: Uri, *, as_json: Json = False) -> None:
    """List the regions of a keyed table and their new data.

    Example: tidemark regions planes
    """
    from storage_core.base.clock import SystemClock
    from storage_core.read.describe import unmerged_metrics

    table = _keyed(uri)
    now_ms = SystemClock().now_ms()
    found = (_about_region(each, now_ms) for each in unmerged_metrics(table.store, table.snapshot))
    shown = {"region_id": cell, "values": cell, "epoch": number, "current_generation": number}
    shown |= {"merged_generation": number, "generations": number, "generation_records": number}
    shown |= {"wal_entries": number, "wal_records": number, "age_seconds": number}
    output.records(found, shown, as_json=as_json, nothing="no region has been written to yet")


def tail(
    uri: Uri,
    *,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Only the newest N records of each region.")] = 10,
    follow: Annotated[
        bool, typer.Option("--follow", help="Print new records as writers acknowledge them, until Ctrl-C.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print the newest unmerged records.

    All printed records are acknowledged. Regions are printed one after another. Within a region, the newest record is
    last.

    Example: tidemark tail planes --follow
    """
    from storage_core.read.describe import Tail

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
        raise InvalidInput(f"{uri}: an append table has no unmerged records. All rows of the table are in splits.")
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


def _about_region(found: UnmergedMetrics, now_ms: int) -> output.Record:
    """Return the record of a region.

    An age is never negative, even if the clock of the store is ahead of the clock of this machine.
    """
    oldest = found.oldest_ms
    flat = asdict(found)
    return {**flat.pop("progress"), **flat, "age_seconds": None if oldest is None else max(0, now_ms - oldest) // 1000}


def _print(found: Iterable[TailRecord | CollectedEntries], schema: pa.Schema, *, as_json: bool) -> None:
    from pipelines.commands.output import shown
    from storage_core.read.describe import CollectedEntries

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
            f"not shown: {found.entries:,} WAL entries of region {found.region_id}, because they were merged and "
            "collected before this command read the entries. The table contains the rows of these entries."
        )
