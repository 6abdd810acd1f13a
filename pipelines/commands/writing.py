"""Rows in: `append` from a file or standard input, `ingest` from where files land."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from jobs.spark.master import LOCAL_SPARK
from pipelines.commands import output
from pipelines.commands.arguments import All, Declaration, DryRun, From, Json, Master, To, Uri, Window
from pipelines.commands.raw import Also, KeyField, Optional_, RawOperation, RawTarget, TableName, UniqueBy, append_lines
from pipelines.commands.running import run_job, windows
from pipelines.commands.target import open_table, resolve
from storage_core.errors import InvalidInput, NotFound
from storage_core.wording import counted

if TYPE_CHECKING:
    import pyarrow as pa

    from storage_core.append import Appended
    from storage_core.table import Table

Format = Literal["ndjson", "csv", "parquet"]

_SUFFIXES: dict[str, Format] = {
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".json": "ndjson",
    ".csv": "csv",
    ".parquet": "parquet",
}
STDIN = "-"


def append(
    uri: Uri,
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="NDJSON, CSV or Parquet; - is standard input.")],
    *,
    format_: Annotated[
        Format | None, typer.Option("--format", help="What the file holds; by its suffix, and NDJSON for -, without.")
    ] = None,
    table_name: TableName = None,
    operation: RawOperation = "put",
    key: KeyField = None,
    unique_by: UniqueBy = None,
    also: Also = None,
    optional: Optional_ = None,
    as_json: Json = False,
) -> None:
    """Add the rows of a file in one commit, all or none.

    When a single row does not fit, nothing is added, and each such row is named with its reason. With --table URI is a
    raw log: it takes NDJSON, acknowledges lines as they come, and leaves out only those that are no rows.
    """
    if table_name is not None:
        stores = [resolve(each).uri for each in (uri, *(also or []))]
        target = RawTarget(
            stores=stores,
            optional=optional or [],
            table=table_name,
            operation=operation,
            key=key,
            unique_by=unique_by,
        )
        append_lines(file, target, file_format=format_, as_json=as_json)
        return
    if key or unique_by or also or optional or operation != "put":
        options = "--operation, --key, --unique-by, --also and --optional"
        raise InvalidInput(f"{options} are for a raw log; name its table with --table")
    table = open_table(uri)
    with landed(file) as path:
        rows = rows_of(table, path, file, format_)
    _show(table.append(rows), as_json=as_json)


def ingest(
    uri: Uri,
    *,
    declaration: Declaration = None,
    window: Window = None,
    start: From = None,
    end: To = None,
    all_: All = False,
    dry_run: DryRun = False,
    master: Master = LOCAL_SPARK,
    as_json: Json = False,
) -> None:
    """Ingest landed files, each row exactly once.

    Takes the files that are not in the table yet. A table that is declared and does not exist is made first.
    """
    from jobs.ingest import run
    from jobs.requests.request import JobRequest

    target = resolve(uri)
    file = declaration.resolve() if declaration else target.file
    request = JobRequest(
        table_uri=target.uri,
        windows=windows(window, start, end, everything=all_),
        declaration=None if file is None else str(file),
        dry_run=dry_run,
        master=master,
    )
    # A declaration that was named belongs to the folder it was named in; a declared table's to its own.
    with chdir(Path() if declaration else target.root):
        run_job(run, request, as_json=as_json)


def _show(done: Appended, *, as_json: bool) -> None:
    from storage_core.rows.late import LateMetrics

    came_in = done.rows + done.late.not_written
    status = "committed" if done.commit_id else "acknowledged" if came_in else "nothing_to_do"
    if as_json:
        about = {"version": done.version, "commit_id": done.commit_id or None, "rows": done.rows, "splits": done.splits}
        output.json_line({"status": status, **about, **done.late.as_mapping()})
    else:
        did = f"{counted(done.rows, 'row')} {status.replace('_', ' ')}"
        output.line(f"{did} (version {done.version}, {counted(done.splits, 'split')})")
        if done.late != LateMetrics():
            late = {name.removeprefix("rows_late_"): count for name, count in done.late.as_mapping().items() if count}
            output.line("late rows: " + ", ".join(f"{count:,} {name}" for name, count in late.items()))


def rows_of(table: Table, path: Path, file: str, format_: Format | None) -> pa.Table:
    """Return the rows at `path` in the table's schema; without a format that of the `file` they were given as.

    Raises `InvalidInput` with every line that is none.
    """
    from storage_core.ingest.landing import LandedFile, LandingSpec
    from storage_core.ingest.parse import parse

    folder = str(path.parent)
    given = LandedFile(path.name, path.stat().st_size, folder)
    spec = LandingSpec(uri=folder, format=format_ or _format_of(file))
    config = table.snapshot.config
    parsed = parse(given, spec, table.schema, config.time_column, nonzero=config.nonzero_vectors)
    if parsed.rejected:
        what = (
            "the file cannot be used"
            if parsed.unreadable
            else f"do not fit the table: {counted(len(parsed.rejected), 'line')}"
        )
        raise InvalidInput(
            f"{path.name}: {what}; nothing was appended", rejected=[asdict(each) for each in parsed.rejected]
        )
    return parsed.rows


def _format_of(file: str) -> Format:
    if file == STDIN:
        return "ndjson"
    suffix = Path(file.removesuffix(".gz")).suffix.lower()
    if suffix not in _SUFFIXES:
        raise InvalidInput(f"{file}: the suffix does not say what it holds; give --format ndjson, csv or parquet")
    return _SUFFIXES[suffix]


@contextmanager
def landed(file: str) -> Iterator[Path]:
    """Give the file as one that lies still: itself, or a copy of what a pipe delivers."""
    path = Path(file)
    if file != STDIN and path.is_file():
        yield path.resolve()  # a link is followed here, by the person's own choice: below the store follows none
        return
    if file != STDIN and path.is_dir():
        raise InvalidInput(f"{file}: is a folder; append one file, or declare the folder as a landing place and ingest")
    if file != STDIN and not path.exists():
        raise NotFound(f"{file}: there is no such file")
    from storage_core.scratch import scratch_folder

    with scratch_folder("append") as folder:
        copy = folder.resolve() / ("stdin" if file == STDIN else path.name)
        with copy.open("wb") as target:
            if file == STDIN:
                shutil.copyfileobj(sys.stdin.buffer, target)
            else:
                with path.open("rb") as source:
                    shutil.copyfileobj(source, target)
        yield copy
