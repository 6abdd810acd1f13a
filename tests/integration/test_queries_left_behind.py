"""A query within a call that hears no interrupt: its caller goes on, and what was opened is closed later."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from storage_core.engine import confinement
from storage_core.engine.session import session
from storage_core.errors import Unavailable
from storage_core.scratch import scratch_folder
from tidemark import Table

HOURS = """
import sys
from dataclasses import replace
import duckdb, pyarrow as pa
from storage_core.errors import Unavailable
from storage_core.read.predicate import Filter, Opaque
from storage_core.read.relation import Source, query_errors
from storage_core.read.sql import ask
from tidemark import QueryLimits, Table

SLOW = "levenshtein(repeat('ab', 200000), repeat('ba', 200000) || a) > 5"
table = Table.open(sys.argv[1])
limits = QueryLimits(seconds=0.3)
scan = replace(table.scan(), filter=Filter(Opaque("unchecked"), (duckdb.SQLExpression(SLOW),)), limits=limits)

def query():
    with query_errors(SLOW, (), limits):
        return ask(Source(table.scan().to_arrow()), f"select count(*) from t where {SLOW}", limits)

forms = {"sql": query, "arrow": scan.to_arrow, "stream": lambda: scan.to_reader().read_all()}
try:
    forms[sys.argv[2]]()
except Unavailable as error:
    print(error)
    sys.exit(3)
"""


@pytest.mark.parametrize("form", ["sql", "arrow", "stream"])
def test_a_call_that_takes_hours_keeps_neither_its_caller_nor_the_end_of_the_process(tmp_path: Path, form: str) -> None:
    made = Table.create(str(tmp_path / "t"), pa.schema([("a", pa.int64())]))
    made.append([{"a": each} for each in range(10)])
    command = [sys.executable, "-c", HOURS, str(tmp_path / "t"), form]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "longer than 0.3 seconds; one call of a function still runs" in ended.stdout, ended.stderr
    assert ended.returncode == 3


class Held:
    """Queries whose call ends when it is told to, and what was opened for them."""

    def __init__(self) -> None:
        self.begun, self.free = threading.Event(), threading.Event()
        self.folders: list[Path] = []
        self.sessions: list[duckdb.DuckDBPyConnection] = []

    def query(self, seconds: float | None = 0.1) -> object:
        return confinement.run_confined(
            self._opened, lambda _: "answer", folder=scratch_folder("tidemark-spill-"), seconds=seconds
        )

    def _opened(self, folder: Path | None) -> duckdb.DuckDBPyConnection:
        made = session(folder=folder)
        self.folders += [] if folder is None else [folder]
        self.sessions.append(made)
        self.begun.set()
        self.free.wait()
        return made

    def end(self) -> None:
        self.free.set()
        for thread in threading.enumerate():
            if thread.name.startswith("tidemark-query"):
                thread.join()

    def require_nothing_left(self) -> None:
        for each in self.sessions:
            with pytest.raises(duckdb.ConnectionException):
                each.execute("select 1")
        assert not [folder for folder in self.folders if folder.exists()]


@pytest.fixture
def held() -> Iterator[Held]:
    made = Held()
    yield made
    made.end()


def test_what_was_opened_for_a_query_is_closed_when_its_call_ends(held: Held) -> None:
    with pytest.raises(duckdb.InterruptException, match=confinement.STILL_RUNNING):
        held.query()
    assert held.folders[0].exists()
    held.end()
    held.require_nothing_left()


def test_ctrl_c_gives_up_a_call_that_does_not_hear_it(held: Held) -> None:
    def interrupt() -> None:
        held.begun.wait()
        os.kill(os.getpid(), signal.SIGINT)

    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)  # by a shell, of what it runs in the background
    try:
        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            held.query(seconds=None)
    finally:
        signal.signal(signal.SIGINT, ignored)
    held.end()
    held.require_nothing_left()


def test_where_some_calls_are_left_no_other_query_begins(held: Held) -> None:
    with ThreadPoolExecutor(confinement.MOST_LEFT) as threads:
        waiting = [threads.submit(held.query) for _ in range(confinement.MOST_LEFT)]
    assert {type(each.exception()) for each in waiting} == {duckdb.InterruptException}
    with pytest.raises(Unavailable, match=f"{confinement.MOST_LEFT} queries of this process were given up"):
        held.query()
    held.end()
    assert held.query(seconds=None) == "answer"
    held.require_nothing_left()
