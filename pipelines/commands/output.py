"""Everything that `tidemark` prints: JSON lines for programs, tables of numbers for people, errors for both.

With `--json` a command prints one object per line and nothing else on standard output; the fields are a contract
(`docs/spec.md`, "Command line"). Text for people may change.
"""

from __future__ import annotations

import datetime as dt
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice, zip_longest
from typing import TYPE_CHECKING
from unicodedata import combining, east_asian_width

from pipelines.commands.plain import plain
from storage_core.errors import InvalidInput, TidemarkError
from storage_core.foreign_text import printable
from storage_core.wording import counted

if TYPE_CHECKING:
    import pyarrow as pa

    from jobs.reports.report import JobReport

Record = Mapping[str, object]
Show = Callable[[object], str]

MOST_TEXT_ROWS = 1_000
LONGEST_CELL = 1_000
LONGEST_EXCERPT = 200
_BATCH_ROWS = 10_000
_MOST_REASONS = 20
_GAP = "   "


class OutputClosedError(Exception):
    """The reader of standard output has seen enough. No failure: what the command does besides printing is done."""


def json_line(record: Record) -> None:
    """Print one object as one line of JSON, ASCII only."""
    line(json.dumps(plain(record)))


def line(text: str) -> None:
    """Print one line of text, escaped for a terminal. Every text for people comes through here.

    Raises `OutputClosedError` when nobody reads any more, as behind `| head`.
    """
    try:
        sys.stdout.write(printable(text) + "\n")
    except BrokenPipeError as error:
        raise OutputClosedError from error


def rows(table: pa.Table, *, as_json: bool, everything: bool = False) -> None:
    """Print the rows of an answer; see `stream`."""
    stream(table.to_reader(_BATCH_ROWS), as_json=as_json, everything=everything)


def stream(found: pa.RecordBatchReader, *, as_json: bool, everything: bool = False) -> None:
    """Print rows as they come: whole as JSON; as text at most `MOST_TEXT_ROWS`, long values cut, unless `everything`.

    What is not printed is not held. Raises `InvalidInput` for two columns of one name, which one object cannot hold.
    """
    from pipelines.commands.row_values import shown_rows  # Arrow is not loaded for `--help`

    names = found.schema.names
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidInput(f"the answer has several columns called {', '.join(repeated)}; name each with `as`")
    if as_json:
        for batch in found:
            for row in shown_rows(batch):
                json_line(row)
        return
    show, most = (whole, None) if everything else (excerpt, MOST_TEXT_ROWS)
    shown: list[list[str]] = []
    total = 0
    for batch in found:
        wanted = batch if most is None else batch.slice(0, most - len(shown))
        shown += [[show(value) for value in row.values()] for row in shown_rows(wanted)]
        total += batch.num_rows
    grid(names, shown, width=_terminal_width())
    line(counted(total, "row"))
    not_shown(total - len(shown))


def grid(columns: Sequence[str], lines: Sequence[Sequence[str]], *, width: int | None) -> None:
    """Print a table after an empty line, or a line per value where a terminal of this width has no room for it.

    Columns that hold numbers only are aligned on the right. Without a width, as through a pipe, everything fits.
    """
    drawn = _drawn(columns, lines)
    if width is None or max(map(_cells, drawn)) <= width:
        line("\n".join(drawn))
        return
    names = [f"{printable(name):<{max(map(len, columns))}}" for name in columns]
    for number, values in enumerate(lines, 1):
        line(f"row {number:,}")
        line("\n".join(f"  {name}  {value}".rstrip() for name, value in zip(names, values, strict=True)))


def records(
    found: Iterable[Record],
    columns: Mapping[str, Show],
    *,
    as_json: bool,
    nothing: str,
    most: int | None = MOST_TEXT_ROWS,
    more: str = "--json",
    optional: Sequence[str] = (),
) -> None:
    """Print objects: all and whole as JSON, or a table of the given columns of the first `most` (None: of all).

    `nothing` is what people read when there is no object, `more` the option that prints all where there are others.
    Columns that are `optional` are left out, the first one first, where a terminal has no room for them.
    """
    if as_json:
        for each in found:
            json_line(each)
        return
    rest = iter(found)
    shown = [[show(each.get(name)) for name, show in columns.items()] for each in islice(rest, most)]
    if shown:
        width = _terminal_width()
        names, shown = _fitted(list(columns), shown, optional, width)
        grid(names, shown, width=width)
        if len(names) < len(columns):
            line(f"a wider terminal shows more: {', '.join(name for name in columns if name not in names)}")
    else:
        line(nothing)
    not_shown(sum(1 for _ in rest), more)


def not_shown(more: int, option: str = "--all") -> None:
    """Say how many more there are than were printed, and which option prints them; nothing where there are none."""
    if more > 0:
        line(f"… and {more:,} more; {option} prints all")


def fields(record: Record, shown: Mapping[str, Show]) -> None:
    """Print the given fields of one object for a person, a line each."""
    width = max(len(name) for name in shown)
    for name, show in shown.items():
        line(f"{name.replace('_', ' '):<{width}}  {show(record.get(name))}")


def report(done: JobReport, *, as_json: bool) -> None:
    """Print what a job did."""
    line(done.to_json() if as_json else done.to_text())


def failure(kind: str, message: str, context: Record, *, as_json: bool) -> None:
    """Print an error: its text on standard error, and with `--json` an object on standard output as well."""
    rejected = context.get("rejected", [])
    reasons = list(islice(rejected, _MOST_REASONS)) if isinstance(rejected, list) else []
    text = [f"tidemark: {kind}: {printable(message)}"]
    text += [f"  {printable(_place(each))}: {printable(str(each['reason']))}" for each in reasons]
    if isinstance(rejected, list) and len(rejected) > len(reasons):
        text.append(f"  … and {len(rejected) - len(reasons):,} more; --json prints all")
    if as_json:
        more = {"rejected": rejected} if "rejected" in context else {}
        json_line({"status": "failed", "error": kind, "message": message, **more})
    sys.stderr.write("\n".join(text) + "\n")


def warning(text: str) -> None:
    """Print on standard error what does not stop the command."""
    sys.stderr.write(f"tidemark: {printable(text)}\n")


def error(found: TidemarkError, *, as_json: bool) -> int:
    """Print a typed error and return the exit code that goes with it."""
    failure(found.kind, str(found), found.context, as_json=as_json)
    return found.exit_code


def _drawn(columns: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table: an empty one, the names, a rule, and the values, whose own lines stay below each other."""
    head, *parts = [_lines(values) for values in [[printable(name) for name in columns], *body]]
    lines = [*head, *(each for part in parts for each in part)]
    widths = [max(map(_cells, column)) for column in zip(*lines, strict=True)]
    right = [bool(body) and all(map(_is_number, values)) for values in zip(*body, strict=True)] or [False] * len(widths)
    drawn = [" " + _GAP.join(map(_filled, values, widths, right)).rstrip() for values in lines]
    rule = " " + "─" * (sum(widths) + len(_GAP) * (len(widths) - 1))
    return ["", *drawn[: len(head)], rule, *drawn[len(head) :]]


def _fitted(
    names: list[str], body: list[list[str]], optional: Sequence[str], width: int | None
) -> tuple[list[str], list[list[str]]]:
    """The columns, and what is in them, without as many of the `optional` ones as it takes to fit the width."""
    for name in optional:
        if width is None or max(map(_cells, _drawn(names, body))) <= width:
            break
        place = names.index(name)
        names = [*names[:place], *names[place + 1 :]]
        body = [[*values[:place], *values[place + 1 :]] for values in body]
    return names, body


def _lines(values: Sequence[str]) -> list[tuple[str, ...]]:
    return list(zip_longest(*(value.split("\n") for value in values), fillvalue=""))


def _filled(text: str, width: int, right: object) -> str:
    gap = " " * (width - _cells(text))
    return gap + text if right else text + gap


def _cells(text: str) -> int:
    """How many columns of a terminal the text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(each) else 1 + (east_asian_width(each) in "WF") for each in text)


def _terminal_width() -> int | None:
    """Through a pipe there is no edge to fold at: a line is a row."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def cell(value: object) -> str:
    """Return one value for a person, cut when no path, name or message is so long; a null is empty."""
    return _cut(_text(value), LONGEST_CELL)


def excerpt(value: object) -> str:
    """Return one value of a row for a person: the beginning of a long one, and how much more there is."""
    return _cut(_text(value), LONGEST_EXCERPT)


def whole(value: object) -> str:
    """Return one value for a person, however long it is."""
    return printable(_text(value))


def number(value: object) -> str:
    """Return a number with its thousands apart."""
    return f"{value:,}" if isinstance(value, int) else cell(value)


def window(value: object) -> str:
    """Return a window's start, in seconds since the epoch, as the UTC time that options take."""
    from jobs.requests.window_range import window_name

    return window_name(value if isinstance(value, int) else None)


def instant_ms(value: object) -> str:
    """Return milliseconds since the epoch as a UTC time."""
    if not isinstance(value, int):
        return cell(value)
    try:
        instant = _instant(0) + dt.timedelta(milliseconds=value)
    except OverflowError:
        return f"{value} ms"  # logs of others may name times that no calendar has
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _text(value: object) -> str:
    found = plain(value)
    return "" if found is None else found if isinstance(found, str) else json.dumps(found)


def _cut(text: str, longest: int) -> str:
    """Printable text of at most so many characters of the value; cut first, for a value may be of any length."""
    more = len(text) - longest
    return printable(text) if more <= 0 else f"{printable(text[:longest])}… and {counted(more, 'more character')}"


def _instant(seconds: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=seconds)


def _is_number(text: str) -> bool:
    return not text or text.replace(",", "").replace(".", "").removeprefix("-").isdigit()


def _place(rejected: Record) -> str:
    return str(rejected["file"]) if rejected["line"] is None else f"{rejected['file']}:{rejected['line']}"
