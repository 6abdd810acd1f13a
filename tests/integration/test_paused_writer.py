"""A writer process is stopped (SIGSTOP) between and within its calls, while another writer claims its region.

The stopped writer notices the claim at the first WAL number that is already taken. Before the stopped writer notices
the claim, the writer acknowledges nothing. Rows that the stopped writer acknowledged before the pause are kept
(docs/architecture/ingestion.md, "Claim").
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from storage_core.base.clock import SystemClock, SystemIds
from storage_core.store.contract import ObjectStore
from storage_core.store.resolve import open_store
from tests.support.clock import ManualClock
from tests.support.keyed_table import KeyedTable
from tests.support.s3_server import S3Server

REPOSITORY = Path(__file__).parents[2]

# For each table, one writer puts the row `before`. The writer then stops at once, or before the request with this
# number.
WRITER = """
import json, os, re, signal, sys
from storage_core.base.clock import SystemClock
from storage_core.base.errors import TidemarkError
from storage_core.base.clock import SystemIds
from storage_core.log.log import TransactionLog
from storage_core.store.resolve import open_store
from storage_core.write.region.writer import RegionWriter
from tests.support.fault_store import FaultStore

def told(act):
    try:
        act()
        return "done"
    except TidemarkError as error:
        return error.kind

for number, uri in json.loads(sys.argv[1]):
    store = FaultStore(open_store(uri))
    writer = RegionWriter.open(store, TransactionLog(store).snapshot(), clock=SystemClock(), ids=SystemIds())
    writer.put([{"tailnum": "before", "seats": 1}, {"tailnum": "both", "seats": 1}])
    first = len(store.trace)
    if number is None:
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        store.at(first + number, lambda: os.kill(os.getpid(), signal.SIGSTOP))
    answers = [
        told(lambda: writer.put([{"tailnum": "append", "seats": 1}, {"tailnum": "both", "seats": 2}])),
        told(writer.flush),
        told(lambda: writer.put({"tailnum": "after", "seats": 1})),
        told(writer.flush),
    ]
    request = None if number is None else store.trace[first + number].request
    key = None if request is None else re.sub("[0-9a-f]{8}_gen", "gen", request.key.split("/", 2)[2])
    print(json.dumps([key and f"{request.kind} {key}", answers]), flush=True)
"""

# This writer is never stopped: it puts rows and reports each one until it is fenced.
BUSY_WRITER = """
import itertools, sys
from tidemark import Table
from storage_core.base.errors import WriterFenced

writer = Table.open(sys.argv[1]).writer()
for number in itertools.count():
    try:
        writer.put({"tailnum": f"n{number}", "seats": number})
        if number % 9 == 8:
            writer.flush()
    except WriterFenced:
        break
    print(number, flush=True)
"""

Step = tuple[str | None, list[str]]

FENCED = ["writer_fenced"] * 4
LOST_ITS_FLUSH = ["done", *FENCED[1:]]
FLUSHED = ["done", "done", *FENCED[2:]]


def name_of(number: int) -> str:
    """Return the object name for this number.

    The name consists of the bits of the number, from the last bit to the first.
    """
    return f"{number:064b}"[::-1]


# A step is a pair. The first element is the request before which the writer stops, or None for a stop between two
# calls. The second element contains the results of four calls: an append, a flush, a second append and a second flush.
STEPS: list[Step] = [
    (None, FENCED),
    (f"put wal/{name_of(3)}.arrow", FENCED),
    ("put gen_1/bloom_filter.bin", LOST_ITS_FLUSH),
    ("put gen_1/key_index.arrow", LOST_ITS_FLUSH),
    ("put gen_1/_manifest.json", LOST_ITS_FLUSH),
    ("get manifest/version_hint.json", LOST_ITS_FLUSH),
    (f"head manifest/{name_of(2)}.binpb", LOST_ITS_FLUSH),
    (f"get manifest/{name_of(1)}.binpb", LOST_ITS_FLUSH),
    (f"put manifest/{name_of(2)}.binpb", LOST_ITS_FLUSH),
    ("get manifest/version_hint.json", FLUSHED),
    ("put manifest/version_hint.json", FLUSHED),
]


# Over HTTP, the test covers only five steps. In one of these steps the writer stops between two calls. In the other
# four steps, the writer stops before a put. The four puts write a WAL entry, the Bloom filter, the manifest, and the
# version hint of the manifest.
ON_S3 = [STEPS[number] for number in (0, 1, 2, 8, 9)]


def claim_and_write(store: ObjectStore) -> None:
    """Let two writers take over the region.

    The clock of one writer is ten minutes late. The clock of the other writer is ten minutes ahead.

    The two writers write, flush and merge.
    """
    for minutes in (-10, 10):
        table = KeyedTable(store, SystemIds(), ManualClock(SystemClock().now_ms() + minutes * 60_000))
        with table.writer() as writer:
            writer.put([{"tailnum": f"other{minutes:+d}", "seats": 5}, {"tailnum": "both", "seats": 5}])
            writer.flush()
        table.merge()


def let_pause(stores: Sequence[ObjectStore], steps: Sequence[Step]) -> list[Step]:
    """Run the writer on the tables, and run the other writers each time the writer stops.

    Return the writer's output.
    """
    numbers = [None if step[0] is None else STEPS.index(step) - 1 for step in steps]
    works = json.dumps(list(zip(numbers, (store.uri for store in stores), strict=True)))
    command = [sys.executable, "-c", WRITER, works]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY, text=True) as process:
        try:
            for store in stores:
                _, status = os.waitpid(process.pid, os.WUNTRACED)
                assert os.WIFSTOPPED(status), "it ended before it was stopped"
                claim_and_write(store)
                process.send_signal(signal.SIGCONT)
            told, _ = process.communicate()
        finally:
            process.kill()
    return [(stopped, answers) for stopped, answers in map(json.loads, told.splitlines())]


def check(store: ObjectStore, answers: list[str]) -> None:
    """Check that the table has exactly the acknowledged rows, in order, before and after a complete merge."""
    expected = {"before": 1, "other-10": 5, "other+10": 5, "both": 5}
    if answers[0] == "done":
        expected["append"] = 1
    table = KeyedTable(store, SystemIds())
    assert {key: row["seats"] for key, row in table.rows().items()} == expected
    with table.writer() as last:
        last.flush()
    table.merge()
    assert sorted((str(row["tailnum"]), row["seats"]) for row in table.base_rows()) == sorted(expected.items())


def pause_and_check(uris: Sequence[str], steps: Sequence[Step]) -> None:
    stores = [open_store(uri) for uri in uris]
    for store in stores:
        KeyedTable(store, SystemIds()).create()
    assert let_pause(stores, steps) == steps
    for store, (_, answers) in zip(stores, steps, strict=True):
        check(store, answers)


def test_a_writer_stopped_anywhere_wakes_up_fenced_and_none_of_its_later_rows_appear(tmp_path: Path) -> None:
    pause_and_check([(tmp_path / f"t{number}").as_uri() for number in range(len(STEPS))], STEPS)


def test_the_same_holds_on_s3(s3_server: S3Server) -> None:
    pause_and_check([s3_server.uri(f"paused-writer-{number}") for number in range(len(ON_S3))], ON_S3)


def test_a_writer_that_is_never_stopped_is_fenced_and_what_it_was_told_is_taken_over(tmp_path: Path) -> None:
    table = KeyedTable(open_store((tmp_path / "planes").as_uri()), SystemIds()).create()
    command = [sys.executable, "-c", BUSY_WRITER, table.store.uri]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY, text=True) as process:
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            with table.writer() as other:
                taken_over = table.rows()
                told = len((first + process.stdout.read()).splitlines())
                assert process.wait() == 0, "it ended, but not because it was fenced"
                assert len(taken_over) in {told, told + 1}, "one more may have taken effect before it was told"
                found = {key: row["seats"] for key, row in taken_over.items()}
                assert found == {f"n{number}": number for number in range(len(found))}
                other.put({"tailnum": "n0", "seats": -1})
        finally:
            process.kill()
    assert table.rows() == {**taken_over, "n0": {"tailnum": "n0", "seats": -1, "model": None}}
