"""Random commits, checkpoints and losses: the state of a table never depends on how it was loaded.

The oracle is a dictionary.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from storage_core.data.formats.keys import last_checkpoint_key, state_key, version_key
from storage_core.data.settings.table import TableConfig
from storage_core.log import checkpoint_writing
from storage_core.log.actions import (
    Action,
    Fence,
    MergedGenerations,
    MergeSkip,
    RemoveIndexSegment,
    RemoveTranslation,
    RemoveTxn,
    Txn,
)
from storage_core.log.checkpoint import manifest_keys, read_state
from storage_core.log.conflicts import PRUNING, pruning
from storage_core.log.listing import list_log
from storage_core.log.snapshot import Snapshot
from storage_core.store.contract import IfAbsent, Overwrite
from storage_core.store.memory import MemoryStore
from tests.support.clock import START_MS, ManualClock
from tests.support.log_tables import INDEX, log_on, metadata, removal, segment, split, translation
from tests.support.scale import scaled

SMALL = st.integers(0, 3)


@pytest.fixture(scope="module", autouse=True)
def columns() -> Iterator[None]:
    """Store the transactions of a state as columns if there are two or more.

    Merge the objects of these columns often.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_writing, "MOST_LINES", 1)
        patch.setattr(checkpoint_writing, "ENTRIES_PER_OBJECT", 2)
        patch.setattr(checkpoint_writing, "MAX_SMALL_OBJECTS", 3)
        yield


class LogMachine(RuleBasedStateMachine):
    """A table, the snapshot that each commit returned, and a model of the live splits."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore("t")
        self.clock = ManualClock()
        self.log = log_on(self.store, clock=self.clock)
        self.returned: list[Snapshot] = []
        self.live: dict[str, int] = {}
        self.names = 0

    @initialize(interval=st.sampled_from([0, 2, 5]))
    def create(self, interval: int) -> None:
        self.returned = [self.log.create(metadata(TableConfig(checkpoint_interval=interval, indexes=(INDEX,))))]

    @rule(
        added=st.integers(0, 3),
        removed=SMALL,
        indexed=st.booleans(),
        progress=st.sets(st.sampled_from(["txn", "fence", "generation", "skip", "drop", "move", "idle"])),
        step=st.sampled_from([-3_600_000, -1, 0, 1, 1000]),
        behind=SMALL,
    )
    def commit(self, added: int, removed: int, indexed: bool, progress: set[str], step: int, behind: int) -> None:
        self.clock.now += step
        version = len(self.returned)
        fresh = [f"n{self.names + number}" for number in range(added)]
        deleted = list(self.live)[:removed]
        actions: list[Action] = [*(split(name) for name in fresh), *(removal(name) for name in deleted)]
        if indexed and fresh:
            actions.append(segment(f"s{version}", *fresh))
        actions += self._progress(progress, version, deleted)
        if not actions:
            return
        # If a commit records transactions, its plan must be newer than the last version that pruned transactions.
        since = self.returned[-1].fences.get(PRUNING, 0)
        planned = self.returned[max(since, len(self.returned) - 1 - behind)]
        result = self.log.commit(planned, actions, operation="TEST")
        assert result.version == version
        self.names += added
        self.live = {name: at for name, at in self.live.items() if name not in deleted} | dict.fromkeys(fresh, version)
        self.returned.append(result.snapshot)

    def _progress(self, kinds: set[str], version: int, deleted: list[str]) -> list[Action]:
        kept = [name for name in self.live if name not in deleted]
        segments = sorted(self.returned[-1].segments)
        moved = sorted(self.returned[-1].translations)
        region, merged = f"g{version % 2}", self.returned[-1].merged_generations
        possible: dict[str, list[Action]] = {
            "txn": [Txn(appId=f"job{version % 3}", version=version)],
            "fence": [Fence(resource=f"r{version % 2}", token=version)],
            "generation": [MergedGenerations(region=region, generation=merged.get(region, 0) + 1)],
            "skip": [
                MergeSkip(path=split(name).path, skipTimestamp=version, reason="r", operation="o") for name in kept[:1]
            ],
            "drop": [RemoveIndexSegment(index=INDEX.name, path=path) for path in segments[:1]],
            "move": [translation(f"m{version}", {split(name).path: 3 for name in self.live}, f"o{version}")],
            "idle": [Txn(appId="idle", version=version), *(RemoveTranslation(path=path) for path in moved[:1])],
        }
        return [action for kind in sorted(kinds) for action in possible[kind]]

    @precondition(lambda self: bool(self.returned and self.returned[-1].txns))
    @rule(pick=st.integers(0, 100))
    def prune(self, pick: int) -> None:
        head = self.returned[-1]
        app_id = sorted(head.txns)[pick % len(head.txns)]
        found = self.log.commit(head, [RemoveTxn(appId=app_id), pruning(head)], operation="TEST").snapshot
        assert dict(found.txns) == {each: version for each, version in head.txns.items() if each != app_id}
        self.returned.append(found)

    @rule(back=st.integers(0, 4))
    def checkpoint(self, back: int) -> None:
        self.log.checkpoint(self.returned[max(0, len(self.returned) - 1 - back)])

    @rule(kind=st.sampled_from(["missing", "empty", "torn", "stale", "ahead"]), at=st.integers(0, 30))
    def damage_the_hint(self, kind: str, at: int) -> None:
        if kind == "missing":
            self.store.delete([last_checkpoint_key()])
            return
        version = {"stale": at % len(self.returned), "ahead": len(self.returned) + at}.get(kind, 0)
        body = b'{"version": %d, "format": "avro-state"}' % version
        data = {"empty": b"", "torn": body[: at % len(body)]}.get(kind, body)
        self.store.put(last_checkpoint_key(), data, Overwrite())

    @precondition(lambda self: bool(list_log(self.store).checkpoints))
    @rule(pick=st.integers(0, 100), manifests=st.booleans())
    def lose_a_state(self, pick: int, manifests: bool) -> None:
        states = [each.version for each in list_log(self.store).checkpoints]
        version = states[pick % len(states)]
        keys = manifest_keys(read_state(self.store, version)) if manifests else (state_key(version),)
        self.store.delete(keys)

    @rule(pick=st.integers(0, 100))
    def open_a_version_and_its_timestamp(self, pick: int) -> None:
        expected = self.returned[pick % len(self.returned)]
        assert self.log.snapshot(version=expected.version) == expected
        assert self.log.snapshot(timestamp_ms=expected.timestamp) == expected

    @invariant()
    def the_head_is_what_the_last_commit_returned_and_what_a_full_replay_gives(self) -> None:
        if not self.returned:
            return
        found = self.log.snapshot()
        assert found == self.returned[-1]
        assert found == self._replayed()
        assert {path: found.splits.added_at(path)[0] for path in found.splits} == {
            split(name).path: version for name, version in self.live.items()
        }

    def teardown(self) -> None:
        for expected in self.returned:
            assert self.log.snapshot(version=expected.version) == expected
            assert expected.timestamp >= START_MS

    def _replayed(self) -> Snapshot:
        bare = MemoryStore("bare")
        for version in range(len(self.returned)):
            bare.put(version_key(version), self.store.get(version_key(version)).data, IfAbsent())
        return log_on(bare).snapshot()


LogMachine.TestCase.settings = settings(max_examples=scaled(60), stateful_step_count=20)
test_the_log_answers_the_same_however_it_is_loaded = LogMachine.TestCase
