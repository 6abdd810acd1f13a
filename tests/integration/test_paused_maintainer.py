"""A maintenance process is stopped (SIGSTOP) at each of its requests, while another process takes over and commits.

When the stopped process wakes, its clock, heartbeat and plan are outdated. The transaction log decides whether the next
requests of the stopped process succeed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from storage_core.base.clock import SystemClock
from storage_core.data.formats.documents import decode_lease
from storage_core.data.formats.keys import lock_key
from storage_core.log.actions import Action, Add
from storage_core.log.lease import acquire
from storage_core.log.log import TransactionLog
from storage_core.store.contract import ObjectStore
from storage_core.store.resolve import open_store
from tests.support.clock import ManualClock
from tests.support.log_oracle import LogOracle
from tests.support.log_tables import log_on, metadata, removal, split
from tests.support.s3_server import S3Server

# One leased run per table. Each run stops one request later than the previous run. One output line per result.
MAINTAINER = """
import json, os, signal, sys
from storage_core.log.job_run import Metrics
from storage_core.log.job_run import JobRun
from jobs.spark.spark import Spark
from storage_core.base.errors import TidemarkError
from storage_core.log.log import TransactionLog
from storage_core.store.meter import MeteredStore
from storage_core.store.resolve import open_store
from storage_core.data.steps import Merge
from storage_core.table import Table
from tests.support.fault_store import FaultStore
from tests.support.log_tables import removal, split

for number, uri in enumerate(sys.argv[1:]):
    store = FaultStore(open_store(uri))
    log = TransactionLog(MeteredStore(store))
    table = Table(log.store, log, log.snapshot())
    table.require_capable()
    job = JobRun(Merge(table_uri=uri, run_id="paused"), Spark(), table)
    first = len(store.trace)
    store.at(first + number, lambda: os.kill(os.getpid(), signal.SIGSTOP))
    try:
        with job.leased(lambda snapshot: [snapshot], ["merge"]):
            job.commit([removal("a"), split("paused")], operation="MERGE", metrics=Metrics())
        told = "committed"
    except TidemarkError as error:
        told = error.kind
    request = store.trace[first + number].request
    print(json.dumps({"stopped_before": f"{request.kind} {request.key}", "told": told}), flush=True)
"""

VERSION = "_transaction_log/00000000000000000002.json"
# The process stops before this request. After another process has committed, the stopped run continues and has this
# result.
STEPS = [
    ("get _locks/merge.json", "held"),  # the lease is free before this request
    ("put _locks/merge.json", "held"),  # during the pause, another process takes the free lease
    ("get _locks/merge.json", "fenced"),  # this read checks the lease before the commit
    ("head _transaction_log/00000000000000000001.json", "fenced"),
    (f"put {VERSION}", "fenced"),
    ("put _locks/merge.json", "committed"),  # after the commit, before the release of the lease
]


def take_over_and_commit(store: ObjectStore) -> None:
    """Take the lease with a clock that is ten minutes ahead. Commit under this lease, and do not release it."""
    log = TransactionLog(store, clock=ManualClock(SystemClock().now_ms() + 600_000))
    head = log.snapshot()
    lease = acquire(log, head, "merge", "other")
    deleted = sorted(Path(path).stem for path in head.splits)
    actions: list[Action] = [*(removal(name) for name in deleted), split("other"), lease.fence]
    log.commit(head, actions, operation="MERGE", requirements=[lease.requirement])


def let_pause(uris: list[str]) -> list[tuple[str, str]]:
    """Run the maintainer on the tables. Each time the maintainer stops, run the other process, called the rival.

    Return the maintainer's output.
    """
    command = [sys.executable, "-c", MAINTAINER, *uris]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            for uri in uris:
                _, status = os.waitpid(process.pid, os.WUNTRACED)
                assert os.WIFSTOPPED(status), "it ended before it was stopped"
                take_over_and_commit(open_store(uri))
                process.send_signal(signal.SIGCONT)
            told, _ = process.communicate()
        finally:
            process.kill()
    return [(each["stopped_before"], each["told"]) for each in map(json.loads, told.splitlines())]


def created(uri: str) -> str:
    log = log_on(open_store(uri))
    log.commit(log.create(metadata()), [split("a")], operation="FIRST")
    return uri


def check(uri: str, told: str) -> None:
    """Check that the log has the expected commits, and that the stored lease is the lease of the other process.

    The log must have no commit of the fenced process.
    """
    store = open_store(uri)
    oracle = LogOracle(store)
    oracle.check_versions()
    versions = oracle.read()
    added = [{action.path for action in each.actions if isinstance(action, Add)} for each in versions[2:]]
    other, paused = {split("other").path}, {split("paused").path}
    assert added == ([paused, other] if told == "committed" else [other])
    assert set(versions[-1].state["live"]) == other
    lease = decode_lease(store.get(lock_key("merge")).data, lock_key("merge"))
    assert (lease.holder, lease.is_live(SystemClock().now_ms())) == ("other", True)
    assert dict(log_on(store).snapshot().fences) == {"merge": lease.fencing_token}


def test_a_maintainer_stopped_at_any_request_wakes_up_fenced_and_none_of_its_work_is_in_the_log(tmp_path: Path) -> None:
    uris = [created((tmp_path / f"t{number}").as_uri()) for number in range(len(STEPS))]
    assert let_pause(uris) == STEPS
    for uri, (_, told) in zip(uris, STEPS, strict=True):
        check(uri, told)


def test_the_same_holds_on_s3(s3_server: S3Server) -> None:
    uris = [created(s3_server.uri(f"paused-{number}")) for number in range(len(STEPS))]
    assert [told for _, told in let_pause(uris)] == [told for _, told in STEPS]
    for uri, (_, told) in zip(uris, STEPS, strict=True):
        check(uri, told)
