"""After any damage to log files, repair keeps the newest version if it opens, and brings back no removed row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import example, given, settings
from hypothesis import strategies as st

from storage_core.base.errors import TidemarkError
from storage_core.data.formats.keys import LOG_PREFIX, version_key
from storage_core.data.rows.schema import to_schema_string
from storage_core.log.actions import Metadata
from storage_core.log.log import TransactionLog
from storage_core.maintain.check import fsck
from storage_core.maintain.history import restore
from storage_core.maintain.repair import repair
from storage_core.split.context import context_of
from storage_core.split.read import read_split
from storage_core.split.writer import sort_and_write
from storage_core.store.contract import ObjectStore, Overwrite
from storage_core.store.memory import MemoryStore
from tests.support.clock import ManualClock
from tests.support.copies import copy_of
from tests.support.events import CONFIG, SCHEMA, TABLE_ID, events
from tests.support.ids import SeededIds
from tests.support.scale import scaled

Rows = frozenset[int]
Damage = tuple[str, int, int]

STEPS = st.lists(
    st.one_of(st.just("append"), st.just("append"), st.just("checkpoint"), st.integers(0, 9)), min_size=3, max_size=14
)
DAMAGES = st.lists(
    st.tuples(st.sampled_from(["copy", "cut", "delete", "swap"]), st.integers(0, 60), st.integers(0, 60)),
    min_size=1,
    max_size=3,
)
# Version 0 and one append come first, so that step numbers equal version numbers. This case repeats a reported defect.
# Version 19 is a restore that removes the changes of versions 15 to 18. After the restore, the table writes a state,
# and more rows are appended up to version 25.
BEFORE: list[str | int] = [*["append"] * 13, "checkpoint", *["append"] * 4]
RESTORED: list[str | int] = [*BEFORE, 14, "append", "checkpoint", *["append"] * 5]


@dataclass
class _Table:
    """A table with one numbered row per split.

    A step that is a number restores the version with this number. `rows[version]` contains the rows of that version.
    """

    store: MemoryStore = field(default_factory=lambda: MemoryStore("restores"))
    clock: ManualClock = field(default_factory=lambda: ManualClock(step_ms=1))
    rows: list[Rows] = field(default_factory=lambda: [frozenset()])
    appended: int = 0

    def __post_init__(self) -> None:
        self.log = TransactionLog(self.store, clock=self.clock, ids=SeededIds(3))
        settings_ = CONFIG.to_configuration() | {"tidemark.checkpointInterval": "0"}
        self.log.create(Metadata(id=TABLE_ID, schemaString=to_schema_string(SCHEMA), configuration=settings_))

    def take(self, step: str | int) -> None:
        head = self.log.snapshot()
        if step == "checkpoint":
            self.log.checkpoint(head)
        elif step == "append":
            new = events([{"at": 7200, "service": "s", "count": self.appended}])
            adds = sort_and_write(self.store, new, context=context_of(head), ids=self.log.ids, now_ms=1)
            self.log.commit(head, adds, operation="APPEND")
            self.rows.append(self.rows[-1] | {self.appended})
            self.appended += 1
        else:
            version = int(step) % (head.version + 1)
            if restore(self.log, self.log.snapshot(version=version)).commit_id:
                self.rows.append(self.rows[version])


def _made(steps: list[str | int]) -> _Table:
    table = _Table()
    for step in ["append", *steps]:
        table.take(step)
    return table


def _numbers(store: ObjectStore, version: int | None = None) -> list[int]:
    splits = TransactionLog(store).snapshot(version=version).splits.values()
    return sorted(number for add in splits for number in read_split(store, add).column("count").to_pylist())


def _damage(store: MemoryStore, damages: list[Damage]) -> None:
    """Copy one log file over another, cut it in half, delete it, or swap two files."""
    for kind, first, second in damages:
        keys = sorted(info.key for info in store.list(LOG_PREFIX))
        one, other = keys[first % len(keys)], keys[second % len(keys)]
        data, others = store.get(one).data, store.get(other).data
        match kind:
            case "copy":
                store.put(other, data, Overwrite())
            case "cut":
                store.put(one, data[: len(data) // 2], Overwrite())
            case "delete":
                store.delete([one])
            case _:
                store.put(one, others, Overwrite())
                store.put(other, data, Overwrite())


def _openable(store: ObjectStore, newest: int) -> Iterator[int]:
    """Yield the versions that can still be opened and read, newest first."""
    for version in range(newest, -1, -1):
        try:
            _numbers(store, version)
        except TidemarkError:
            continue
        yield version


@settings(max_examples=scaled(24))
@example(steps=RESTORED, damages=[("copy", 18, 19)])
@example(steps=RESTORED, damages=[("copy", 20, 19)])
@example(steps=RESTORED, damages=[("copy", 15, 22)])
@example(steps=RESTORED, damages=[("copy", 17, 24), ("cut", 19, 0)])
@example(steps=RESTORED, damages=[("cut", 15, 0), ("cut", 19, 0), ("cut", 23, 0)])
@example(steps=RESTORED, damages=[("swap", 18, 22)])
@example(steps=["append", "append", 0], damages=[("copy", 0, 1), ("copy", 0, 3)])
@given(steps=STEPS, damages=DAMAGES)
def test_no_row_that_was_taken_away_comes_back(steps: list[str | int], damages: list[Damage]) -> None:
    table = _made(steps)
    head = len(table.rows) - 1
    assert _numbers(table.store) == sorted(table.rows[head])
    damaged = copy_of(table.store, "damaged", table.clock)
    _damage(damaged, damages)
    target = MemoryStore("target", clock=table.clock)
    fsck(damaged, clock=table.clock, deep=True)
    outcome = repair(damaged, target, clock=table.clock, ids=SeededIds(5))
    assert outcome.check is not None
    assert outcome.check.clean, outcome.check.findings
    found = _numbers(target)
    assert len(found) == len(set(found)), "every row once"
    newest = next(_openable(damaged, head), 0)
    if newest == head:
        assert _numbers(damaged, head) == found == sorted(table.rows[head])
    assert set(found) <= frozenset().union(*table.rows[newest:]), "live in the newest version that opens, or later"
    for version in range(newest + 1, head + 1):
        if _is_intact(damaged, table.store, version):
            removed = table.rows[version - 1] - table.rows[version]
            assert not (removed & set(found)) - frozenset().union(*table.rows[version:]), f"removed by {version}"


def _is_intact(damaged: ObjectStore, original: ObjectStore, version: int) -> bool:
    key = version_key(version)
    there = {info.key for info in damaged.list(LOG_PREFIX)}
    return key in there and damaged.get(key).data == original.get(key).data
