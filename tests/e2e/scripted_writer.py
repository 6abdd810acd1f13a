"""A writer whose every call is known beforehand: run as a program it writes until it is killed or fenced.

`python -m tests.e2e.scripted_writer URI FIRST` makes the calls from FIRST on and prints the number of each one that
was acknowledged. `state_after` says what the table holds after that many calls, by a plain dictionary.
"""

from __future__ import annotations

import os
import sys

from storage_core import Table
from storage_core.errors import WriterFenced
from storage_core.region.router import TableWriter

Row = dict[str, object]

KEYS = 40
FENCED = 3


def rows_of(number: int) -> list[Row]:
    """The rows that a call puts, or whose seats it changes."""
    return [{"tailnum": f"N{(number * 7 + part) % KEYS}", "seats": number, "model": f"m{number}"} for part in range(3)]


def call(writer: TableWriter, number: int) -> None:
    """Make one call; every ninth is followed by a flush, which changes no row."""
    rows = rows_of(number)
    match number % 4:
        case 2:
            writer.patch([{"tailnum": row["tailnum"], "seats": row["seats"]} for row in rows])
        case 3:
            writer.delete([row["tailnum"] for row in rows[:2]])
        case _:
            writer.put(rows)
    if number % 9 == 8:
        writer.flush()


def state_after(calls: int) -> dict[str, Row]:
    """What the table holds after the first `calls` calls, by key."""
    state: dict[str, Row] = {}
    for number in range(calls):
        for position, row in enumerate(rows_of(number)):
            key = str(row["tailnum"])
            match number % 4:
                case 2:
                    state[key] = {"tailnum": key, "model": None, **state.get(key, {}), "seats": row["seats"]}
                case 3 if position < 2:
                    state.pop(key, None)
                case 3:
                    pass
                case _:
                    state[key] = row
    return state


def main(uri: str, first: int) -> int:
    """Write for ever; return only when another writer has taken over."""
    with Table.open(uri).writer() as writer:
        for number in range(first, sys.maxsize):
            try:
                call(writer, number)
            except WriterFenced:
                break
            os.write(1, b"%d\n" % number)
    return FENCED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
