"""The expected content of a transaction log, in plain dictionaries, without snapshots, states or hints.

The oracle replays the version files a second time in the simplest way. Tests compare every answer of the log with this
replay, no matter how the log was opened and what failed before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from storage_core.base.errors import NotFound
from storage_core.data.formats.keys import LOG_PREFIX, last_checkpoint_key, parse, version_key
from storage_core.data.formats.kinds import KeyKind
from storage_core.log.actions import (
    Action,
    Add,
    CommitInfo,
    Fence,
    IndexSegment,
    MergedGenerations,
    MergeSkip,
    Metadata,
    Protocol,
    Remove,
    RemoveIndexSegment,
    RemoveTranslation,
    Translation,
    Txn,
)
from storage_core.log.codec import decode_version
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.store.contract import ObjectStore
from storage_core.store.memory import MemoryStore
from tests.support.copies import copy_of

State = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ToldVersion:
    """One version as its file describes it, and the state of the table after this version."""

    version: int
    commit_id: str
    timestamp: int
    actions: tuple[Action, ...]
    state: State


@dataclass(slots=True)
class LogOracle:
    """The versions of a log, read from `store` without faults. Each file is read once, because it never changes."""

    store: ObjectStore
    versions: list[ToldVersion] = field(default_factory=list)

    def read(self) -> list[ToldVersion]:
        """Read the new versions and return all versions."""
        while (actions := self._next()) is not None:
            info, *others = actions
            assert isinstance(info, CommitInfo), "the first line of a version file says who committed it"
            state = self.versions[-1].state if self.versions else _nothing()
            after = _applied(state, others)
            version = len(self.versions)
            self.versions.append(ToldVersion(version, info.commitId, info.timestamp, tuple(others), after))
        return self.versions

    def find(self, commit_id: str) -> int | None:
        """Return the version that a commit created, or None."""
        return next((each.version for each in self.read() if each.commit_id == commit_id), None)

    def check_snapshot(self, snapshot: Snapshot) -> None:
        """Assert that the snapshot equals the replay of all version files up to its version."""
        version = self.read()[snapshot.version]
        assert state_of(snapshot) == version.state, f"the snapshot of version {version.version} is not its state"
        assert snapshot.timestamp == version.timestamp, f"the time of version {version.version}"

    def check_versions(self) -> None:
        """Assert that versions have no gap, each commit and work unit occurs once, and times and progress only grow."""
        versions = self.read()
        parsed = [parse(info.key) for info in self.store.list(LOG_PREFIX)]
        numbers = [each.version for each in parsed if each is not None and each.kind is KeyKind.VERSION]
        assert sorted(number for number in numbers if number is not None) == list(range(len(versions))), "a gap"
        assert len({each.commit_id for each in versions}) == len(versions), "a commit landed twice"
        for before, after in pairwise(versions):
            assert before.timestamp < after.timestamp, f"time went back at version {after.version}"
            for action in after.actions:
                _check_progress(before.state, action)

    def check_opening(self, log: TransactionLog) -> None:
        """Assert that the log opens at the newest version: with the hint, without the hint, and without all states."""
        head = log.snapshot()
        assert head.version == len(self.read()) - 1, "the head is not the newest version"
        self.check_snapshot(head)
        for copy in (without_hint(self.store), version_files(self.store)):
            assert TransactionLog(copy, clock=log.clock, ids=log.ids).snapshot() == head, "it matters how it is opened"

    def check_travel(self, log: TransactionLog, version: int) -> None:
        """Assert that a version opens by number, by time, and by the last millisecond before the next version."""
        expected = log.snapshot(version=version)
        self.check_snapshot(expected)
        versions = self.read()
        last = versions[version + 1].timestamp - 1 if version + 1 < len(versions) else versions[version].timestamp + 10
        for instant in {versions[version].timestamp, last}:
            assert log.snapshot(timestamp_ms=instant) == expected, f"version {version} is not what {instant} ms opens"

    def _next(self) -> list[Action] | None:
        key = version_key(len(self.versions))
        try:
            return decode_version(self.store.get(key).data, key)
        except NotFound:
            return None


def state_of(snapshot: Snapshot) -> State:
    """Return a snapshot as plain dictionaries."""
    return {
        "live": dict(snapshot.splits.items()),
        "skips": dict(snapshot.mergeskips),
        "txns": dict(snapshot.txns),
        "fences": dict(snapshot.fences),
        "generations": dict(snapshot.merged_generations),
        "segments": dict(snapshot.segments),
        "translations": dict(snapshot.translations),
        "table": {"metadata": snapshot.metadata, "protocol": snapshot.protocol},
    }


def without_hint(store: ObjectStore) -> MemoryStore:
    """Return a copy of a store without its checkpoint hint."""
    return copy_of(store, wanted=lambda key: key != last_checkpoint_key())


def version_files(store: ObjectStore) -> MemoryStore:
    """Return only the version files of a table, without hint and states."""
    return copy_of(store, wanted=lambda key: (found := parse(key)) is not None and found.kind is KeyKind.VERSION)


def _nothing() -> State:
    return {
        name: {} for name in ("live", "skips", "txns", "fences", "generations", "segments", "translations", "table")
    }


def _check_progress(before: State, action: Action) -> None:
    match action:
        case Txn():
            assert action.version > before["txns"].get(action.appId, action.version - 1), f"{action} landed twice"
        case MergedGenerations():
            assert action.generation > before["generations"].get(action.region, 0), f"{action} landed late"
        case Fence():
            assert action.token >= before["fences"].get(action.resource, action.token), f"{action} is a zombie's"
        case _:
            pass


def _applied(state: State, actions: list[Action]) -> State:
    after = {name: dict(values) for name, values in state.items()}
    for action in actions:
        match action:
            case Add():
                after["live"][action.path] = action
            case Remove():
                del after["live"][action.path]
                after["skips"].pop(action.path, None)
            case MergeSkip():
                after["skips"][action.path] = action
            case Txn():
                after["txns"][action.appId] = max(action.version, after["txns"].get(action.appId, action.version))
            case Fence():
                token = max(action.token, after["fences"].get(action.resource, action.token))
                after["fences"][action.resource] = token
            case MergedGenerations():
                after["generations"][action.region] = action.generation
            case IndexSegment():
                after["segments"][action.path] = action
            case RemoveIndexSegment():
                del after["segments"][action.path]
            case Translation():
                after["translations"][action.path] = action
            case RemoveTranslation():
                del after["translations"][action.path]
            case Metadata():
                after["table"]["metadata"] = action
            case Protocol():
                after["table"]["protocol"] = action
            case _:
                pass
    return after
