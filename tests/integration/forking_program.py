"""Test program: a process with open writers forks, and both parent and child continue.

`python -m tests.integration.forking_program WORK` runs each scenario in a separate process. `WORK` is JSON: the name,
the table URI and a folder of each scenario. For each scenario the program prints one line of JSON with the results of
parent and child. The results are the keys of acknowledged rows and the kinds of errors.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storage_core.base.clock import SystemClock, SystemIds
from storage_core.base.errors import Fenced, TidemarkError
from storage_core.log.lease import Heartbeat, Lease, acquire
from storage_core.log.log import TransactionLog
from storage_core.store.resolve import open_store
from storage_core.table import Table
from storage_core.write.raw_log.writer import RawLog
from storage_core.write.region.records import WriterOptions

LONG_MS = 60_000
PATIENCE_S = 300


@dataclass(slots=True)
class Report:
    """The results of the calls that one process made."""

    acknowledged: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)

    def call(self, act: Callable[[], object], *keys: str) -> None:
        """Make a call. Record its keys as acknowledged if the call succeeds, or else record the kind of the error."""
        try:
            act()
        except TidemarkError as error:
            self.told.append(error.kind)
        else:
            self.acknowledged += keys


def row(key: str) -> dict[str, object]:
    """Return a row of the table."""
    return {"tailnum": key, "seats": 1}


def forked(child: Callable[[Report], None], parent: Callable[[Report], None]) -> dict[str, Any]:
    """Run child and parent concurrently and return the results of both.

    An alarm ends a child that hangs.
    """
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        import signal

        signal.alarm(PATIENCE_S)
        report = Report()
        try:
            child(report)
        except BaseException:  # noqa: BLE001 -- a child must not go on as its parent
            traceback.print_exc()
            os._exit(1)
        os.write(writing, json.dumps([report.acknowledged, report.told, report.seen]).encode())
        os._exit(0)
    os.close(writing)
    report = Report()
    parent(report)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read()
    status = os.waitpid(process, 0)[1]
    theirs = json.loads(text) if text else None
    return {"parent": [report.acknowledged, report.told, report.seen], "child": theirs, "status": status}


def puts(writer: Any, name: str) -> Callable[[Report], None]:
    """Put three rows and flush."""

    def act(report: Report) -> None:
        for number in range(3):
            key = f"{name}{number}"
            report.call(lambda key=key: writer.put(row(key)), key)  # type: ignore[misc]
        report.call(writer.flush)
        report.call(writer.close)

    return act


def before_the_first_put(uri: str, _: Path) -> dict[str, Any]:
    """Fork between the claim and the first put."""
    writer = Table.open(uri).writer()
    return forked(puts(writer, "child"), puts(writer, "parent"))


def with_rows_pending(uri: str, _: Path) -> dict[str, Any]:
    """Call fork() while rows are pending. Only the parent has the thread that writes these rows."""
    writer = Table.open(uri).writer(options=WriterOptions(linger_ms=LONG_MS))
    writer.put(row("pending"), durable=False)

    def child(report: Report) -> None:
        report.call(writer.sync, "pending")
        report.call(lambda: writer.put(row("child"), durable=False))
        report.call(writer.close, "pending")

    def parent(report: Report) -> None:
        report.call(writer.sync, "pending")
        report.call(writer.close)

    return forked(child, parent)


def alternately(uri: str, _: Path) -> dict[str, Any]:
    """Let parent and child put rows in turn."""
    writer = Table.open(uri).writer()
    writer.put(row("common"))
    to_child, to_parent = os.pipe(), os.pipe()

    def child(report: Report) -> None:
        for number in range(4):
            os.read(to_child[0], 1)
            report.call(lambda key=f"child{number}": writer.put(row(key)), f"child{number}")  # type: ignore[misc]
            os.write(to_parent[1], b".")

    def parent(report: Report) -> None:
        for number in range(4):
            report.call(lambda key=f"parent{number}": writer.put(row(key)), f"parent{number}")  # type: ignore[misc]
            os.write(to_child[1], b".")
            os.read(to_parent[0], 1)
        report.call(writer.flush)
        report.call(writer.close)

    return forked(child, parent)


def the_same_rows(uri: str, _: Path) -> dict[str, Any]:
    """Let both processes put the same row. Each process must write its own copy of the row."""
    writer = Table.open(uri).writer()

    def put(report: Report) -> None:
        report.call(lambda: writer.put(row("same")), "same")

    return forked(put, put)


def child_claims_anew(uri: str, _: Path) -> dict[str, Any]:
    """Let the child open its own writer on the parent's table object while the parent uses the object."""
    table = Table.open(uri)
    writer = table.writer()
    writer.put(row("before"))

    def child(report: Report) -> None:
        with table.writer() as own:
            for number in range(20):
                report.call(lambda key=f"child{number}": own.put(row(key)), f"child{number}")  # type: ignore[misc]
            report.call(own.flush)

    def parent(report: Report) -> None:
        for number in range(20):
            report.call(lambda key=f"parent{number}": writer.put(row(key)), f"parent{number}")  # type: ignore[misc]

    return forked(child, parent)


def everything_in_the_child(uri: str, _: Path) -> dict[str, Any]:
    """Call every method in the child after a fork while other threads of the parent hold locks."""
    writer = Table.open(uri).writer(options=WriterOptions(linger_ms=1))
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            writer.put(row("busy"), durable=False)
            writer.scan()  # type: ignore[union-attr]

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for each in threads:
        each.start()

    def child(report: Report) -> None:
        calls: list[Callable[[], object]] = [
            lambda: writer.put(row("child")),
            lambda: writer.patch(row("child")),
            lambda: writer.reset(row("child")),
            lambda: writer.delete("child"),
            writer.sync,
            writer.flush,
            writer.scan,  # type: ignore[union-attr]
            lambda: writer.get("busy"),  # type: ignore[union-attr]
            writer.unflushed,
            writer.close,
        ]
        for each in calls:
            report.call(each, "child")

    def parent(_: Report) -> None:
        stop.set()
        for each in threads:
            each.join()
        writer.close()

    return forked(child, parent)


def regions(uri: str, _: Path) -> dict[str, Any]:
    """Fork with a writer of several regions, some of which are claimed."""
    writer = Table.open(uri).writer()
    for number in range(8):
        writer.put(row(f"before{number}"))
    return forked(puts(writer, "child"), puts(writer, "parent"))


def by_multiprocessing(uri: str, _: Path) -> dict[str, Any]:
    """Fork as the pools of `multiprocessing` do, with the start method "fork"."""
    writer = Table.open(uri).writer()
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    def work() -> None:
        report = Report()
        puts(writer, "child")(report)
        queue.put([report.acknowledged, report.told, report.seen])

    process = context.Process(target=work)
    process.start()
    report = Report()
    puts(writer, "parent")(report)
    process.join(PATIENCE_S)
    return {
        "parent": [report.acknowledged, report.told, report.seen],
        "child": None if queue.empty() else queue.get(),
        "status": process.exitcode,
    }


def raw_log(uri: str, folder: Path) -> dict[str, Any]:
    """Call fork() with a raw log writer. Only the parent has the thread for the second mandatory store."""
    log = RawLog([uri, (folder / "second").as_uri()])
    log.append("t", {"a": 0})

    def appends(name: str) -> Callable[[Report], None]:
        def act(report: Report) -> None:
            report.call(lambda: report.seen.extend(log.append("t", {"a": name}).ids), name)
            report.call(log.close)

        return act

    return forked(appends("child"), appends("parent"))


def lease(uri: str, _: Path) -> dict[str, Any]:
    """Fork with a lease that a thread of the parent renews."""
    log = TransactionLog(open_store(uri), clock=SystemClock(), ids=SystemIds())
    held = acquire(log, log.snapshot(), "merge", "parent")
    beat = Heartbeat([held])
    beat.__enter__()

    def use(report: Report, lease: Lease) -> None:
        report.call(lease.require_held, "held")
        report.call(lease.renew, "renewed")
        report.call(lease.advance, "advanced")

    def child(report: Report) -> None:
        use(report, held)
        report.call(held.release)  # `release` ends the thread of the lease, but releases no lease and sends no message
        beat.__exit__(None, None, None)

    def parent(report: Report) -> None:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        use(report, held)
        beat.__exit__(None, None, None)
        try:
            acquire(log, log.snapshot(), "merge", "another")
        except (TidemarkError, Fenced) as error:
            report.seen.append(error.kind)

    return forked(child, parent)


SCENARIOS = {
    each.__name__: each
    for each in (
        before_the_first_put,
        with_rows_pending,
        alternately,
        the_same_rows,
        child_claims_anew,
        everything_in_the_child,
        regions,
        by_multiprocessing,
        raw_log,
        lease,
    )
}

if __name__ == "__main__":
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    for scenario, uri, folder in json.loads(sys.argv[1]):
        host = os.fork()  # a fork is much faster than a new interpreter, and scenarios share no state
        if host == 0:
            try:
                sys.stdout.write(json.dumps(SCENARIOS[scenario](uri, Path(folder))) + "\n")
                sys.stdout.flush()
            except BaseException:  # noqa: BLE001 -- nor here
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        if os.waitpid(host, 0)[1]:
            sys.exit(f"{scenario} failed")
