"""Real producer processes write one raw log to several stores. One store is lost, and no record is missing."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from multiprocessing.process import BaseProcess
from pathlib import Path
from uuid import uuid4

import pytest

from storage_core.base.errors import CommitUnknown, TidemarkError, Unavailable
from storage_core.data.formats.raw_chunk import RawColumns
from storage_core.data.formats.raw_fields import decode_fields
from storage_core.store.resolve import open_store
from storage_core.write.raw_log.history import History, RawStore, union
from storage_core.write.raw_log.records import RawLimits
from storage_core.write.raw_log.writer import RawLog
from tests.support.s3_server import HttpFault, S3Server

BEFORE = 30
AFTER = 60
"""The minimum number of appends of each producer before and after the event."""

LIMITS = RawLimits(segment_ms=200)
PRODUCERS = ("left", "right")


def opened(folder: Path) -> RawLog:
    """Open the raw log. An operator edits the file that lists the stores of the log."""
    names = (folder / "stores").read_text(encoding="utf-8").split()
    stores = [RawStore(folder / name.removesuffix("?"), mandatory=not name.endswith("?")) for name in names]
    return RawLog(stores, limits=LIMITS)


def reopened(folder: Path) -> RawLog:
    """Try to open the log until the operator has replaced a lost store in the file."""
    while True:
        with suppress(TidemarkError):
            return opened(folder)
        time.sleep(0.02)


def produce(folder: Path, producer: str) -> None:
    """Append rows and record each acknowledged row. If a writer is closed, open a new writer.

    The loop ends after a fixed number of rows since the event. The result therefore does not depend on the speed of the
    machine.
    """
    log, after = opened(folder), 0
    with (folder / f"{producer}.told").open("w", encoding="utf-8") as told:
        for number in count():
            if after == AFTER:
                break
            after += (folder / "happened").exists()
            time.sleep(0.002)
            while True:
                try:
                    log.append("t", {"value": f"{producer}-{number}"})
                    break
                except (CommitUnknown, Unavailable):
                    # If a row may be lost, a careful producer sends it again, even if it then exists twice. The values
                    # identify duplicates.
                    time.sleep(0.02)
                    log = reopened(folder)
            told.write(f"{producer}-{number}\n")
            told.flush()
    log.close()


def acknowledged(folder: Path) -> list[str]:
    return [line for name in PRODUCERS for line in (folder / f"{name}.told").read_text(encoding="utf-8").split()]


def values(history: History) -> list[str]:
    """Return every value in the order of the history, and fail on a gap or damage."""
    found = []
    for each in history.read():
        assert isinstance(each, RawColumns)
        found += [decode_fields(text)["value"] for text in each.records.column("fields").to_pylist()]
    return found


def told_of_each(told: list[str]) -> Counter[str]:
    """Return the number of acknowledged rows per producer, and check that the rows have no gap."""
    counts = Counter(each.partition("-")[0] for each in told)
    assert sorted(told) == sorted(f"{name}-{number}" for name in PRODUCERS for number in range(counts[name]))
    return counts


def write_stores(folder: Path, stores: str) -> None:
    """Atomically replace the file that lists the stores."""
    (folder / "stores.new").write_text(stores, encoding="utf-8")
    (folder / "stores.new").rename(folder / "stores")


def started(folder: Path, stores: str) -> list[BaseProcess]:
    write_stores(folder, stores)
    for name in PRODUCERS:
        (folder / f"{name}.told").touch()
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=produce, args=(folder, name)) for name in PRODUCERS]
    for process in processes:
        process.start()
    return list(processes)


def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.005)


def half_way(folder: Path) -> None:
    wait_for(lambda: all(len((folder / f"{n}.told").read_text().split()) > BEFORE for n in PRODUCERS))


def ended(folder: Path, processes: list[BaseProcess]) -> list[int | None]:
    """Signal the event to the producers, and return their exit codes."""
    (folder / "happened").touch()
    for process in processes:
        process.join()
        process.kill()
    return [process.exitcode for process in processes]


def lose(place: Path) -> None:
    """Simulate a lost disk: its mount point accepts no writes, not even from root."""
    while not place.is_file():
        deleted = place.with_name(f"{place.name}.{uuid4()}")
        place.rename(deleted)
        with suppress(IsADirectoryError):  # a writer may have created the folder again
            place.write_text("no disk here")
        shutil.rmtree(deleted, ignore_errors=True)  # a writer may still be writing into an open folder


def test_an_optional_store_is_lost_and_nobody_stops(tmp_path: Path) -> None:
    processes = started(tmp_path, "here there?")
    half_way(tmp_path)
    lose(tmp_path / "there")
    assert ended(tmp_path, processes) == [0, 0]
    told = acknowledged(tmp_path)
    assert min(told_of_each(told).values()) > BEFORE + AFTER
    assert sorted(values(union([tmp_path / "here"]))) == sorted(told)


def test_an_optional_store_that_was_emptied_goes_on_and_the_union_has_everything(tmp_path: Path) -> None:
    processes = started(tmp_path, "here there?")
    half_way(tmp_path)
    shutil.rmtree(tmp_path / "there", ignore_errors=True)
    assert ended(tmp_path, processes) == [0, 0]
    assert sorted(values(union([tmp_path / "there", tmp_path / "here"]))) == sorted(acknowledged(tmp_path))


def test_a_mandatory_store_is_lost_and_the_producers_go_on_with_the_others(tmp_path: Path) -> None:
    processes = started(tmp_path, "here there")
    half_way(tmp_path)
    lose(tmp_path / "there")
    time.sleep(0.1)  # the producers find the loss before the operator has edited the file
    write_stores(tmp_path, "here elsewhere")
    assert ended(tmp_path, processes) == [0, 0]
    told = acknowledged(tmp_path)
    assert min(told_of_each(told).values()) > BEFORE + AFTER
    history = union([tmp_path / "here", tmp_path / "elsewhere"])
    assert history.verify().gaps == ()
    # If the outcome of a row was unknown, its producer sent the row again, although the row might already exist.
    found = values(history)
    assert set(found) == set(told)
    assert len(found) <= len(told) + len(history.writers)
    assert len(history.writers) > len(PRODUCERS)


def test_what_a_killed_producer_was_told_is_there(tmp_path: Path) -> None:
    processes = started(tmp_path, "here there")
    half_way(tmp_path)
    pid = processes[0].pid
    assert pid is not None
    processes[0].kill()
    assert ended(tmp_path, processes) == [-signal.SIGKILL, 0]
    shutil.rmtree(tmp_path / "here")
    told = acknowledged(tmp_path)
    found = values(union([tmp_path / "here", tmp_path / "there"]))
    assert len(set(found)) == len(found)
    assert set(told) <= set(found)
    assert len(found) <= len(told) + 1


@pytest.mark.parametrize("fault", [HttpFault.REPLY_LOST, HttpFault.REQUEST_LOST, None])
def test_a_raw_log_on_s3_and_on_disk_is_one_history(
    fault: HttpFault | None, s3_server: S3Server, tmp_path: Path
) -> None:
    uri = s3_server.uri(f"raw-{uuid4()}")
    with RawLog([uri, RawStore(tmp_path / "there", mandatory=False)]) as log:
        log.append("t", {"value": "first"})
        if fault is not None:
            s3_server.front.on("put", "live", fault)
        log.append("t", [{"value": "second"}, {"value": "third"}])
    assert values(union([uri])) == ["first", "second", "third"]
    keys = {info.key for info in open_store(uri).list("live/")}
    assert keys == {info.key for info in open_store(tmp_path / "there").list("live/")}
    shutil.rmtree(tmp_path / "there")
    assert values(union([tmp_path / "there", uri])) == ["first", "second", "third"]
