"""Commands for long-running processes (`ui`, `serve` and `spark`), and the command `backfill`."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from jobs.process import STOP_SIGNALS
from pipelines.commands import output
from pipelines.commands.arguments import Json, declared
from storage_core.base.errors import PIPELINE, Interrupted, InvalidInput, NotFound, TidemarkError, Unavailable, needs
from storage_core.base.text import choice_of, counted, did_you_mean, listed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipelines.backfill import ChunkDone
    from pipelines.tables import DeclaredTable


@contextmanager
def noticed() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether SIGINT or SIGTERM has arrived, even if other code handles these signals.

    Inside the block, both signals raise `KeyboardInterrupt`, unless a run sets its own handlers. Only the main thread
    receives signals. The function therefore returns False in every other thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    heard, written = socket.socketpair()
    with heard, written:
        heard.settimeout(0)
        written.settimeout(0)
        # For each signal that has a Python handler, Python writes the signal's number to this socket.
        was_told = signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
        handlers = {each: signal.signal(each, signal.default_int_handler) for each in STOP_SIGNALS}
        try:
            yield _Ear(heard).has_signal
        finally:
            for each, handler in handlers.items():
                signal.signal(each, handler)
            signal.set_wakeup_fd(was_told)


class _Ear:
    """An object that stores whether a socket has received the number of a stop signal."""

    def __init__(self, source: socket.socket) -> None:
        self._source, self._heard = source, False

    def has_signal(self) -> bool:
        """Return whether one of the signals has already arrived."""
        with suppress(BlockingIOError):
            self._heard = self._heard or bool(set(self._source.recv(4096)) & set(STOP_SIGNALS))
        return self._heard


# Dagster.


_LOOPBACK = "127.0.0.1"
_ACTIONS = ("up", "down", "status")
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host",
        metavar="HOST[:PORT]",
        envvar="TIDEMARK_ALLOW_HOST",
        help="Host name under which browsers reach the webserver, such as a proxy. Repeat "
        "--allow-host for more host names.",
    ),
]


def ui(
    *,
    port: Annotated[int, typer.Option(metavar="PORT", min=1, max=65535, help="The port on 127.0.0.1.")] = 3000,
    warm: Annotated[
        bool, typer.Option("--spark", help="Also keep a Spark running for jobs, as `tidemark spark up` does.")
    ] = False,
    allow_host: AllowHost = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print each event of a run here, too.")] = False,
    as_json: Json = False,
) -> None:
    """Open Dagster's UI. Only this machine can reach the UI.

    The UI shows every run of the demo, of backfills and of schedules. The terminal shows the log lines of runs with the
    level INFO or higher. With --verbose, the terminal shows each event. The command also starts a daemon and a code
    server. If the webserver, the daemon or the code server ends, the command restarts it.

    Example: tidemark ui --port 3001
    """
    place, environment = _settled("the UI of Dagster", is_verbose=verbose)
    hosts = _hosts(allow_host)
    _require_free(port)
    from pipelines.processes.programs import Address, Service, command_of, require_no_other_daemon
    from pipelines.processes.supervision import keep_running

    require_no_other_daemon(place)
    url = f"http://{_LOOPBACK}:{port}"
    if as_json:
        output.json_line({"url": url, "dagster_home": str(place)})
    else:
        output.line(f"Dagster starts (its history is in {place}). End Dagster with Ctrl-C.")
    sys.stdout.flush()

    def is_open() -> bool:
        """Return whether the webserver answers. If the webserver answers, print its address for people."""
        with socket.socket() as probe:
            answers = probe.connect_ex((_LOOPBACK, port)) == 0
        if answers and not as_json:
            with suppress(output.OutputClosedError, BrokenPipeError):  # a closed output must not stop the processes
                output.line(f"Dagster is open on {url}")
                sys.stdout.flush()
        return answers

    # Only this user may enter the folder. Everyone who can connect to the code server can run code as this user.
    from storage_core.base.process import scratch_folder

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
    service: Annotated[str, typer.Argument(metavar="SERVICE", help="The process: code, daemon or webserver.")],
    *,
    code: Annotated[
        str, typer.Option("--code", metavar="ADDRESS", help="The code server: HOST:PORT, or a path to its socket.")
    ],
    host: Annotated[str, typer.Option(metavar="HOST", help="Address on which the webserver listens.")] = _LOOPBACK,
    port: Annotated[int, typer.Option(metavar="PORT", min=1, max=65535, help="The port of the webserver.")] = 3000,
    allow_host: AllowHost = None,
    as_json: Json = False,
) -> None:
    """Run one process of Dagster until the process is ended.

    Use the command with systemd, in containers, and on several machines. All three processes need the same value for
    --code. Everyone who can connect to the code server or to the webserver can use it. The webserver rejects requests
    from pages of other sites. The webserver also rejects hosts that --allow-host does not declare.

    Example: tidemark serve webserver --code 10.0.0.5:4266 --host 0.0.0.0
    """
    place, environment = _settled("a process of Dagster")
    from pipelines.processes.programs import Address, Service, command_of

    if service not in (known := [each.value for each in Service]):
        raise InvalidInput(choice_of("SERVICE", service, known))
    address = Address.parse(code)
    if service == Service.DAEMON:
        from pipelines.processes.programs import require_no_other_daemon

        require_no_other_daemon(place)
    command = command_of(Service(service), address, place, host=host, port=port, hosts=_hosts(allow_host))
    if as_json:
        output.json_line({"service": service, "code": code, "dagster_home": str(place)})
    sys.stdout.flush()
    if service == Service.CODE:
        from pipelines.processes.code_server import run_code_server

        run_code_server(command, address, environment)
        return
    # Dagster replaces this process. A signal to this process therefore ends Dagster, and no child process remains.
    os.execve(command[0], command, environment)  # noqa: S606  # a shell is not needed


def _settled(what: str, *, is_verbose: bool = False) -> tuple[Path, Mapping[str, str]]:
    """Return Dagster's home folder, and the environment for its processes.

    Raises `NotFound` if no table is declared.
    """
    with needs(PIPELINE, what):
        from pipelines.instance import home
    from pipelines.processes.programs import environment_of
    from pipelines.tables import LOG_LEVEL, tables_folder
    from storage_core.change.declaration import TABLES

    folder = tables_folder()
    if not folder.is_dir():
        raise NotFound(f"no table is declared here. Run this in a folder with tables/*.yaml, or set {TABLES}.")
    place = home(environment={**os.environ, **({LOG_LEVEL: "DEBUG"} if is_verbose else {})})
    return place, environment_of(place, folder, os.environ)


def _hosts(declared: list[str] | None) -> list[str]:
    """Return the declared hosts. Raises `InvalidInput` if one text is not a host."""
    from pipelines.processes.programs import declared_hosts

    declared_hosts(declared or ())
    return declared or []


def _require_free(port: int) -> None:
    """Raise `InvalidInput` if another process uses the port.

    Dagster's own message would be hard to find between the lines of other processes.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was just released is free
        try:
            probe.bind((_LOOPBACK, port))
        except OSError as error:
            raise InvalidInput(
                f"port {port} cannot be used ({error.strerror}). End the program that uses the "
                "port, such as another UI, "
                "or choose another port with --port (make ui PORT=…)."
            ) from None


# Spark.


def spark(
    action: Annotated[str, typer.Argument(metavar="ACTION", help="The action: up, down or status.")],
    *,
    foreground: Annotated[
        bool,
        typer.Option("--foreground", help="up: run Spark until this command is ended, for use under a supervisor."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Keep Spark running for the jobs of this user.

    This Spark accepts only jobs from this machine that have its token. Only this user can read the token. A job starts
    its own Spark if its code, Java or credentials differ from those of the running Spark. The first start stores
    Spark's classes in an archive. Creating the archive takes half a minute. `status` exits with 5 if jobs would not use
    this Spark.

    Example: tidemark spark up
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
            raise InvalidInput(choice_of("ACTION", action, _ACTIONS))


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
    """Print whether Spark runs, and whether jobs of this process would use this Spark.

    Exit with 5 if jobs would not use this Spark.
    """
    from jobs.spark.warm import read, require_fitting

    server, reason = None, ""
    try:
        server = read(file)
        if server is None:
            raise NotFound("no warm Spark was started. Start the warm Spark with `tidemark spark up`.")
        require_fitting(server, os.environ)
    except TidemarkError as error:
        reason = str(error)
    if as_json:
        found = {"port": server.port, "pid": server.pid} if server else {}
        output.json_line({"used": not reason, "reason": reason or None, **found})
    elif server is None or reason:
        output.line(reason)
    else:
        output.line(f"Spark is up: process {server.pid}, 127.0.0.1:{server.port}. Jobs use it.")
    if reason:
        raise typer.Exit(Unavailable.exit_code)


# Backfill.


_LONGEST_CHUNK_SECONDS = 3600.0  # the estimate of the remaining time ignores longer chunks


def backfill(
    *,
    table: Annotated[str, typer.Option(metavar="NAME", help="A table declared in tables/*.yaml, with windows.")],
    start: Annotated[str, typer.Option("--from", metavar="TIME", help="First window, such as 2015-05-17T10:00 (UTC).")],
    end: Annotated[
        str, typer.Option("--to", metavar="TIME", help="End of the range. The window that starts here is not included.")
    ],
    chunk: Annotated[str, typer.Option(metavar="DURATION", help="Time range of one run, such as 1d or 6h.")] = "1d",
    failed: Annotated[bool, typer.Option("--failed", help="Only windows whose last run failed or was killed.")] = False,
    as_json: Json = False,
) -> None:
    """Run Dagster for a range of windows.

    Each chunk gets one run. The run ingests and compacts the windows of the chunk. The UI shows each run. If a window
    fails, the other windows still run. A second run of the same range does not repeat finished work.

    --failed selects only windows whose last run failed, was cancelled or was killed. The option --failed skips windows
    for which no run has started. The command exits with 3 if another run works on a window of the range.

    Ctrl-C ends the current chunk, and no further chunk starts. The command then prints the remaining work.

    Example: tidemark backfill --table clicks --from 2015-05-17 --to 2015-05-20
    """
    ended: list[ChunkDone] = []
    with noticed() as stopped, _quiet_previews():
        try:
            with closing(_chunks(table, start, end, chunk, only_failed=failed, as_json=as_json)) as chunks:
                for done in chunks:
                    ended.append(done)
                    if stopped():
                        break
        except KeyboardInterrupt:
            require_complete(ended, only_failed=failed)
        if stopped():
            require_complete(ended, only_failed=failed)
    if failed and not ended and not as_json:
        output.line(f"nothing to do: no window from {start} to {end} has a last run that failed or was killed")
    bad = [each for each in ended if each.error is not None]
    if bad:
        raise TidemarkError(
            f"{len(bad)} of {bad[0].of} chunks failed{_windows_of(bad)}. `tidemark ui` shows their runs. "
            "Remove the cause, then run the command again with --failed."
        )


def _chunks(table: str, start: str, end: str, chunk: str, *, only_failed: bool, as_json: bool) -> Generator[ChunkDone]:
    """Run one chunk after another, and show the result of each."""
    with needs(PIPELINE, "a backfill"):
        from pipelines import backfill as runs
        from pipelines.instance import open_instance

    known = _declared(table)
    with (
        open_instance() as instance,
        _own(1, sys.stdout) as ours,
        _own_errors() as errors,
        progress(f"{table} {start} to {end}", errors) as advance,
    ):
        for done in runs.backfill(
            known.declaration, start, end, chunk, only_failed=only_failed, instance=instance, file=known.file
        ):
            with advance(done.number, done.of), redirect_stdout(ours):
                _show_chunk(done, as_json=as_json)
            yield done


def require_complete(ended: Sequence[ChunkDone], *, only_failed: bool) -> None:
    """Do nothing if the signal interrupted no work. Otherwise, raise `Interrupted`.

    Raises:
        Interrupted: Work is left. The message describes the remaining work and how to continue.
    """
    if not ended:
        raise Interrupted("stopped by a signal before a chunk ended. Run the same command again.")
    last = ended[-1]
    if last.following is None and last.error != Interrupted.kind:
        return
    bad = sum(each.error is not None for each in ended)
    counts = (
        f"{len(ended) - bad} of {last.of} chunks done, {bad} interrupted or failed, {last.of - len(ended)} not started"
    )
    advice = ["--failed for interrupted or failed chunks"] if bad and not only_failed else []
    advice += (
        [f"--from {last.following} for the chunks that have not started"] if last.following and not only_failed else []
    )
    how = f" and {', and with '.join(advice)}" if advice else ""
    raise Interrupted(f"stopped by a signal: {counts}. Continue with the same command{how}.")


def _windows_of(bad: Sequence[ChunkDone]) -> str:
    names = [name for each in bad for name in each.failed]
    return f", but only in the windows {listed(names)}" if all(each.failed for each in bad) else ""


def _declared(name: str) -> DeclaredTable:
    """Return the declared table with this name, with locations that do not depend on the working directory."""
    known = declared()
    if found := known.find(name):
        return found
    problems = (each.message for each in known.problems)
    likely = did_you_mean(name, (each.declaration.name for each in known.tables))
    message = f"{name!r} is not a table declared in tables/*.yaml (declared: {known.names()})"
    message += likely or ". Check the name"
    raise NotFound("\n".join([message, *problems]))


def _show_chunk(done: ChunkDone, *, as_json: bool) -> None:
    part = done.chunk
    if as_json:
        about = {"number": done.number, "of": done.of, "first": part.first, "last": part.last, "windows": part.windows}
        status = "done" if done.error is None else "failed"
        more = {
            "rows": dict(done.rows),
            "windows_failed": list(done.failed),
            "run_id": done.run_id,
            "error": done.error,
        }
        output.json_line({"status": status, **about, **more})
    else:
        ended = "done" if done.error is None else f"failed: {done.error}"
        rows = ", ".join(f"{step} {counted(count, 'row')}" for step, count in done.rows.items())
        of = f"{part.first} to {part.last}  {counted(part.windows, 'window')}  {rows}"
        output.line(f"{done.number}/{done.of}  {of}  {ended}")
    sys.stdout.flush()


@contextmanager
def _own(descriptor: int, stream: TextIO) -> Iterator[TextIO]:
    """Yield a stream for the command's own lines. Inside the `with` block, only the UI shows job output.

    A job is a separate process, so the function replaces the file descriptor. Dagster still captures the output of
    jobs.
    """
    stream.flush()
    kept = os.dup(descriptor)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
    try:
        with os.fdopen(os.dup(kept), "w", encoding="utf-8") as ours:
            yield ours
    finally:
        stream.flush()
        os.dup2(kept, descriptor)
        os.close(kept)


def _own_errors() -> AbstractContextManager[TextIO]:
    """Return a standard error stream that shows only the lines of this command.

    With `tidemark --verbose`, the stream also shows the lines of jobs.
    """
    return nullcontext(sys.stderr) if logging.getLogger().isEnabledFor(logging.INFO) else _own(2, sys.stderr)


@contextmanager
def _quiet_previews() -> Iterator[None]:
    """Suppress Dagster's warnings about preview features. Users cannot act on these warnings."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".* is currently in (beta|preview)")
        yield


@contextmanager
def progress(what: str, errors: TextIO) -> Iterator[Callable[[int, int], AbstractContextManager[None]]]:
    """If `errors` is a terminal, show a progress bar with the remaining time there.

    The yielded function moves the progress bar to the given number. The bar is hidden while the function's block writes
    to the terminal. Otherwise, the text and the bar would share one line.
    """
    from rich.console import Console
    from rich.progress import Progress

    with Progress(
        console=Console(file=errors),
        disable=not errors.isatty(),
        transient=True,
        speed_estimate_period=_LONGEST_CHUNK_SECONDS,
    ) as bar:
        task = bar.add_task(what, total=None)

        @contextmanager
        def advance(number: int, of: int) -> Iterator[None]:
            if not bar.disable:
                bar.stop()
            yield
            bar.update(task, completed=number, total=of)
            bar.start()

        yield advance
