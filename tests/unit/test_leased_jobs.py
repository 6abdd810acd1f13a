"""Jobs under leases: which jobs may run concurrently, the extra cost of a run, and no changes after a lost lease."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from jobs.command import from_arguments, main, to_arguments
from jobs.spark.spark import Spark
from pipelines.cli import main as tidemark
from storage_core.base.errors import Fenced, Held
from storage_core.base.process import holder_of, is_dead
from storage_core.compact import steps
from storage_core.data.formats.documents import decode_lease
from storage_core.data.formats.keys import lock_key
from storage_core.data.rows.window_range import WindowRange
from storage_core.data.steps import Checkpoint, Merge
from storage_core.log.job_run import POLL_MS, JobRun, Metrics, run
from storage_core.log.lease import TTL_MS, acquire, break_lease, stored_leases
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.collect import collect as collect_garbage
from storage_core.store.contract import IfAbsent, ObjectStore, exists
from storage_core.store.memory import MemoryStore
from storage_core.store.meter import MeteredStore
from tests.support.clock import ManualClock
from tests.support.fault_store import FaultStore
from tests.support.log_tables import log_on, metadata, split
from tidemark import Table

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("text", pa.string())])
HOUR = 3600
DAY = 24 * HOUR


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Make a table on disk with something to checkpoint."""
    table = Table.create(str(tmp_path / "t"), SCHEMA)
    table.append([{"id": 1, "text": "a"}])
    return table.uri


class ActingClock(ManualClock):
    """A manual clock that calls the function `act` during its first sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.act: Callable[[], object] = list

    def sleep_ms(self, duration_ms: float) -> None:
        super().sleep_ms(duration_ms)
        act, self.act = self.act, list
        act()


class Bench:
    """A table in memory with two processes, a run and another process, and the clock of the run."""

    def __init__(self, wrap: Callable[[MemoryStore], ObjectStore] = lambda store: store) -> None:
        self.store = MemoryStore("bench", clock=ManualClock())
        self.other = log_on(self.store, seed=1)
        self.other.create(metadata())
        self.clock = ActingClock()
        self.metered = MeteredStore(wrap(self.store))
        log = log_on(self.metered, clock=self.clock, seed=2)
        self.table = Table(self.metered, log, log.snapshot())

    def job(self, *, wait_ms: int = 0, dry_run: bool = False) -> JobRun[Merge]:
        request = Merge(table_uri="test:", run_id="run-1", wait_ms=wait_ms, dry_run=dry_run)
        return JobRun(request, Spark(), self.table)

    def somebody_holds(self, resource: str) -> Callable[[], None]:
        """Let another process take the lease, and return the function that releases it."""
        return acquire(self.other, self.other.snapshot(), resource, "somebody").release

    def somebody_commits(self, name: str) -> None:
        self.other.commit(self.other.snapshot(), [split(name)], operation="OTHER")

    def released(self, resource: str) -> bool:
        key = lock_key(resource)
        return not decode_lease(self.store.get(key).data, key).is_live(0)


def one_thing(snapshot: Snapshot) -> list[Snapshot]:
    return [snapshot]


def test_a_run_with_work_costs_two_gets_and_two_puts_more_and_its_commit_records_the_token() -> None:
    bench = Bench()
    bench.table.require_capable()
    before = bench.metered.requests
    with bench.job().leased(one_thing, ["merge"]):
        pass
    job = bench.job()
    with job.leased(one_thing, ["merge"]) as planned:
        assert [each.version for each in planned] == [0]
        held = bench.metered.requests
        done = job.commit([split("a")], operation="M", metrics=Metrics())
    after = bench.metered.requests
    assert (held["get"] - before["get"], held["put"] - before["put"]) == (2, 3)
    # The job makes one GET to check the lease, a HEAD and a PUT to commit, and a PUT to release the lease.
    assert {kind: after[kind] - held[kind] for kind in ("get", "head", "put", "list")} == {
        "get": 1,
        "head": 1,
        "put": 2,
        "list": 0,
    }
    assert (done.status, dict(bench.other.snapshot().fences)) == ("committed", {"merge": 2})
    assert bench.released("merge")


@pytest.mark.parametrize("dry_run", [False, True])
def test_without_work_and_on_a_dry_run_no_lease_is_asked_for(*, dry_run: bool) -> None:
    bench = Bench()
    bench.somebody_holds("merge")
    before = bench.metered.requests
    with bench.job(dry_run=dry_run).leased(one_thing if dry_run else lambda _: list[Snapshot](), ["merge"]):
        assert bench.metered.requests == before


def test_a_run_waits_as_long_as_it_is_told_and_plans_anew_on_what_the_other_left() -> None:
    bench = Bench()
    release = bench.somebody_holds("merge")

    def done() -> None:
        bench.somebody_commits("theirs")
        release()

    bench.clock.act = done
    job = bench.job(wait_ms=60_000)
    with job.leased(one_thing, ["merge"]) as planned:
        assert [each.version for each in planned] == [1]
        assert job.before.version == 1
    assert bench.clock.slept_ms == [POLL_MS]


def test_a_run_that_waited_in_vain_holds_nothing_and_says_who_does() -> None:
    bench = Bench()
    bench.somebody_holds("catch_up.b")
    attempt = bench.job(wait_ms=5_000).leased(one_thing, ["catch_up.b", "catch_up.a"])
    with pytest.raises(Held, match=r"catch_up\.b of .* is held by somebody \(token 1\)"):
        attempt.__enter__()
    assert bench.clock.slept_ms == [2_000, 2_000, 1_000]
    assert bench.released("catch_up.a")


def test_a_lease_is_released_when_the_work_fails() -> None:
    bench = Bench()
    with pytest.raises(ZeroDivisionError), bench.job().leased(one_thing, ["merge"]):
        _ = 1 // 0
    assert bench.released("merge")


def test_a_run_that_lost_its_lease_stops_before_its_commit() -> None:
    bench = Bench()
    job = bench.job()
    with job.leased(one_thing, ["merge"]):
        break_lease(bench.other, "merge", "operator")
        before = bench.metered.requests
        with pytest.raises(Fenced):
            job.commit([split("a")], operation="M", metrics=Metrics())
    after = bench.metered.requests
    assert {kind: after[kind] - before[kind] for kind in after if after[kind] > before[kind]} == {"get": 1}
    assert not bench.other.snapshot().splits


@pytest.mark.parametrize("request_number", range(2))
def test_a_lease_that_is_broken_during_the_commit_fences_it_all_the_same(request_number: int) -> None:
    faulty: list[FaultStore] = []

    def wrapped(store: MemoryStore) -> ObjectStore:
        faulty.append(FaultStore(store))
        return faulty[0]

    bench = Bench(wrapped)
    job = bench.job()
    with job.leased(one_thing, ["merge"]):
        # The next request is the check of the lease. Then come the HEAD and the PUT of the commit.
        faulty[0].at(len(faulty[0].trace) + 1 + request_number, lambda: break_lease(bench.other, "merge", "operator"))
        with pytest.raises(
            Fenced,
            match=r"merge: another process owns the resource\. The other process committed with token 2, and this "
            r"process has token 1",
        ):
            job.commit([split("a")], operation="M", metrics=Metrics())
    assert not bench.other.snapshot().splits


def test_a_collector_that_lost_its_lease_deletes_nothing_more() -> None:
    bench = Bench()
    orphans = [split(f"o{number}").path for number in range(3)]
    for path in orphans:
        bench.store.put(path, b"rows", IfAbsent())
    requested = []

    def lost() -> None:
        requested.append(1)
        raise Fenced("lost")

    log = bench.table.log
    with pytest.raises(Fenced):
        collect_garbage(log.store, log, clock=bench.clock, horizon_ms=0, require_held=lost)
    assert (requested, all(exists(bench.store, path) for path in orphans)) == ([1], True)


# The jobs.


def test_a_job_under_a_held_lease_ends_with_three_and_another_kind_of_job_goes_on(
    uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table = Table.open(uri)
    lease = acquire(table.log, table.snapshot, "checkpoint", "somebody")
    argv = ["--table-uri", uri, "--json"]
    assert main("checkpoint", argv) == 3
    failed = json.loads(capsys.readouterr().out)
    assert (failed["status"], failed["error"]) == ("failed", "held")
    assert Table.open(uri).snapshot.checkpoint_version is None
    assert main("collect", argv) == 0
    lease.release()
    assert main("checkpoint", argv) == 0
    held = {each.resource: each.record and each.record.fencing_token for each in stored_leases(table.store)}
    assert held == {"checkpoint": 2, "collect": 1}


def test_windows_that_start_apart_have_leases_of_their_own_and_a_table_has_few_of_them() -> None:
    def resource(start: int | None, end: int | None = None, window: int | None = HOUR) -> str:
        return steps.resource_of(WindowRange(start, end), window)

    assert [resource(None), resource(None, DAY), resource(None, window=None)] == ["compact.all"] * 3
    assert steps.resource_of(WindowRange(null_only=True), HOUR) == "compact.null"
    assert resource(3 * HOUR, 3 * HOUR + 1) == resource(3 * HOUR + 5, DAY) == "compact.3"
    assert resource(-HOUR) == "compact.250"
    windows = {resource(number * HOUR) for number in range(100_000)}
    assert len(windows) == steps.LANES == 251
    for length in (DAY // 900, 24, 7 * 24):
        assert len({resource(number * length * HOUR) for number in range(251)}) == 251, (
            "chunks of days run side by side"
        )


def test_a_request_says_how_long_to_wait() -> None:
    request = Merge(table_uri="t", wait_ms=90_000)
    assert from_arguments("merge", to_arguments(request)) == request
    assert from_arguments("merge", ["--table-uri", "t"]) == Merge(table_uri="t")


# The holder.


HOLDER = """
import time
from storage_core.base.process import holder_of
print(holder_of('r'), flush=True)
time.sleep(600)
"""


def test_a_process_of_this_machine_that_was_killed_is_not_waited_for(uri: str) -> None:
    table = Table.open(uri)
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        holder = process.stdout.readline().strip()
        acquire(table.log, table.snapshot, "checkpoint", holder)
        try:
            with pytest.raises(Held):
                run(Checkpoint(table_uri=uri), Spark())
            process.send_signal(signal.SIGSTOP)
            assert not is_dead(holder), "it may wake up"
        finally:
            process.kill()
        process.wait()
    assert run(Checkpoint(table_uri=uri), Spark()).status == "committed"


@pytest.mark.parametrize(
    "change",
    [
        lambda holder: holder.replace("@", "@another-"),
        lambda holder: holder.replace("/pid:[", "/pid:[9"),
        lambda _: "",
        lambda _: "somebody",
        lambda holder: holder.rpartition("/")[0] + "/",
        lambda holder: holder,
    ],
)
def test_of_others_and_of_itself_a_process_never_says_that_they_are_gone(change: Callable[[str], str]) -> None:
    assert not is_dead(change(holder_of("a/b@c")))


def test_a_process_id_that_was_given_to_another_process_is_another_holder() -> None:
    assert is_dead(holder_of(None).rpartition("/")[0] + "/1")


# The command.


def test_leases_are_listed_and_broken(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    def lines(*arguments: str) -> list[dict[str, object]]:
        assert tidemark(["leases", uri, "--json", *arguments]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert lines() == []
    table = Table.open(uri)
    acquire(table.log, table.snapshot, "merge", "elsewhere")
    acquire(table.log, table.snapshot, "collect", holder_of("dead").rpartition("/")[0] + "/1")
    acquire(table.log, table.snapshot, "checkpoint", "x").release()
    Path(uri.removeprefix("file://"), "_locks", "compact.all.json").write_bytes(b"junk")
    found = {each["resource"]: (each["state"], each["token"]) for each in lines()}
    assert found == {
        "merge": ("held", 1),
        "collect": ("abandoned", 1),
        "checkpoint": ("released", 1),
        "compact.all": ("damaged", None),
    }
    assert lines("--break", "merge") == [{"broken": "merge", "token": 2}]
    assert {each["resource"]: each["state"] for each in lines()}["merge"] == "released"
    assert dict(Table.open(uri).snapshot.fences) == {"merge": 2}
    assert tidemark(["leases", uri, "--break", "nobody"]) == 2
    assert "The table has checkpoint, collect, compact.all, merge" in capsys.readouterr().err
    assert tidemark(["leases", uri]) == 0
    assert "damaged" in capsys.readouterr().out


def test_a_lease_runs_out_after_five_minutes() -> None:
    assert TTL_MS == 5 * 60 * 1000
