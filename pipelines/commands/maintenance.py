"""The commands of the maintenance steps, and the commands `publish`, `leases` and `simulate-policy`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager
from dataclasses import asdict, fields
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from pipelines.commands import output
from pipelines.commands.arguments import (
    All,
    From,
    Json,
    Target,
    To,
    Uri,
    Window,
    declared_table,
    duration_ms,
    open_table,
    resolve,
    run_here,
    table_to_change,
    windows,
)
from pipelines.commands.output import cell, number
from storage_core.base.errors import InvalidInput
from storage_core.base.text import counted
from storage_core.data.rows.window_range import WindowRange
from storage_core.data.settings.layout import Mode
from storage_core.data.steps import LOCAL_SPARK, STEPS, Described, RawLogOptions, Step, TableOptions, described

if TYPE_CHECKING:
    from pipelines.commands.policy_simulation import Simulation
    from pipelines.tables import DeclaredRawLog
    from storage_core.interop.publishing import Mirrored
    from storage_core.log.job_run import JobReport
    from storage_core.log.lease import StoredLease
    from storage_core.table import Table


RawLogName = Annotated[str, typer.Argument(metavar="NAME", help="A raw log declared in raw_logs/*.yaml.")]


class Show(Protocol):
    """A function that prints the report of a step."""

    def __call__(self, done: JobReport, *, as_json: bool) -> None:
        """Print the report."""
        ...


def command_of(step: Step, show: Show) -> Callable[..., None]:
    """Return the command that runs a step. `show` prints the report of the step."""
    options = [each for each in described(step.options) if _is_offered(step, each)]

    def command(**given: Any) -> None:
        chosen: dict[str, Any] = {each.name: _read(each, given) for each in options}
        if issubclass(step.options, RawLogOptions):
            done = run_here(_declared_raw_log(given["uri"]).options(step.options, **chosen))
        else:
            target = resolve(given["uri"])
            with _declaring(target, chosen):
                table = _as_declared(step, given["uri"], target, chosen)
                done = run_here(step.options(**chosen), table)
        show(done, as_json=given["as_json"])

    arguments = {
        "uri": RawLogName if issubclass(step.options, RawLogOptions) else Uri,
        **{name: kind for each in options for name, kind in _arguments(each)},
        "as_json": Json,
    }
    vars(command)["__signature__"] = Signature([_parameter(name, kind) for name, kind in arguments.items()])
    example = f"Example: tidemark {step.command} {step.example}"
    command.__annotations__ = arguments
    command.__doc__ = "\n\n".join(filter(None, (step.summary, step.more, example)))
    return command


@contextmanager
def _declaring(target: Target, chosen: dict[str, Any]) -> Iterator[None]:
    """Add the location of the table to the options.

    If the step has an option for the declaration, add the declaration too.

    Inside the block, locations in the declaration are relative to the working directory. If the options contain a
    declaration file, the working directory is the current folder. For a declared table, the working directory is the
    folder of its project.
    """
    chosen["table_uri"], root = target.uri, Path()
    if "declaration" in chosen:
        named = chosen["declaration"]
        root, file = (Path(), Path(named).resolve()) if named else (target.root, target.file)
        chosen["declaration"] = None if file is None else str(file)
    with chdir(root):
        yield


def _as_declared(step: Step, text: str, target: Target, chosen: Mapping[str, Any]) -> Table | None:
    """Apply the declaration of the table.

    Do nothing if the step only reads, or if it applies the declaration itself.
    """
    if not issubclass(step.options, TableOptions) or "declaration" in chosen:
        return None
    return declared_table(text, target, dry_run=chosen["dry_run"])


def _declared_raw_log(name: str) -> DeclaredRawLog:
    from pipelines.tables import read_raw_logs, tables_folder

    return read_raw_logs(tables_folder()).find(name)


def _is_offered(step: Step, of: Described) -> bool:
    return of.name != "table_uri" and of.about.command != "" and (of.name != "master" or "spark" in step.kinds)


def _arguments(of: Described) -> Iterator[tuple[str, Any]]:
    """Yield the name and type of each argument that the command needs for this option."""
    about = of.about
    if of.kind is WindowRange:
        yield from {"window": Window, "start": From, "end": To}.items()
    elif of.kind is Mode:
        for mode, text in (about.choices or {}).items():
            yield mode, Annotated[bool, typer.Option(f"--{mode}", help=text)]
    else:
        kind = list[str] | None if of.kind == tuple[str, ...] else str | None if about.is_duration else of.kind
        yield of.name, Annotated[kind, typer.Option(_option(of), metavar=about.metavar, help=about.help)]
    if about.has_all:
        yield "all_", All


def _parameter(name: str, kind: Any) -> Parameter:
    """Return a parameter of the command.

    The URI has no default. A flag is off by default, and all other options are None.
    """
    if name == "uri":
        return Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, annotation=kind)
    default = False if kind.__origin__ is bool else LOCAL_SPARK if name == "master" else None
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind, default=default)


def _read(of: Described, given: Mapping[str, Any]) -> object:
    """Return the value of an option. Raises `InvalidInput` if arguments contradict each other."""
    if of.kind is WindowRange:
        return windows(given["window"], given["start"], given["end"], everything=given.get("all_", False))
    if of.kind is Mode:
        return _mode([mode for mode in of.about.choices or {} if given[mode]]) or of.default
    value = given[of.name]
    if of.about.has_all and given["all_"] and value is not None:
        raise InvalidInput(f"--all cannot be combined with {_option(of)}. Leave out --all or {_option(of)}")
    if of.about.is_duration:
        value = duration_ms(_option(of), value)
    if isinstance(value, list):
        value = tuple(value)
    return of.default if value is None else value


def _mode(given: list[Mode]) -> Mode | None:
    if len(given) > 1:
        raise InvalidInput(f"--{given[0]} cannot be combined with --{given[1]}. Leave one of them out")
    return given[0] if given else None


def _option(of: Described) -> str:
    """Return the name of the option.

    If the option accepts several values, its name is singular, because users repeat the option.
    """
    name = of.name.removesuffix("s") if of.kind == tuple[str, ...] else of.name
    return f"--{of.about.command or name.replace('_', '-')}"


def _show_expiry(done: JobReport, *, as_json: bool) -> None:
    details: dict[str, Any] = dict(done.details)
    if not as_json:
        shown = {"window_start": output.window, **dict.fromkeys(("splits", "rows", "bytes"), output.number)}
        kept = (
            "no window was removed" if details["retention_ms"] else "the table has no retention, so all rows are kept"
        )
        output.records(list(details["windows"]), shown, as_json=False, nothing=kept)
    output.report(done, as_json=as_json)


def _show_collection(done: JobReport, *, as_json: bool) -> None:
    details: dict[str, Any] = dict(done.details)
    candidates, deleted = details.pop("candidates"), set(details.pop("deleted_keys"))
    if not as_json:
        shown = {"reason": output.cell, "size": output.number, "key": output.cell}
        output.records(candidates, shown, as_json=False, nothing="every object is needed")
        output.line(done.to_text())
        return
    for each in candidates:
        output.json_line(each if each["key"] not in deleted else {**each, "deleted": True})
    metrics = {"requests": dict(done.requests), "seconds": done.seconds}
    summary = {
        "status": done.status,
        "version": done.version,
        "candidates": len(candidates),
        "bytes": done.metrics.bytes_in,
    }
    output.json_line({"summary": {**summary, **details, **metrics}})


def _show_distribution(done: JobReport, *, as_json: bool) -> None:
    """Print the report and the missing chunks.

    If chunks are missing, raise `Corrupt`. The message of the error describes the next step for the user.
    """
    from storage_core.raw_log_steps import missing_chunks

    output.report(done, as_json=as_json)
    held = done.details["held"]
    if not isinstance(held, list) or not held:
        return
    if not as_json:
        shown = {"writer": cell, "first": number, "last": number, "tables": _names}
        output.records(held, shown, as_json=False, nothing="no chunk is missing")
    raise missing_chunks(str(done.details["raw_log"]), held)


def _names(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else cell(value)


_SHOW: Mapping[str, Show] = {
    "expire": _show_expiry,
    "collect": _show_collection,
    "distribute": _show_distribution,
}

COMMANDS: Mapping[str, Callable[..., None]] = {
    each.command: command_of(each, _SHOW.get(each.name, output.report))
    for each in STEPS.values()
    if each.command and issubclass(each.options, (TableOptions, RawLogOptions))
}
"""The commands of the steps that change tables. The keys are the command names."""


# Publishing and leases.


def publish(
    uri: Uri,
    *,
    format_: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="FORMAT", help="The format: delta or iceberg (default: the table's `publish` setting)."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Publish the newest versions as Delta or Iceberg.

    Programs that read Delta or Iceberg can then read the table. The command rewrites no row. The command writes
    metadata next to the table, and this metadata refers to the files of the table. After changes, run the command
    again. You can also declare `publish`, so that an asset publishes the table. For a keyed table, the command
    publishes only merged rows.

    Example: tidemark publish clicks --format delta
    """
    table = table_to_change(uri)
    for each in (format_,) if format_ is not None else table.config.publish.published:
        _show_published(table.publish(each), as_json=as_json)


def _show_published(done: Mirrored, *, as_json: bool) -> None:
    if as_json:
        output.json_line({"status": "committed" if done.commits else "nothing_to_do", **asdict(done)})
        return
    if done.version is None:
        output.line(f"no version is published as {done.format} yet")
    else:
        shown_as = f"{'snapshot' if done.format == 'iceberg' else 'version'} {done.shown_as}"
        output.line(
            f"{done.format} {shown_as} contains version {done.version} of the table "
            f"({counted(done.commits, 'new commit')})"
        )
        if done.format == "iceberg":
            output.line(f"newest metadata: {done.location}")
    if done.waits_for is not None:
        output.line(f"newer versions are not published yet: {done.waits_for}")


def leases(
    uri: Uri,
    *,
    resource: Annotated[
        str | None,
        typer.Option(
            "--break",
            metavar="RESOURCE",
            help="Take this lease from its holder. The holder can then commit nothing more.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the leases of a table, or break a lease.

    All listed times come from the clock of the lease's holder. The next run takes over an abandoned lease.

    Example: tidemark leases clicks
    """
    table = open_table(uri)
    if resource is None:
        _show_leases(table, as_json=as_json)
    else:
        _break(table, resource, as_json=as_json)


def _break(table: Table, resource: str, *, as_json: bool) -> None:
    from storage_core.base.process import holder_of
    from storage_core.log.lease import break_lease

    table.require_capable()
    token = break_lease(table.log, resource, holder_of("tidemark leases"))
    if as_json:
        output.json_line({"broken": resource, "token": token})
    else:
        output.line(f"lease broken: {resource}. Now only holders with a token above {token} can commit.")


def _show_leases(table: Table, *, as_json: bool) -> None:
    from storage_core.base.clock import SystemClock
    from storage_core.base.process import is_dead
    from storage_core.log.lease import stored_leases

    now_ms = SystemClock().now_ms()
    found = [
        _row(each, now_ms, ended=bool(each.record and is_dead(each.record.holder)))
        for each in stored_leases(table.store)
    ]
    shown = {
        "resource": output.cell,
        "state": output.cell,
        "token": output.number,
        "holder": output.cell,
        "acquired_at": output.instant_ms,
        "expires_at": output.instant_ms,
    }
    output.records(found, shown, as_json=as_json, nothing="no lease has been taken yet")


def _row(stored: StoredLease, now_ms: int, *, ended: bool) -> output.Record:
    from storage_core.data.formats.documents import RELEASED_MS

    record = stored.record
    if record is None:
        return {"resource": stored.resource, "state": "damaged", "token": None, "holder": None}
    released = record.expires_at_ms == RELEASED_MS
    state = "released" if released else "held" if record.is_live(now_ms) and not ended else "abandoned"
    return {
        "resource": record.resource,
        "state": state,
        "token": record.fencing_token,
        "holder": record.holder,
        "acquired_at": record.acquired_at_ms,
        "expires_at": None if released else record.expires_at_ms,
    }


# Simulation of the compaction policy.


MOST_RUNS_BEHIND = 2
"""The limit on the number of runs that compact the splits of one interval between scheduled runs.

The splits of one interval must not need more than this number of compaction runs.

With more splits, the simulation of the backlog of one day would take minutes.
"""

Rate = Annotated[
    int, typer.Option(metavar="SPLITS", min=1, max=10_000, help="Splits that arrive per minute, for one day.")
]
Size = Annotated[int, typer.Option(metavar="BYTES", min=1, max=2**40, help="Size of one split.")]
Rows = Annotated[
    int,
    typer.Option(metavar="ROWS", min=1, max=2**40, help="Rows in one split. A merge reads a bounded number of rows."),
]
Length = Annotated[str, typer.Option("--window", metavar="DURATION", help="Length of a window, such as 15m.")]
TargetBytes = Annotated[
    int, typer.Option(metavar="BYTES", min=1, max=2**40, help="Target size of a file that a merge writes.")
]
Late = Annotated[
    float, typer.Option(metavar="SHARE", min=0, max=1, help="Share of the splits that are 45 minutes late, 0 to 1.")
]
Every = Annotated[int, typer.Option(metavar="MINUTES", min=1, max=1440, help="Time between two compactions.")]


def simulate_policy(
    *,
    rate: Rate = 1000,
    size: Size = 1_000_000,
    rows: Rows = 10_000,
    window: Length = "15m",
    target: TargetBytes = 256 * 2**20,
    late: Late = 0.0,
    every: Every = 60,
    as_json: Json = False,
) -> None:
    """Simulate how compaction handles one day of new rows.

    The simulated compactions make the same decisions as scheduled runs. The output has one line per run. The totals
    follow.

    Example: tidemark simulate-policy --rate 1000 --window 15m
    """
    from pipelines.commands.policy_simulation import MINUTES_PER_DAY, Ingestion, simulate
    from storage_core.compact.work import MOST_INPUTS
    from storage_core.data.rows.windows import validate_duration
    from storage_core.data.settings.setting import parse_duration

    if rate * every > MOST_RUNS_BEHIND * MOST_INPUTS:
        raise InvalidInput(
            f"--rate {rate} with --every {every} gives {rate * every} splits between two compactions. The limit is "
            f"{MOST_RUNS_BEHIND * MOST_INPUTS}, because one compaction replaces {MOST_INPUTS}. Choose a smaller "
            "--every."
        )
    load = Ingestion(
        rates=[rate] * MINUTES_PER_DAY,
        split_bytes=size,
        split_rows=rows,
        window_seconds=validate_duration(parse_duration(window), coarse=True),
        target_bytes=target,
        late_share=late,
        every_minutes=every,
    )
    _show_simulated(simulate(load), as_json=as_json)


def _show_simulated(done: Simulation, *, as_json: bool) -> None:
    from pipelines.commands.policy_simulation import Round

    shown = {each.name: number for each in fields(Round)}
    output.records(map(asdict, done.rounds), shown, as_json=as_json, nothing="no compaction ran")
    counts = done.splits_per_window
    summary = {
        "converged": done.converged,
        "write_amplification": round(done.write_amplification, 2),
        "bytes_ingested": done.bytes_ingested,
        "windows": len(counts),
        "finalized_windows": done.finalized_windows,
        "least_in_window": min(counts, default=0),
        "most_in_window": max(counts, default=0),
    }
    if as_json:
        output.json_line({"summary": summary})
    else:
        output.line(
            ", ".join(
                f"{name} {cell(value) if isinstance(value, bool) else number(value)}" for name, value in summary.items()
            )
        )
