"""The command of the SQL catalog: `catalog`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pipelines.commands import output
from pipelines.commands.arguments import Json, declared, reject_combined, resolve
from pipelines.commands.output import cell, number, window
from storage_core.base.errors import Corrupt, InvalidInput, TidemarkError
from storage_core.base.text import counted

if TYPE_CHECKING:
    from storage_core.catalog.answers import Page
    from storage_core.catalog.catalog import Catalog

Action = Annotated[
    Literal["refresh", "rebuild", "check", "sql"],
    typer.Argument(help="Update the cache, create it again, compare it with the logs, or query it."),
]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TABLE… | QUESTION [TABLE]]", help="Tables (default: all). For sql, one of the questions above."
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="sqlite:///file or postgresql://… (default: TIDEMARK_CATALOG of the environment)."
    ),
]
_OUTCOME = {"name": cell, "outcome": cell, "version": number, "versions": number, "reason": cell, "uri": cell}


def catalog(
    action: Action,
    words: Words = None,
    *,
    url: Url = None,
    sort_schema: Annotated[
        str | None, typer.Option(metavar="TEXT", help="candidates: use this sort schema instead of the table's.")
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="between: rows from this time on (UTC).")
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="between: rows before this time (UTC).")
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(metavar="CONDITION", help="between: splits that can contain rows that meet this condition."),
    ] = None,
    since: Annotated[
        int | None, typer.Option(metavar="VERSION", help="changes: only changes after this version.")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="sql: show the plan of the database instead.")] = False,
    as_json: Json = False,
) -> None:
    """Keep a SQL cache of table logs, and query it.

    The action "refresh" updates the cache. The action "rebuild" creates the cache again. The action "check" compares
    the cache with the logs. The action "sql" answers one of four questions:

    candidates TABLE: the splits that a compaction would rewrite.

    between TABLE: the splits in a time range. The options --from, --to and --where select the splits.

    expired [TABLE]: the windows that are older than the retention.

    changes TABLE --since VERSION: the splits that were added or removed.

    Any other text is a SQL statement for the database. A statement cannot change data.

    Example: tidemark catalog sql changes clicks --since 12
    """
    from storage_core.catalog.opening import catalog_url, open_catalog

    with open_catalog(catalog_url(url), must_exist=action in ("check", "sql")) as opened:
        match action:
            case "refresh" | "rebuild" | "check" if explain:
                raise InvalidInput(f"--explain works only with sql, and `{action}` has no plan. Leave --explain out.")
            case "refresh" | "rebuild":
                _refresh(opened, words or [], rebuild=action == "rebuild", as_json=as_json)
            case "check":
                _check(opened, words or [], as_json=as_json)
            case "sql":
                options = {"sort_schema": sort_schema, "start": start, "end": end, "where": where, "since": since}
                _ask(opened, words or [], options, explain=explain, as_json=as_json)


def _refresh(opened: Catalog, names: Sequence[str], *, rebuild: bool, as_json: bool) -> None:
    from storage_core.catalog.answers import Refreshed
    from storage_core.catalog.opening import refreshed

    failures: list[TidemarkError] = []

    def done() -> Iterator[output.Record]:
        for each in refreshed(opened, _places(names), rebuild=rebuild):
            if isinstance(each, Refreshed):
                yield asdict(each)
            elif names or each.is_failure:
                failures.append(each.error)
                yield {"name": each.name, "uri": each.uri, "outcome": "failed", "reason": str(each.error)}
            else:
                yield {"name": each.name, "uri": each.uri, "outcome": "not_made"}

    output.records(done(), _OUTCOME, as_json=as_json, nothing="No table is declared here. Name a table.", most=None)
    if not names:
        declared().require_valid()
    if failures:
        raise failures[0]


def _places(names: Sequence[str]) -> dict[str, str]:
    """Return the name and URI of each table in `names`. If `names` is empty, return all declared tables."""
    if not names:
        return {each.declaration.name: each.declaration.uri for each in declared().tables}
    from storage_core.store.resolve import name_of

    found = {name: resolve(name) for name in names}
    return {name if each.file is not None else name_of(each.uri): each.uri for name, each in found.items()}


def _check(opened: Catalog, names: Sequence[str], *, as_json: bool) -> None:
    found = [opened.check(name) for name in names or [each.uri for each in opened.tables()]]
    shown = {"name": cell, "version": number, "splits": number, "differences": number, "uri": cell}
    output.records(map(asdict, found), shown, as_json=as_json, nothing="no table is in the catalog")
    wrong = [each for each in found if each.differences]
    if wrong:
        raise Corrupt(
            f"{wrong[0].uri}: the catalog has {counted(wrong[0].differences, 'difference')} from the log. The first "
            f"is: {wrong[0].shown[0]}",
            advice=f"the log is correct. Run: tidemark catalog rebuild {wrong[0].uri} --url …",
        )


def _ask(opened: Catalog, words: Sequence[str], options: dict[str, Any], *, explain: bool, as_json: bool) -> None:
    question, table = words[0] if words else "", words[1] if len(words) > 1 else None
    if not question or len(words) > 2:
        raise InvalidInput(
            "sql needs exactly one question. Give one of: candidates TABLE, between TABLE, expired [TABLE], changes "
            "TABLE, SQL"
        )
    if question not in _QUESTIONS:
        reject_combined("a statement", {"--explain": explain, "a word": table}, why="is sent to the database unchanged")
        _statement(opened, question, as_json=as_json)
        return
    if explain:
        with opened.explaining() as plans:
            next(_QUESTIONS[question](opened, table, options), None)
        for plan in plans:
            output.line(plan)
        return
    shown = {"window_start": window, "rows": number, "bytes": number, "split_id": cell}
    shown = {"version": number, "change": cell, **shown} if question == "changes" else shown
    shown = {"table": cell, "window_start": window, "splits": number} if question == "expired" else shown
    found = _QUESTIONS[question](opened, table, options)
    output.records(found, shown, as_json=as_json, nothing="none")


def _statement(opened: Catalog, text: str, *, as_json: bool) -> None:
    names, rows = opened.sql(text)
    if as_json:
        for row in rows:
            output.json_line(dict(zip(names, row, strict=True)))
        return
    output.records(
        (dict(zip(names, row, strict=True)) for row in rows),
        dict.fromkeys(names, cell),
        as_json=False,
        nothing="no rows",
    )


def _candidates(opened: Catalog, table: str | None, options: dict[str, Any]) -> Iterator[output.Record]:
    name = _needed(table)
    yield from _paged(lambda at: opened.compaction_candidates(name, sort_schema=options["sort_schema"], after=at))


def _between(opened: Catalog, table: str | None, options: dict[str, Any]) -> Iterator[output.Record]:
    name, (since, until) = _needed(table), (_time(options["start"]), _time(options["end"]))
    yield from _paged(lambda at: opened.splits_between(name, since, until, filter=options["where"], after=at))


def _expired(opened: Catalog, table: str | None, _options: dict[str, Any]) -> Iterator[output.Record]:
    yield from map(asdict, opened.expired_windows(table))


def _changes(opened: Catalog, table: str | None, options: dict[str, Any]) -> Iterator[output.Record]:
    name, since = _needed(table), options["since"]
    if since is None:
        raise InvalidInput("--since is missing. Give the version after which changes are listed: --since VERSION.")
    yield from _paged(lambda at: opened.changes_since(name, since, after=at))


_QUESTIONS: dict[str, Callable[[Catalog, str | None, dict[str, Any]], Iterator[output.Record]]] = {
    "candidates": _candidates,
    "between": _between,
    "expired": _expired,
    "changes": _changes,
}


def _paged(page_at: Callable[[Any], Page[Any, Any]]) -> Iterator[output.Record]:
    at = None
    while True:
        page = page_at(at)
        yield from map(asdict, page.rows)
        at = page.after
        if at is None:
            return


def _needed(table: str | None) -> str:
    if table is None:
        raise InvalidInput("the name of the table is missing. Write the name of the table after the question.")
    return table


def _time(text: str | None) -> Any:
    import datetime as dt

    if text is None:
        return None
    try:
        return dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(f"{text!r} is not a time. Write the time as 2015-05-17T10:00 (UTC)") from error
