"""Processes write, append, maintain, collect and read two tables, and are killed and paused at random times.

The tests run on disk, and on a real S3 API server behind a proxy that loses, cuts, doubles and delays requests. Models
that share no code with the library check every read (`register`, `rows_kept`). In the end, `fsck` finds no damage. A
run has a fixed number of kills and pauses. A soak multiplies this number by `TIDEMARK_SCALE`. `TIDEMARK_SEED` repeats
the random choices of a run.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from random import Random

import pytest

from storage_core.base.clock import SystemClock
from storage_core.change.creation import create
from storage_core.data.settings.index import IndexDefinition
from storage_core.data.settings.table import TableConfig
from storage_core.log.log import TransactionLog
from storage_core.maintain.check import fsck
from storage_core.maintain.findings import Severity
from storage_core.store.resolve import open_store
from storage_core.table import Table
from tests.chaos.board import Board, now_ms
from tests.chaos.crew import Crew
from tests.chaos.history import History
from tests.chaos.journal import Journal
from tests.chaos.processes import EVENTS, HOUR_S, ITEMS, Requested, Task, ids_of_events, merged, rows_of_items
from tests.chaos.proxy import Proxy
from tests.support import upkeep
from tests.support.s3_server import S3Server
from tests.support.scale import scaled

ROLES = ["writer"] * 2 + ["appender"] * 2 + ["maintainer"] * 2 + ["collector"] * 2 + ["reader"] * 2
PLACES = len(ROLES) + 2
OF_PROXY, OF_TEST = PLACES - 2, PLACES - 1

LOCAL_BLOWS = scaled(8)
S3_BLOWS = scaled(4)
FAULT_RATE = 0.04

LOCAL_HORIZON_MS = 50
"""The GC horizon of local tables in ms. The clock that sets the times of files may be some milliseconds late."""

S3_HORIZON_MS = 1_100
"""The GC horizon of tables on S3 in ms. S3 reports times in whole seconds."""


@pytest.fixture
def seed() -> int:
    """Return the seed of the run, which is `TIDEMARK_SEED` or a fixed default.

    The times of kills and pauses still vary.
    """
    return int(os.environ.get("TIDEMARK_SEED", "20150517"))


def test_every_read_beside_killed_and_stopped_processes_is_explained(tmp_path: Path, seed: int) -> None:
    uris = ((tmp_path / "items").as_uri(), (tmp_path / "events").as_uri())
    run_and_judge(uris, uris, tmp_path, seed=seed, blows=LOCAL_BLOWS, horizon_ms=LOCAL_HORIZON_MS)


def test_the_same_holds_on_s3_behind_a_network_that_loses_and_repeats_requests(
    s3_server: S3Server, tmp_path: Path, seed: int
) -> None:
    board = Board(tmp_path / "board", PLACES)
    _, host, port = s3_server.endpoint.replace("//", "").split(":")

    def under_way(since: int | None) -> None:
        board.free(OF_PROXY) if since is None else board.hold(OF_PROXY, since)

    with Proxy((host, int(port)), seed=seed, under_way=under_way) as proxy:
        direct = (s3_server.uri(f"chaos-{seed}/items"), s3_server.uri(f"chaos-{seed}/events"))
        behind = tuple(each.replace(s3_server.endpoint, proxy.endpoint) for each in direct)
        proxy.rate = FAULT_RATE
        run_and_judge(direct, behind, tmp_path, seed=seed, blows=S3_BLOWS, horizon_ms=S3_HORIZON_MS, proxy=proxy)
        print(f"requests: {dict(proxy.met)}")  # noqa: T201 -- of a soak


def run_and_judge(
    direct: tuple[str, ...],
    given: tuple[str, ...],
    folder: Path,
    *,
    seed: int,
    blows: int,
    horizon_ms: int,
    proxy: Proxy | None = None,
) -> None:
    print(f"TIDEMARK_SEED={seed}")  # noqa: T201 -- to repeat it
    board = Board(folder / "board", PLACES)
    create_tables(*direct)
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_EC2_METADATA_DISABLED", "NO_PROXY")
    environment = {name: os.environ[name] for name in names if name in os.environ}
    tasks = [
        Task(
            role=role,
            number=place,
            place=place,
            seed=seed,
            items=given[0],
            events=given[1],
            horizon_ms=horizon_ms,
            folder=folder,
            environment=environment,
            readers=tuple(number for number, name in enumerate(ROLES) if name == "reader"),
        )
        for place, role in enumerate(ROLES)
    ]
    try:
        began = time.monotonic()
        with Crew(tasks, board, PLACES, Random(seed)) as crew:
            crew.strike(blows)
            if proxy is not None:
                proxy.rate = 0.0
            crew.finish()
        if proxy is not None:
            proxy.settle()
        look_last(direct, folder, board, horizon_ms)
        history = History(folder)
        history.judge()
        took = time.monotonic() - began
        print(f"{crew.kills} kills, {crew.stops} stops, done/unknown/refused: {history.told()}, {took:.0f} s")  # noqa: T201 -- of a soak
    except BaseException as error:
        error.add_note(f"chaos with TIDEMARK_SEED={seed}, journals in {folder}")
        raise


def create_tables(items: str, events: str) -> None:
    """Create both tables. Versions expire at once, the horizon is minimal, and a merge needs no idle time."""
    common = TableConfig(
        indexes=(IndexDefinition("tags", "bitmap", ("tag",)),),
        gc_horizon_ms=1,
        version_retention_ms=0,
        checkpoint_interval=5,
    )
    create(TransactionLog(open_store(items)), ITEMS, replace(common, primary_key=("id",), idle_after_ms=0))
    windowed = replace(common, time_column="timestamp", window_seconds=HOUR_S, sort_schema="id|timestamp/V2")
    create(TransactionLog(open_store(events)), EVENTS, windowed)


def look_last(uris: tuple[str, ...], folder: Path, board: Board, horizon_ms: int) -> None:
    """Read all rows and check all bytes after all processes ended, and again after merges and collections."""
    quiet = Journal(folder / "last-0.journal", board, OF_TEST)
    look_once(uris, quiet, "quiet")
    items, events = (Table.open(uri) for uri in uris)
    with items.writer() as writer:
        quiet.call(writer.flush, op="flush")
    quiet.call(lambda: merged(items), op="merge")
    for table in (items, events):
        upkeep.compact(table)
        upkeep.checkpoint(table)
        upkeep.collect(table, at_ms=now_ms(), horizon_ms=horizon_ms)
    look_once(uris, quiet, "kept up")


def look_once(uris: tuple[str, ...], quiet: Journal, session: str) -> None:
    items, events = (Table.open(uri) for uri in uris)
    for level, way in product(["snapshot", "committed", "latest"], ["scan", "sql"]):
        act = partial(rows_of_items, items, Requested(level=level, way=way))
        quiet.call(act, op="read", session=session, level=level, way=way)
    for way in ("scan", "search"):
        quiet.call(partial(ids_of_events, events, way), op="look", session=session, way=way)
    for uri in uris:
        report = fsck(open_store(uri), clock=SystemClock(), deep=True)
        errors = [each for each in report.findings if each.severity is Severity.ERROR]
        assert not errors, errors
