from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from storage_core.base.errors import Corrupt, Unsupported
from storage_core.log import live_splits
from storage_core.log.actions import (
    Action,
    CommitInfo,
    Fence,
    MergedGenerations,
    MergeSkip,
    Metadata,
    Protocol,
    RemoveIndexSegment,
    Txn,
)
from storage_core.log.deletion_vector import inline
from storage_core.log.live_splits import FilesBuilder
from storage_core.log.snapshot import Snapshot
from tests.support.log_tables import INDEX, SCHEMA, metadata, removal, segment, split
from tests.support.many_splits import snapshot_of_many


def _info(timestamp: int) -> CommitInfo:
    return CommitInfo(commitId=f"c{timestamp}", operation="TEST", timestamp=timestamp)


def _created(*more: Action) -> Snapshot:
    return Snapshot.apply(None, 0, [_info(10), Protocol(), metadata(), *more])


def test_a_snapshot_knows_its_splits_and_when_they_came() -> None:
    first = Snapshot.apply(_created(), 1, [_info(20), split("a", 3), split("b", 4)])
    second = Snapshot.apply(first, 2, [_info(30), removal("a"), split("c", 5)])
    assert set(second.splits) == {split("b").path, split("c").path}
    assert {path: second.splits.added_at(path) for path in second.splits} == {
        split("b").path: (1, 20),
        split("c").path: (2, 30),
    }
    assert (second.version, second.timestamp, second.rows, second.bytes) == (2, 30, 9, 900)
    assert (second.schema, second.config.indexes, second.table_id) == (SCHEMA, (INDEX,), metadata().id)


def test_the_snapshot_before_a_commit_stays_as_it_was() -> None:
    before = _created(split("a"), segment("s", "a"))
    Snapshot.apply(before, 1, [_info(20), removal("a"), Txn(appId="x", version=1)])
    assert set(before.splits) == {split("a").path}
    assert before.txns == {}


def test_progress_is_kept_per_name_and_never_goes_back() -> None:
    actions: list[Action] = [
        Txn(appId="x", version=7),
        Fence(resource="r", token=3),
        MergedGenerations(region="g", generation=1),
    ]
    later: list[Action] = [
        Txn(appId="x", version=5),
        Fence(resource="r", token=2),
        MergedGenerations(region="g", generation=2),
    ]
    found = Snapshot.apply(_created(*actions), 1, [_info(20), *later])
    assert (dict(found.txns), found.fences, found.merged_generations) == ({"x": 7}, {"r": 3}, {"g": 2})


def test_segments_and_skips_come_and_go() -> None:
    skip = MergeSkip(path=split("a").path, skipTimestamp=1, reason="torn", operation="compact")
    first = _created(split("a"), skip, segment("s", "a"))
    assert first.mergeskips == {skip.path: skip}
    assert set(first.segments) == {segment("s").path}
    second = Snapshot.apply(
        first, 1, [_info(20), removal("a"), RemoveIndexSegment(index=INDEX.name, path=segment("s").path)]
    )
    assert not second.mergeskips
    assert not second.segments


def test_a_version_that_does_not_follow_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="version 2 does not follow version 0"):
        Snapshot.apply(_created(), 2, [_info(20)])


@pytest.mark.parametrize("timestamp", [9, 10])
def test_a_version_that_is_no_later_than_the_one_before_it_is_corrupt(timestamp: int) -> None:
    with pytest.raises(Corrupt, match=f"expected a commit after 10 ms, found a commit of {timestamp} ms"):
        Snapshot.apply(_created(), 1, [_info(timestamp)])


@pytest.mark.parametrize(("missing", "present"), [("metaData", Protocol()), ("protocol", metadata())])
def test_a_log_without_protocol_or_metadata_is_corrupt(missing: str, present: Protocol | Metadata) -> None:
    with pytest.raises(Corrupt, match=missing):
        Snapshot.apply(None, 0, [present])


@pytest.mark.parametrize(
    ("protocol", "named"),
    [(Protocol(minReaderVersion=5), "reader version 5"), (Protocol(readerFeatures=("tidemark", "rowIds")), "rowIds")],
)
def test_a_table_that_needs_more_than_we_know_is_refused_by_name(protocol: Protocol, named: str) -> None:
    with pytest.raises(Unsupported, match=named):
        Snapshot.apply(None, 0, [protocol, metadata()])


def test_versions_of_others_take_the_newest_time_that_they_name() -> None:
    found = Snapshot.apply(_created(), 1, [split("a")])
    assert found.timestamp == split("a").modificationTime
    assert Snapshot.apply(found, 2, [Txn(appId="x", version=1)]).timestamp == found.timestamp + 1


def test_many_splits_are_found_at_once_as_they_are_found_one_by_one() -> None:
    listed = snapshot_of_many(100, 10)
    paths = sorted(snapshot_of_many(100, 10).splits)
    builder = FilesBuilder(listed.splits)
    builder.remove(paths[0])
    marked = replace(listed.splits[paths[1]], deletionVector=inline([3]))
    builder.add(marked, 101, 1)
    builder.add(split("new"), 101, 1)
    files = builder.build()
    wanted = [paths[2], split("new").path, paths[1], paths[0], "splits/0/nobody.parquet", paths[99]]
    for loaded in (False, True):
        assert files.among(wanted) == {path: files[path] for path in wanted if path in files}
        assert set(files.among(wanted)) == {paths[1], paths[2], paths[99], split("new").path}
        assert loaded or len(list(files)) == 100  # `list` creates a record of every split
    assert files.among([]) == {}


@pytest.mark.parametrize("most", [0, 3, 4096])
def test_the_actions_at_places_are_those_of_their_paths_however_many_are_kept(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_splits, "_MOST_MADE", most)
    builder = FilesBuilder(snapshot_of_many(10, 2).splits)
    builder.add(split("new"), 101, 1)
    files = builder.build()
    table = files.table()
    paths = table["path"].to_pylist()
    for places in ([3, 4, 5], [5, 0], [], [4], [9, 10, 0, 3], list(range(11))):
        assert files.records_at(table, np.array(places, np.int64)) == tuple(files[paths[place]] for place in places)
    assert len(files) == len(list(files))  # this makes an `Add` record of each split
    assert files.records_at(table, np.arange(11)) == tuple(map(files.__getitem__, paths))
