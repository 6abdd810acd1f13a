"""A new state lists all live splits, also if its manifests were reused, retired, joined or rewritten."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import pytest

from storage_core.base.errors import Corrupt, SnapshotExpired
from storage_core.data.formats.keys import last_checkpoint_key, state_key, version_key
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Action, Add
from storage_core.log.checkpoint import manifest_keys, read_state, snapshot_of
from storage_core.log.checkpoint_writing import write_checkpoint
from storage_core.log.deletion_vector import inline
from storage_core.log.snapshot import Snapshot
from storage_core.store.contract import IfAbsent
from storage_core.store.memory import MemoryStore
from tests.support.log_tables import log_on, metadata, removal, split


class Table:
    """A table that is checkpointed on request and compared with a replay of its version files."""

    def __init__(self, manifest_entries: int = TableConfig().manifest_entries) -> None:
        self.store = MemoryStore("t")
        self.log = log_on(self.store)
        self.log.create(metadata(TableConfig(checkpoint_interval=0, manifest_entries=manifest_entries)))

    def commit(self, *actions: Action) -> Snapshot:
        return self.log.commit(self.log.snapshot(), list(actions), operation="X").snapshot

    def checkpoint(self, *actions: Action, compact: bool = False) -> tuple[str, ...]:
        """Commit, checkpoint the state that a new process opens, and return the keys of the state's manifests."""
        head = self.commit(*actions) if actions else self.log.snapshot()
        given = self.log.snapshot()
        whole = write_checkpoint(self.store, given, self.log.ids.uuid, compact=True) if compact else None
        found = whole or self.log.checkpoint(given)
        assert found.snapshot == head
        assert found.snapshot.splits.listed is not None
        opened = self.log.snapshot()
        assert opened.checkpoint_version == head.version
        assert len(opened.splits) == len(head.splits), "known before a manifest is read"
        assert opened == head == self.replayed()
        return manifest_keys(read_state(self.store, head.version))

    def replayed(self) -> Snapshot:
        bare = MemoryStore("bare")
        for version in range(self.log.snapshot().version + 1):
            bare.put(version_key(version), self.store.get(version_key(version)).data, IfAbsent())
        return log_on(bare).snapshot()

    def tombstones(self) -> Sequence[str]:
        return read_state(self.store, self.log.snapshot().version).tombstones


def many(prefix: str, count: int) -> list[Add]:
    return [split(f"{prefix}{number:03}") for number in range(count)]


@pytest.fixture
def table() -> Table:
    return Table()


def test_a_new_state_writes_what_is_new_and_shares_the_rest(table: Table) -> None:
    (first,) = table.checkpoint(*many("a", 40))
    before = table.store.get(first)
    assert table.checkpoint(split("b")) == (first, *table.checkpoint()[1:])
    assert len(table.checkpoint()) == 2
    assert table.store.get(first) == before


def test_removed_paths_become_tombstones_of_manifests_that_stay(table: Table) -> None:
    manifests = table.checkpoint(*many("a", 40))
    assert table.checkpoint(removal("a003"), removal("a007")) == manifests
    assert table.tombstones() == (split("a003").path, split("a007").path)
    table.checkpoint(removal("a001"))
    assert len(table.tombstones()) == 3


def test_more_than_a_tenth_of_dead_entries_is_written_anew_without_them(table: Table) -> None:
    (first,) = table.checkpoint(*many("a", 40))
    assert table.checkpoint(*(removal(f"a{number:03}") for number in range(4))) == (first,)
    (second,) = table.checkpoint(removal("a010"))
    assert second != first
    assert table.tombstones() == ()


def test_twenty_small_manifests_are_joined_and_only_tombstones_applied_there_go() -> None:
    table = Table(manifest_entries=100)
    (large,) = table.checkpoint(*many("a", 90))
    counts = [len(table.checkpoint(split(f"b{number}"))) for number in range(20)]
    assert counts == list(range(2, 22))
    table.checkpoint(removal("a005"), removal("b7"))
    assert table.tombstones() == (split("a005").path,), "the joined entry is gone, the other only hidden"
    assert len(table.checkpoint()) == 2
    assert table.checkpoint()[0] == large


def test_a_compacted_state_holds_no_tombstone_and_the_fewest_manifests(table: Table) -> None:
    table.checkpoint(*many("a", 40))
    table.checkpoint(split("b"), removal("a001"))
    assert len(table.checkpoint(split("c"), compact=True)) == 1
    assert table.tombstones() == ()


@pytest.mark.parametrize("with_checkpoint_between", [False, True])
def test_a_path_that_was_removed_and_came_back_is_live_once(table: Table, *, with_checkpoint_between: bool) -> None:
    table.checkpoint(*many("a", 40))
    table.commit(removal("a003"))
    if with_checkpoint_between:
        table.checkpoint()
    table.checkpoint(split("a003", rows=5))
    assert len(table.log.snapshot().splits) == 40
    assert table.log.snapshot().splits[split("a003").path].numRecords == 5
    assert table.tombstones() == ()
    table.checkpoint(removal("a003"))
    assert split("a003").path not in table.log.snapshot().splits


def test_a_split_whose_vector_changes_is_listed_once_and_goes_as_one(table: Table) -> None:
    table.checkpoint(*many("a", 40))
    live = table.log.snapshot().splits[split("a003").path]
    changed = replace(live, deletionVector=inline([0]))
    head = table.commit(changed)
    assert len(head.splits) == len(table.log.snapshot().splits) == 40
    assert table.log.snapshot().splits.table().num_rows == 40
    table.checkpoint()
    assert table.log.snapshot().splits[changed.path].deletionVector == inline([0])
    deleted = table.commit(removal("a003"))
    assert len(deleted.splits) == len(table.log.snapshot().splits) == 39
    table.checkpoint()


def test_a_new_split_with_a_vector_that_goes_again_is_counted_right(table: Table) -> None:
    table.checkpoint(*many("a", 40))
    table.commit(replace(split("new", rows=2), deletionVector=inline([1])))
    assert len(table.log.snapshot().splits) == 41
    deleted = table.commit(removal("new"))
    assert len(deleted.splits) == len(table.log.snapshot().splits) == 40
    table.checkpoint()


def test_a_manifest_that_cannot_be_read_costs_time_and_no_answer(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    (first,) = table.checkpoint(*many("a", 40))
    table.checkpoint(split("b"), removal("a001"))
    table.store.delete([first])
    with caplog.at_level(logging.WARNING):
        assert table.log.snapshot() == table.replayed()
    assert first in caplog.text
    # The new state contains nothing of the damaged state.
    assert first not in table.checkpoint(split("c"))


def test_without_the_version_files_a_manifest_that_cannot_be_read_is_named(table: Table) -> None:
    (first,) = table.checkpoint(*many("a", 40))
    table.store.delete([version_key(0), version_key(1), first])
    with pytest.raises(Corrupt, match=first):
        table.log.snapshot().splits.table()


def test_a_state_that_was_collected_while_it_was_read_is_an_expired_snapshot(table: Table) -> None:
    (first,) = table.checkpoint(*many("a", 40))
    reader = table.log.snapshot()
    table.store.delete([version_key(0), version_key(1), first, state_key(1), last_checkpoint_key()])
    with pytest.raises(SnapshotExpired, match="Open a newer version"):
        list(reader.splits)


@pytest.mark.parametrize("more", [-1, 1])
def test_a_state_that_counts_other_files_than_its_manifests_list_is_corrupt(table: Table, more: int) -> None:
    table.checkpoint(*many("a", 40))
    table.checkpoint(removal("a001"))
    head = table.log.snapshot()
    state, listed = read_state(table.store, head.version), head.splits.listed
    assert listed is not None
    wrong = replace(state, num_files=state.num_files + more)
    with pytest.raises(
        Corrupt, match=f"expected {39 + more} live files, but its manifests list 40 files, of which 1 are removed"
    ):
        snapshot_of(wrong, listed, head.txns, metadata=head.metadata, where="a state")


def test_a_process_with_an_old_state_behind_it_shares_the_newest_one(table: Table) -> None:
    table.checkpoint(*many("a", 40))
    old = table.log.snapshot()
    newest = table.checkpoint(*many("b", 40), compact=True)
    late = table.log.commit(old, [split("c")], operation="X").snapshot
    assert late.checkpoint_version == 1
    written = table.log.checkpoint(late)
    assert written.snapshot == table.replayed()
    assert manifest_keys(read_state(table.store, late.version))[:-1] == newest


def test_two_writers_of_one_state_go_on_with_the_one_that_is_stored(table: Table) -> None:
    table.checkpoint(*many("a", 40))
    table.commit(split("b"))
    one, other = table.log.snapshot(), table.replayed()
    stored = table.log.checkpoint(one)
    late = log_on(table.store, seed=9).checkpoint(other)
    assert (stored.written, late.written) == (True, False)
    assert late.snapshot.splits.listed is not None
    named = {part.info.path for part in late.snapshot.splits.listed.parts}
    assert named == {info.path for info in read_state(table.store, one.version).manifests}
