"""How all tables are: `status` for people and programs, `metrics` for scrapers, `report` for browsers; and `alerts`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pipelines.commands import output
from pipelines.commands.arguments import Json
from pipelines.commands.output import cell, number
from pipelines.commands.target import declared, resolve
from storage_core.errors import InvalidInput, NotFound, Unavailable
from storage_core.wording import counted, listed

if TYPE_CHECKING:
    from pipelines.runs.failed import LastFailure
    from pipelines.status.table_status import Looked, Place
    from pipelines.tables import Problem

BEHIND_EXIT_CODE: Final = 7
"""What `status` ends with when a table is behind the freshness that is declared for it."""

Uris = Annotated[
    list[str] | None, typer.Argument(metavar="[URI…]", help="Names of declared tables, paths or URIs (default: all).")
]


def status(uris: Uris = None, *, as_json: Json = False) -> None:
    """Show every table in a line, and what is behind.

    What is owed is what scheduled runs would do now. Ends with 7 when a table is older than the freshness declared for
    it, as the error of a table says that cannot be read, and with 2 when a declaration is not sound, or a file of all
    tables.
    """
    from pipelines.files_of_all import problems_of_all
    from pipelines.status.table_status import State, look_at_all
    from pipelines.tables import require_sound

    chosen = places_of(uris or [])
    failures = _last_failures(chosen)
    found = list(look_at_all(chosen.places, with_held=True))
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
    require_sound([*chosen.problems, *problems_of_all(chosen.root)])
    for each in found:
        if each.error is not None:
            raise each.error.reworded(f"{each.place.name}: {each.error.found}")
    if any(each.state is State.BEHIND for each in found):
        raise typer.Exit(BEHIND_EXIT_CODE)


def metrics(
    uris: Uris = None,
    *,
    file: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write them there, whole, instead of printing.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write how every table is as OpenMetrics text.

    The metrics of status, for a scraper, or for the folder that a collector of text files reads. A table that cannot be
    read is among them as failed. Ends with 2 when a declaration is not sound, or a file of all tables.
    """
    from pipelines.files_of_all import problems_of_all
    from pipelines.status.open_metrics import metrics_text
    from pipelines.status.table_status import look_at_all
    from pipelines.tables import require_sound
    from pipelines.whole_file import write_whole

    chosen = places_of(uris or [])
    places = chosen.places
    if repeated := sorted({each.name for each in places if sum(each.name == other.name for other in places) > 1}):
        raise InvalidInput(f"several of these tables are called {repeated[0]!r}; write the metrics of each alone")
    text = metrics_text(look_at_all(places), _last_failures(chosen))
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
    require_sound([*chosen.problems, *problems_of_all(chosen.root)])


def report(
    uris: Uris = None,
    *,
    file: Annotated[Path, typer.Option("--output", metavar="FILE", help="The file to write.")] = Path("report.html"),
    commits: Annotated[int, typer.Option(metavar="N", min=1, help="How many of the newest commits are read.")] = 500,
    recall: Annotated[bool, typer.Option("--recall", help="Measure the recall of indexes of vectors too.")] = False,
    prices: Annotated[
        str | None, typer.Option(metavar="put=N,get=N,storage=N", help="Of 1,000 requests, and of a GiB a month.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write one HTML file about tables, for a browser.

    Splits per window, bytes before and after, log growth, requests and their price, lag of indexes, and the history of
    the log. The file needs nothing else, no server and no network. Prices are those of S3 Standard unless said.
    """
    from jobs.reports.prices import read_prices
    from pipelines.report.written import write_report
    from pipelines.tables import require_sound

    chosen = places_of(uris or [])
    charged = read_prices(prices or "")
    done = write_report(
        file, chosen.places, failures=_last_failures(chosen), prices=charged, most_commits=commits, recall=recall
    )
    if as_json:
        output.json_line({"status": "written", "file": str(file), "bytes": done.bytes, "tables": done.states})
    else:
        output.line(f"report of {counted(len(chosen.places), 'table')} written to {file}")
    require_sound(chosen.problems)


def alerts(
    *,
    test: Annotated[
        bool, typer.Option("--test", help="Send each receiver an alert that says that it is a test.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List who is told of failures and late tables, or try it.

    The receivers are those of alerts.yaml beside tables/. With --test it ends with 5 when one did not take the alert,
    and with 2 when there is none.
    """
    from pipelines.alerts.delivery import Alert, deliver
    from pipelines.alerts.receivers import ALERTS, read_alerts
    from storage_core.clock import SystemClock

    root = declared().root
    known = read_alerts(root)
    if test and not known.receivers:
        raise NotFound(f"no receiver is declared, so nobody would be told; write one into {root / ALERTS}")
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
    """The tables that a command is about, the folder that holds `tables/`, and the declarations that were left out."""

    places: Sequence[Place]
    root: Path
    problems: Sequence[Problem] = ()


def places_of(words: Sequence[str]) -> Chosen:
    """Return the tables that the words name, or all that are declared, with what is wrong with the others.

    Raises `InvalidInput` where no word names a table and none of the declarations is sound, and as `resolve` does.
    """
    from pipelines.status.table_status import Place
    from storage_core.objectstore.resolve import name_of

    known = declared()
    bounds = {each.declaration.name: each.declaration for each in known.tables}
    if not words:
        if not bounds:
            known.require_sound()
        return Chosen([Place.of(each) for each in bounds.values()], known.root, known.problems)
    places = []
    for word in words:
        target = resolve(word)
        own = bounds.get(word) if target.file is not None else None
        places.append(Place.of(own) if own else Place(name=name_of(target.uri), uri=target.uri, is_declared=False))
    return Chosen(places, known.root)


def record_of(found: Looked, failure: LastFailure | None) -> dict[str, object]:
    """Return the line of `status --json` (`docs/spec.md`)."""
    state = found.state_after(failure).value
    about: dict[str, object] = {"name": found.place.name, "uri": found.place.uri, "status": state}
    if found.status is not None:
        about |= asdict(found.status)
    if found.error is not None:
        about |= {"error": found.error.kind, "message": str(found.error)}
    return {**about, "last_failure": failure and asdict(failure), "requests": found.requests}


def _last_failures(chosen: Chosen) -> Mapping[str, LastFailure]:
    from pipelines.runs.failed import history_folder, last_failures

    folder = history_folder(chosen.root)
    if folder is None:
        return {}
    try:
        return last_failures(folder, [each.name for each in chosen.places])
    except Exception as error:  # noqa: BLE001  # the tables can be shown without their runs, whatever is wrong there
        output.warning(f"the history of Dagster in {folder} cannot be read: {error}")
        return {}


def _held_back(root: Path, found: Sequence[Looked]) -> Mapping[str, str]:
    from pipelines.status.held_back import held_back
    from storage_core.clock import SystemClock

    tables = [each.declaration for each in declared().tables]
    try:
        return held_back(found, tables, root, now_ms=SystemClock().now_ms())
    except InvalidInput:  # of upkeep.yaml or automation.yaml, which is said below the tables
        return {}
    except Exception as error:  # noqa: BLE001  # as of the failures
        output.warning(f"what upkeep waits for is not known: the history of Dagster cannot be read: {error}")
        return {}


_COLUMNS: Final = {
    "table": cell,
    "status": cell,
    "rows": number,
    "bytes": cell,
    "newest row": cell,
    "commit": cell,
    "owed": cell,
    "index lag": cell,
    "unmerged": cell,
    "quarantine entries": number,
    "next compaction": cell,
}
_OPTIONAL: Final = ("next compaction", "index lag", "bytes", "quarantine entries", "unmerged", "newest row")
"""What a narrow terminal does not show, in the order in which it leaves them out."""


def _show(found: Sequence[Looked], failures: Mapping[str, LastFailure]) -> None:
    """A line per table, and below them what failed."""
    from pipelines.status.external_debt import HELD
    from pipelines.status.words import held_bytes
    from storage_core.clock import SystemClock

    now_ms = SystemClock().now_ms()
    nothing = "no table is declared here; run this in a folder with tables/*.yaml, or name one"
    lines = [_line(each, failures.get(each.place.name), now_ms) for each in found]
    output.records(lines, _COLUMNS, as_json=False, nothing=nothing, most=None, optional=_OPTIONAL)
    for each in found:
        if each.error is not None:
            output.line(f"{each.place.name}: {each.error.kind}: {each.error}")
        for step, why in ({} if each.status is None else each.status.unknown).items():
            what = "holds its bytes" if step == HELD else f"there is to {step}"
            output.line(f"{each.place.name}: nobody knows what {what}: {why}")
        if each.status is not None and (kept := held_bytes(each.status, now_ms)):
            output.line(f"{each.place.name}: {kept}")
        failure = failures.get(each.place.name)
        if failure is not None and not failure.is_over:
            output.line(f"{each.place.name}: {failure.step} failed: {failure.message}")


def _line(found: Looked, failure: LastFailure | None, now_ms: int) -> dict[str, object]:
    from pipelines.quantities import age, duration, size
    from pipelines.status.external_debt import HELD
    from pipelines.status.words import index_lag, next_run

    state = found.state_after(failure).value
    about: dict[str, object] = {"table": found.place.name, "status": state.replace("_", " ")}
    if (status := found.status) is None:
        return about
    if status.behind:
        about["status"] = f"behind: {', '.join(status.behind).replace('_', ' ')}"
    unknown = [step for step in status.unknown if step != HELD]
    owed = {step: f"{each.count:,}" for step, each in status.owed.items()} | dict.fromkeys(unknown, "?")
    return {
        **about,
        "rows": status.rows,
        "bytes": size(status.bytes),
        "newest row": age(now_ms, status.newest_row_at),
        "commit": age(now_ms, status.committed_at),
        "owed": ", ".join(f"{step} {count}" for step, count in owed.items()),
        "index lag": index_lag(status),
        "unmerged": "" if status.oldest_unmerged_ms is None else duration(status.oldest_unmerged_ms),
        "quarantine entries": status.quarantine_entries,
        "next compaction": next_run(status),
    }
