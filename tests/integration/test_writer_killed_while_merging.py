"""A writer with several threads is killed at random moments, again and again, while a merger runs beside it.

The oracle is a dictionary made from the journals of the threads: what was acknowledged is there, what was under way is
there whole or not at all, and nothing is there twice. `TIDEMARK_KILLS=200` kills more often.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from storage_core.ids import SystemIds
from storage_core.testkit.keyed_table import KeyedTable
from tests.integration.threaded_writer import THREADS, journal_of, store_of

KILLS = int(os.environ.get("TIDEMARK_KILLS", "20"))
REPOSITORY = Path(__file__).parents[2]
LONGEST_S = 0.2
PATIENCE_S = 60

Seats = dict[str, object]


def test_what_was_acknowledged_outlives_every_kill_while_a_merger_runs(tmp_path: Path) -> None:
    root = str(tmp_path)
    table = KeyedTable(store_of(root), ids=SystemIds()).create()
    random = Random(20_240_301)
    expected: list[Seats] = [{} for _ in range(THREADS)]
    calls = 0
    with program("merge", root) as merger, program("write", root) as writers:
        for kill in range(KILLS):
            name = f"w{kill}"
            # Every fourth one somewhere in its start and its claim.
            waits_for = None if kill % 4 == 3 else journal_of(root, name, random.randrange(THREADS))
            end_one(writers, name, waits_for, random.uniform(0.0, LONGEST_S))
            found = seats(table)
            for thread in range(THREADS):
                done, under_way = journal(root, name, thread)
                calls += len(done)
                expected[thread] = settled(expected[thread], done, under_way, found, thread)
            assert found == merged(expected), f"after kill {kill}"
        (tmp_path / "stop").touch()
        assert merger.wait(60) == 0
    assert table.snapshot.version > 0, "nothing was merged meanwhile"
    with table.writer() as last:
        last.flush()
    table.merge()
    base = table.base_rows()
    assert len(base) == len({row["tailnum"] for row in base})
    assert {str(row["tailnum"]): row["seats"] for row in base} == merged(expected)
    assert calls > KILLS // 2, "the writers were killed before they did anything"


def settled(known: Seats, done: list[list[object]], under_way: list[object] | None, found: Seats, thread: int) -> Seats:
    """What the keys of a thread hold after its calls: of the last one, whichever of its outcomes was found."""
    for each in done:
        known = after(known, each)
    if under_way is None:
        return known
    ours = {key: value for key, value in found.items() if key.startswith(f"{thread}-")}
    assert ours in outcomes(known, under_way), f"thread {thread}, {under_way}"
    return ours


def outcomes(known: Seats, called: list[object]) -> list[Seats]:
    """What a call that nobody saw the end of may have left: nothing or all, of rows that were gathered any first ones.

    Gathered rows are calls of their own, and those of another thread may have taken some along.
    """
    operation, keys, number = called
    assert isinstance(keys, list)
    if operation != "gather":
        return [known, after(known, called)]
    return [after(known, ["put", keys[:count], number]) for count in range(len(keys) + 1)]


def after(known: Seats, called: list[object]) -> Seats:
    """What a dictionary does for a call."""
    operation, keys, number = called
    assert isinstance(keys, list)
    match operation:
        case "flush":
            return known
        case "delete":
            return {key: value for key, value in known.items() if key not in keys}
        case _:
            return known | dict.fromkeys(keys, number)


def merged(expected: list[Seats]) -> Seats:
    return {key: value for each in expected for key, value in each.items()}


def seats(table: KeyedTable) -> Seats:
    return {str(key): row["seats"] for key, row in table.rows().items()}


def journal(root: str, name: str, thread: int) -> tuple[list[list[object]], list[object] | None]:
    """The calls that a thread was told were done, and the one that it had begun."""
    path = journal_of(root, name, thread)
    lines = path.read_text().splitlines() if path.exists() else []
    begun = [json.loads(line) for line in lines if line != "done"]
    done = lines.count("done")
    assert len(begun) - done in {0, 1}
    return begun[:done], begun[done] if len(begun) > done else None


def end_one(writers: subprocess.Popen[str], name: str, sign: Path | None, seconds: float) -> None:
    """Let a writer begin, wait for its sign, and kill it after a while, whatever it is doing then."""
    assert writers.stdin is not None
    assert writers.stdout is not None
    writers.stdin.write(f"{name}\n")
    writers.stdin.flush()
    child = int(writers.stdout.readline())
    patience = time.monotonic() + PATIENCE_S
    while sign is not None and not (sign.exists() and sign.stat().st_size):
        assert time.monotonic() < patience, "the writer does not begin"
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    until_gone(child)


def until_gone(process: int) -> None:
    """Wait until the process does nothing any more: its parent has taken note of its end."""
    while True:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        time.sleep(0.001)


@contextmanager
def program(what: str, root: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.integration.threaded_writer", what, root]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY, text=True) as started:
        try:
            yield started
        finally:
            started.terminate()
