"""`backfill`: ranges of windows through Dagster."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, redirect_stdout
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from pipelines.commands import output
from pipelines.commands.arguments import Json
from pipelines.commands.interruption import noticed
from pipelines.commands.target import declared
from storage_core.errors import Interrupted, NotFound, TidemarkError
from storage_core.extras import PIPELINE, needs
from storage_core.wording import counted, listed

_LONGEST_CHUNK_SECONDS = 3600.0  # chunks that take longer say nothing about the time that is left

if TYPE_CHECKING:
    from pipelines.backfill import ChunkDone
    from pipelines.tables import DeclaredTable


def backfill(
    *,
    table: Annotated[str, typer.Option(metavar="NAME", help="A table declared in tables/*.yaml, with windows.")],
    start: Annotated[
        str, typer.Option("--from", metavar="TIME", help="First window, included: 2015-05-17T10:00, UTC.")
    ],
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="End of the windows, excluded.")],
    chunk: Annotated[str, typer.Option(metavar="DURATION", help="Windows of one run, such as 1d or 6h.")] = "1d",
    failed: Annotated[bool, typer.Option("--failed", help="Only windows whose last run failed or was killed.")] = False,
    as_json: Json = False,
) -> None:
    """Run a range of windows through Dagster.

    One run per chunk ingests and compacts its windows; the UI shows each. A window that fails does not stop the others,
    and running a range again changes nothing that is done already. --failed takes only windows whose last run failed,
    was cancelled or was killed, not those that no run has begun; it ends with 3 while a run works on one of the range.
    Ctrl-C ends the chunk that is under way and all that would follow, and says what is left.
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
        output.line(f"nothing to do: no window from {start} to {end} had a last run that failed or was ended")
    bad = [each for each in ended if each.error is not None]
    if bad:
        raise TidemarkError(
            f"{len(bad)} of {bad[0].of} chunks failed{_windows_of(bad)}; `tidemark ui` shows their runs; "
            "once the cause is gone, run it again with --failed"
        )


def _chunks(table: str, start: str, end: str, chunk: str, *, only_failed: bool, as_json: bool) -> Generator[ChunkDone]:
    """Run and show one chunk after the other."""
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
    """Return if the signal that came left nothing to end. Raises `Interrupted`: what is left, and how to go on."""
    if not ended:
        raise Interrupted("stopped by a signal before a chunk ended; run the same command again")
    last = ended[-1]
    if last.following is None and last.error != Interrupted.kind:
        return
    bad = sum(each.error is not None for each in ended)
    counts = f"{len(ended) - bad} of {last.of} chunks done, {bad} begun or failed, {last.of - len(ended)} not begun"
    advice = ["--failed for what was begun"] if bad and not only_failed else []
    advice += [f"--from {last.following} for the rest"] if last.following and not only_failed else []
    how = f" and {', and with '.join(advice)}" if advice else ""
    raise Interrupted(f"stopped by a signal: {counts}; go on with the same command{how}")


def _windows_of(bad: Sequence[ChunkDone]) -> str:
    names = [name for each in bad for name in each.failed]
    return f", of them only the windows {listed(names)}" if all(each.failed for each in bad) else ""


def _declared(name: str) -> DeclaredTable:
    """The table of this name, its places ready for use."""
    known = declared()
    if found := known.named(name):
        return found
    problems = (each.message for each in known.problems)
    raise NotFound("\n".join([f"no table {name!r} is declared (declared: {known.names()})", *problems]))


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
    """Standard output or error for our own lines only: while the block runs, what jobs write there is in the UI alone.

    It is the descriptor that is changed, because a job is a process of its own; Dagster still captures it.
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
    """Standard error, for our own lines only unless `tidemark --verbose` asks for those of the jobs."""
    return nullcontext(sys.stderr) if logging.getLogger().isEnabledFor(logging.INFO) else _own(2, sys.stderr)


@contextmanager
def _quiet_previews() -> Iterator[None]:
    """Dagster warns that parts which Tidemark relies on are not final; that is ours to know."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".* is currently in (beta|preview)")
        yield


@contextmanager
def progress(what: str, errors: TextIO) -> Iterator[Callable[[int, int], AbstractContextManager[None]]]:
    """A bar on this standard error while the block runs, with the time that is left, where that is a terminal.

    The value moves it on to a number, and takes it away while a block writes to the terminal: both end up on one line.
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
