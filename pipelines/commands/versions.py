"""Older versions: `changes` between two, `restore` one, `tag` one so that it stays."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.commands import output
from pipelines.commands.arguments import Everything, Json, Uri, duration_ms
from pipelines.commands.output import cell, instant_ms, number
from pipelines.commands.target import open_table
from storage_core.errors import InvalidInput, Unavailable
from storage_core.wording import counted

if TYPE_CHECKING:
    import pyarrow as pa

    from storage_core.formats.tags import Tag
    from storage_core.table import Table

VERSION = "VERSION|TIME|TAG"

From = Annotated[str, typer.Option("--from", metavar=VERSION, help="Changes after this version, which is left out.")]
To = Annotated[str | None, typer.Option("--to", metavar=VERSION, help="Up to this version; without, up to the newest.")]


def changes(
    uri: Uri,
    *,
    start: From,
    end: To = None,
    arrow: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write all of them there, as an Arrow IPC stream.")
    ] = None,
    everything: Everything = False,
    as_json: Json = False,
) -> None:
    """List the rows that commits added and removed.

    Beside the columns of the table each row has _change_type (delete or insert), _commit_version and _commit_timestamp.
    A compaction changes no row. Of a keyed table these are the rows of the base: what is merged.
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
    to: Annotated[str, typer.Option(metavar=VERSION, help="What the table shall be again.")],
    as_json: Json = False,
) -> None:
    """Make a table what it was, by a commit on top.

    Nothing is lost: the versions in between stay, and a restore can be restored away. What was ingested or merged since
    is not ingested or merged again. Rows of a keyed table that no merge has applied yet stay, and the next one does.
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
            f"version {done.snapshot.version:,} is version {done.restored_version:,} again: "
            f"{counted(done.splits_added, 'split')} back, {done.splits_removed:,} out"
        )
    else:
        output.line(f"the table is as version {done.restored_version:,} already")


def tag(
    uri: Uri,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Small letters, digits, . _ and -.")] = None,
    *,
    version: Annotated[str | None, typer.Option(metavar=VERSION, help="The version; without, the newest.")] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Keep it so long from now, such as 30d; without, for ever.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the tags; so does leaving NAME out.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Remove the tag.")] = False,
    as_json: Json = False,
) -> None:
    """Name a version, so that it stays readable.

    The collector keeps a tagged version until the tag expires or is removed. Setting a name again moves it.
    """
    table = open_table(uri)
    if name is None or list_:
        if (name, version, expires, delete) != (None, None, None, False):
            raise InvalidInput("--list goes alone; a tag that is set or removed needs its NAME")
        shown = {"name": cell, "version": number, "created_at": instant_ms, "expires_at": instant_ms}
        output.records(map(_about, table.tags()), shown, as_json=as_json, nothing="no tags")
    elif delete:
        if (version, expires) != (None, None):
            raise InvalidInput("--delete goes without --version and --expires")
        _show(table.untag(name), "removed", as_json=as_json)
    else:
        _show(_set(table, name, version, expires), "set", as_json=as_json)


def _set(table: Table, name: str, version: str | None, expires: str | None) -> Tag:
    lasts_ms = duration_ms("--expires", expires)
    return table.tag(name, version, expires=None if lasts_ms is None else dt.timedelta(milliseconds=lasts_ms))


def _show(found: Tag, status: str, *, as_json: bool) -> None:
    about = _about(found)
    if as_json:
        output.json_line({"status": status, **about})
    elif status == "removed":
        output.line(f"{found.name} removed; it was version {found.version:,}")
    else:
        until = "for ever" if found.expires_at_ms is None else f"until {instant_ms(found.expires_at_ms)}"
        output.line(f"{found.name} is version {found.version:,} {until}")


def _about(found: Tag) -> dict[str, object]:
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
        raise Unavailable(f"{file}: {error.strerror or error}; nothing can be relied on in it") from error
    return rows
