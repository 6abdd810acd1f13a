"""All output of `tidemark`: JSON lines for programs, and tables for people."""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any
from unicodedata import combining, east_asian_width

from storage_core.base.errors import InvalidInput, TidemarkError
from storage_core.base.text import counted, printable

if TYPE_CHECKING:
    import pyarrow as pa

    from storage_core.log.job_run import JobReport


def plain(value: object) -> object:
    """Return the value as JSON data without loss of information.

    Values of types that do not exist in JSON have these forms:

    - A timestamp is ISO text in UTC with a `Z` at the end. If the column has no time zone, the text has no `Z`.
    - A decimal of a type with decimal places becomes text with all digits. A decimal of a type without decimal places
      becomes an integer.
    - Binary data is base64 text.
    - The special floats are "NaN", "Infinity" and "-Infinity".
    - An interval is [months, days, nanoseconds].
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else _unfinite(value)
        case Decimal():
            return int(value) if value == value.to_integral_value() and _places(value) <= 0 else format(value, "f")
        case dt.datetime():
            instant = value if value.tzinfo is None else value.astimezone(dt.UTC)
            return instant.isoformat().replace("+00:00", "Z")
        case dt.date() | dt.time():
            return value.isoformat()
        case bytes():
            return base64.b64encode(value).decode("ascii")
        case Mapping():
            return {str(key): plain(each) for key, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case _:
            return str(value)


def _unfinite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _places(value: Decimal) -> int:
    exponent = value.as_tuple().exponent
    return -exponent if isinstance(exponent, int) else 0


Record = Mapping[str, object]
Show = Callable[[object], str]

MOST_TEXT_ROWS = 1_000
LONGEST_CELL = 1_000
LONGEST_EXCERPT = 200
_BATCH_ROWS = 10_000
_MOST_REASONS = 20
_GAP = "   "


class OutputClosedError(Exception):
    """The error for a reader that has closed standard output.

    A closed standard output is not a failure. The command has done all its work, and only the rest of the output is
    missing.
    """


def json_line(record: Record) -> None:
    """Print one object as one line of ASCII JSON."""
    line(json.dumps(plain(record)))


def line(text: str) -> None:
    """Print one line of text, escaped for a terminal. This function prints all text for people.

    Raises:
        OutputClosedError: The reader has closed standard output, as `| head` does.
    """
    try:
        sys.stdout.write(printable(text) + "\n")
    except BrokenPipeError as error:
        raise OutputClosedError from error


def shown_rows(rows: pa.Table | pa.RecordBatch) -> list[dict[str, object]]:
    """Return the rows as dictionaries. `shown` converts the values of the rows.

    If a column has dates outside the years 1 to 9999, all its values become text.
    """
    from storage_core.data.rows.times import as_text  # `--help` needs neither these modules nor Arrow

    found = as_text(rows)
    return [shown(row, found.schema) for row in found.to_pylist()]


def shown(row: Mapping[str, object], schema: pa.Schema) -> dict[str, object]:
    """Return the row. Maps in the row, at any depth, become dictionaries or lists of pairs.

    A map becomes a dictionary if its keys are text and unique. A map with other or repeated keys becomes a list of
    pairs, because a dictionary would lose one of two equal keys.
    """
    import pyarrow.types as kinds

    nested = {field.name: field.type for field in schema if kinds.is_nested(field.type)}
    return {name: _shown(value, nested[name]) if name in nested else value for name, value in row.items()}


def _shown(value: Any, type_: pa.DataType) -> Any:
    import pyarrow.types as kinds

    if value is None:
        return None
    if kinds.is_map(type_):
        pairs = value.items() if isinstance(value, Mapping) else value
        listed = [(_shown(key, type_.key_type), _shown(item, type_.item_type)) for key, item in pairs]
        named = dict(listed) if kinds.is_string(type_.key_type) else None
        return listed if named is None or len(named) < len(listed) else named
    if kinds.is_struct(type_):
        return {field.name: _shown(value[field.name], field.type) for field in type_.fields}
    if kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_):
        return [_shown(each, type_.value_type) for each in value]
    return value


def rows(table: pa.Table, *, as_json: bool, everything: bool = False) -> None:
    """Print the rows of an answer in the same way as `stream`."""
    stream(table.to_reader(_BATCH_ROWS), as_json=as_json, everything=everything)


def stream(found: pa.RecordBatchReader, *, as_json: bool, everything: bool = False) -> None:
    """Print each batch of rows when it arrives.

    As JSON, all rows are printed completely. As text, at most `MOST_TEXT_ROWS` rows are printed, and long values are
    cut. With `everything`, all rows are printed completely. Rows that are not printed are not kept in memory.

    Raises:
        InvalidInput: Two columns have the same name. A JSON object cannot contain both.
    """
    names = found.schema.names
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidInput(
            f"the answer has several columns called {', '.join(repeated)}. Name each of these columns with `as`."
        )
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
    """Print a table after an empty line. If the terminal is too narrow, print one line per value instead.

    Columns of numbers are aligned right. Without a width, for example in a pipe, every table fits.
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
    """Print all objects as JSON, or the first objects as a table.

    Args:
        found: The objects.
        columns: The columns of the table, each with the function that formats its values.
        as_json: Print JSON lines instead of a table.
        nothing: The line that is printed for people if there are no objects.
        most: The largest number of rows in the table. None prints all rows.
        more: The option that prints all objects. The table is followed by this option if it does not contain all
            objects.
        optional: Columns that may be dropped if the terminal is too narrow. The first column in the list is dropped
            first.
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
            line(f"more columns in a wider terminal: {', '.join(name for name in columns if name not in names)}")
    else:
        line(nothing)
    not_shown(sum(1 for _ in rest), more)


def not_shown(more: int, option: str = "--all") -> None:
    """Print how many objects were not printed, and the option that prints all objects.

    If all objects were printed, print nothing.
    """
    if more > 0:
        line(f"… and {more:,} more. {option} prints all")


def fields(record: Record, shown: Mapping[str, Show]) -> None:
    """Print the given fields of one object for a person, with one field per line."""
    width = max(len(name) for name in shown)
    for name, show in shown.items():
        line(f"{name.replace('_', ' '):<{width}}  {show(record.get(name))}")


def report(done: JobReport, *, as_json: bool) -> None:
    """Print the report of a job."""
    line(done.to_json() if as_json else done.to_text())


def failure(kind: str, message: str, context: Record, *, as_json: bool) -> None:
    """Print an error as text on standard error. With `--json`, also print an object on standard output."""
    rejected = context.get("rejected", [])
    reasons = list(islice(rejected, _MOST_REASONS)) if isinstance(rejected, list) else []
    text = [f"tidemark: {kind}: {printable(message)}"]
    text += [f"  {printable(_place(each))}: {printable(str(each['reason']))}" for each in reasons]
    if isinstance(rejected, list) and len(rejected) > len(reasons):
        text.append(f"  … and {len(rejected) - len(reasons):,} more. --json prints all")
    if as_json:
        more = {"rejected": rejected} if "rejected" in context else {}
        json_line({"status": "failed", "error": kind, "message": message, **more})
    sys.stderr.write("\n".join(text) + "\n")


def warning(text: str) -> None:
    """Print a warning on standard error. The command continues."""
    sys.stderr.write(f"tidemark: {printable(text)}\n")


def error(found: TidemarkError, *, as_json: bool) -> int:
    """Print a typed error and return the exit code of the error."""
    failure(found.kind, str(found), found.context, as_json=as_json)
    return found.exit_code


def _drawn(columns: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table: an empty line, the names, a rule, and the values. A value can have several lines."""
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
    """Return the columns that fit the width, and their values. Drop `optional` columns until the other columns fit."""
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
    """Return the number of terminal columns that the text needs."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(each) else 1 + (east_asian_width(each) in "WF") for each in text)


def _terminal_width() -> int | None:
    """Return the width of the terminal, or None in a pipe. In a pipe, lines are never folded."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def cell(value: object) -> str:
    """Return one value as text for a person. A value longer than `LONGEST_CELL` is cut. A null becomes empty text."""
    return _cut(_text(value), LONGEST_CELL)


def excerpt(value: object) -> str:
    """Return one value of a row as text for a person. If the value is cut, the text contains the length of the rest."""
    return _cut(_text(value), LONGEST_EXCERPT)


def whole(value: object) -> str:
    """Return one complete value as text for a person."""
    return printable(_text(value))


def number(value: object) -> str:
    """Return a number as text with thousands separators."""
    return f"{value:,}" if isinstance(value, int) else cell(value)


def window(value: object) -> str:
    """Convert the start of a window from seconds since the epoch to UTC text that options accept."""
    from storage_core.data.rows.window_range import window_name

    return window_name(value if isinstance(value, int) else None)


def instant_ms(value: object) -> str:
    """Convert milliseconds since the epoch to a UTC time."""
    if not isinstance(value, int):
        return cell(value)
    try:
        instant = _instant(0) + dt.timedelta(milliseconds=value)
    except OverflowError:
        return f"{value} ms"  # logs from other programs may contain times after the year 9999
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _text(value: object) -> str:
    found = plain(value)
    return "" if found is None else found if isinstance(found, str) else json.dumps(found)


def _cut(text: str, longest: int) -> str:
    """Return at most the first `longest` characters of the text in printable form.

    The function cuts the text before it converts characters, because a value may be very long.
    """
    more = len(text) - longest
    return printable(text) if more <= 0 else f"{printable(text[:longest])}… and {counted(more, 'more character')}"


def _instant(seconds: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=seconds)


def _is_number(text: str) -> bool:
    return not text or text.replace(",", "").replace(".", "").removeprefix("-").isdigit()


def _place(rejected: Record) -> str:
    return str(rejected["file"]) if rejected["line"] is None else f"{rejected['file']}:{rejected['line']}"
