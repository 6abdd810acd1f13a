"""Two real processes append to one local table: every commit lands, once, and no version is left out."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

from storage_core.formats.keys import version_key
from storage_core.log.codec import commit_info
from storage_core.log.log import TransactionLog
from storage_core.log.replay import read_version
from storage_core.objectstore.local import LocalStore
from storage_core.testkit.log_tables import metadata, split

APPENDS = 100
WRITERS = ("left", "right")


def _append(root: Path, writer: str, start: str) -> None:
    """Append `APPENDS` splits, one commit each, planned on a snapshot that the other process makes stale."""
    log = TransactionLog(LocalStore(root))
    _wait_for(root / start)
    snapshot = log.snapshot()
    for number in range(APPENDS):
        snapshot = log.commit(snapshot, [split(f"{writer}-{number}")], operation="APPEND").snapshot


def _wait_for(path: Path) -> None:
    clock = TransactionLog(LocalStore(path.parent)).clock
    while not path.exists():
        clock.sleep_ms(1)


def test_two_processes_appending_a_hundred_commits_each_lose_none_and_leave_no_gap(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    log = TransactionLog(store)
    log.create(metadata())
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=_append, args=(tmp_path, writer, "start")) for writer in WRITERS]
    for process in processes:
        process.start()
    (tmp_path / "start").touch()
    for process in processes:
        process.join(timeout=240)
    assert [process.exitcode for process in processes] == [0, 0]

    head = log.snapshot()
    assert head.version == APPENDS * len(WRITERS)
    assert set(head.splits) == {split(f"{writer}-{number}").path for writer in WRITERS for number in range(APPENDS)}
    versions = [read_version(store, version) for version in range(head.version + 1)]
    infos = [commit_info(actions) for actions in versions if actions is not None]
    assert len({info.commitId for info in infos if info is not None}) == head.version + 1
    times = [info.timestamp for info in infos if info is not None]
    assert times == sorted(set(times))
    assert head.checkpoint_version == head.version
    assert not any(info.key == version_key(head.version + 1) for info in store.list("_transaction_log/"))
