"""Let another process commit at each request of a statement.

In addition, run and commit the tested statement at each request of the other process.

The result must equal the effect of the commits in the order of the log. The conflict table of statements contains all
pairs, and each cell is one test.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

import pytest

from storage_core.base.clock import HOUR_MS
from storage_core.base.errors import CommitConflict
from storage_core.change.statement import expr
from storage_core.compact import planner
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Metadata
from storage_core.log.snapshot import Snapshot
from storage_core.maintain.history import restore
from storage_core.split.context import context_of
from storage_core.store.contract import IfAbsent, ObjectStore
from storage_core.store.memory import MemoryStore
from storage_core.store.resolve import open_store
from storage_core.table import Table
from storage_core.write.ingest import batch
from storage_core.write.ingest.landing import LandingSpec, discover
from tests.support import upkeep
from tests.support.changed_rows import CONFIG, START, created, index, kept, opened, require_sound, row, rows_of
from tests.support.copies import contents, copy_of
from tests.support.fault_store import FaultStore
from tests.support.keyed_table import Row
from tests.support.meanwhile import Meanwhile, repeatable

Act = Callable[[Table], object]
Model = Callable[[Sequence[Row]], Sequence[Row]]

NEW = [row(n, "new", hour=1) for n in (12, 15, 300)]
REPLACING = [row(n, "replaced") for n in (14, 15)]
LANDED = [row(n, "landed", hour=1) for n in (13, 500)]
PUT = [row(n, "put", hour=2) for n in (4, 15, 400)]
RETENTION_MS = 100 * 365 * 24 * HOUR_MS
EXPIRED_MS = int(START.timestamp()) * 1000 + HOUR_MS + RETENTION_MS
"""A time at which the window of the table's first hour has expired."""


def _settings(**changed: object) -> Act:
    def act(table: Table) -> None:
        head = table.log.snapshot()
        settings = replace(head.config, **changed)  # type: ignore[arg-type]  # settings by name
        metadata: Metadata = replace(head.metadata, configuration=settings.to_configuration())
        table.log.commit(head, [metadata], operation="CONFIGURE")

    return act


def _expire(table: Table) -> None:
    head = table.log.snapshot()
    found = planner.plan_expiry(head, retention_ms=head.config.retention_ms, now_ms=EXPIRED_MS)
    if found.splits:
        table.log.commit(head, found.removes(1), operation="EXPIRE", requirements=[found.requirement])


def _restore(table: Table) -> None:
    """Restore version 1, which has the first rows, before any delete."""
    restore(table.log, table.log.snapshot(version=1))


def _ingest(table: Table) -> None:
    """Ingest the landed file unless it is ingested already."""
    head = table.log.snapshot()
    works = batch.plan(head, _landed(), discover(_landed()), None)
    context = context_of(head)
    done = [batch.execute(table.store, work, context=context, ids=table.log.ids, now_ms=1) for work in works]
    if actions := [action for each in done for action in each.actions]:
        table.log.commit(head, actions, operation="INGEST")


@cache
def _landed() -> LandingSpec:
    spec = LandingSpec(uri="memory://landed-beside-statements", format="ndjson")
    lines = "".join(json.dumps(each, default=str) + "\n" for each in LANDED)
    open_store(spec.uri).put("a.ndjson", lines.encode(), IfAbsent())
    return spec


def _number(each: Row) -> int:
    return int(str(each["n"]))


def _set(each: Row) -> Row:
    return {**each, "host": "set", "n": _number(each) + 1_000} if 11 <= _number(each) < 17 else each


STATEMENTS: Mapping[str, tuple[str, Act, Model]] = {
    "delete": (
        "DELETE",
        lambda table: table.delete("n % 3 = 0"),
        lambda rows: [each for each in rows if _number(each) % 3],
    ),
    "delete an hour": (
        "DELETE",
        lambda table: table.delete("\"at\" < TIMESTAMPTZ '2024-02-29 11:00:00+00'"),
        lambda rows: [each for each in rows if str(each["at"]) >= "2024-02-29 11"],
    ),
    "update": (
        "UPDATE",
        lambda table: table.update({"host": "set", "n": expr("n + 1000")}, "n between 11 and 16"),
        lambda rows: [_set(each) for each in rows],
    ),
    "overwrite": (
        "OVERWRITE",
        lambda table: table.overwrite(REPLACING, "n >= 14 and n < 19"),
        lambda rows: [*(each for each in rows if not 14 <= _number(each) < 19), *REPLACING],
    ),
    "upsert": (
        "UPSERT",
        lambda table: table.upsert(PUT, on="n"),
        lambda rows: [*(each for each in rows if _number(each) not in (4, 15, 400)), *PUT],
    ),
}
OTHERS: Mapping[str, tuple[str, Act, Model]] = {
    **STATEMENTS,
    "append": ("APPEND", lambda table: table.append(NEW), lambda rows: [*rows, *NEW]),
    "compact": ("COMPACT", upkeep.compact, lambda rows: rows),
    "index": ("CATCH UP", index, lambda rows: rows),
    "expire": ("EXPIRE", _expire, lambda rows: [each for each in rows if str(each["at"]) >= "2024-02-29 11"]),
    "restore": ("RESTORE", _restore, lambda _: _rows_at_start()[0]),
    "upkeep": ("CONFIGURE", _settings(target_split_bytes=1), lambda rows: rows),
    "sort schema": ("CONFIGURE", _settings(sort_schema="n__i|timestamp/V2"), lambda rows: rows),
    "columns": ("ADD COLUMN", lambda table: table.add_column(table.log.ids.uuid(), "int"), lambda rows: rows),
    "window": ("CONFIGURE", lambda table: table.alter({"window": "15m"}), lambda rows: rows),
    "rewindow": ("REWINDOW", upkeep.rewindow, lambda rows: rows),
    "ingest": ("INGEST", _ingest, lambda rows: [*rows, *LANDED]),
}

# The tested statement is "mine", and the action of the other process is "theirs". "ok" means that the statement and the
# action commit in any order. The statement may be planned again. "abort" means that the statement commits nothing if
# the action committed after the statement was planned. If two processes ingest one file, the second process finds
# nothing to do.
TABLE = """
mine \\ theirs  | delete | delete an hour | update | overwrite | upsert | append | compact | index | expire | restore | upkeep | sort schema | columns | window | rewindow | ingest
delete         | ok     | ok             | ok     | ok        | ok     | ok     | ok      | ok    | ok     | ok      | ok     | ok          | ok      | ok     | ok       | ok
delete an hour | ok     | ok             | ok     | ok        | ok     | ok     | ok      | ok    | ok     | ok      | ok     | ok          | ok      | ok     | ok       | ok
update         | ok     | ok             | ok     | ok        | ok     | ok     | ok      | ok    | ok     | ok      | ok     | ok          | ok      | ok     | ok       | ok
overwrite      | ok     | ok             | ok     | ok        | ok     | ok     | ok      | ok    | ok     | ok      | ok     | abort       | abort   | abort  | ok       | ok
upsert         | ok     | ok             | ok     | ok        | ok     | ok     | ok      | ok    | ok     | ok      | ok     | abort       | abort   | abort  | ok       | ok
append         | ok     | ok             | ok     | ok        | ok     | ok     | ok      | ok    | ok     | ok      | ok     | abort       | ok      | abort  | ok       | ok
compact        | ok     | ok             | ok     | ok        | ok     | ok     | ok      | ok    | ok     | ok      | ok     | ok          | ok      | ok     | ok       | ok
index          | ok     | ok             | ok     | ok        | ok     | ok     | ok      | abort | ok     | abort   | ok     | ok          | ok      | ok     | abort    | ok
expire         | abort  | abort          | abort  | abort     | abort  | ok     | abort   | ok    | abort  | abort   | ok     | ok          | ok      | ok     | abort    | ok
restore        | ok     | ok             | ok     | ok        | ok     | ok     | ok      | ok    | ok     | ok      | ok     | ok          | ok      | ok     | ok       | ok
columns        | ok     | ok             | ok     | ok        | ok     | ok     | ok      | ok    | ok     | ok      | ok     | ok          | ok      | ok     | ok       | ok
window         | ok     | ok             | ok     | ok        | ok     | ok     | ok      | ok    | ok     | ok      | ok     | ok          | ok      | ok     | ok       | ok
rewindow       | ok     | ok             | ok     | ok        | ok     | ok     | ok      | ok    | ok     | ok      | ok     | ok          | ok      | ok     | ok       | ok
ingest         | ok     | ok             | ok     | ok        | ok     | ok     | ok      | ok    | ok     | ok      | ok     | abort       | ok      | abort  | ok       | ok
"""  # noqa: E501  # it is read as the page's table is


@cache
def _repeatable(name: str) -> Callable[[ObjectStore], None]:
    """Return the action `name`, which runs during the statement.

    If two stores have equal objects, the action runs only on the first store, and its effect is copied to the second.
    Most requests of a statement only read, so two requests often see equal objects.
    """

    def act(store: ObjectStore) -> None:
        OTHERS[name][1](opened(store, 5))

    return repeatable(act)


def _cells() -> Iterator[tuple[str, str, str]]:
    (_, *columns), *rows = ([cell.strip() for cell in line.split("|")] for line in TABLE.strip().splitlines())
    assert columns == list(OTHERS)
    assert {*STATEMENTS} < {name for name, *_ in rows}
    for mine, *outcomes in rows:
        yield from ((mine, theirs, outcome) for theirs, outcome in zip(columns, outcomes, strict=True))


def _rows_at_start() -> list[list[Row]]:
    first = [row(n, f"h{n % 3}", hour=n % 2, x=n / 2) for n in range(20)]
    return [first, [row(n, None if n == 15 else "again", hour=n % 2) for n in (3, 4, 12, 15)]]


@cache
def _start(*, has_new_windows: bool) -> MemoryStore:
    """Return a table of two hours with two splits each, deleted rows and indexed rows.

    With `has_new_windows`, the table's window setting is then changed to 30 minutes.
    """
    store = MemoryStore("statements")
    config: TableConfig = replace(CONFIG, retention_ms=RETENTION_MS)
    table = created(store, config)
    first, second = _rows_at_start()
    table.append(first)
    index(table)
    table.append(second)
    table.delete("n = 9 or n = 8")
    if has_new_windows:
        table.alter({"window": "30m"})
    return store


def _require_expected(store: ObjectStore, since: Snapshot, order: Sequence[str]) -> None:
    """Apply the commits in log order to the rows at the start, and assert that the table has the resulting rows.

    Two commits of the same operation may be in any order, because both orders give the same rows.
    """
    rows: Sequence[Row] = [each for part in _rows_at_start() for each in part if each["n"] not in (8, 9)]
    models: dict[str, list[Model]] = {}
    for name in order:
        operation, _, model = OTHERS[name]
        models.setdefault(operation, []).append(model)
    history = [entry for entry in opened(store, 50).history() if entry.version > since.version]
    for entry in reversed(history):
        known = models[entry.operation]
        # A compaction may commit several times. The compaction plans again if the settings changed during the run.
        rows = (known[0] if entry.operation == "COMPACT" else known.pop(0))(rows)
    names = opened(store, 51).schema.names
    assert rows_of(store) == kept([{name: each.get(name) for name in names} for each in rows])


@pytest.mark.parametrize(("mine", "theirs", "outcome"), tuple(_cells()))
def test_every_cell_of_statements_beside_others_at_every_request(mine: str, theirs: str, outcome: str) -> None:
    before = _start(has_new_windows="rewindow" in (mine, theirs))
    start = opened(before, 3).snapshot
    aborted = 0
    judged: set[tuple[object, ...]] = set()
    objects = copy_of(before)
    for instant in range(1_000):
        objects = copy_of(before)
        meanwhile = Meanwhile(instant, partial(_repeatable(theirs), objects))
        process = opened(FaultStore(objects, watch=meanwhile), 4)
        first = [mine]
        try:
            OTHERS[mine][1](process)
        except CommitConflict:
            assert outcome == "abort"
            aborted += 1
            first = []
        if not meanwhile.acted:
            break
        left = frozenset(contents(objects).items()), *first
        if left not in judged:
            judged.add(left)
            _require_expected(objects, start, [*first, theirs])
    assert instant > 1
    assert (aborted > 0) == (outcome == "abort")
    require_sound(objects)
