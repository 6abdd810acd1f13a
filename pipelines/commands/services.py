"""Processes that stay: `ui` runs those of Dagster on this machine, `serve` one of them, `spark` a Spark for jobs."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.commands import output
from pipelines.commands.arguments import Json
from storage_core.errors import InvalidInput, NotFound, TidemarkError, Unavailable
from storage_core.extras import PIPELINE, needs

if TYPE_CHECKING:
    from collections.abc import Mapping

_LOOPBACK = "127.0.0.1"
_ACTIONS = ("up", "down", "status")
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host",
        metavar="HOST[:PORT]",
        envvar="TIDEMARK_ALLOW_HOST",
        help="A host by which browsers reach the webserver, such as that of a proxy; may be given more than once.",
    ),
]


def ui(
    *,
    port: Annotated[int, typer.Option(metavar="PORT", min=1, max=65535, help="The port on 127.0.0.1.")] = 3000,
    warm: Annotated[bool, typer.Option("--spark", help="Keep a Spark for jobs, as `spark up` does.")] = False,
    allow_host: AllowHost = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show each event of a run here too.")] = False,
    as_json: Json = False,
) -> None:
    """Open Dagster's UI, on this machine only.

    It shows every run of the demo, of backfills and of schedules. The terminal shows what runs log at INFO. With
    --verbose it shows each event. The command also starts a daemon and a code server. If one of the three processes
    ends, it is started again.
    """
    place, environment = _settled("the UI of Dagster", is_verbose=verbose)
    hosts = _hosts(allow_host)
    _require_free(port)
    from pipelines.processes.one_daemon import require_no_other_daemon
    from pipelines.processes.programs import Address, Service, command_of
    from pipelines.processes.supervision import keep_running

    require_no_other_daemon(place)
    url = f"http://{_LOOPBACK}:{port}"
    if as_json:
        output.json_line({"url": url, "dagster_home": str(place)})
    else:
        output.line(f"Dagster starts (its history is in {place}); end it with Ctrl-C")
    sys.stdout.flush()

    def is_open() -> bool:
        """Whether the webserver answers; says it to people."""
        with socket.socket() as probe:
            answers = probe.connect_ex((_LOOPBACK, port)) == 0
        if answers and not as_json:
            with suppress(output.OutputClosedError, BrokenPipeError):  # who looks no more wants it to go on
                output.line(f"Dagster is open on {url}")
                sys.stdout.flush()
        return answers

    # Only this user gets into the folder, for who reaches the code server runs code as this user.
    from storage_core.scratch import scratch_folder

    with scratch_folder("ui") as folder:
        code = Address(socket=str(listening := folder / "code"))
        programs = {
            each.value: command_of(each, code, place, host=_LOOPBACK, port=port, hosts=hosts)
            for each in (Service.DAEMON, Service.WEBSERVER)
        }
        if warm:
            programs["spark"] = [sys.executable, "-m", "pipelines.cli", "spark", "up", "--foreground"]
        watched = [sys.executable, "-m", "pipelines.cli", "serve", Service.CODE.value, "--code", str(code.socket)]
        keep_running({Service.CODE.value: watched, **programs}, environment, listening.exists, is_open)


def serve(
    service: Annotated[str, typer.Argument(metavar="SERVICE", help="code, daemon or webserver.")],
    *,
    code: Annotated[
        str, typer.Option("--code", metavar="ADDRESS", help="The code server: HOST:PORT, or a path to its socket.")
    ],
    host: Annotated[str, typer.Option(metavar="HOST", help="What the webserver listens on.")] = _LOOPBACK,
    port: Annotated[int, typer.Option(metavar="PORT", min=1, max=65535, help="The port of the webserver.")] = 3000,
    allow_host: AllowHost = None,
    as_json: Json = False,
) -> None:
    """Run one process of Dagster until it is ended.

    For systemd, containers, and several machines. Give all three the same --code. The code server and the webserver
    let in everybody who reaches them. The webserver refuses requests from pages of other sites, and hosts that
    --allow-host does not declare.
    """
    place, environment = _settled("a process of Dagster")
    from pipelines.processes.programs import Address, Service, command_of

    if service not in (known := [each.value for each in Service]):
        raise InvalidInput(f"{service!r} is no process of Dagster; it is one of {', '.join(known)}")
    address = Address.parse(code)
    if service == Service.DAEMON:
        from pipelines.processes.one_daemon import require_no_other_daemon

        require_no_other_daemon(place)
    command = command_of(Service(service), address, place, host=host, port=port, hosts=_hosts(allow_host))
    if as_json:
        output.json_line({"service": service, "code": code, "dagster_home": str(place)})
    sys.stdout.flush()
    if service == Service.CODE:
        from pipelines.processes.code_server import run_code_server

        run_code_server(command, address, environment)
        return
    # Dagster takes this process over, so that what ends it ends Dagster and nothing stays behind.
    os.execve(command[0], command, environment)  # noqa: S606  # no shell is wanted


def _settled(what: str, *, is_verbose: bool = False) -> tuple[Path, Mapping[str, str]]:
    """The home of Dagster, and the environment of its processes. Raises `NotFound` without declarations."""
    with needs(PIPELINE, what):
        from pipelines.instance import home
    from pipelines.environment import LOG_LEVEL
    from pipelines.processes.programs import environment_of
    from pipelines.tables import TABLES, tables_folder

    folder = tables_folder()
    if not folder.is_dir():
        raise NotFound(f"no table is declared here; run this in a folder with tables/*.yaml, or set {TABLES}")
    place = home(environment={**os.environ, **({LOG_LEVEL: "DEBUG"} if is_verbose else {})})
    return place, environment_of(place, folder, os.environ)


def _hosts(declared: list[str] | None) -> list[str]:
    """The hosts that were declared. Raises `InvalidInput` for a text that is not one."""
    from pipelines.processes.web_hosts import declared_hosts

    declared_hosts(declared or ())
    return declared or []


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


def spark(
    action: Annotated[str, typer.Argument(metavar="ACTION", help="up, down or status.")],
    *,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="up: run it until this command is ended, for what supervises it.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Keep a Spark for the jobs of this user.

    It takes jobs from this machine only, with a token that only this user can read. Jobs whose code, Java or
    credentials are others start a Spark of their own. The first time Spark's classes are left in an archive, which
    takes half a minute. `status` ends with 5 when jobs would not use it.
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
    from pipelines.processes import warm_server

    if foreground:
        warm_server.keep(file, os.environ)
        return
    server, is_new = warm_server.up(file, os.environ)
    if as_json:
        output.json_line({"started": is_new, "port": server.port, "pid": server.pid})
    else:
        output.line(f"Spark {'is up' if is_new else 'was up already'}: process {server.pid}, 127.0.0.1:{server.port}")


def _down(file: Path, *, as_json: bool) -> None:
    from pipelines.processes import warm_server

    ended = warm_server.down(file)
    if as_json:
        output.json_line({"ended": ended is not None})
    else:
        output.line("no Spark was up" if ended is None else f"Spark is down: process {ended.pid} has ended")


def _status(file: Path, *, as_json: bool) -> None:
    """Say whether it runs, and whether jobs of this process would use it; end with 5 where they would not."""
    from jobs.spark.warm import read, require_fitting

    server, reason = None, ""
    try:
        server = read(file)
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
    if reason:
        raise typer.Exit(Unavailable.exit_code)
