"""The arguments and options that several commands share, spelled and explained once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import typer

from storage_core.errors import InvalidInput

Uri = Annotated[
    str, typer.Argument(metavar="URI", help="A path, file:///…, or the name of a table declared in tables/*.yaml.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
At = Annotated[
    str | None, typer.Option(metavar="VERSION|TIME", help="Read the table as of a version, or of an ISO time (UTC).")
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
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")]
Master = Annotated[str, typer.Option(metavar="URL", help="The Spark master that runs the tasks.")]
LOCAL_SPARK = "local[*]"

_HORIZON = re.compile(r"(\d{1,9})(ms|s|m|h|d)")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def horizon_ms(text: str | None) -> int | None:
    """Return milliseconds for `0s`, `90m`, `24h` or `7d`; None stays None. Raises `InvalidInput`."""
    if text is None:
        return None
    found = _HORIZON.fullmatch(text)
    if found is None:
        raise InvalidInput(f"--horizon {text!r} is not a duration; write a number with ms, s, m, h or d, such as 24h")
    return int(found[1]) * _UNIT_MS[found[2]]
