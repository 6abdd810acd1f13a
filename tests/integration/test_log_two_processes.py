"""Two real processes append to one table over failing stores, so that every commit lands once without a gap."""

from __future__ import annotations

import json
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest

from storage_core.base.clock import SystemClock
from storage_core.base.errors import CommitConflict, CommitUnknown, Unavailable
from storage_core.log.actions import Add
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.store.contract import Blob, ObjectInfo, ObjectStore
from storage_core.store.resolve import open_store
from tests.support.fault_store import FaultStore, GetFault, HeadFault, ListFault, PutFault, Rates
from tests.support.log_oracle import LogOracle
from tests.support.log_tables import metadata, split
from tests.support.s3_server import S3Server
from tests.support.scale import scaled

COMMITS = scaled(100)
PAUSE_MS = 30
WRITERS = ("left", "right")
PATIENCE = 1000
READS = 5

T = TypeVar("T")

# One request in ten is refused, and the reply of one put in ten is lost after the put took effect. The test repeats
# each refused read, because a read changes nothing. The S3 store does the same. Puts are never repeated.
RATES: Rates = {
    PutFault.APPLIED_THEN_UNKNOWN: 0.05,
    PutFault.APPLIED_THEN_UNAVAILABLE: 0.05,
    PutFault.REFUSED: 0.1,
    GetFault.REFUSED: 0.1,
    HeadFault.REFUSED: 0.1,
    ListFault.REFUSED: 0.1,
}


class ReadingAgain:
    """A store that tries each read up to five times."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.uri, self.put, self.delete, self.local_path = store.uri, store.put, store.delete, store.local_path
        self.make_durable = store.make_durable

    def get(self, key: str) -> Blob:
        return self._tried(lambda: self._store.get(key))

    def get_range(self, key: str, start: int, end: int) -> bytes:
        return self._tried(lambda: self._store.get_range(key, start, end))

    def head(self, key: str) -> ObjectInfo:
        return self._tried(lambda: self._store.head(key))

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ObjectInfo]:
        return iter(self._tried(lambda: [*self._store.list(prefix, start_after)]))

    def _tried(self, read: Callable[[], T]) -> T:
        for _ in range(READS - 1):
            with suppress(Unavailable):
                return read()
        return read()


class HurriedClock:
    """The machine's clock, with each sleep cut to a tenth of its length.

    The test is therefore fast, and writers collide more often.
    """

    def now_ms(self) -> int:
        return SystemClock().now_ms()

    def sleep_ms(self, duration_ms: float) -> None:
        SystemClock().sleep_ms(duration_ms / 10)


def append(uri: str, number: int, folder: Path) -> None:
    """Append `COMMITS` splits in separate commits. Another process commits concurrently, so commits conflict."""
    writer = WRITERS[number]
    store = FaultStore(open_store(uri), seed=number, rates=RATES)
    log = TransactionLog(ReadingAgain(store), clock=HurriedClock())
    (folder / f"{writer}.ready").touch()
    wait_for(folder / "start")
    told: Counter[str] = Counter()
    snapshot = persistently(log, log.snapshot)
    for commit in range(COMMITS):
        snapshot = committed(log, snapshot, split(f"{writer}-{commit}"), told)
        # A process that lost a race pauses. The process that won the race must pause too. Otherwise the other process
        # would also lose the next races.
        SystemClock().sleep_ms(PAUSE_MS * log.ids.fraction())
    met = Counter(happening.step for happening in store.trace if happening.step is not None)
    (folder / f"{writer}.json").write_text(json.dumps({"told": told, "met": met}), encoding="utf-8")


def committed(log: TransactionLog, snapshot: Snapshot, add: Add, told: Counter[str]) -> Snapshot:
    """Append one split as a careful caller would, and count the results of the calls.

    - `Unavailable` means that nothing was written, so the same call is repeated.
    - Ten lost attempts can happen, because one request in ten fails and a rival commits. The commit is planned again.
    - `CommitUnknown` is resolved by the commit id of the version. No put of this store arrives late, so a missing
      version stays missing.
    - Any other conflict is wrong and is raised.
    """
    for _ in range(PATIENCE):
        try:
            result = log.commit(snapshot, [add], operation="APPEND")
        except Unavailable:
            told["unavailable"] += 1
        except CommitUnknown as error:
            told["unknown"] += 1
            if whose(log, int(str(error.context["version"]))) == error.context["commit_id"]:
                told["committed"] += 1
                return persistently(log, log.snapshot)
        except CommitConflict as error:
            if "other writers committed first during each of" not in str(error):
                raise
            told["exhausted"] += 1
            snapshot = persistently(log, log.snapshot)
        else:
            told["committed"] += 1
            told["overtaken"] += result.version > snapshot.version + 1
            return result.snapshot
    raise AssertionError(f"{add.path} was not committed in {PATIENCE} calls: {told}")


def whose(log: TransactionLog, version: int) -> str | None:
    """Return the commit id of a version, or None if the version does not exist."""
    found = persistently(log, lambda: next(log.history(version), None))
    return None if found is None else found.commit_id


def persistently(log: TransactionLog, read: Callable[[], T]) -> T:
    for _ in range(PATIENCE):
        try:
            return read()
        except Unavailable:
            log.clock.sleep_ms(20)
    raise AssertionError(f"refused {PATIENCE} times")


def wait_for(path: Path) -> None:
    while not path.exists():
        SystemClock().sleep_ms(1)


@pytest.fixture(params=["local", "s3"])
def uri(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "local":
        yield (tmp_path / "table").as_uri()
        return
    with S3Server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server.uri("table")


def test_two_processes_of_many_commits_each_lose_none_and_leave_no_gap(uri: str, tmp_path: Path) -> None:
    store = open_store(uri)
    log = TransactionLog(store)
    log.create(metadata())
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=append, args=(uri, number, tmp_path)) for number in range(len(WRITERS))]
    for process in processes:
        process.start()
    for writer in WRITERS:
        wait_for(tmp_path / f"{writer}.ready")
    (tmp_path / "start").touch()
    for process in processes:
        process.join()
        process.kill()
    assert [process.exitcode for process in processes] == [0, 0]

    oracle = LogOracle(store)
    oracle.check_versions()
    oracle.check_opening(log)
    versions = oracle.read()
    assert len(versions) == 1 + COMMITS * len(WRITERS)
    expected = {split(f"{writer}-{number}").path for writer in WRITERS for number in range(COMMITS)}
    assert set(versions[-1].state["live"]) == expected
    assert sum(len(version.actions) for version in versions[1:]) == len(expected)

    reports = [json.loads((tmp_path / f"{writer}.json").read_text(encoding="utf-8")) for writer in WRITERS]
    told, met = (sum((Counter(report[name]) for report in reports), Counter[str]()) for name in ("told", "met"))
    print(told, met)  # noqa: T201 -- shown by `pytest -rA`
    assert told["committed"] == len(expected)
    # Both processes must have enough commit conflicts, and the stores must inject enough faults. A run without
    # conflicts and faults would not test the claim in the name of this test.
    assert told["overtaken"] + told["exhausted"] > 10
    assert met["PutFault.APPLIED_THEN_UNKNOWN"] + met["PutFault.APPLIED_THEN_UNAVAILABLE"] > 10
    assert met["PutFault.REFUSED"] > 10
    assert met["GetFault.REFUSED"] > 10
