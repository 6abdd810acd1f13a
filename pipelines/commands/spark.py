"""A Spark that stays, so that jobs do not start one each: `spark`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.commands import output
from pipelines.commands.arguments import Json
from storage_core.errors import InvalidInput, NotFound, TidemarkError

if TYPE_CHECKING:
    from pathlib import Path

_ACTIONS = ("up", "down", "status")


def spark(
    action: Annotated[str, typer.Argument(metavar="ACTION", help="up, down or status.")],
    *,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="up: run it until this command is ended, for what supervises it.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Keep a Spark on this machine, which the jobs of this user use.

    It takes jobs from this machine only, with a token that only this user can read. Jobs whose code, Java or
    credentials are others start a Spark of their own. The first time Spark's classes are left in an archive, which
    takes half a minute.
    """
    from jobs.spark.warm import file_of

    file = file_of(os.environ)
    match action:
        case "up":
            _up(file, foreground=foreground, as_json=as_json)
        case "down":
            _down(file, as_json=as_json)
        case "status":
            _status(file, as_json=as_json)
        case _:
            raise InvalidInput(f"{action!r} is no action; it is one of {', '.join(_ACTIONS)}")


def _up(file: Path, *, foreground: bool, as_json: bool) -> None:
    from pipelines import warm_server

    if foreground:
        warm_server.keep(file, os.environ)
        return
    server, is_new = warm_server.up(file, os.environ)
    if as_json:
        output.json_line({"started": is_new, "port": server.port, "pid": server.pid})
    else:
        output.line(f"Spark {'is up' if is_new else 'was up already'}: process {server.pid}, 127.0.0.1:{server.port}")


def _down(file: Path, *, as_json: bool) -> None:
    from pipelines import warm_server

    ended = warm_server.down(file)
    if as_json:
        output.json_line({"ended": ended is not None})
    else:
        output.line("no Spark was up" if ended is None else f"Spark is down: process {ended.pid} has ended")


def _status(file: Path, *, as_json: bool) -> None:
    """Say whether it runs, and whether jobs of this process would use it."""
    from jobs.spark.warm import read, require_fitting

    server, reason = read(file), ""
    try:
        if server is None:
            raise NotFound("no warm Spark was started; `tidemark spark up` does")
        require_fitting(server, os.environ)
    except TidemarkError as error:
        reason = str(error)
    if as_json:
        found = {"port": server.port, "pid": server.pid} if server else {}
        output.json_line({"used": not reason, "reason": reason or None, **found})
    elif server is None or reason:
        output.line(reason)
    else:
        output.line(f"Spark is up: process {server.pid}, 127.0.0.1:{server.port}; jobs use it")
