"""A writer with several threads is killed repeatedly at random, while other threads merge, compact, collect and read.

The oracle is a dictionary made from the journals of the threads. Acknowledged rows exist, rows of an unfinished call
exist completely or not at all, and no row exists twice. `TIDEMARK_SCALE` increases the number of kills (`make soak`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Self

from storage_core.base.clock import SystemIds
from storage_core.data.settings.table import TableConfig
from storage_core.store.resolve import open_store
from tests.integration.threaded_writer import THREADS, journal_of
from tests.support.keyed_table import KeyedTable
from tests.support.s3_server import S3Server
from tests.support.scale import scaled
from tidemark import Table

KILLS = scaled(6)
S3_KILLS = scaled(3)
REPOSITORY = Path(__file__).parents[2]
LONGEST_S = 0.2
HORIZON_MS = 5_000
"""A horizon longer than any single operation, and short enough to collect many objects (`READS_OF_LATENESS`)."""

Seats = dict[str, object]


def test_what_was_acknowledged_outlives_every_kill(tmp_path: Path) -> None:
    kill_again_and_again((tmp_path / "planes").as_uri(), tmp_path, KILLS)


def test_what_was_acknowledged_outlives_every_kill_on_s3(s3_server: S3Server, tmp_path: Path) -> None:
    kill_again_and_again(s3_server.uri("killed-writers"), tmp_path, S3_KILLS)


def kill_again_and_again(uri: str, folder: Path, kills: int) -> None:
    config = TableConfig(primary_key=("tailnum",), gc_horizon_ms=HORIZON_MS, version_retention_ms=0)
    table = KeyedTable(open_store(uri), ids=SystemIds()).create(config=config)
    untouched = two_splits(table)
    reader = Table.open(uri)
    random = Random(20_240_301)
    expected: list[Seats] = [{} for _ in range(THREADS)]
    calls = 0
    with program("maintain", uri, folder) as maintainers, program("write", uri, folder) as writers, Watch(uri) as watch:
        for number in range(kills):
            path = journal_of(str(folder), number, random.randrange(THREADS))
            end_one(writers, number, partial(far_enough, path, number), random.uniform(0.0, LONGEST_S))
            with table.writer() as heir:  # before this claim, the killed writer's last request may still take effect
                found = latest(reader)
                if number % 2:
                    heir.flush()
            for thread in range(THREADS):
                done, under_way = journal(folder, number, thread)
                calls += len(done)
                expected[thread] = settled(expected[thread], done, under_way, found, thread)
            assert found == united([untouched, *expected]), f"after kill {number}"
            assert maintainers.poll() is None, "a maintainer failed"
        (folder / "stop").touch()
        told, _ = maintainers.communicate()
        assert maintainers.returncode == 0
    check_base(table, united([untouched, *expected]))
    assert calls >= kills // 2, "every other writer is killed after it did something"
    print(f"{kills} kills, {calls} calls acknowledged, {watch.reads} reads beside them, {told}")  # noqa: T201 -- of a soak


def two_splits(table: KeyedTable) -> Seats:
    """Write two rows in separate splits, which no other call changes.

    Therefore there is always something to compact.
    """
    rows: Seats = {"untouched-0": 0, "untouched-1": 1}
    with table.writer() as writer:
        for key, value in rows.items():
            writer.put({"tailnum": key, "seats": value})
            writer.flush()
            table.merge()
    return rows


def check_base(table: KeyedTable, expected: Seats) -> None:
    """Check that the base holds exactly these rows after a merge, each key once."""
    with table.writer() as last:
        last.flush()
    table.merge_all()
    base = [(str(row["tailnum"]), row["seats"]) for row in table.base_rows()]
    assert len(base) == len(dict(base))
    assert dict(base) == expected


class Watch:
    """A concurrent reader at `latest`.

    The reader checks that no key gets an older value again, and that no deleted key comes back.
    """

    def __init__(self, uri: str) -> None:
        self.reads = 0
        self._uri = uri
        self._seen: Seats = {}
        self._deleted: set[str] = set()
        self._failures: list[BaseException] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert not self._failures, self._failures

    def _read(self) -> None:
        table = Table.open(self._uri)
        try:
            took = 0.0
            while not self._stop.wait(max(0.02, took)):
                began = time.monotonic()
                self._look(latest(table))
                self.reads, took = self.reads + 1, time.monotonic() - began
        except BaseException as error:  # noqa: BLE001 -- raised by the thread that waits
            self._failures.append(error)

    def _look(self, found: Seats) -> None:
        for key, value in found.items():
            before = self._seen.get(key, -1)
            assert isinstance(value, int)
            assert isinstance(before, int)
            assert value > before or (value == before and key not in self._deleted), f"{key}: {value} after {before}"
        self._seen |= found
        self._deleted = self._seen.keys() - found.keys()


def settled(known: Seats, done: list[list[object]], under_way: list[object] | None, found: Seats, thread: int) -> Seats:
    """Return the expected rows of a thread. If a call is unfinished, check that its outcome is possible."""
    for each in done:
        known = after(known, each)
    if under_way is None:
        return known
    ours = {key: value for key, value in found.items() if key.startswith(f"{thread}-")}
    assert ours in outcomes(known, under_way), f"thread {thread}, {under_way}"
    return ours


def outcomes(known: Seats, called: list[object]) -> list[Seats]:
    """Return the possible results of a call without a recorded end. The unfinished call wrote no row or all rows.

    The operation `gather` writes each row in a separate call. A killed process may have written none, some or all of
    its rows, in order. A call of another thread may also have written some of these rows.
    """
    operation, keys, number = called
    assert isinstance(keys, list)
    if operation != "gather":
        return [known, after(known, called)]
    return [after(known, ["put", keys[:count], number]) for count in range(len(keys) + 1)]


def after(known: Seats, called: list[object]) -> Seats:
    """Apply a call to a dictionary and return the result."""
    operation, keys, number = called
    assert isinstance(keys, list)
    match operation:
        case "flush":
            return known
        case "delete":
            return {key: value for key, value in known.items() if key not in keys}
        case _:
            return known | dict.fromkeys(keys, number)


def united(expected: list[Seats]) -> Seats:
    return {key: value for each in expected for key, value in each.items()}


def latest(table: Table) -> Seats:
    rows = table.scan(["tailnum", "seats"], consistency="latest").to_arrow().to_pylist()
    found = {row["tailnum"]: row["seats"] for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


def journal(folder: Path, number: int, thread: int) -> tuple[list[list[object]], list[object] | None]:
    """Return the acknowledged calls of a thread, and the call that the thread began without an acknowledgement."""
    path = journal_of(str(folder), number, thread)
    lines = path.read_text().splitlines() if path.exists() else []
    begun = [json.loads(line) for line in lines if line != "done"]
    done = lines.count("done")
    assert len(begun) - done in {0, 1}
    return begun[:done], begun[done] if len(begun) > done else None


def far_enough(path: Path, number: int) -> bool:
    """Return True when a writer may be killed.

    One of four writers is killed at its start, one during a call, and two later.
    """
    told = path.read_text() if path.exists() else ""
    match number % 4:
        case 3:
            return True
        case 1:
            return bool(told)
        case _:
            return "done" in told


def end_one(writers: subprocess.Popen[str], number: int, ready: Callable[[], bool], seconds: float) -> None:
    """Start a writer, wait until it is ready, and kill it after a delay, in any state."""
    assert writers.stdin is not None
    assert writers.stdout is not None
    writers.stdin.write(f"{number}\n")
    writers.stdin.flush()
    child = int(writers.stdout.readline())
    while not ready():
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    until_ended(child)


def until_ended(process: int) -> None:
    """Wait until the process has ended and its parent has read its exit status."""
    while True:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        time.sleep(0.001)


@contextmanager
def program(what: str, uri: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.integration.threaded_writer", what, uri, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY, text=True) as started:
        try:
            yield started
        finally:
            started.terminate()
