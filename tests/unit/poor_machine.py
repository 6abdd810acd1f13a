"""Test program: a process reads while the machine lacks file descriptors, address space or disk space.

`python -m tests.unit.poor_machine CONDITION STEPS` prints one line per step and query: `answered`, or the error. STEPS
are numbers separated by commas. With the argument `LEAST:MOST:WITHIN reads`, the program first tries each read with the
lowest step LEAST and the highest step MOST. By a binary search between LEAST and MOST, the program then finds the
lowest step at which the read succeeds. The search stops when the result is exact to WITHIN steps. Each try has its own
fresh process, and the output contains the cause if the process dies. With `checkpointed`, that process must first read
a checkpoint.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa

import tidemark as tm
from storage_core.base.clock import SystemClock
from storage_core.data.rows.schema import to_schema_string
from storage_core.data.settings.index import IndexDefinition
from storage_core.data.settings.table import TableConfig
from storage_core.index import catch_up
from storage_core.log.actions import Metadata
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.split.context import context_of
from storage_core.split.writer import sort_and_write
from storage_core.store.contract import ObjectStore
from storage_core.store.local import LocalStore
from storage_core.table import Table
from tests.support.hostile_worker import say
from tests.support.ids import SeededIds
from tests.support.keyed_table import KeyedTable
from tests.support.limits import address_space, limited, open_files

SCHEMA = pa.schema([pa.field("id", pa.int64()), ("text", pa.string()), ("tag", pa.string())])
REFUSED = 3
INDEXES = (IndexDefinition("words", "fulltext", ("text",)), IndexDefinition("tags", "bitmap", ("tag",)))
QUERIES: dict[str, Callable[[Table], pa.Table]] = {
    "words": lambda table: table.search("ebb", index="words"),
    "tags": lambda table: table.search("x", index="tags"),
}
READS: dict[str, Callable[[Table], pa.Table]] = {
    "scan": lambda table: table.scan(filter="text = 'ebb tide'").to_arrow(),
    "sql": lambda table: table.sql("select id from t where text = 'ebb tide'"),
    "filter": lambda table: table.scan(filter=tm.col("text") == "ebb tide").to_arrow(),
    "search": lambda table: table.search("ebb", index="words"),
    "get": lambda table: pa.Table.from_pylist([row for row in table.get_many([1, 3]) if row is not None]),
}
ANSWER = [1, 3]


def half_indexed(store: ObjectStore) -> Snapshot:
    """Make a table of two splits where both indexes cover only the first.

    Each search must index the second split itself.
    """
    ids = SeededIds(7)
    log = TransactionLog(store, clock=SystemClock(), ids=ids)
    config = TableConfig(indexes=INDEXES)
    metadata = Metadata(id=ids.uuid(), schemaString=to_schema_string(SCHEMA), configuration=config.to_configuration())
    snapshot = log.create(metadata)
    for first in (1, 3):
        rows = [{"id": first, "text": "ebb tide", "tag": "x"}, {"id": first + 1, "text": "flood", "tag": "y"}]
        table = pa.Table.from_pylist(rows, schema=SCHEMA)
        adds = sort_and_write(store, table, context=context_of(snapshot), ids=ids, now_ms=1)
        snapshot = log.commit(snapshot, adds, operation="WRITE").snapshot
        if first > 1:
            continue
        for each in INDEXES:
            plan = catch_up.plan(snapshot, each.name)
            actions = plan.actions([catch_up.execute(store, work, ids=ids) for work in plan.work])
            snapshot = log.commit(snapshot, actions, operation="CATCH UP").snapshot
    return snapshot


def file_size(step: int) -> tuple[int, int]:
    return resource.RLIMIT_FSIZE, step * 64


CONDITIONS: dict[str, Callable[[int], tuple[int, int]]] = {
    "open-files": open_files,
    "address-space": lambda step: address_space(step * 2**20),
    "file-size": file_size,
}


def keyed(store: ObjectStore) -> None:
    """Write the same rows with a key, in two splits of the base."""
    table = KeyedTable(store).create(SCHEMA, TableConfig(primary_key=("id",), indexes=INDEXES[:1]))
    for first in (1, 3):
        table.append([{"id": first, "text": "ebb tide", "tag": "x"}, {"id": first + 1, "text": "flood", "tag": "y"}])


def main() -> None:
    condition = CONDITIONS[sys.argv[1]]
    with tempfile.TemporaryDirectory() as folder:
        if sys.argv[3:]:
            keyed(LocalStore(Path(folder) / "table"))
            if sys.argv[3] == "checkpointed":
                table = Table.open(str(Path(folder) / "table"))
                table.log.checkpoint(table.snapshot)
            least, most, within = map(int, sys.argv[2].split(":"))
            for name, query in READS.items():
                bisect(partial(alone, name, str(Path(folder) / "table"), query, condition), least, most, within)
            return
        half_indexed(LocalStore(Path(folder) / "table"))
        table = Table.open(str(Path(folder) / "table"))
        for step in map(int, sys.argv[2].split(",")):
            for name, query in QUERIES.items():
                say(f"{step} {name} {outcome(table, query, condition(step))}")


def bisect(answers: Callable[[int], bool], least: int, most: int, within: int) -> None:
    """Call `answers` for `least` and `most`. Then bisect to find the first step with an answer, up to `within`."""
    answers(least)
    answers(most)
    while most - least > within:
        middle = (least + most) // 2
        least, most = (least, middle) if answers(middle) else (middle, most)


def alone(
    name: str, uri: str, query: Callable[[Table], pa.Table], limit: Callable[[int], tuple[int, int]], step: int
) -> bool:
    """Run the query in its own process, print its result, and return True if it was answered."""
    child = os.fork()
    if child == 0:
        table = Table.open(uri)
        found = outcome(table, query, limit(step))
        say(f"{step} {name} {found}")
        os._exit(0 if found == "answered" else REFUSED)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ended not in (0, REFUSED):
        say(f"{step} {name} died of {ended}")
    return ended == 0


def outcome(table: Table, query: Callable[[Table], pa.Table], limit: tuple[int, int]) -> str:
    try:
        with limited(*limit):
            found = sorted(query(table).column("id").to_pylist())
    except BaseException as error:  # noqa: BLE001  # a panic of tantivy is no Exception
        return f"{type(error).__name__} {str(error)[:300]!r}"
    return "answered" if found == ANSWER else f"other rows {found}"


if __name__ == "__main__":
    main()
