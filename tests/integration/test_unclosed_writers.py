"""A program prints the number of pending rows only if the program ends or drops a writer with pending rows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from storage_core.store.local import LocalStore
from storage_core.write.region.manifest import region_of
from tests.support.keyed_table import KeyedTable, seats

REPOSITORY = Path(__file__).parents[2]
LOST = "3 rows given with durable=False not known to be durable"
DROPPED = "dropped without close(), and 3 rows"

# Each case runs in a forked process that ends in the same way as a program. A fork is much faster than a new
# interpreter.
PROGRAM = """
import gc, json, multiprocessing, os, sys, warnings
from storage_core.write.region.records import WriterOptions
from storage_core.table import Table
from tests.support.unclosed_writer import close_all, leave_rows

warnings.simplefilter("always", ResourceWarning)
warnings.filterwarnings("ignore", category=DeprecationWarning)
for code, uri, errors in json.loads(sys.argv[1]):
    if os.fork() == 0:
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
        writer = Table.open(uri).writer(options=WriterOptions(linger_ms=60_000))
        rows = [{"tailnum": str(number), "seats": 1} for number in range(3)]
        writer.put({"tailnum": "durable", "seats": 1})
        exec(code)
        sys.exit()
    assert os.wait()[1] == 0
"""

CHILD = """
child = multiprocessing.get_context("{}").Process(target=leave_rows, args=[uri])
child.start()
child.join()
"""
POOL = """
with multiprocessing.get_context("fork").Pool(1) as pool:
    pool.apply({}, [uri])
    pool.close()
    pool.join()
"""
ENDS = {
    "pending": ("writer.put(rows, durable=False)", LOST),
    "an error": ("writer.put(rows, durable=False)\nraise SystemExit(0)", LOST),
    "dropped": ("writer.put(rows, durable=False)\ndel writer\ngc.collect()", DROPPED),
    "closed": ("writer.put(rows, durable=False)\nwriter.close()", None),
    "in a block": ("with writer: writer.put(rows, durable=False)", None),
    "synced": ("writer.put(rows, durable=False)\nwriter.sync()", None),
    "durable": ("writer.put(rows)", None),
    "dropped and durable": ("writer.put(rows)\ndel writer\ngc.collect()", None),
    "a forked child": (CHILD.format("fork"), LOST),
    "a child of a server": (CHILD.format("forkserver"), LOST),
    "a spawned child": (CHILD.format("spawn"), LOST),
    "a worker of a pool": (POOL.format("leave_rows"), LOST),
    "a worker that closes": (POOL.format("close_all"), None),
    "in a copy": ("writer.put(rows, durable=False)\nif os.fork() == 0: sys.exit()\nos.wait()\nwriter.close()", None),
}


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Return the standard error of each ended program."""
    folder = tmp_path_factory.mktemp("ends")
    for end in ENDS:
        KeyedTable(LocalStore(folder / end)).create()
    work = [(code, str(folder / end), str(folder / f"{end}.errors")) for end, (code, _) in ENDS.items()]
    command = [sys.executable, "-c", PROGRAM, json.dumps(work)]
    subprocess.run(command, cwd=REPOSITORY, check=True)
    return {end: (folder / f"{end}.errors").read_text() for end in ENDS} | {"": str(folder)}


@pytest.mark.parametrize("end", ENDS)
def test_rows_that_are_left_behind_are_named_and_no_others(end: str, errors: Mapping[str, str]) -> None:
    table = KeyedTable(LocalStore(Path(errors[""]) / end))
    said = ENDS[end][1]
    if said is None:
        assert errors[end] == ""
        assert set(seats(table)) == {"durable", "0", "1", "2"}
    else:
        assert errors[end].count(said) == 1
        assert f"{table.store.uri}, region {region_of(table.snapshot.table_id)}" in errors[end]
