"""A keyed table behaves like a dictionary during any writes, flushes, merges, reopenings and lost replies."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from storage_core.base.errors import CommitConflict, CommitUnknown, WriterFenced
from storage_core.log.snapshot import Snapshot
from storage_core.store.memory import MemoryStore
from storage_core.write.region import merge
from storage_core.write.region.merge_work import MergeResult, MergeWork
from storage_core.write.region.writer import RegionWriter
from tests.support.fault_store import FaultStore, PutFault
from tests.support.keyed_table import KeyedTable, Row
from tests.support.scale import scaled

KEYS = st.sampled_from(["a", "b", "c", "é", "zz", ""])
FIELDS = st.fixed_dictionaries(
    {}, optional={"seats": st.none() | st.integers(-5, 5), "model": st.none() | st.sampled_from(["", "x"])}
)
REPLIES = st.sampled_from(
    [PutFault.APPLIED_THEN_UNKNOWN, PutFault.APPLIED_THEN_CONFLICT, PutFault.DROPPED_THEN_UNKNOWN]
)
EMPTY: Row = {"seats": None, "model": None}


class KeyedTableMachine(RuleBasedStateMachine):
    @initialize()
    def create(self) -> None:
        self.store = FaultStore(MemoryStore("planes"))
        self.table = KeyedTable(self.store).create()
        self.writer: RegionWriter = self.table.writer()
        self.fenced: RegionWriter | None = None
        self.late_merge: tuple[Snapshot, MergeWork, MergeResult] | None = None
        self.model: dict[object, Row] = {}

    @rule(rows=st.lists(st.tuples(KEYS, FIELDS), max_size=4))
    def put(self, rows: list[tuple[str, Row]]) -> None:
        self.writer.put([{"tailnum": key, **fields} for key, fields in rows])
        for key, fields in rows:
            self.model[key] = {"tailnum": key, **EMPTY, **fields}

    @rule(rows=st.lists(st.tuples(KEYS, FIELDS), max_size=4))
    def patch(self, rows: list[tuple[str, Row]]) -> None:
        self.writer.patch([{"tailnum": key, **fields} for key, fields in rows])
        for key, fields in rows:
            self.model[key] = {"tailnum": key, **EMPTY, **self.model.get(key, {}), **fields}

    @rule(keys=st.lists(KEYS, max_size=3))
    def delete(self, keys: list[str]) -> None:
        self.writer.delete(keys)
        for key in keys:
            self.model.pop(key, None)

    @rule()
    def flush(self) -> None:
        self.writer.flush()

    @rule()
    def merge_everything(self) -> None:
        self.table.merge()

    @precondition(lambda self: self.late_merge is None)
    @rule()
    def execute_a_merge_and_sleep_before_its_commit(self) -> None:
        snapshot = self.table.snapshot
        for work in merge.plan(self.store, snapshot):
            self.late_merge = (snapshot, work, self.table.execute(work))

    @precondition(lambda self: self.late_merge is not None)
    @rule()
    def wake_up_and_commit(self) -> None:
        assert self.late_merge is not None
        snapshot, work, result = self.late_merge
        self.late_merge = None
        merged = self.table.snapshot.merged_generations.get(work.region, 0)
        if merged == work.after:
            self.table.commit(snapshot, work, result)
        else:
            with pytest.raises(CommitConflict):
                self.table.commit(snapshot, work, result)

    @rule()
    def reopen(self) -> None:
        self.fenced, self.writer = self.writer, self.table.writer()

    @precondition(lambda self: self.fenced is not None)
    @rule(key=KEYS)
    def a_fenced_writer_is_refused(self, key: str) -> None:
        assert self.fenced is not None
        with pytest.raises(WriterFenced):
            self.fenced.put({"tailnum": key, "seats": 99})

    @rule(key=KEYS, fault=REPLIES)
    def lose_the_reply_of_a_put(self, key: str, fault: PutFault) -> None:
        self.store.on_put("/wal/", fault)
        self.put([(key, {"seats": 77})])

    @rule(fault=REPLIES, part=st.sampled_from([".binpb", "_manifest.json", "bloom_filter.bin", "key_index.arrow"]))
    def lose_the_reply_of_a_flush(self, fault: PutFault, part: str) -> None:
        if self.writer.unflushed().num_rows:
            self.store.on_put(part, fault)
            self.writer.flush()

    @rule(key=KEYS, arrives=st.booleans())
    def a_put_that_is_never_answered(self, key: str, arrives: bool) -> None:
        self.store.on_put("/wal/", *[PutFault.DELAYED_THEN_UNKNOWN] * 4)
        with pytest.raises(CommitUnknown):
            self.writer.put({"tailnum": key, "seats": 55})
        if arrives:
            self.store.deliver()
            self.model[key] = {"tailnum": key, **EMPTY, "seats": 55}
        self.writer = self.table.writer()
        # The sentinel now occupies the key. The entry that arrives later has no effect.
        self.store.deliver()

    @invariant()
    def the_table_is_the_dictionary(self) -> None:
        assert self.table.rows() == self.model


KeyedTableMachine.TestCase.settings = settings(max_examples=scaled(40), stateful_step_count=25, deadline=None)
TestAKeyedTableIsADictionary = KeyedTableMachine.TestCase
