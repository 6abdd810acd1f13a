"""Commands about all tables: `status`, `metrics` for scrapers, `report` for browsers, and `alerts`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pipelines.commands import output
from pipelines.commands.arguments import Json, declared, resolve
from pipelines.commands.output import cell, number
from storage_core.base.errors import InvalidInput, NotFound, TidemarkError, Unavailable
from storage_core.base.text import counted, listed

if TYPE_CHECKING:
    from pipelines.last_failures import LastFailure
    from pipelines.status import StatusTarget, TableStatus
    from pipelines.tables import Problem

BEHIND_EXIT_CODE: Final = 7
"""The exit code of `status` if a table is older than its declared freshness, or rejects too many rows."""

Uris = Annotated[
    list[str] | None, typer.Argument(metavar="[URI…]", help="Names of declared tables, paths or URIs (default: all).")
]


def status(uris: Uris = None, *, as_json: Json = False) -> None:
    """Show the state of each table in one line.

    The state of a table shows whether it is behind or rejects too many rows. The column `pending` contains the pending
    work of scheduled runs. The column `pending` also contains `resort`, which only `compact --resort` does.

    The exit code is 2 if a declaration or a shared configuration file is invalid. Otherwise, the exit code is the error
    code of the first table that cannot be read. The exit code is 7 if a table misses its declared freshness. The exit
    code is also 7 if more rows than `landing.max_rejected` allows were rejected in the last 24 hours.

    Example: tidemark status
    """
    from pipelines.shared_config import problems_of_all
    from pipelines.status import State, collect_all_statuses
    from pipelines.tables import require_valid

    chosen = places_of(uris or [])
    failures = _last_failures(chosen)
    found = list(collect_all_statuses(chosen.places, with_held=True))
    waits = _held_back(chosen.root, found)
    if as_json:
        for each in found:
            name = each.place.name
            output.json_line({**record_of(each, failures.get(name)), "upkeep_waits_for": waits.get(name)})
    else:
        _show(found, failures)
        for why in dict.fromkeys(waits.values()):
            names = listed([name for name, each in waits.items() if each == why])
            output.line(f"{names}: upkeep waits: {why}")
    require_valid([*chosen.problems, *problems_of_all(chosen.root)])
    for each in found:
        if each.error is not None:
            raise each.error.reworded(f"{each.place.name}: {each.error.found}")
    if any(each.state in (State.BEHIND, State.REJECTING) for each in found):
        raise typer.Exit(BEHIND_EXIT_CODE)


def metrics(
    uris: Uris = None,
    *,
    file: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Write the metrics to this file instead of printing them."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the state of every table as OpenMetrics text.

    The text contains the metrics of the command status. A metrics scraper can request this text, or a metrics collector
    can read this text from a file. If a table cannot be read, the text shows the table as failed. The exit code is 2 if
    a declaration or a shared configuration file is invalid.

    Example: tidemark metrics --output tidemark.prom
    """
    from pipelines.shared_config import problems_of_all
    from pipelines.status import collect_all_statuses, metrics_text
    from pipelines.tables import require_valid, write_whole

    chosen = places_of(uris or [])
    places = chosen.places
    if repeated := sorted({each.name for each in places if sum(each.name == other.name for other in places) > 1}):
        raise InvalidInput(
            f"several of these tables are called {repeated[0]!r}. Write the metrics of each table alone."
        )
    text = metrics_text(collect_all_statuses(places), _last_failures(chosen))
    about: output.Record = {"metrics": text}
    said = text.removesuffix("\n")
    if file is not None:
        write_whole(file, text)
        about = {"status": "written", "file": str(file), "tables": len(places)}
        said = f"metrics of {counted(len(places), 'table')} written to {file}"
    if as_json:
        output.json_line(about)
    else:
        output.line(said)
    require_valid([*chosen.problems, *problems_of_all(chosen.root)])


def report(
    uris: Uris = None,
    *,
    file: Annotated[Path, typer.Option("--output", metavar="FILE", help="The file to write.")] = Path("report.html"),
    commits: Annotated[int, typer.Option(metavar="N", min=1, help="Number of newest commits to read.")] = 500,
    recall: Annotated[bool, typer.Option("--recall", help="Also measure the recall of vector indexes.")] = False,
    prices: Annotated[
        str | None,
        typer.Option(metavar="put=N,get=N,storage=N", help="Prices of 1,000 requests, and of one GiB per month."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write an HTML file about tables for a browser.

    The report contains the splits per window, the bytes before and after compaction, and the growth of the log. The
    report also contains the requests with their price, the lag of indexes, and the history. A browser can show the file
    without a server and without a network. Without --prices, the report uses the prices of S3 Standard.

    Example: tidemark report --output report.html
    """
    from pipelines.report import write_report
    from pipelines.tables import require_valid
    from storage_core.log.job_run import read_prices

    chosen = places_of(uris or [])
    charged = read_prices(prices or "")
    done = write_report(
        file, chosen.places, failures=_last_failures(chosen), prices=charged, most_commits=commits, recall=recall
    )
    if as_json:
        output.json_line({"status": "written", "file": str(file), "bytes": done.bytes, "tables": done.states})
    else:
        output.line(f"report of {counted(len(chosen.places), 'table')} written to {file}")
    require_valid(chosen.problems)


def alerts(
    *,
    test: Annotated[bool, typer.Option("--test", help="Send a test alert to each receiver.")] = False,
    as_json: Json = False,
) -> None:
    """List the receivers of alerts about failures and delays.

    The file alerts.yaml, next to the folder tables, declares the receivers. With --test, the command sends a test
    alert. The exit code is then 5 if a receiver did not accept the alert. The exit code is 2 if there is no receiver.

    Example: tidemark alerts --test
    """
    from pipelines.alerts.delivery import Alert, deliver
    from pipelines.alerts.receivers import ALERTS, read_alerts
    from storage_core.base.clock import SystemClock

    root = declared().root
    known = read_alerts(root)
    if test and not known.receivers:
        raise NotFound(f"no receiver is declared, so no alert can be sent. Write a receiver into {root / ALERTS}.")
    found = [{"receiver": place, "kind": each.kind} for place, each in enumerate(known.receivers, 1)]
    output.records(
        found, {"receiver": number, "kind": cell}, as_json=as_json, nothing="alerts.yaml declares no receiver"
    )
    if test:
        alert = Alert(kind="test", tables=(), text="this is a test of Tidemark's alerts", at=SystemClock().now_ms())
        done = deliver(alert, known)
        if done.problems:
            raise Unavailable("\n".join(["the alert was not delivered to all receivers", *done.problems]))


@dataclass(frozen=True, slots=True)
class Chosen:
    """The tables that a command reads, and the problems of invalid declarations.

    `root` is the folder that contains `tables/`.
    """

    places: Sequence[StatusTarget]
    root: Path
    problems: Sequence[Problem] = ()


def places_of(words: Sequence[str]) -> Chosen:
    """Return the tables in `words`.

    If `words` is empty, return all declared tables and the problems of invalid declarations.

    Raises:
        InvalidInput: There are no words, and no declaration is valid. The errors of `resolve` are raised too.
    """
    from pipelines.status import StatusTarget
    from storage_core.store.resolve import name_of

    known = declared()
    bounds = {each.declaration.name: each.declaration for each in known.tables}
    if not words:
        if not bounds:
            known.require_valid()
        return Chosen([StatusTarget.of(each) for each in bounds.values()], known.root, known.problems)
    places = []
    for word in words:
        target = resolve(word)
        own = bounds.get(word) if target.file is not None else None
        places.append(
            StatusTarget.of(own) if own else StatusTarget(name=name_of(target.uri), uri=target.uri, is_declared=False)
        )
    return Chosen(places, known.root)


def record_of(found: TableStatus, failure: LastFailure | None) -> dict[str, object]:
    """Return a table's object for `status --json` (`docs/spec.md`)."""
    state = found.state_after(failure).value
    about: dict[str, object] = {"name": found.place.name, "uri": found.place.uri, "status": state}
    if found.status is not None:
        about |= asdict(found.status)
    elif found.error is None:
        about |= {
            "pending": {step: asdict(each) for step, each in found.pending.items()},
            "unknown": dict(found.unknown),
        }
    if found.error is not None:
        about |= {"error": found.error.kind, "message": str(found.error)}
    return {**about, "last_failure": failure and asdict(failure), "requests": found.requests}


def _last_failures(chosen: Chosen) -> Mapping[str, LastFailure]:
    """Return the last failures.

    Raise `InvalidInput` if the environment does not contain the database of the history.
    """
    from pipelines.history import describe_move, history_folder, require_database
    from pipelines.last_failures import last_failures

    folder = history_folder(chosen.root)
    if folder is None:
        return {}
    require_database(folder)
    if note := describe_move(folder):
        output.warning(note)
    try:
        return last_failures(folder, [each.name for each in chosen.places])
    except Exception as error:  # noqa: BLE001  # the tables can be shown without their runs
        output.warning(_unread(folder, error))
        return {}


def _held_back(root: Path, found: Sequence[TableStatus]) -> Mapping[str, str]:
    from pipelines.history import history_folder
    from pipelines.status import held_back
    from storage_core.base.clock import SystemClock

    tables = [each.declaration for each in declared().tables]
    try:
        return held_back(found, tables, root, now_ms=SystemClock().now_ms())
    except InvalidInput:  # errors of upkeep.yaml and automation.yaml are printed below the tables
        return {}
    except Exception as error:  # noqa: BLE001  # the tables can be shown without the reasons
        output.warning(f"cannot check why maintenance waits: {_unread(history_folder(root), error)}")
        return {}


def _unread(folder: Path | None, error: Exception) -> str:
    """Return the warning that the history cannot be read. The warning contains no text from a library."""
    if isinstance(error, TidemarkError):
        return str(error)
    return f"the history of Dagster in {folder} cannot be read ({type(error).__name__}). See the log of Dagster"


_COLUMNS: Final = {
    "table": cell,
    "status": cell,
    "rows": number,
    "bytes": cell,
    "newest row": cell,
    "commit": cell,
    "pending": cell,
    "index lag": cell,
    "unmerged": cell,
    "quarantine entries": number,
    "rejected": cell,
    "next compaction": cell,
}
_OPTIONAL: Final = ("next compaction", "index lag", "bytes", "quarantine entries", "rejected", "unmerged", "newest row")
"""Columns that a narrow terminal omits. The first column in this list is omitted first."""


def _show(found: Sequence[TableStatus], failures: Mapping[str, LastFailure]) -> None:
    """Print one line per table. Then print the failures."""
    from pipelines.status import HELD, held_bytes
    from storage_core.base.clock import SystemClock

    now_ms = SystemClock().now_ms()
    nothing = "No table is declared here. Run this in a folder with tables/*.yaml, or name a table."
    lines = [_line(each, failures.get(each.place.name), now_ms) for each in found]
    output.records(lines, _COLUMNS, as_json=False, nothing=nothing, most=None, optional=_OPTIONAL)
    for each in found:
        if each.error is not None:
            output.line(f"{each.place.name}: {each.error.kind}: {each.error}")
        for step, why in each.unknown.items():
            what = "retained bytes" if step == HELD else f"pending work of {step}"
            output.line(f"{each.place.name}: cannot check the {what}: {why}")
        if each.status is not None and (kept := held_bytes(each.status, now_ms)):
            output.line(f"{each.place.name}: {kept}")
        if each.is_rejecting:
            output.line(f"{each.place.name}: {each.rejection_text}")
        if each.drift_text:
            output.line(f"{each.place.name}: {each.drift_text}")
        failure = failures.get(each.place.name)
        if failure is not None and not failure.is_over:
            output.line(f"{each.place.name}: {failure.step} failed: {failure.message}")


def _line(found: TableStatus, failure: LastFailure | None, now_ms: int) -> dict[str, object]:
    from pipelines.status import HELD, index_lag, next_run
    from pipelines.tables import age, duration, size

    state = found.state_after(failure).value
    about: dict[str, object] = {"table": found.place.name, "status": state.replace("_", " ")}
    unknown = [step for step in found.unknown if step != HELD]
    pending = {step: f"{each.count:,}" for step, each in found.pending.items()} | dict.fromkeys(unknown, "?")
    about["pending"] = ", ".join(f"{step} {count}" for step, count in pending.items())
    if (status := found.status) is None:
        return about
    if status.behind:
        also = ", rejecting" if status.is_rejecting else ""
        about["status"] = f"behind: {', '.join(status.behind).replace('_', ' ')}{also}"
    unknown = [step for step in status.unknown if step != HELD]
    rejections = status.rejections
    rejected, read = (rejections.rows_rejected, rejections.rows_in) if rejections else (0, 0)
    pending = {step: f"{each.count:,}" for step, each in status.pending.items()} | dict.fromkeys(unknown, "?")
    return {
        **about,
        "rows": status.rows,
        "bytes": size(status.bytes),
        "newest row": age(now_ms, status.newest_row_at),
        "commit": age(now_ms, status.committed_at),
        "index lag": index_lag(status),
        "unmerged": "" if status.oldest_unmerged_ms is None else duration(status.oldest_unmerged_ms),
        "quarantine entries": status.quarantine_entries,
        "rejected": f"{rejected:,} of {read:,}" if rejected else "",
        "next compaction": next_run(status),
    }
