"""`clone`: a table of a version of a table."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.commands import output
from pipelines.commands.arguments import Json, Uri
from pipelines.commands.target import open_table
from storage_core.wording import counted

if TYPE_CHECKING:
    from storage_core.cloning.cloned import Cloned


def clone(
    uri: Uri,
    to: Annotated[str, typer.Argument(metavar="NEW", help="Where the clone goes: an empty place of its own.")],
    *,
    version: Annotated[
        str | None, typer.Option(metavar="VERSION|TIME|TAG", help="The version; without, the newest.")
    ] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Copy every file; else they are shared with the table.")] = False,
    as_json: Json = False,
) -> None:
    """Make a table of a version of a table.

    Without --deep only a log is written: the files stay where they are, and a tag in the table keeps them for as long
    as it is not removed. Rows of a keyed table that are not merged are not in the clone: merge first.
    """
    _show(open_table(uri).clone(to, version=version, deep=deep), as_json=as_json)


def _show(done: Cloned, *, as_json: bool) -> None:
    if as_json:
        status = "committed" if done.commit_id else "nothing_to_do"
        output.json_line({"status": status, **asdict(done), "commit_id": done.commit_id or None})
        return
    if not done.commit_id:
        output.line(f"{done.uri} is that clone already, nothing to do")
        return
    how = f"the tag {done.tag} keeps its files" if done.tag else f"{done.copied_bytes:,} bytes copied"
    output.line(
        f"version {done.source_version:,} is in {done.uri}: {counted(done.rows, 'row')} in "
        f"{counted(done.splits, 'split')}; {how}"
    )
    if done.unmerged:
        output.line(f"{counted(done.unmerged, 'record')} that no merge has applied yet are not in it")
