"""What there is: `tables`, `describe`, `files`, `history`, `debt`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from pipelines.commands import output
from pipelines.commands.arguments import At, Everything, Json, Policy, Uri
from pipelines.commands.output import cell, instant_ms, number, window
from pipelines.commands.target import declared, open_table
from storage_core.errors import TidemarkError, as_tidemark_error

if TYPE_CHECKING:
    from pipelines.tables import DeclaredTable

_MOST_DESCRIBED = 10
_APART = ("sort_schema", "indexes")
_METRICS = {"rows": number, "bytes": number}
_NOT_MADE: Final = {"exists": False, "version": None, "live_splits": 0, "rows": 0, "bytes": 0}


def tables(*, as_json: Json = False) -> None:
    """List the tables declared in tables/*.yaml.

    Ends with 2 when a declaration is not sound, or a file of all tables, else as the error of a table says that cannot
    be read.
    """
    from pipelines.files_of_all import problems_of_all
    from pipelines.status.table_status import PARALLEL_TABLES
    from pipelines.tables import require_sound
    from storage_core.objectstore.prefetch import all_of

    known = declared()
    shown = {"name": cell, "kind": cell, "version": number, "live_splits": number, **_METRICS, "uri": cell}
    nothing = "no table is declared here; run this in a folder with tables/*.yaml"
    if known.problems:
        nothing = "no declaration here is sound"
    found = all_of(_found, known.tables, PARALLEL_TABLES)
    output.records([record for record, _ in found], shown, as_json=as_json, nothing=nothing)
    failed = [(record["name"], error) for record, error in found if error is not None]
    for name, error in () if as_json else failed:
        output.line(f"{name}: {error.kind}: {error}")
    require_sound([*known.problems, *problems_of_all(known.root)])
    if failed:
        name, error = failed[0]
        raise error.reworded(f"{name}: {error.found}")


def _found(table: DeclaredTable) -> tuple[output.Record, TidemarkError | None]:
    """The record of a table, and the error of one that cannot be read."""
    name, uri, kind = table.declaration.name, table.declaration.uri, table.declaration.config().kind
    about: dict[str, object] = {"name": name, "uri": uri, "file": str(table.file), "kind": kind}
    try:
        return {**about, **_metrics_of(uri)}, None
    except Exception as error:  # noqa: BLE001  # whatever it is, it is of this table alone
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
    recall: Annotated[bool, typer.Option("--recall", help="Measure the recall of indexes of vectors too.")] = False,
    state: Annotated[
        bool, typer.Option("--state", help="What the state is made of instead, and what opening costs.")
    ] = False,
    everything: Everything = False,
    as_json: Json = False,
) -> None:
    """Show what a table is and holds.

    Splits per window, indexes and how far they are, regions and how much of them is merged.
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
    """The settings that are not the usual ones; indexes and order are shown by themselves."""
    from storage_core.named_settings import shown
    from storage_core.settings.table import TableConfig

    usual = shown(TableConfig())
    own = found if isinstance(found, dict) else {}
    other = {name: value for name, value in own.items() if value != usual[name] and name not in _APART}
    return ", ".join(f"{name}={_words(value)}" for name, value in other.items()) or "the usual ones"


def files(uri: Uri, *, at: At = None, as_json: Json = False) -> None:
    """List the live splits, by window."""
    shown = {"window_start": window, "rows": number, "size": number, "path": cell}
    output.records(open_table(uri, at).files(), shown, as_json=as_json, nothing="no live splits")


def history(
    uri: Uri,
    *,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the newest N versions.")] = None,
    at: At = None,
    as_json: Json = False,
) -> None:
    """List the retained versions, newest first."""
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
    """List what is to be done in each window, and why.

    Windows that a compaction would rewrite, windows that have left by the retention, and splits that a compaction
    failed on and leaves out for a while. The last three columns are what the next run reads and writes.
    """
    from dataclasses import asdict

    from storage_core.compaction.policy import Mode

    mode = Mode.POLICY if policy else Mode.FINALIZE
    found: list[dict[str, Any]] = [asdict(each) for each in open_table(uri, at).debt(mode)]
    if as_json:
        for each in found:
            output.json_line(each)
        return
    shown = {"window_start": window, "task": cell, "reasons": _words, "splits": number, **_METRICS, "merges": number}
    cost = dict.fromkeys(("read_bytes", "written_bytes", "outputs"), number)
    lines = [{**each, **each["next_run"], "splits": each["splits"]} for each in found]
    output.records(lines, {**shown, **cost}, as_json=False, nothing="no debt: nothing is to be done in any window")
    skips = [{**skip, "window_start": each["window_start"]} for each in found for skip in each["skipped"]]
    if skips:
        skipped = {"window_start": window, "path": cell, "count": number, "until": instant_ms, "reason": cell}
        output.records(skips, skipped, as_json=False, nothing="")
