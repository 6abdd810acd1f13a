"""The arguments and options that several commands share, spelled and explained once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer

from storage_core.errors import InvalidInput

Uri = Annotated[
    str, typer.Argument(metavar="URI", help="A path, s3://…, or the name of a table declared in tables/*.yaml.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
At = Annotated[
    str | None,
    typer.Option(metavar="VERSION|TIME|TAG", help="Read the table as of a version, an ISO time (UTC) or a tag."),
]
Level = Literal["snapshot", "committed", "latest"]
Consistency = Annotated[
    Level | None,
    typer.Option(help="Keyed tables: merged rows only, flushed generations too, or every acknowledged row."),
]
Declaration = Annotated[Path | None, typer.Option(metavar="FILE", help="The file that declares the table.")]
Window = Annotated[
    str | None, typer.Option(metavar="START", help="One window: 2015-05-17T10:00 (UTC), seconds, or null.")
]
From = Annotated[str | None, typer.Option("--from", metavar="TIME", help="First window, included (UTC).")]
To = Annotated[str | None, typer.Option("--to", metavar="TIME", help="End of the windows, excluded (UTC).")]
All = Annotated[bool, typer.Option("--all", help="Everything there is to do; the default.")]
Everything = Annotated[bool, typer.Option("--all", help="Print everything, long values whole.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")]
Policy = Annotated[bool, typer.Option("--policy", help="Only the merges that pay now, as scheduled runs make them.")]
Wait = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="Wait so long, such as 10m, while another run works on it; else exit 3."),
]
Master = Annotated[
    str, typer.Option(metavar="URL", help="The Spark master that runs the tasks, or sc://… of a Spark Connect server.")
]


def refuse_beside(option: str, others: Mapping[str, object], *, why: str) -> None:
    """Raise `InvalidInput` where one of the other options is given: neither None nor False."""
    given = [name for name, value in others.items() if value is not None and value is not False]
    if given:
        raise InvalidInput(f"{option} {why}, so {given[0]} has no meaning beside it; leave one out")


def duration_ms(option: str, text: str | None) -> int | None:
    """Return milliseconds for `0`, `90m`, `24h` or `7d`; None stays None. Raises `InvalidInput` naming the option.

    The grammar is that of declarations, but for a number without a unit, whose seconds somebody may take for others.
    """
    from storage_core.rows.windows import parse_milliseconds

    if text is None:
        return None
    wrong = f"{option} {text!r} is not a duration; write a number with ms, s, m, h or d, such as 24h"
    if text.strip().isdecimal() and text != "0":  # nothing is nothing in any unit
        raise InvalidInput(wrong)
    try:
        return parse_milliseconds(text)
    except InvalidInput:
        raise InvalidInput(wrong) from None
