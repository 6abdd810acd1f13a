"""A parser of the access log, one line at a time, to compare with the table. The parser uses no product code."""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import NamedTuple

import pyarrow as pa

MONTHS = {"May": 5}
LONGEST_TOKEN = 39


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the log, its fields in the order of the table's columns. A field is None if the server wrote `-`."""

    client: str
    ident: str | None
    user: str | None
    timestamp: dt.datetime
    request: str | None
    method: str | None
    path: str | None
    protocol: str | None
    status: int
    bytes: int | None
    referrer: str | None
    agent: str | None

    @property
    def window(self) -> int:
        """The start of the hour, in seconds since the epoch."""
        return int(self.timestamp.timestamp()) // 3600 * 3600

    @property
    def sort_key(self) -> tuple[object, ...]:
        """The sort key of `status|method|path|timestamp/V2`: nulls last, text by its bytes, newest first."""
        texts = ((each is None, (each or "").encode()) for each in (self.method, self.path))
        return (self.status, *texts, -self.timestamp.timestamp())

    @property
    def words(self) -> set[str]:
        """The words of the request line and of the agent."""
        return {word for text in (self.request, self.agent) for word in words(text)}


class Log(NamedTuple):
    """The valid lines, and the invalid lines by number from 1."""

    lines: list[Line]
    broken: dict[int, str]


def words(text: str | None) -> list[str]:
    """Return the words of a text in lower case. A word consists of letters and digits, and is shorter than 40 bytes."""
    found = re.split(r"[\W_]+", (text or "").lower())
    return [word for word in found if 0 < len(word.encode()) <= LONGEST_TOKEN]


def read(texts: Iterable[str]) -> Log:
    """Read the lines of one file."""
    log = Log([], {})
    for number, text in enumerate(texts, start=1):
        line = _line(text)
        if line is None:
            log.broken[number] = text
        else:
            log.lines.append(line)
    return log


def counted(rows: pa.Table | Iterable[Line]) -> Counter[tuple[object, ...]]:
    """Return how often each row occurs. The rows are lines, or a table with exactly the columns of the log."""
    if isinstance(rows, pa.Table):
        return Counter(tuple(row.values()) for row in rows.to_pylist())
    return Counter(astuple(line) for line in rows)


def lines_of(rows: pa.Table) -> list[Line]:
    """Return the rows of a table, or of one of its files, as lines in the same order."""
    return [Line(**row) for row in rows.select(list(Line.__dataclass_fields__)).to_pylist()]


def _line(text: str) -> Line | None:
    # client ident user [time] "request" status bytes "referrer" "agent"
    parts = text.split('"')
    if len(parts) != 7 or parts[6]:  # fields contain no quotes, so each quote begins or ends a field
        return None
    client, ident, user, day_and_time, zone = parts[0].split()
    status, size = parts[2].split()
    request = parts[1].split(" ")
    whole = len(request) == 3
    return Line(
        client=client,
        ident=_value(ident),
        user=_value(user),
        timestamp=_instant(day_and_time[1:], zone[:-1]),
        request=_value(parts[1]),
        method=request[0] if whole else None,
        path=request[1] if whole else None,
        protocol=request[2] if whole else None,
        status=int(status),
        bytes=None if size == "-" else int(size),
        referrer=_value(parts[3]),
        agent=_value(parts[5]),
    )


def _value(text: str) -> str | None:
    return None if text in ("-", "") else text


def _instant(text: str, zone: str) -> dt.datetime:
    """Parse `17/May/2015:10:05:03` with the zone `+0000`."""
    date, hour, minute, second = text.split(":")
    day, month, year = date.split("/")
    assert zone == "+0000"
    return dt.datetime(int(year), MONTHS[month], int(day), int(hour), int(minute), int(second), tzinfo=dt.UTC)
