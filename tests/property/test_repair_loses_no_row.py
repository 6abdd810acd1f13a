"""After any loss of log files and any kills, repair restores every row exactly once."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.compact import execute as compaction
from storage_core.data.formats.keys import LOG_PREFIX, version_key
from storage_core.data.rows.schema import to_schema_string
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Metadata
from storage_core.log.log import TransactionLog
from storage_core.maintain.repair import repair
from storage_core.split.context import context_of
from storage_core.split.read import read_split
from storage_core.split.writer import sort_and_write
from storage_core.store.contract import Overwrite
from storage_core.store.memory import MemoryStore
from storage_core.write.region import merge
from tests.support.clock import ManualClock
from tests.support.events import CONFIG, SCHEMA, TABLE_ID, events
from tests.support.ids import SeededIds
from tests.support.keyed_table import PLANES, KeyedTable
from tests.support.merge_plan import plan
from tests.support.scale import scaled

Step = str
STEPS = st.lists(
    st.sampled_from(["append", "append", "append to two windows", "compact", "killed compaction", "checkpoint"]),
    min_size=1,
    max_size=9,
)


class _Table:
    """An append table with numbered rows. Compactions execute all work of the planner or none."""

    def __init__(self) -> None:
        self.store = MemoryStore("losses")
        self.clock = ManualClock(step_ms=1)
        self.log = TransactionLog(self.store, clock=self.clock, ids=SeededIds(3))
        settings_ = CONFIG.to_configuration() | {"tidemark.checkpointInterval": "0"}
        self.log.create(Metadata(id=TABLE_ID, schemaString=to_schema_string(SCHEMA), configuration=settings_))
        self.rows = 0

    def take(self, step: Step) -> None:
        snapshot = self.log.snapshot()
        match step:
            case "append":
                self._append([7200])
            case "append to two windows":
                self._append([7200, 10800])
            case "checkpoint":
                self.log.checkpoint(snapshot)
            case _:
                done = [
                    compaction.execute(self.store, operation, ids=self.log.ids, now_ms=1)
                    for operation in plan(snapshot)
                ]
                if done and step == "compact":
                    self.log.commit(snapshot, [action for each in done for action in each.actions], operation="COMPACT")

    def _append(self, starts: Sequence[int]) -> None:
        snapshot = self.log.snapshot()
        numbered = [{"at": at, "service": "s", "count": self.rows + number} for number, at in enumerate(starts)]
        adds = sort_and_write(self.store, events(numbered), context=context_of(snapshot), ids=self.log.ids, now_ms=1)
        self.log.commit(snapshot, adds, operation="APPEND")
        self.rows += len(starts)


def _numbers(store: MemoryStore) -> list[int]:
    splits = TransactionLog(store).snapshot().splits.values()
    return sorted(number for add in splits for number in read_split(store, add).column("count").to_pylist())


def _repaired(table: _Table) -> MemoryStore:
    target = MemoryStore("target")
    outcome = repair(table.store, target, clock=table.clock, ids=SeededIds(5))
    assert outcome.check is not None
    assert outcome.check.clean, outcome.check.findings
    return target


@settings(max_examples=scaled(30))
@given(steps=STEPS)
def test_without_any_log_every_row_is_there_once(steps: list[Step]) -> None:
    table = _Table()
    for step in ["append", *steps]:
        table.take(step)
    table.store.delete([info.key for info in table.store.list(LOG_PREFIX)])
    assert _numbers(_repaired(table)) == list(range(table.rows))


@settings(max_examples=scaled(30))
@given(steps=STEPS, lost=st.sets(st.integers(0, 9), min_size=1, max_size=4), data=st.data())
def test_without_some_versions_every_row_is_there_once(steps: list[Step], lost: set[int], data: st.DataObject) -> None:
    table = _Table()
    for step in ["append", *steps]:
        table.take(step)
    newest = table.log.snapshot().version
    for version in sorted(lost):
        # The test damages the newest version file instead of deleting this file. Without the newest version file,
        # nothing shows that the newest version ever existed.
        if version >= newest or data.draw(st.booleans(), label=f"damage version {version}, or lose it"):
            table.store.put(version_key(min(version, newest)), b"damaged", Overwrite())
        else:
            table.store.delete([version_key(version)])
    assert _numbers(_repaired(table)) == list(range(table.rows))


@st.composite
def _keyed_histories(draw: st.DrawFn) -> list[tuple[str, list[str]]]:
    kinds = st.sampled_from(["put", "put", "delete", "merge", "merge", "killed merge", "compact", "killed compaction"])
    keys = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=3)
    return draw(st.lists(st.tuples(kinds, keys), min_size=1, max_size=12))


def _keyed(history: list[tuple[str, list[str]]]) -> tuple[KeyedTable, MemoryStore]:
    """Return a keyed table after this history.

    Every write is flushed, and the value of `seats` is the number of the write.
    """
    store = MemoryStore("keyed")
    config = TableConfig(primary_key=("tailnum",), checkpoint_interval=3)
    table = KeyedTable(store, clock=ManualClock(step_ms=1)).create(PLANES, config)
    for number, (kind, keys) in enumerate([("put", ["a", "b"]), ("merge", []), *history]):
        snapshot = table.snapshot
        match kind:
            case "put" | "delete":
                with table.writer() as writer:
                    if kind == "put":
                        writer.put([{"tailnum": key, "seats": number} for key in keys])
                    else:
                        writer.delete(list(keys))
                    writer.flush()
            case "merge":
                table.merge()
            case "killed merge":
                for work in merge.plan(store, snapshot):
                    table.execute(work)
            case _:
                done = [compaction.execute(store, each, ids=table.ids, now_ms=1) for each in plan(snapshot)]
                if done and kind == "compact":
                    table.log.commit(
                        snapshot, [action for each in done for action in each.actions], operation="COMPACT"
                    )
    return table, store


@settings(max_examples=scaled(40))
@given(history=_keyed_histories(), data=st.data())
def test_a_keyed_table_keeps_the_newest_row_of_every_key_whatever_is_lost_of_its_log(
    history: list[tuple[str, list[str]]], data: st.DataObject
) -> None:
    table, store = _keyed(history)
    rows, newest = table.rows(), table.snapshot.version
    if data.draw(st.booleans(), label="lose the whole log"):
        store.delete([info.key for info in store.list(LOG_PREFIX)])
    else:
        for version in sorted(data.draw(st.sets(st.integers(0, newest), min_size=1, max_size=3), label="damaged")):
            store.put(version_key(version), b"damaged", Overwrite())
    target = MemoryStore("target")
    outcome = repair(store, target, clock=table.clock, ids=SeededIds(5))
    assert outcome.check is not None
    assert outcome.check.clean, outcome.check.findings
    again = KeyedTable(target, clock=table.clock)
    assert again.rows() == rows
    again.merge_all()
    assert sorted(map(str, again.base_rows())) == sorted(map(str, rows.values()))
