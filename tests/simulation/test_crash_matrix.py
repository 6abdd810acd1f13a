"""Kill a process at each request of each operation, before or after the request takes effect. Others continue.

One put commits an operation. After this put took effect, every reader sees the operation. Before this put, no reader
sees the operation. `OPERATIONS` contains all operations. A new operation needs one more entry in `OPERATIONS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest

from storage_core.base.errors import NotFound
from storage_core.data.formats.keys import json_checkpoint_key, state_key, tags_key, version_key
from storage_core.data.settings.table import CheckpointFormat, TableConfig
from storage_core.log.actions import Action, Fence, MergedGenerations, MergeSkip, RemoveIndexSegment, Txn
from storage_core.log.conflicts import MergeProgress, Requirement
from storage_core.log.deletion_vector import inline
from storage_core.log.log import TransactionLog, compact_state, drop_expired, read_tags, remove_tag
from storage_core.maintain.history import restore, set_tag
from storage_core.store.contract import IfAbsent, ObjectStore, exists
from storage_core.store.memory import MemoryStore
from tests.support.clock import START_MS, ManualClock
from tests.support.copies import contents, copy_of
from tests.support.fault_store import Crash, CrashFault, FaultStore
from tests.support.ids import SeededIds
from tests.support.log_oracle import LogOracle, State, state_of
from tests.support.log_tables import INDEX, log_on, metadata, removal, segment, split

COMMIT_ID = SeededIds(1_000).uuid()
REGION = "0b8cf3f4-6c0e-4f5e-9c37-1de3a3c65c4f"
SPLITS = [f"s{number}" for number in range(12)]

Run = Callable[[TransactionLog], object]


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of one process on a table. The operations in `before` ran earlier.

    `decides` is the key whose put makes the operation visible. `decides` is None for an operation that writes only
    derived objects, because readers see no change. `result` is the key of an object that the complete operation must
    have written.
    """

    name: str
    run: Run
    decides: Callable[[int], str] | None
    before: Run = lambda _: None
    result: Callable[[int], str] | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """All that a reader can see of a table."""

    version: int
    state: State
    tags: dict[str, int]


@dataclass(frozen=True, slots=True)
class Point:
    """The number of the request at which the process ends, and whether that request took effect."""

    number: int
    side: CrashFault


def committing(*actions: Action, requirements: tuple[Requirement, ...] = ()) -> Run:
    """Return a commit of a restartable job: the commit has its own ID."""

    def run(log: TransactionLog) -> None:
        log.commit(log.snapshot(), actions, operation="TEST", requirements=requirements, commit_id=COMMIT_ID)

    return run


def after_commits(*commits: tuple[Action, ...]) -> Run:
    def run(log: TransactionLog) -> None:
        for actions in commits:
            log.commit(log.snapshot(), actions, operation="BEFORE")

    return run


def checkpointed(log: TransactionLog) -> None:
    log.checkpoint(log.snapshot())


def a_state_and_many_removals(log: TransactionLog) -> None:
    """Remove more than a tenth of the content of the state."""
    checkpointed(log)
    after_commits(tuple(removal(name) for name in SPLITS[:5]))(log)


def a_state_and_a_few_additions(log: TransactionLog) -> None:
    checkpointed(log)
    after_commits((split("new"),), (removal(SPLITS[0]),))(log)


def a_state_of_several_manifests(log: TransactionLog) -> None:
    a_state_and_a_few_additions(log)
    checkpointed(log)


def state_compacted(log: TransactionLog) -> None:
    compact_state(log, log.snapshot())


def checkpoints_as(form: CheckpointFormat) -> Run:
    def run(log: TransactionLog) -> None:
        snapshot = log.snapshot()
        config = replace(snapshot.config, checkpoint_format=form)
        changed = replace(snapshot.metadata, configuration=config.to_configuration())
        log.commit(snapshot, [changed], operation="CHANGE")

    return run


def changed_metadata(log: TransactionLog) -> None:
    snapshot = log.snapshot()
    changed = replace(snapshot.metadata, description="another")
    log.commit(snapshot, [changed], operation="CHANGE", commit_id=COMMIT_ID)


def restored(log: TransactionLog) -> None:
    target = log.snapshot(version=1)
    restore(log, target, commit_id=COMMIT_ID)


def tagged_with(name: str, version: int, *, expires_at_ms: int | None = None) -> Run:
    def run(log: TransactionLog) -> None:
        target = log.snapshot(version=version)
        set_tag(log, name, target, expires_at_ms=expires_at_ms)

    return run


def untagged(log: TransactionLog) -> None:
    with suppress(NotFound):  # already removed before the process ended
        remove_tag(log, "nightly")


def expired_tags_dropped(log: TransactionLog) -> None:
    drop_expired(log, now_ms=START_MS + 10**9)


def next_version(head: int) -> str:
    return version_key(head + 1)


def tags(_head: int) -> str:
    return tags_key()


OPERATIONS = (
    Operation("append", committing(split("a"), split("b")), next_version),
    Operation(
        "append that a checkpoint follows",
        committing(split("a")),
        next_version,
        after_commits(*[(split(f"n{n}"),) for n in range(6)]),
    ),
    Operation("compaction", committing(removal("s0"), removal("s1"), split("c")), next_version, checkpointed),
    Operation(
        "merge",
        committing(
            removal("s0"),
            split("m"),
            MergedGenerations(region=REGION, generation=1),
            Fence(resource=REGION, token=2),
            Txn(appId="merge", version=1),
            requirements=(MergeProgress(REGION, 0),),
        ),
        next_version,
    ),
    Operation("deletion of rows", committing(replace(split("s0"), deletionVector=inline((0,)))), next_version),
    Operation("index segment", committing(segment("i", "s0", "s1")), next_version),
    Operation(
        "removal of an index segment",
        committing(RemoveIndexSegment(index=INDEX.name, path=segment("i").path)),
        next_version,
        after_commits((segment("i", "s0"),)),
    ),
    Operation(
        "skip", committing(MergeSkip(path=split("s0").path, skipTimestamp=1, reason="r", operation="o")), next_version
    ),
    Operation("metadata change", changed_metadata, next_version),
    Operation("first checkpoint", checkpointed, None, result=state_key),
    Operation("later checkpoint", checkpointed, None, a_state_and_a_few_additions, result=state_key),
    Operation("state compaction", checkpointed, None, a_state_and_many_removals, result=state_key),
    Operation("state compaction on request", state_compacted, None, a_state_and_a_few_additions, result=state_key),
    Operation(
        "state compaction on request of a version that has one",
        state_compacted,
        next_version,
        a_state_of_several_manifests,
        result=lambda head: state_key(head + 1),
    ),
    Operation("JSON checkpoint", checkpointed, None, checkpoints_as("json"), result=json_checkpoint_key),
    Operation(
        "JSON checkpoint in parts", checkpointed, None, checkpoints_as("json-multipart"), result=json_checkpoint_key
    ),
    Operation(
        "restore", restored, next_version, after_commits((removal("s0"), split("late")), (segment("i", "late"),))
    ),
    Operation("new tag", tagged_with("nightly", 1), tags, after_commits((split("late"), removal("s3")))),
    Operation("moved tag", tagged_with("nightly", 2), tags, tagged_with("nightly", 1)),
    Operation("removed tag", untagged, tags, tagged_with("nightly", 1)),
    Operation(
        "expired tags dropped", expired_tags_dropped, tags, tagged_with("nightly", 1, expires_at_ms=START_MS + 10**6)
    ),
)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_a_process_may_end_at_any_request_and_others_go_on(operation: Operation) -> None:
    start = table(operation)
    head = log_on(start).snapshot().version
    before, after, requests = reference(operation, start)
    decisive = [number for number, put in enumerate(requests) if operation.decides and put == operation.decides(head)]
    assert (before == after) == (operation.decides is None)
    assert len(decisive) == (operation.decides is not None), "exactly one put decides"

    judged: list[tuple[dict[str, bytes], Seen]] = []
    for point in points(len(requests)):
        left = crashed(operation, start, point)
        committed = bool(decisive) and (point.number, point.side is CrashFault.AFTER) >= (decisive[0], True)
        case = (contents(left), after if committed else before)
        if case in judged:
            continue  # a request that only reads changes no object, so this case was already checked
        judged.append(case)
        readers_see(left, case[1])
        another_writer_goes_on(copy_of(left), case[1])
        the_next_process_finishes(operation, left, after, head)
    assert len(judged) > 1, "a process that ends early leaves something else behind than one that ends late"
    assert [each for each in (before, after) if each not in [expected for _, expected in judged]] == []
    message = f"{2 * len(requests)} points at {len(requests)} requests leave {len(judged)} different tables behind"
    print(f"{operation.name}: {message}")  # noqa: T201 -- shown by `pytest -rA`


def table(operation: Operation) -> MemoryStore:
    """Return a table with twelve splits from two commits, and run the operations in `before` on the table."""
    store = MemoryStore("table", clock=ManualClock())
    log = log_on(store, seed=1)
    log.create(metadata(TableConfig(checkpoint_interval=9, indexes=(INDEX,))))
    for name in [*SPLITS, "late", "new"]:
        store.put(split(name).path, b"rows", IfAbsent())
    log.commit(log.snapshot(), [split(name) for name in SPLITS[:8]], operation="FIRST")
    log.commit(log.snapshot(), [split(name) for name in SPLITS[8:]], operation="SECOND")
    operation.before(log)
    return store


def reference(operation: Operation, start: MemoryStore) -> tuple[Seen, Seen, list[str]]:
    """Run the operation without faults.

    Return the view before and after the operation, and the key of each put. For a request that is not a put, the key is
    empty.
    """
    store = FaultStore(copy_of(start))
    before = seen(start)
    operation.run(log_on(store, seed=2))
    requests = [each.request.key if each.request.kind == "put" else "" for each in store.trace]
    return before, seen(store), requests


def points(requests: int) -> Iterator[Point]:
    for number in range(requests):
        for side in CrashFault:
            yield Point(number, side)


def crashed(operation: Operation, start: MemoryStore, point: Point) -> MemoryStore:
    """Return the objects that remain when the process ends at `point`."""
    objects = copy_of(start)
    store = FaultStore(objects)
    store.at(point.number, point.side)
    with pytest.raises(Crash):
        operation.run(log_on(store, seed=2))
    assert len(store.trace) == point.number + 1
    return objects


def readers_see(store: MemoryStore, expected: Seen) -> None:
    """Assert that every way to open the table returns `expected`, and that `expected` matches the version files."""
    assert seen(store) == expected
    oracle, log = LogOracle(store), log_on(store, seed=3)
    oracle.check_versions()
    oracle.check_opening(log)
    oracle.check_travel(log, expected.version)


def another_writer_goes_on(store: MemoryStore, expected: Seen) -> None:
    """Commit and checkpoint from a new process that has not seen the operation."""
    log = log_on(store, seed=4)
    added = split("another")
    result = log.commit(log.snapshot(), [added], operation="APPEND")
    log.checkpoint(result.snapshot)
    state = {**expected.state, "live": {**expected.state["live"], added.path: added}}
    readers_see(store, replace(expected, version=expected.version + 1, state=state))


def the_next_process_finishes(operation: Operation, store: MemoryStore, after: Seen, head: int) -> None:
    """Run the killed operation again. Assert that the operation takes effect once and the table stays usable."""
    operation.run(log_on(store, seed=5))
    readers_see(store, after)
    if operation.result is not None:
        assert exists(store, operation.result(head))
    another_writer_goes_on(store, after)


def seen(store: ObjectStore) -> Seen:
    snapshot = log_on(store, seed=6).snapshot()
    return Seen(
        snapshot.version,
        state_of(snapshot),
        {name: tag.version for name, tag in read_tags(store).by_name.items()},
    )
