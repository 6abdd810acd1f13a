"""The processes of Dagster: `ui` runs all of them on this machine, `serve` one of them for what supervises it."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.commands import output
from pipelines.commands.arguments import Json
from storage_core.errors import InvalidInput, NotFound
from storage_core.extras import PIPELINE, needs

if TYPE_CHECKING:
    from collections.abc import Mapping

_LOOPBACK = "127.0.0.1"


def ui(
    *,
    port: Annotated[int, typer.Option(metavar="PORT", min=1, max=65535, help="The port on 127.0.0.1.")] = 3000,
    warm: Annotated[bool, typer.Option("--spark", help="Keep a Spark for jobs, as `spark up` does.")] = False,
    as_json: Json = False,
) -> None:
    """Open Dagster's UI, on this machine only.

    It shows every run of the demo, of backfills and of schedules. With it come a daemon and a code server; of the three
    one that ends is started again, and the others stay.
    """
    place, environment = _settled("the UI of Dagster")
    _require_free(port)
    from pipelines.services import Address, Service, command_of
    from pipelines.supervision import keep_running

    url = f"http://{_LOOPBACK}:{port}"
    if as_json:
        output.json_line({"url": url, "dagster_home": str(place)})
    else:
        output.line(f"Dagster opens on {url} (its history is in {place}); end it with Ctrl-C")
    sys.stdout.flush()
    # Only this user gets into the folder, for who reaches the code server runs code as this user.
    with tempfile.TemporaryDirectory(prefix="tidemark-ui-") as folder:
        code = Address(socket=str(listening := Path(folder) / "code"))
        programs = {
            each.value: command_of(each, code, place, host=_LOOPBACK, port=port)
            for each in (Service.DAEMON, Service.WEBSERVER)
        }
        if warm:
            programs["spark"] = [sys.executable, "-m", "pipelines.cli", "spark", "up", "--foreground"]
        watched = [sys.executable, "-m", "pipelines.cli", "serve", Service.CODE.value, "--code", str(code.socket)]
        keep_running({Service.CODE.value: watched, **programs}, environment, listening.exists)


def serve(
    service: Annotated[str, typer.Argument(metavar="SERVICE", help="code, daemon or webserver.")],
    *,
    code: Annotated[
        str, typer.Option("--code", metavar="ADDRESS", help="The code server: HOST:PORT, or a path to its socket.")
    ],
    host: Annotated[str, typer.Option(metavar="HOST", help="What the webserver listens on.")] = _LOOPBACK,
    port: Annotated[int, typer.Option(metavar="PORT", min=1, max=65535, help="The port of the webserver.")] = 3000,
    as_json: Json = False,
) -> None:
    """Run one process of Dagster until it is ended.

    For systemd, containers, and several machines. Give all three the same --code. The code server and the webserver
    let in everybody who reaches them.
    """
    place, environment = _settled("a process of Dagster")
    from pipelines.services import Address, Service, command_of

    if service not in (known := [each.value for each in Service]):
        raise InvalidInput(f"{service!r} is no process of Dagster; it is one of {', '.join(known)}")
    address = Address.parse(code)
    command = command_of(Service(service), address, place, host=host, port=port)
    if as_json:
        output.json_line({"service": service, "code": code, "dagster_home": str(place)})
    sys.stdout.flush()
    if service == Service.CODE:
        from pipelines.code_server import run_code_server

        run_code_server(command, address, environment)
        return
    # Dagster takes this process over, so that what ends it ends Dagster and nothing stays behind.
    os.execve(command[0], command, environment)  # noqa: S606  # no shell is wanted


def _settled(what: str) -> tuple[Path, Mapping[str, str]]:
    """The home of Dagster, and the environment of its processes. Raises `NotFound` without declarations."""
    with needs(PIPELINE, what):
        from pipelines.instance import home
    from pipelines.services import environment_of
    from pipelines.tables import TABLES, tables_folder

    folder = tables_folder()
    if not folder.is_dir():
        raise NotFound(f"no table is declared here; run this in a folder with tables/*.yaml, or set {TABLES}")
    place = home()
    return place, environment_of(place, folder, os.environ)


def _require_free(port: int) -> None:
    """Raise `InvalidInput` for a port that is taken; Dagster would say so among the lines of its other processes."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that was just given back is free
        try:
            probe.bind((_LOOPBACK, port))
        except OSError as error:
            raise InvalidInput(
                f"port {port} cannot be used ({error.strerror}): end the program that has it, such as a UI that still "
                "runs, or choose another with --port (make ui PORT=…)"
            ) from None
