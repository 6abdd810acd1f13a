"""`publish`: a table as readers of other formats see it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.commands import output
from pipelines.commands.arguments import Json, Uri
from pipelines.commands.target import open_table

if TYPE_CHECKING:
    from storage_core.publishing.mirrored import Mirrored


def publish(
    uri: Uri,
    *,
    format_: Annotated[
        str | None,
        typer.Option("--format", metavar="FORMAT", help="Which format: delta, iceberg; else what the table declares."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the newest versions to readers of Delta or Iceberg.

    Nothing is rewritten: metadata beside the table names the same files. Run it again after changes, or declare
    `publish` and let its asset do so. Of a keyed table what is merged is shown.
    """
    table = open_table(uri)
    for each in (format_,) if format_ is not None else table.config.publish.published:
        _show(table.publish(each), as_json=as_json)


def _show(done: Mirrored, *, as_json: bool) -> None:
    if as_json:
        output.json_line({"status": "committed" if done.commits else "nothing_to_do", **asdict(done)})
        return
    if done.version is None:
        output.line(f"{done.format} shows no version yet")
    else:
        shown_as = f"{'snapshot' if done.format == 'iceberg' else 'version'} {done.shown_as}"
        output.line(f"{done.format} {shown_as} shows version {done.version} of the table ({done.commits:,} new)")
        if done.format == "iceberg":
            output.line(f"newest metadata: {done.location}")
    if done.waits_for is not None:
        output.line(f"newer ones wait: {done.waits_for}")
