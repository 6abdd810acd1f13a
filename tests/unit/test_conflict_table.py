"""Every cell of the conflict table (design "Committing"), and its additional rules (lessons 13, 25 and 26)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pytest

from storage_core.base.errors import CommitConflict, Corrupt, Fenced, InvalidInput
from storage_core.data.formats.avro_state import ManifestInfo
from storage_core.data.formats.keys import version_key
from storage_core.data.rows.schema import to_schema_string
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import (
    MAX_TIME_MS,
    Action,
    Add,
    CommitInfo,
    Fence,
    IndexSegment,
    MergedGenerations,
    Metadata,
    Protocol,
    Remove,
    RemoveIndexSegment,
    RemoveTxn,
    Txn,
)
from storage_core.log.codec import encode_version
from storage_core.log.conflicts import PRUNING, AtVersion, MergeProgress, Plan, Requirement, settle
from storage_core.log.deletion_vector import inline, stored
from storage_core.log.live_splits import Added, ListedFiles, LiveFiles, Part
from storage_core.log.log import TransactionLog
from storage_core.log.snapshot import Snapshot
from storage_core.store.contract import IfAbsent
from storage_core.store.memory import MemoryStore
from tests.support.log_tables import INDEX, SCHEMA, log_on, metadata, removal, segment, split

BASE = TableConfig(checkpoint_interval=0, indexes=(INDEX,))
OLD = segment("old", "f")
OLD_FILE = Txn(appId="landed:old", version=1)


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit for one row or one column of `TABLE`. The commit was planned on the table of the fixture."""

    actions: tuple[Action, ...]
    requirements: tuple[Requirement, ...] = ()


def vector(name: str, *rows: int) -> Add:
    return replace(split(name, 10), deletionVector=inline(rows))


def settings(**changed: object) -> Metadata:
    return metadata(replace(BASE, **changed))  # type: ignore[arg-type]  # settings by name


def drop_index() -> tuple[Action, ...]:
    return settings(indexes=()), RemoveIndexSegment(index=INDEX.name, path=OLD.path)


def merged(region: str, generation: int) -> MergedGenerations:
    return MergedGenerations(region=region, generation=generation)


def prune() -> Commit:
    """Return the commit that prunes the transaction of the fixture. The prune was planned on version 1."""
    return Commit((RemoveTxn(appId="landed:old"), Fence(resource=PRUNING, token=2)))


# Region r has merged generation 1. The splits a to f are live, and a segment covers f. A landed file is ingested.
THEIRS: Mapping[str, Commit | None] = {
    "append": Commit((split("new"),)),
    "merge r": Commit((split("rows"), vector("c", 1), merged("r", 2)), (MergeProgress("r", 1),)),
    "merge q": Commit((split("rows"), vector("c", 1), merged("q", 1)), (MergeProgress("q", 0),)),
    "delete a": Commit((vector("a", 3),)),
    "compact c d": Commit((removal("c"), removal("d"), split("cd"))),
    "compact a b": Commit((removal("a"), removal("b"), split("other ab"))),
    "index c": Commit((segment("other", "c"),)),
    "index a": Commit((segment("other", "a"),)),
    "upkeep": Commit((settings(target_split_bytes=1),)),
    "window": Commit((settings(window_seconds=900),)),
    "drop idx": Commit(drop_index()),
    "checkpoint": None,
    "ingest": Commit((split("landed"), Txn(appId="landed:new", version=1))),
    "prune": prune(),
}
MINE: Mapping[str, Commit | None] = {
    "append": Commit((split("mine"),)),
    "merge r": Commit((split("mine"), vector("a", 1, 2), merged("r", 2)), (MergeProgress("r", 1),)),
    "merge r 3-4": Commit((split("mine"), merged("r", 4)), (MergeProgress("r", 2),)),
    "compact a b": Commit((removal("a"), removal("b"), split("ab"))),
    "index a": Commit((segment("mine", "a"), segment("also mine", "e"))),
    "index a+e": Commit((segment("mine", "a", "e"),)),
    "upkeep": Commit((settings(gc_horizon_ms=1),)),
    "drop idx": Commit(drop_index()),
    "checkpoint": None,
    "ingest": Commit((split("mine"), Txn(appId="landed:mine", version=1))),
    "prune": prune(),
}

# Each row is a commit "mine", and each column is a commit "theirs" that came first. "ok" means that "mine" can still be
# committed. "abort" means that "mine" writes nothing and must be planned again. "drop" means that "mine" commits
# without the index segment of a split that "theirs" removed.
TABLE = """
mine \\ theirs | append | merge r | merge q | delete a | compact c d | compact a b | index c | index a | upkeep | window | drop idx | checkpoint | ingest | prune
append        | ok     | ok      | ok      | ok       | ok          | ok          | ok      | ok      | ok     | abort  | ok       | ok          | ok     | ok
merge r       | ok     | abort   | ok      | abort    | ok          | abort       | ok      | ok      | ok     | abort  | ok       | ok          | ok     | ok
merge r 3-4   | abort  | ok      | abort   | abort    | abort       | abort       | abort   | abort   | abort  | abort  | abort    | abort       | abort  | abort
compact a b   | ok     | ok      | ok      | abort    | ok          | abort       | ok      | ok      | ok     | abort  | ok       | ok          | ok     | ok
index a       | ok     | ok      | ok      | ok       | ok          | drop        | ok      | abort   | ok     | ok     | abort    | ok          | ok     | ok
index a+e     | ok     | ok      | ok      | ok       | ok          | ok          | ok      | abort   | ok     | ok     | abort    | ok          | ok     | ok
upkeep        | ok     | ok      | ok      | ok       | ok          | ok          | ok      | ok      | abort  | abort  | abort    | ok          | ok     | ok
drop idx      | ok     | ok      | ok      | ok       | ok          | ok          | abort   | abort   | abort  | abort  | abort    | ok          | ok     | ok
checkpoint    | ok     | ok      | ok      | ok       | ok          | ok          | ok      | ok      | ok     | ok     | ok       | ok          | ok     | ok
ingest        | ok     | ok      | ok      | ok       | ok          | ok          | ok      | ok      | ok     | abort  | ok       | ok         | ok     | abort
prune        | abort  | abort   | abort   | abort    | abort       | abort       | abort   | abort   | abort  | abort  | abort    | ok         | abort  | abort
"""  # noqa: E501  # it is read as the page's table is


def _cells() -> Iterator[tuple[str, str, str]]:
    (_, *columns), *rows = ([cell.strip() for cell in line.split("|")] for line in TABLE.strip().splitlines())
    assert columns == list(THEIRS)
    assert [row[0] for row in rows] == list(MINE)
    for mine, *outcomes in rows:
        for theirs, outcome in zip(columns, outcomes, strict=True):
            yield mine, theirs, outcome


@pytest.fixture
def log() -> TransactionLog:
    log = log_on(MemoryStore("t"))
    head = log.create(metadata(BASE))
    log.commit(head, [*(split(name, 10) for name in "abcdef"), OLD, merged("r", 1), OLD_FILE], operation="TEST")
    return log


def _land(log: TransactionLog, planned: Snapshot, commit: Commit | None) -> Snapshot:
    if commit is None:
        log.checkpoint(planned)
        return log.snapshot()
    return log.commit(planned, commit.actions, operation="TEST", requirements=commit.requirements).snapshot


def _holds(action: Action, head: Snapshot) -> bool:
    match action:
        case Add():
            return head.splits.get(action.path) == action
        case Remove():
            return action.path not in head.splits
        case IndexSegment():
            return head.segments.get(action.path) == action
        case RemoveIndexSegment():
            return action.path not in head.segments
        case MergedGenerations():
            return head.merged_generations[action.region] == action.generation
        case Metadata():
            return head.metadata.configuration == action.configuration
        case Txn():
            return head.txns.get(action.appId) == action.version
        case RemoveTxn():
            return action.appId not in head.txns
        case Fence():
            return head.fences.get(action.resource) == action.token
        case _:
            raise AssertionError(f"no operation of the table commits {action.NAME!r}")


def _content(snapshot: Snapshot) -> list[object]:
    """Return everything that a commit can change, without times."""
    splits = {path: (add, snapshot.splits.added_at(path)[0]) for path, add in snapshot.splits.items()}
    return [snapshot.metadata, splits, snapshot.segments, snapshot.merged_generations, snapshot.fences, snapshot.txns]


def _replayed(planned: Snapshot, *commits: Sequence[Action]) -> Snapshot:
    """Apply the commits in order to the state they were planned on, and return the result."""
    for actions in commits:
        planned = Snapshot.apply(planned, planned.version + 1, actions)
    return planned


@pytest.mark.parametrize(("mine", "theirs", "outcome"), tuple(_cells()))
def test_every_cell_of_the_conflict_table(log: TransactionLog, mine: str, theirs: str, outcome: str) -> None:
    planned = log.snapshot()
    between = _land(log, planned, THEIRS[theirs])
    commit = MINE[mine]
    if outcome == "abort":
        with pytest.raises(CommitConflict, match=r"Plan.* again"):
            _land(log, planned, commit)
        assert log.snapshot() == between
        return
    found = _land(log, planned, commit)
    assert found == log.snapshot()
    actions = () if commit is None else commit.actions
    kept = [action for action in actions if outcome == "ok" or action != segment("mine", "a")]
    assert len(kept) == len(actions) - (outcome == "drop")
    assert all(_holds(action, found) for action in kept)
    other = THEIRS[theirs]
    commits = [each for each in (other.actions if other else (), kept) if each]
    assert _content(found) == _content(_replayed(planned, *commits))
    assert found.version == planned.version + len(commits)


# Merges.


def test_lesson_25_the_rows_of_an_older_merge_do_not_land_under_a_newer_progress(log: TransactionLog) -> None:
    planned = log.snapshot()
    _land(log, planned, Commit((split("2-3"), merged("r", 3)), (MergeProgress("r", 1),)))
    for late in (
        Commit((split("late"), merged("r", 2)), (MergeProgress("r", 1),)),
        Commit((split("late"), merged("r", 5)), (MergeProgress("r", 4),)),
        Commit((split("late"), merged("r", 3)), (MergeProgress("r", 3),)),
    ):
        with pytest.raises(CommitConflict, match="region r: generations up to 3 are merged"):
            _land(log, planned, late)
    found = log.snapshot()
    assert (found.version, found.merged_generations["r"]) == (2, 3)
    assert split("late").path not in found.splits


@pytest.mark.parametrize("generation", [0, 1, 3])
def test_a_merge_that_does_not_say_where_it_starts_is_of_one_generation(log: TransactionLog, generation: int) -> None:
    with pytest.raises(CommitConflict, match="region r"):
        _land(log, log.snapshot(), Commit((split("x"), merged("r", generation))))
    assert _land(log, log.snapshot(), Commit((merged("r", 2),))).merged_generations["r"] == 2


def test_a_plan_about_the_whole_table_follows_only_the_version_it_was_made_on(log: TransactionLog) -> None:
    planned = log.snapshot()
    _land(log, planned, THEIRS["append"])
    with pytest.raises(CommitConflict, match="planned on version 1, but the newest is 2"):
        _land(log, planned, Commit((split("x"),), (AtVersion(planned.version),)))


# Deletion vectors.


def test_lesson_26_a_compaction_never_brings_back_rows_that_were_deleted_meanwhile(log: TransactionLog) -> None:
    planned = _land(log, log.snapshot(), Commit((vector("a", 1),)))
    _land(log, planned, Commit((vector("a", 1, 2),)))
    with pytest.raises(CommitConflict, match=r"a\.parquet: rows of it were deleted or restored"):
        _land(log, planned, MINE["compact a b"])
    _land(log, log.snapshot(), MINE["compact a b"])
    assert split("ab").path in log.snapshot().splits


def test_a_compaction_that_applied_a_vector_does_not_replace_a_split_that_is_whole_again(log: TransactionLog) -> None:
    planned = _land(log, log.snapshot(), Commit((vector("a", 1),)))
    _land(log, planned, Commit((removal("a"),)))
    _land(log, log.snapshot(), Commit((split("a", 10),)))
    with pytest.raises(CommitConflict, match="deleted or restored"):
        _land(log, planned, MINE["compact a b"])


def test_two_deletes_from_one_split_never_undo_each_other(log: TransactionLog) -> None:
    planned = log.snapshot()
    _land(log, planned, Commit((vector("a", 1), vector("b", 1))))
    with pytest.raises(CommitConflict, match="changed between version 1 and 2"):
        _land(log, planned, Commit((vector("a", 2), vector("c", 2))))
    assert log.snapshot().splits[split("c").path].deletionVector is None


def test_no_row_is_deleted_from_a_split_that_the_plan_never_saw(log: TransactionLog) -> None:
    planned = log.snapshot()
    _land(log, planned, Commit((split("late", 10),)))
    with pytest.raises(CommitConflict, match=r"late\.parquet: changed"):
        _land(log, planned, Commit((vector("late", 2),)))


def test_an_add_of_a_live_split_changes_nothing_but_its_vector(log: TransactionLog) -> None:
    with pytest.raises(InvalidInput, match="An add can change only its deletion vector"):
        _land(log, log.snapshot(), Commit((replace(vector("a", 1), size=7),)))
    with pytest.raises(CommitConflict, match="live already"):
        _land(log, log.snapshot(), Commit((split("a", 10),)))
    found = _land(log, log.snapshot(), Commit((replace(vector("a", 1), dataChange=False),)))
    assert len(found.splits) == 6


def test_an_empty_vector_makes_a_live_split_whole_again(log: TransactionLog) -> None:
    _land(log, log.snapshot(), Commit((vector("a", 1),)))
    found = _land(log, log.snapshot(), Commit((vector("a"),)))
    live = found.splits[split("a").path].deletionVector
    assert live is not None
    assert live.cardinality == 0


def test_a_vector_of_no_rows_sends_a_stale_delete_back_and_no_compaction(log: TransactionLog) -> None:
    planned = log.snapshot()
    _land(log, planned, Commit((vector("a"),)))
    with pytest.raises(CommitConflict, match=r"a\.parquet: changed between version 1 and 2"):
        _land(log, planned, Commit((vector("a", 1),)))
    assert split("ab").path in _land(log, planned, MINE["compact a b"]).splits


def test_a_removed_split_comes_back_as_it_was_with_its_vector_or_without(log: TransactionLog) -> None:
    before = _land(log, log.snapshot(), Commit((vector("a", 1),)))
    head = _land(log, before, MINE["compact a b"])
    back = Commit((removal("ab"), vector("a", 1), split("b", 10)), (AtVersion(head.version),))
    assert dict(_land(log, head, back).splits) == dict(before.splits)


@pytest.mark.parametrize(
    ("add", "named"),
    [
        (vector("a", 10), "contains row 10, but the split has 10 rows"),
        (replace(vector("a", 1, 2), numRecords=1), "has 2 rows, but the split has 1"),
        (replace(vector("a"), deletionVector=replace(inline([1]), xxh3="0" * 16)), "expected xxh3-64 0000000000000000"),
        (replace(vector("a"), deletionVector=replace(inline([1]), cardinality=2)), "expected 2 rows, found 1"),
        (replace(vector("a"), deletionVector=replace(inline([1]), size=10_000_000_000)), "expected 10000000000 bytes"),
        (replace(vector("a"), deletionVector=replace(inline([1]), data="%")), "expected base64"),
    ],
)
def test_a_vector_that_is_not_what_it_says_is_never_committed(log: TransactionLog, add: Add, named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        _land(log, log.snapshot(), Commit((add,)))
    assert log.snapshot().version == 1


# Features.


def test_the_first_vector_of_a_table_tells_readers_and_writers_that_they_need_to_know_vectors(
    log: TransactionLog,
) -> None:
    before = log.snapshot().protocol
    found = _land(log, log.snapshot(), Commit((vector("a", 1),)))
    assert found == log.snapshot()
    assert found.protocol.readerFeatures == (*(before.readerFeatures or ()), "deletionVectors")
    assert found.protocol.writerFeatures == (*(before.writerFeatures or ()), "deletionVectors")
    again = _land(log, found, Commit((replace(split("b", 10), deletionVector=stored("_vectors/b", b":0" + bytes(6))),)))
    assert again.protocol == found.protocol
    assert settle(Plan(again, (vector("c", 1),)), again) == (vector("c", 1),)


def test_a_table_without_vectors_keeps_its_protocol(log: TransactionLog) -> None:
    before = log.snapshot().protocol
    assert _land(log, log.snapshot(), MINE["compact a b"]).protocol == before


# Idempotency by transaction.


def test_work_that_is_recorded_is_not_committed_again(log: TransactionLog) -> None:
    first = _land(log, log.snapshot(), Commit((split("new"), Txn(appId="landed:a.log", version=100))))
    for recorded in (100, 99):
        actions = (split("again"), Txn(appId="landed:a.log", version=recorded))
        again = log.commit(log.snapshot(), actions, operation="INGEST")
        assert (again.already_committed, again.version, again.snapshot) == (True, 2, first)
    newer = log.commit(log.snapshot(), (split("newer"), Txn(appId="landed:a.log", version=101)), operation="INGEST")
    assert not newer.already_committed
    assert set(log.snapshot().splits) == {*first.splits, split("newer").path}


def test_work_recorded_since_the_plan_is_found_on_rebase(log: TransactionLog) -> None:
    planned = log.snapshot()
    unit = Txn(appId="job", version=1)
    _land(log, planned, Commit((split("one"), unit)))
    assert log.commit(planned, (split("other"), unit), operation="INGEST").already_committed
    assert log.snapshot().version == 2


def test_work_that_is_recorded_in_part_conflicts(log: TransactionLog) -> None:
    _land(log, log.snapshot(), Commit((split("one"), Txn(appId="a", version=1))))
    both = Commit((split("both"), Txn(appId="a", version=1), Txn(appId="b", version=1)))
    with pytest.raises(CommitConflict, match="1 of 2 units"):
        _land(log, log.snapshot(), both)


# Fences, indexes, settings, and the cost of a commit.


def test_a_lower_token_is_fenced_whatever_else_the_commit_could_do(log: TransactionLog) -> None:
    planned = log.snapshot()
    _land(log, planned, Commit((Fence(resource="compact", token=5),)))
    with pytest.raises(Fenced, match="Stop"):
        _land(log, planned, Commit((split("x"), Fence(resource="compact", token=4))))
    assert _land(log, planned, Commit((split("x"), Fence(resource="compact", token=5)))).fences == {"compact": 5}


def test_two_segments_of_one_index_never_cover_one_split(log: TransactionLog) -> None:
    planned = log.snapshot()
    _land(log, planned, Commit((segment("s", "a"),)))
    with pytest.raises(CommitConflict, match=r"_indices/words/s\.seg of index .* already covers the split"):
        _land(log, planned, Commit((segment("t", "a", "b"),)))
    _land(log, planned, Commit((segment("u", "b"),)))
    instead = Commit((segment("v", "a"), RemoveIndexSegment(index=INDEX.name, path=segment("s").path)))
    assert set(_land(log, log.snapshot(), instead).segments) == {OLD.path, segment("u").path, segment("v").path}


def test_a_segment_whose_splits_are_all_gone_is_left_out(log: TransactionLog) -> None:
    planned = log.snapshot()
    _land(log, planned, MINE["compact a b"])
    found = _land(log, planned, Commit((segment("gone", "a"), segment("half", "b", "c"))))
    assert set(found.segments) == {OLD.path, segment("half").path}
    with pytest.raises(CommitConflict, match="all splits of the new segments are removed"):
        _land(log, planned, Commit((segment("gone", "a"),)))


def test_a_segment_may_cover_a_split_of_its_own_commit(log: TransactionLog) -> None:
    found = _land(log, log.snapshot(), Commit((split("new"), segment("s", "new"))))
    assert segment("s").path in found.segments


def test_a_segment_of_a_redefined_index_conflicts(log: TransactionLog) -> None:
    planned = log.snapshot()
    _land(log, planned, Commit((settings(indexes=(replace(INDEX, columns=("id",)),)),)))
    with pytest.raises(CommitConflict, match="dropped or redefined"):
        _land(log, planned, MINE["index a"])


def test_a_segment_is_removed_once(log: TransactionLog) -> None:
    planned = log.snapshot()
    remove = Commit((RemoveIndexSegment(index=INDEX.name, path=OLD.path),))
    _land(log, planned, remove)
    with pytest.raises(CommitConflict, match="the segment is not live"):
        _land(log, planned, remove)


def test_work_without_new_splits_lands_whatever_became_of_the_settings(log: TransactionLog) -> None:
    planned = log.snapshot()
    _land(log, planned, THEIRS["window"])
    assert split("a").path not in _land(log, planned, Commit((removal("a"),))).splits


def test_a_merge_that_was_planned_before_a_restore_plans_again(log: TransactionLog) -> None:
    planned = log.snapshot()
    _land(log, planned, Commit((Fence(resource="tidemark:restore", token=planned.version + 1),)))
    with pytest.raises(CommitConflict, match="restored the table"):
        _land(log, planned, MINE["merge r"])
    assert _land(log, log.snapshot(), MINE["merge r"]).merged_generations["r"] == 2


@pytest.mark.parametrize(("column", "lands"), [("text", False), ("id", True)])
def test_a_segment_relies_on_the_columns_of_its_index_alone(log: TransactionLog, column: str, lands: bool) -> None:
    planned = log.snapshot()
    changed = pa.schema([pa.field(f.name, pa.binary() if f.name == column else f.type) for f in SCHEMA])
    _land(log, planned, Commit((replace(planned.metadata, schemaString=to_schema_string(changed)),)))
    if lands:
        assert segment("mine", "a").path in _land(log, planned, Commit((segment("mine", "a"),))).segments
        return
    with pytest.raises(CommitConflict, match="its columns changed"):
        _land(log, planned, Commit((segment("mine", "a"),)))


@pytest.mark.parametrize(
    ("theirs", "named"),
    [
        (replace(metadata(BASE), schemaString=to_schema_string(SCHEMA.append(pa.field("n", pa.int64())))), "schema"),
        (replace(metadata(BASE), partitionColumns=("text",)), "partition columns"),
        (settings(primary_key=("id",)), "primary key"),
        (settings(time_column="at", sort_schema="text|timestamp/V2"), "time column, sort schema"),
    ],
)
def test_new_splits_do_not_land_on_another_schema_or_order(log: TransactionLog, theirs: Metadata, named: str) -> None:
    planned = log.snapshot()
    _land(log, planned, Commit((theirs,)))
    with pytest.raises(CommitConflict, match=f"between version 1 and 2 \\({named}\\)"):
        _land(log, planned, MINE["append"])


def _unread() -> pa.Table:
    raise AssertionError("a manifest was read")


def test_an_append_reads_no_manifest_however_many_splits_are_live(log: TransactionLog) -> None:
    planned = log.snapshot()
    info = ManifestInfo(path="m", num_entries=10**6, min_added_at_version=0, max_added_at_version=1)
    listed = ListedFiles(version=1, parts=(Part(info, _unread),), tombstones=frozenset(), live=10**6, bytes=10**9)
    landed = {split("new").path: Added(split("new"), 2, 0)}
    before = replace(planned, splits=LiveFiles(listed))
    head = replace(planned, version=2, splits=LiveFiles(listed, added=landed))
    append = (split("mine"), Txn(appId="job", version=1), Fence(resource="r", token=1))
    assert settle(Plan(before, append), head) == append
    with pytest.raises(CommitConflict, match="live already since version 2"):
        settle(Plan(before, (split("new"),)), head)


@pytest.mark.parametrize(
    "actions",
    [
        [Fence(resource="r", token=1), Fence(resource="r", token=2)],
        [merged("r", 2), merged("r", 3)],
        [metadata(BASE), metadata(BASE)],
        [vector("a", 1), removal("a")],
    ],
)
def test_a_commit_says_one_thing_about_one_thing(log: TransactionLog, actions: Sequence[Action]) -> None:
    with pytest.raises(InvalidInput, match="more than once"):
        _land(log, log.snapshot(), Commit(tuple(actions)))


def test_nothing_is_written_after_a_commit_at_the_end_of_time() -> None:
    store = MemoryStore("t")
    info = CommitInfo(commitId="c", operation="TEST", timestamp=MAX_TIME_MS)
    store.put(version_key(0), encode_version([info, Protocol(writerFeatures=("tidemark",)), metadata()]), IfAbsent())
    log = log_on(store)
    with pytest.raises(Corrupt, match="No later version can be written"):
        _land(log, log.snapshot(), THEIRS["append"])
    assert log.snapshot().version == 0
