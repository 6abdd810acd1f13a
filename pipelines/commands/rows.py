"""Commands that add and change rows: `append`, `delete`, `update`, `overwrite`, `upsert` and `quarantine`."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipelines.commands import output
from pipelines.commands.arguments import Everything, Json, Uri, open_table, resolve, table_to_change
from pipelines.commands.raw import (
    Also,
    KeyField,
    Optional_,
    RawOperation,
    RawTarget,
    TableName,
    UniqueBy,
    append_lines,
    raw_stores,
)
from storage_core.base.errors import InvalidInput, NotFound
from storage_core.base.text import counted

if TYPE_CHECKING:
    import pyarrow as pa

    from storage_core.change.statement import Changed
    from storage_core.data.formats.arrow_files import Entry
    from storage_core.maintain.quarantine import PendingEntry
    from storage_core.table import Table
    from storage_core.write.append import Appended


Format = Literal["ndjson", "csv", "parquet"]

_SUFFIXES: dict[str, Format] = {
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".json": "ndjson",
    ".csv": "csv",
    ".parquet": "parquet",
}
STDIN = "-"
_LAND_AGAIN = ". Land the whole file again under a new name"
"""Advice that is for ingestion and does not apply to a file of `append`."""

File = Annotated[
    str, typer.Argument(metavar="FILE|-", help="A file of NDJSON, CSV or Parquet, or - for standard input.")
]
FormatOption = Annotated[
    Format | None, typer.Option("--format", help="Format of the file (default: by its suffix, NDJSON for -).")
]


def append(
    uri: Uri,
    file: File,
    *,
    format_: FormatOption = None,
    table_name: TableName = None,
    operation: RawOperation = "put",
    key: KeyField = None,
    unique_by: UniqueBy = None,
    also: Also = None,
    optional: Optional_ = None,
    as_json: Json = False,
) -> None:
    """Add all rows of a file in one commit, or none.

    If one row does not fit the table, no row is added. The error contains each row that does not fit, with the reason.

    With --table, URI is a raw log. A raw log accepts NDJSON, and acknowledges lines when they arrive. A raw log skips
    only lines that are not valid rows.

    Example: tidemark append clicks new_rows.ndjson
    """
    if table_name is not None:
        stores, others = raw_stores(uri, also or (), optional or (), table_name)
        target = RawTarget(
            stores=stores,
            optional=others,
            table=table_name,
            operation=operation,
            key=key,
            unique_by=unique_by,
        )
        append_lines(file, target, file_format=format_, as_json=as_json)
        return
    if key or unique_by or also or optional or operation != "put":
        options = "--operation, --key, --unique-by, --also and --optional"
        raise InvalidInput(f"{options} work only with a raw log. Give the table of the raw log with --table.")
    table = table_to_change(uri)
    with landed(file) as path:
        rows = rows_of(table, path, file, format_)
    _show_appended(table.append(rows), as_json=as_json)


def _show_appended(done: Appended, *, as_json: bool) -> None:
    from storage_core.data.rows.windows import LateMetrics

    came_in = done.rows + done.late.not_written
    status = "committed" if done.commit_id else "acknowledged" if came_in else "nothing_to_do"
    if as_json:
        about = {"version": done.version, "commit_id": done.commit_id or None, "rows": done.rows, "splits": done.splits}
        output.json_line({"status": status, **about, **done.late.as_mapping()})
    else:
        did = f"{counted(done.rows, 'row')} {status}" if came_in else "nothing to do"
        output.line(f"{did} (version {done.version}, {counted(done.splits, 'split')})")
        if done.late != LateMetrics():
            late = {name.removeprefix("rows_late_"): count for name, count in done.late.as_mapping().items() if count}
            output.line("late rows: " + ", ".join(f"{count:,} {name}" for name, count in late.items()))


def rows_of(table: Table, path: Path, file: str, format_: Format | None) -> pa.Table:
    """Return the rows of the file at `path` with the table's schema.

    Args:
        table: The table whose schema the rows must fit.
        path: The file to read.
        file: The file as the user gave it. Its suffix selects the format if `format_` is None.
        format_: The format of the file.

    Raises:
        InvalidInput: A line is not a valid row. The error lists every such line.
    """
    from storage_core.write.ingest.batch import parse_file
    from storage_core.write.ingest.landing import LandedFile, LandingSpec

    folder = str(path.parent)
    given = LandedFile(path.name, path.stat().st_size, folder)
    spec = LandingSpec(uri=folder, format=format_ or _format_of(file))
    config = table.snapshot.config
    parsed = parse_file(given, spec, table.schema, config.time_column, nonzero=config.nonzero_vectors)
    if parsed.rejected:
        count = len(parsed.rejected)
        what = (
            "the file cannot be used"
            if parsed.unreadable
            else f"{counted(count, 'line')} {'does' if count == 1 else 'do'} not fit the table"
        )
        raise InvalidInput(
            f"{path.name}: {what}. Nothing was changed. Correct the file, then run the command again",
            rejected=[{**asdict(each), "reason": each.reason.removesuffix(_LAND_AGAIN)} for each in parsed.rejected],
        )
    return parsed.rows


def _format_of(file: str) -> Format:
    if file == STDIN:
        return "ndjson"
    suffix = Path(file.removesuffix(".gz")).suffix.lower()
    if suffix not in _SUFFIXES:
        raise InvalidInput(f"{file}: the suffix does not show the format. Give --format ndjson, csv or parquet.")
    return _SUFFIXES[suffix]


@contextmanager
def landed(file: str) -> Iterator[Path]:
    """Yield the path of a file that does not change: the given file, or a copy of the data from a pipe."""
    path = Path(file)
    if file != STDIN and path.is_file():
        yield path.resolve()  # the user's path may be a symbolic link, but the store does not follow links
        return
    if file != STDIN and path.is_dir():
        raise InvalidInput(
            f"{file} is a folder. Append one file, or declare the folder as a landing location and run tidemark ingest"
        )
    if file != STDIN and not path.exists():
        raise NotFound(f"{file}: there is no such file or folder. Correct the location")
    from storage_core.base.process import scratch_folder

    with scratch_folder("append") as folder:
        copy = folder.resolve() / ("stdin" if file == STDIN else path.name)
        with copy.open("wb") as target:
            if file == STDIN:
                shutil.copyfileobj(sys.stdin.buffer, target)
            else:
                with path.open("rb") as source:
                    shutil.copyfileobj(source, target)
        yield copy


# Changes of rows.


Where = Annotated[
    str, typer.Option(metavar="CONDITION", help="Condition in SQL that selects the rows. Write true for all rows.")
]
Application = Annotated[
    str | None,
    typer.Option(
        metavar="NAME:NUMBER",
        help="Name and number of this change. The change is applied once, even if the command runs again.",
    ),
]

_SET = re.compile(r'\s*(?:"((?:[^"]|"")+)"|(\w+))\s*=(?!=)(.*)', re.DOTALL)


def delete(uri: Uri, *, where: Where, as_json: Json = False) -> None:
    """Delete the rows that meet a condition.

    One commit marks the rows as deleted, and no file is rewritten. Compactions, ingests and deletes that run at the
    same time keep the rows deleted. Older versions still contain the rows until these versions are no longer retained.
    `tidemark restore` can restore the rows.

    Example: tidemark delete clicks --where "visitor = 'bot'"
    """
    _show_changed(table_to_change(uri).delete(where), "deleted", as_json=as_json)


def update(
    uri: Uri,
    *,
    where: Where,
    set_: Annotated[
        list[str],
        typer.Option(
            "--set", metavar="COLUMN=EXPRESSION", help="New value: SQL over the old row. Repeat --set for more columns."
        ),
    ],
    application: Application = None,
    as_json: Json = False,
) -> None:
    """Set columns of the rows that meet a condition.

    Each --set expression sees the row in its state before the update. One commit removes the old rows and adds the new
    rows.

    Example: tidemark update clicks --set "ms = ms * 1000" --where "ms < 1"
    """
    values = dict(map(_assignment, set_))
    if len(values) < len(set_):
        raise InvalidInput("--set sets a column twice. Give each column once.")
    _show_changed(
        table_to_change(uri).update(values, where, application=_application(application)), "updated", as_json=as_json
    )


def overwrite(
    uri: Uri,
    file: File,
    *,
    where: Where,
    format_: FormatOption = None,
    application: Application = None,
    as_json: Json = False,
) -> None:
    """Replace rows that meet a condition by rows of a file.

    One commit removes and adds the rows. Each row of the file must meet the condition too. Otherwise, the command
    changes nothing.

    Example: tidemark overwrite clicks day.parquet --where "day = '2015-05-17'"
    """
    table = table_to_change(uri)
    with landed(file) as path:
        rows = rows_of(table, path, file, format_)
    _show_changed(table.overwrite(rows, where, application=_application(application)), "replaced", as_json=as_json)


def upsert(
    uri: Uri,
    file: File,
    *,
    on: Annotated[str, typer.Option(metavar="COLUMNS", help="The columns that identify a row, separated by commas.")],
    format_: FormatOption = None,
    as_json: Json = False,
) -> None:
    """Add rows, and replace the rows with the same keys.

    Each row of the file replaces all rows with the same values in the --on columns. One commit adds and replaces the
    rows. For a keyed table, --on is the primary key. The rows go through a writer, as with `append`.

    Example: tidemark upsert clicks new_rows.ndjson --on url,visitor
    """
    table = table_to_change(uri)
    with landed(file) as path:
        rows = rows_of(table, path, file, format_)
    _show_changed(table.upsert(rows, on=[name.strip() for name in on.split(",")]), "replaced", as_json=as_json)


def _assignment(text: str) -> tuple[str, object]:
    from storage_core.change.statement import expr

    found = _SET.fullmatch(text)
    if found is None:
        raise InvalidInput(f'--set {text!r} is not an assignment. Write COLUMN = EXPRESSION, such as "n = n + 1".')
    quoted, plain, expression = found.groups()
    return plain or quoted.replace('""', '"'), expr(expression.strip())


def _application(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    name, _, number = text.rpartition(":")
    if not name or not re.fullmatch("[0-9]{1,19}", number):
        raise InvalidInput(
            f"--application {text!r} is not a name and a number. Write the name and the number as nightly:17."
        )
    return name, int(number)


def _show_changed(done: Changed, did: str, *, as_json: bool) -> None:
    is_done = bool(done.commit_id or done.rows or done.rows_added)
    status = "committed" if done.commit_id else "acknowledged" if is_done else "nothing_to_do"
    if as_json:
        output.json_line({"status": status, **asdict(done), "commit_id": done.commit_id or None})
    elif status == "nothing_to_do":
        output.line(f"nothing to do (version {done.version:,})")
    elif status == "acknowledged":
        # In a keyed table, the next merge changes splits.
        changed = f"{counted(done.rows, 'row')} {did}," if done.rows else counted(done.rows_added, "row")
        output.line(f"{changed} acknowledged (version {done.version:,})")
    else:
        added = f", {counted(done.rows_added, 'row')} added" if done.rows_added and did != "updated" else ""
        splits = f"{counted(done.splits, 'split')} touched, {done.splits_added:,} new"
        output.line(f"{counted(done.rows, 'row')} {did}{added} (version {done.version:,}, {splits})")


# Quarantine.


_MOST_SHOWN = 20
_NOTHING = "nothing is in quarantine"


def quarantine(
    uri: Uri,
    *,
    source: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only entries of this source: a landed file, append or writer.")
    ] = None,
    reason: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only lines and rows whose reason contains this text.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Print the rejected lines and rows.")] = False,
    export: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the lines and rows to a new file of NDJSON.")
    ] = None,
    retry: Annotated[
        bool, typer.Option("--retry", help="Add the lines and rows that the present declaration accepts.")
    ] = False,
    accept_late: Annotated[bool, typer.Option("--accept-late", help="With --retry: also add late rows.")] = False,
    clear: Annotated[bool, typer.Option("--clear", help="Remove the lines and rows from the quarantine.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --clear: do not ask.")] = False,
    everything: Everything = False,
    as_json: Json = False,
) -> None:
    """Summarize the rejected rows of a table. With an option, show, export, retry or remove these rows.

    The quarantine contains invalid lines of landed files, and late rows that the table does not accept. The summary has
    one line per reason, source and day. Each line has up to three samples.

    Example: tidemark quarantine clicks --retry
    """
    if sum([show, export is not None, retry, clear]) > 1:
        raise InvalidInput("--show, --export, --retry and --clear exclude each other. Give one of them.")
    if accept_late and not retry:
        raise InvalidInput("--accept-late belongs to --retry. Give both.")
    if retry:
        if reason is not None:
            raise InvalidInput("--retry does not take --reason. Leave out --reason.")
        _retry(uri, source, accept_late=accept_late, as_json=as_json)
        return
    table = open_table(uri)
    if clear:
        _clear(table, source, reason, is_agreed=yes, as_json=as_json)
        return
    found = _entries(table, source, reason)
    if export is not None:
        _export(found, export, as_json=as_json)
    elif show and as_json:
        for each in _records(found):
            output.json_line(each)
    elif show:
        _show_quarantined((each.entry for each in found), everything=everything)
    else:
        _summarize(found, everything=everything, as_json=as_json)


def _entries(table: Table, source: str | None, reason: str | None) -> Iterator[PendingEntry]:
    from storage_core.maintain.quarantine import selected_entries, selection

    return selected_entries(table.store, table.snapshot, selection(source, reason))


def _summarize(found: Iterator[PendingEntry], *, everything: bool, as_json: bool) -> None:
    """Print one record per reason, source and day.

    In text form, the samples of a record follow as indented lines.
    """
    from storage_core.maintain.quarantine import summarize

    summaries = summarize(found)
    most = None if everything or as_json else output.MOST_TEXT_ROWS
    for number, each in enumerate(summaries):
        day = None if each.day is None else _day(each.day)
        if as_json:
            samples = [{"line": line, "text": text} for line, text in each.samples]
            about = {"reason": each.reason, "source": each.source, "day": day, "count": each.count}
            output.json_line({**about, "samples": samples})
        elif most is None or number < most:
            arrived = "" if day is None else f", arrived {day}"
            source = "" if each.source is None else f" of {output.cell(each.source)}"
            output.line(f"{each.count:,}{source}{arrived}: {output.cell(each.reason)}")
            for line, text in each.samples:
                output.line(f"  {line:>10,}  {output.whole(text) if everything else output.excerpt(text)}")
    if not summaries and not as_json:
        output.line(_NOTHING)
    if most is not None:
        output.not_shown(max(0, len(summaries) - most))


def _day(day: int) -> str:
    from datetime import date, timedelta

    return (date(1970, 1, 1) + timedelta(days=day)).isoformat()


def _records(found: Iterator[PendingEntry]) -> Iterator[output.Record]:
    """Yield one record per rejected line and per rejected row."""
    from pipelines.commands.output import shown_rows
    from storage_core.data.formats.arrow_files import QuarantinedRows

    for each in found:
        entry = each.entry
        about: dict[str, object] = {"key": each.key, "source": entry.source}
        if isinstance(entry, QuarantinedRows):
            about |= {"reason": entry.reason, "by": entry.by, "arrived_at": entry.arrived_ms}
            numbers = entry.lines or [None] * entry.rows.num_rows
            for number, row in zip(numbers, shown_rows(entry.rows), strict=True):
                yield {**about, "line": number, "row": row}
        else:
            yield from ({**about, **line} for line in entry.rejected)


def _export(found: Iterator[PendingEntry], file: Path, *, as_json: bool) -> None:
    import json

    count = 0
    try:
        with file.open("x", encoding="utf-8") as stream:
            for each in _records(found):
                stream.write(json.dumps(each, ensure_ascii=False, default=str) + "\n")
                count += 1
    except FileExistsError:
        raise InvalidInput(f"{file} exists already. Give the name of a new file.") from None
    except OSError as error:
        raise InvalidInput(f"{file} cannot be written: {error.strerror}. Give another file.") from error
    if as_json:
        output.json_line({"exported": count, "file": str(file)})
    else:
        output.line(f"{counted(count, 'entry', 'entries')} written to {file}")


def _retry(uri: str, source: str | None, *, accept_late: bool, as_json: bool) -> None:
    from contextlib import chdir

    from pipelines.commands.arguments import run_here
    from storage_core.data.steps import RetryQuarantine

    target = resolve(uri)
    declaration = None if target.file is None else str(target.file)
    with chdir(target.root):
        done = run_here(
            RetryQuarantine(table_uri=target.uri, source=source, accept_late=accept_late, declaration=declaration)
        )
    output.report(done, as_json=as_json)


def _clear(table: Table, source: str | None, reason: str | None, *, is_agreed: bool, as_json: bool) -> None:
    from storage_core.maintain.quarantine import clear, selection

    count = sum(len(each.lines) for each in _entries(table, source, reason))
    if count and not is_agreed:
        if not sys.stdin.isatty():
            raise InvalidInput(
                f"--clear would remove {counted(count, 'entry', 'entries')}. Add --yes to remove "
                f"{'the entry' if count == 1 else 'the entries'}."
            )
        if not typer.confirm(f"Remove {counted(count, 'entry', 'entries')} from the quarantine?"):
            count = 0
    version = table.version
    if count:
        count, snapshot = clear(table.log, table.snapshot, selection(source, reason))
        version = snapshot.version
    if as_json:
        output.json_line({"cleared": count, "version": version})
    else:
        output.line(f"{counted(count, 'entry', 'entries')} removed from the quarantine")


def _show_quarantined(found: Iterator[Entry], *, everything: bool) -> None:
    """Print the first `_MOST_SHOWN` rejected lines and rows for a person. Then print the number of omitted entries."""
    shown = total = 0
    for entry in found:
        count = sum(entry.reasons.values())
        wanted = count if everything else min(count, _MOST_SHOWN - shown)
        if wanted:
            _show_first(wanted, entry, everything=everything)
        shown, total = shown + wanted, total + count
    if not total:
        output.line(_NOTHING)
    output.not_shown(total - shown)


def _show_first(count: int, entry: Entry, *, everything: bool) -> None:
    from storage_core.data.formats.arrow_files import QuarantinedRows

    if isinstance(entry, QuarantinedRows):
        arrived = output.instant_ms(entry.arrived_ms)
        output.line(f"{entry.reason}, of {entry.source} by {entry.by}, arrived {arrived}:")
        output.rows(entry.rows.slice(0, count), as_json=False, everything=everything)
        return
    lines = ({"source": entry.source, **each} for each in entry.rejected[:count])
    text = output.whole if everything else output.excerpt
    shown = {**dict.fromkeys(("source", "line", "reason"), output.cell), "text": text}
    output.records(lines, shown, as_json=False, nothing="", most=None)
