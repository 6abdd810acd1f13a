"""The `tidemark` command: arguments in, tables of numbers or JSON lines out, an exit code that says what to do next.

0 done, also when there was nothing to do; 1 none of the others, the message says what; 2 bad arguments or input;
3 conflict, run it again; 4 corrupt; 5 the store, or an outcome, is unavailable; 6 fenced, stop; 7 a table is behind
(`status`); 130 stopped by a signal. Libraries are imported by the command that needs them: help answers at once.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from jobs.process.stop_signals import heard_once
from pipelines.commands import (
    altering,
    caching,
    cataloguing,
    changing,
    checking,
    cloning,
    creating,
    distribution,
    forgetting,
    importing,
    inspecting,
    leasing,
    orchestration,
    output,
    overview,
    probing,
    publishing,
    quarantine,
    raw,
    reading,
    searching,
    services,
    simulating,
    unmerged,
    upkeep,
    versions,
    writing,
)
from pipelines.commands.as_given import as_given
from pipelines.without_pandas import without_pandas
from storage_core.errors import Interrupted, InvalidInput, TidemarkError, as_tidemark_error
from storage_core.foreign_text import log_to_stderr

_STOPPED = "stopped by a signal; what it committed stays (`tidemark history` shows it), run it again for the rest"

_PANELS: dict[str, dict[str, Callable[..., None]]] = {
    "Tables": {
        "init": creating.init,
        "alter": altering.alter,
        "tables": inspecting.tables,
        "status": overview.status,
        "report": overview.report,
        "metrics": overview.metrics,
        "describe": inspecting.describe,
        "files": inspecting.files,
        "history": inspecting.history,
        "debt": inspecting.debt,
    },
    "Rows": {
        "ingest": writing.ingest,
        "append": writing.append,
        "import": importing.import_,
        "upsert": changing.upsert,
        "update": changing.update,
        "overwrite": changing.overwrite,
        "delete": changing.delete,
        "forget": forgetting.forget,
        "regions": unmerged.regions,
        "tail": unmerged.tail,
        "quarantine": quarantine.quarantine,
    },
    "Versions": {
        "changes": versions.changes,
        "restore": versions.restore,
        "tag": versions.tag,
        "clone": cloning.clone,
        "publish": publishing.publish,
    },
    "Questions": {
        "sql": reading.sql,
        "search": searching.search,
        "recall": searching.recall,
        "get": reading.get,
        "explain": reading.explain,
        "catalog": cataloguing.catalog,
    },
    "Upkeep": {
        "compact": upkeep.compact,
        "simulate-policy": simulating.simulate_policy,
        "distribute": distribution.distribute,
        "sort": upkeep.sort,
        "merge": upkeep.merge,
        "expire": upkeep.expire,
        "checkpoint": upkeep.checkpoint,
        "catch-up": upkeep.catch_up,
        "merge-segments": upkeep.merge_segments,
        "gc": upkeep.gc,
        "leases": leasing.leases,
        "cache": caching.cache,
        "probe": probing.probe,
        "raw": raw.raw,
    },
    "Damage": {"fsck": checking.fsck, "audit": checking.audit, "repair": checking.repair},
    "Dagster": {
        "backfill": orchestration.backfill,
        "ui": services.ui,
        "serve": services.serve,
        "spark": services.spark,
        "alerts": overview.alerts,
    },
}

_READING = ("Tables", "Versions", "Questions")


def build(only: str | None = None) -> typer.Typer:
    """Return the command with all of its subcommands, or with one of this name alone: each costs some milliseconds."""
    app = typer.Typer(name="tidemark", pretty_exceptions_enable=False, rich_markup_mode=None)
    app.callback(invoke_without_command=True)(_start)
    for panel, commands in _PANELS.items():
        for name, command in commands.items():
            if only in (None, name):
                app.command(name, rich_help_panel=panel)(command)
    return app


def _start(
    context: typer.Context,
    *,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say on standard error what is written.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version of Tidemark.")] = False,
) -> None:
    """Searchable tables on plain object storage: make them, fill them, ask them, keep them up."""
    level = logging.INFO if verbose else logging.WARNING
    log_to_stderr(level)
    reads = any(context.invoked_subcommand in _PANELS[panel] for panel in _READING)
    if reads and context.obj:  # for the whole process: Arrow keeps in mind that there was none
        context.with_resource(without_pandas())
    if version:
        output.line(f"tidemark {_version()}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        output.line(context.get_help())


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("tidemark")
    except metadata.PackageNotFoundError:
        return "(run from its source, not installed)"


@heard_once()
def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. An error is a line on standard error, and JSON where asked for.

    A failure without a type of its own is a fault in Tidemark: its traceback is on standard error as well.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    as_json = _asks_for_json(arguments)
    try:
        return _run(arguments, is_process=argv is None)
    except TidemarkError as error:
        return _failed(error, as_json=as_json)
    except typer.TyperException as error:
        return _failed(InvalidInput(f"{error.format_message()} (see tidemark --help)"), as_json=as_json)
    except (typer.Abort, KeyboardInterrupt):
        return _failed(Interrupted(_STOPPED), as_json=as_json)
    except (output.OutputClosedError, BrokenPipeError):
        _drop_output()
        return 0
    except Exception as error:  # noqa: BLE001  # the edge of the process: programs get their contract, people a traceback
        traceback.print_exception(error)
        return _failed(as_tidemark_error(error), as_json=as_json)


def _run(arguments: Sequence[str], *, is_process: bool) -> int:
    """Run the command and return its exit code. Raises `KeyboardInterrupt` for Ctrl-C, also where typer made it 130."""
    first = arguments[0] if arguments else ""
    only = first if any(first in commands for commands in _PANELS.values()) else None
    command = as_given(typer.main.get_command(build(only)))
    code = command(arguments, prog_name="tidemark", standalone_mode=False, obj=is_process)
    sys.stdout.flush()
    if code == Interrupted.exit_code:
        raise KeyboardInterrupt
    return code if isinstance(code, int) else 0


def _asks_for_json(arguments: Sequence[str]) -> bool:
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in options


def _failed(error: TidemarkError, *, as_json: bool) -> int:
    try:
        return output.error(error, as_json=as_json)
    except (output.OutputClosedError, BrokenPipeError):
        _drop_output()
        return error.exit_code


def _drop_output() -> None:
    """The reader of the output has seen enough: what is buffered goes nowhere, and the process ends in peace."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
