"""Tests that the checkers of this folder reject impossible histories and accept possible ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos import register, rows_kept
from tests.chaos.history import History
from tests.chaos.register import Is, Read, State, WithoutTag, Write
from tests.chaos.rows_kept import Append, Look


def put(value: int, begun: int, ended: int | None, latest: int | None = None, operation: str = "put") -> Write:
    return Write(name="w", operation=operation, value=value, begun=begun, ended=ended, latest=latest)


def delete(begun: int, ended: int | None, latest: int | None = None) -> Write:
    return put(0, begun, ended, latest, "delete")


def read(found: State | int, begun: int, ended: int, *, since: int | None = None, session: str = "") -> Read:
    state = (found, found) if isinstance(found, int) else found
    first = begun if since is None else since
    return Read(session=session or f"r{begun}", since=first, begun=begun, ended=ended, found=Is(state))


SOUND: dict[str, tuple[list[Write], list[Read]]] = {
    "nothing was written": ([], [read(None, 0, 1)]),
    "a write is read": ([put(1, 0, 1)], [read(None, -2, -1), read(1, 2, 3)]),
    "during a write either is read": ([put(1, 0, 9)], [read(None, 1, 2), read(1, 3, 4), read(1, 5, 6)]),
    "of two writes at once either is the last": ([put(1, 0, 9), put(2, 0, 9)], [read(2, 1, 2), read(1, 10, 11)]),
    "an unknown write appears late and stays": ([put(1, 0, None)], [read(None, 5, 6), read(1, 7, 8), read(1, 9, 10)]),
    "an unknown write never appears": ([put(1, 0, None), put(2, 3, 4)], [read(2, 5, 6), read(2, 7, 8)]),
    "an unknown write before its writer was fenced": (
        [put(1, 0, None, 4), put(2, 5, 6)],
        [read(1, 3, 4), read(2, 7, 8)],
    ),
    "a patch keeps the other column": ([put(1, 0, 1), put(2, 2, 3, operation="patch")], [read((1, 2), 4, 5)]),
    "a patch makes a row": ([put(2, 2, 3, operation="patch")], [read((None, 2), 4, 5)]),
    "a weak read lags": ([put(1, 0, 1), put(2, 2, 3)], [read(1, 8, 9, since=1), read(2, 8, 9, since=1)]),
    "a weak session goes forward": (
        [put(1, 0, 1), put(2, 2, 3)],
        [read(1, 5, 6, since=0, session="s"), read(2, 7, 8, since=0, session="s")],
    ),
    "a search does not find the deleted": (
        [put(3, 0, 1), delete(2, 3)],
        [Read(session="s", since=4, begun=4, ended=5, found=WithoutTag("t0"))],
    ),
}
BAD: dict[str, tuple[list[Write], list[Read]]] = {
    "lost write": ([put(1, 0, 1)], [read(None, 2, 3)]),
    "lost by one reader only": ([put(1, 0, 1)], [read(1, 2, 3), read(None, 4, 5)]),
    "stale read": ([put(1, 0, 1), put(2, 2, 3)], [read(1, 4, 5)]),
    "resurrected delete": ([put(1, 0, 1), delete(2, 3)], [read(None, 4, 5), read(1, 6, 7)]),
    "value from nowhere": ([put(1, 0, 1)], [read(7, 2, 3)]),
    "value from the future": ([put(1, 5, 6)], [read(1, 2, 3)]),
    "half of a row": ([put(1, 0, 1), put(2, 2, 3)], [read((1, 2), 4, 5)]),
    "a patch that took the other column along": (
        [put(1, 0, 1), put(2, 2, 3), put(3, 4, 5, operation="patch")],
        [read((1, 3), 6, 7)],
    ),
    "an unknown write that was seen and went": ([put(1, 0, None)], [read(1, 1, 2), read(None, 3, 4)]),
    "an unknown write that came twice": (
        [put(1, 0, None), put(2, 3, 4)],
        [read(1, 1, 2), read(2, 5, 6), read(1, 7, 8)],
    ),
    "a write of a fenced writer": ([put(1, 0, None, 2), put(2, 3, 4)], [read(2, 5, 6), read(1, 7, 8)]),
    "an unknown write after the claim that settled it": ([put(1, 0, None, 2)], [read(None, 3, 4), read(1, 5, 6)]),
    "reads at once in two orders": (
        [put(1, 0, 9), put(2, 0, 9)],
        [read(1, 10, 11), read(2, 12, 13)],
    ),
    "a weak read behind what it promises": ([put(1, 0, 1), put(2, 2, 3)], [read(1, 8, 9, since=4)]),
    "a weak session that goes back": (
        [put(1, 0, 1), put(2, 2, 3)],
        [read(2, 5, 6, since=0, session="s"), read(1, 7, 8, since=0, session="s")],
    ),
    "a search that misses": ([put(3, 0, 1)], [Read(session="s", since=4, begun=4, ended=5, found=WithoutTag("t0"))]),
}


@pytest.mark.parametrize("name", SOUND)
def test_a_history_that_may_be_is_explained(name: str) -> None:
    assert register.unexplained(*SOUND[name]) is None


@pytest.mark.parametrize("name", BAD)
def test_a_history_that_cannot_be_is_refused_with_the_calls_of_the_key(name: str) -> None:
    found = register.unexplained(*BAD[name])
    assert found is not None
    assert "nothing explains" in found
    assert "\n" in found, "the calls of the key"


def append(name: str, *rows: int, begun: int, ended: int | None, refused: bool = False) -> Append:
    return Append(name=name, rows=rows, begun=begun, ended=ended, refused=refused)


def look(begun: int, ended: int, *rows: int) -> Look:
    return Look(session=f"r{begun}", begun=begun, ended=ended, rows=rows)


ADDED = [append("one", 1, 2, begun=0, ended=1), append("two", 3, begun=4, ended=None)]
SOUND_ROWS: dict[str, tuple[list[Append], list[Look]]] = {
    "what is acknowledged is there": (ADDED, [look(2, 3, 1, 2)]),
    "what nobody knows appears and stays": (ADDED, [look(5, 6, 1, 2), look(7, 8, 2, 1, 3), look(9, 10, 3, 1, 2)]),
    "during a call it may be there": (ADDED, [look(0, 1), look(0, 2, 1, 2)]),
    "what was refused is not": ([append("one", 1, begun=0, ended=1, refused=True)], [look(2, 3)]),
}
BAD_ROWS: dict[str, tuple[list[Append], list[Look]]] = {
    "lost append": (ADDED, [look(2, 3)]),
    "half of an append": (ADDED, [look(2, 3, 1)]),
    "duplicated append": (ADDED, [look(2, 3, 1, 2, 1, 2)]),
    "row from nowhere": (ADDED, [look(2, 3, 1, 2, 9)]),
    "row from the future": (ADDED, [look(2, 3, 1, 2, 3)]),
    "row of a refused call": ([append("one", 1, begun=0, ended=1, refused=True)], [look(2, 3, 1)]),
    "unknown append that was seen and went": (ADDED, [look(5, 6, 1, 2, 3), look(7, 8, 1, 2)]),
}


@pytest.mark.parametrize("name", SOUND_ROWS)
def test_rows_that_may_be_are_explained(name: str) -> None:
    assert rows_kept.unexplained(*SOUND_ROWS[name]) is None


@pytest.mark.parametrize("name", BAD_ROWS)
def test_rows_that_cannot_be_are_refused(name: str) -> None:
    assert rows_kept.unexplained(*BAD_ROWS[name]) is not None


@pytest.mark.parametrize(("operation", "may_be"), [("gather", True), ("put", False)])
def test_of_a_refused_call_only_rows_gathered_before_the_refused_one_may_be_there(
    operation: str, may_be: bool, tmp_path: Path
) -> None:
    write: dict[str, object] = {"op": operation, "epoch": 1, "keys": ["k0"], "value": 3}
    read: dict[str, object] = {"op": "read", "session": "s", "level": "latest", "way": "scan"}
    calls = [(write, "refused", None), (read, "done", [["k0", 3, 3, "t0"]])]
    lines: list[dict[str, object]] = []
    for number, (said, outcome, found) in enumerate(calls):
        lines.append({"call": number, "at": 2 * number, **said})
        lines.append({"end": number, "at": 2 * number + 1, "outcome": outcome, "found": found})
    (tmp_path / "one.journal").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    if may_be:
        History(tmp_path).judge()
    else:
        with pytest.raises(AssertionError, match="nothing explains"):
            History(tmp_path).judge()
