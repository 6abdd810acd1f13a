"""`fsck` finds and names every fault of a table, recommends an action, and raises no error."""

from __future__ import annotations

from dataclasses import replace

import pytest

from storage_core.base.clock import Clock
from storage_core.base.errors import NotFound, Unavailable
from storage_core.data.formats.avro_state import decode_state, encode_state
from storage_core.data.formats.keys import last_checkpoint_key, split_key, state_key, version_key
from storage_core.data.settings.table import TableConfig
from storage_core.log.actions import Action, Add, CommitInfo
from storage_core.log.checkpoint import manifest_keys, read_state
from storage_core.log.codec import decode_version, encode_version
from storage_core.maintain.check import fsck
from storage_core.maintain.findings import Kind, Report, Severity
from storage_core.store.contract import Overwrite
from storage_core.store.memory import MemoryStore
from tests.support.clock import ManualClock
from tests.support.fault_store import FaultStore
from tests.support.log_tables import INDEX
from tests.support.sample_table import SampleTable


@pytest.fixture
def table() -> SampleTable:
    clock = ManualClock()
    made = SampleTable(MemoryStore("fsck", clock=clock), clock, TableConfig(indexes=(INDEX,), checkpoint_interval=0))
    for _ in range(4):
        made.append()
    made.checkpoint()
    return made


def check(table: SampleTable, *, deep: bool = False) -> Report:
    return fsck(table.store, clock=table.clock, deep=deep)


def kinds(report: Report) -> set[tuple[Kind, str]]:
    return {(each.kind, each.key) for each in report.findings}


def rewrite(table: SampleTable, version: int, *actions: Action, keep: bool = True) -> None:
    """Append these actions to a version file, or replace its actions by these."""
    key = version_key(version)
    before = decode_version(table.store.get(key).data, key) if keep else []
    table.store.put(key, encode_version([*before, *actions]), Overwrite())


def test_a_sound_table_is_clean(table: SampleTable) -> None:
    report = check(table)
    assert report.findings == ()
    assert (report.clean, report.exit_code, report.version) == (True, 0, 4)
    assert report.objects == len(table.objects())


def test_a_check_by_size_reads_no_split(table: SampleTable) -> None:
    watched: list[str] = []
    fsck(FaultStore(table.store, watch=lambda kind, key: watched.append(f"{kind} {key}")), clock=table.clock)
    assert not [each for each in watched if each.startswith("get splits/")]
    assert not [each for each in watched if each.startswith(("put", "delete"))]


def test_requests_are_counted(table: SampleTable) -> None:
    requests = check(table).requests
    assert requests["put"] == requests["delete"] == 0
    assert requests["get"] >= 5


def test_every_kind_of_finding_says_what_to_do() -> None:
    assert {each.severity for each in Kind} == set(Severity)
    assert all(each.advice for each in Kind)


def test_a_gap_in_the_versions_is_named(table: SampleTable) -> None:
    table.store.delete([version_key(2)])
    report = check(table)
    assert (Kind.VERSION_MISSING, version_key(2)) in kinds(report)
    assert (report.clean, report.exit_code) == (False, 4)
    assert report.version == 4, "the state behind the gap opens"


def test_a_gap_is_one_finding_however_wide(table: SampleTable) -> None:
    table.store.put(version_key(10**18), b"", Overwrite())
    missing = [each for each in check(table).findings if each.kind is Kind.VERSION_MISSING]
    assert [(each.key, each.found) for each in missing] == [
        (version_key(5), f"versions up to {10**18 - 1} are missing"),
    ]


def test_versions_that_lead_nowhere_are_named(table: SampleTable) -> None:
    table.store.delete([version_key(0), state_key(4)])
    found = kinds(check(table))
    assert (Kind.VERSION_MISSING, version_key(0)) in found
    assert (Kind.HINT_AHEAD, last_checkpoint_key()) in found
    assert Kind.TABLE_UNREADABLE in {kind for kind, _ in found}


def test_a_commit_that_landed_twice_is_named(table: SampleTable) -> None:
    (info, *_) = decode_version(table.store.get(version_key(2)).data, "two")
    assert isinstance(info, CommitInfo)
    (third, *_) = decode_version(table.store.get(version_key(3)).data, "three")
    assert isinstance(third, CommitInfo)
    later = replace(third, commitId=info.commitId)
    rewrite(table, 3, later, table.add(table.upload_split()), keep=False)
    assert (Kind.COMMIT_TWICE, version_key(3)) in kinds(check(table))


def test_a_file_in_the_place_of_another_version_is_named_and_no_other(table: SampleTable) -> None:
    table.store.put(version_key(3), table.store.get(version_key(1)).data, Overwrite())
    assert kinds(check(table)) == {(Kind.VERSION_DAMAGED, version_key(3))}
    assert "contains version 1" in check(table).findings[0].found


def test_a_copy_that_does_not_say_its_number_is_told_by_its_time(table: SampleTable) -> None:
    """For version files of early 0.1 releases, the check reports only the copy of a version file.

    The check does not report the original of the copy, or the versions between the original and the copy.
    """
    for version in range(5):
        (info, *rest) = decode_version(table.store.get(version_key(version)).data, "any")
        assert isinstance(info, CommitInfo)
        rewrite(table, version, replace(info, version=None), *rest, keep=False)
    assert check(table).findings == ()
    table.store.put(version_key(3), table.store.get(version_key(1)).data, Overwrite())
    found = {key for kind, key in kinds(check(table)) if kind is Kind.TIME_GOES_BACK}
    assert found == {version_key(3)}


def test_a_version_file_that_was_doubled_is_named(table: SampleTable) -> None:
    data = table.store.get(version_key(2)).data
    table.store.put(version_key(2), data + data, Overwrite())
    assert kinds(check(table)) == {(Kind.VERSION_DAMAGED, version_key(2))}


def test_a_damaged_version_and_a_damaged_manifest_of_the_newest_state_are_both_named(table: SampleTable) -> None:
    """Manifests are read on first use, which is after the table has opened."""
    (manifest,) = manifest_keys(read_state(table.store, 4))
    for key in (version_key(3), manifest):
        data = table.store.get(key).data
        table.store.put(key, data[: len(data) // 2], Overwrite())
    for deep in (False, True):
        report = check(table, deep=deep)
        assert {(Kind.VERSION_DAMAGED, version_key(3)), (Kind.MANIFEST_DAMAGED, manifest)} <= kinds(report)
        assert Kind.TABLE_UNREADABLE in {kind for kind, _ in kinds(report)}
        assert report.exit_code == 4


def test_a_live_split_under_a_name_that_others_gave_is_no_unknown_key(table: SampleTable) -> None:
    table.store.put("day=1/a.split", b"a split", Overwrite())
    assert kinds(check(table)) == {(Kind.UNKNOWN_KEY, "day=1/a.split")}
    table.commit([table.add("day=1/a.split")])
    assert kinds(check(table)) <= {(Kind.HINT_STALE, last_checkpoint_key())}


def test_a_path_that_is_added_while_it_is_live_is_named(table: SampleTable) -> None:
    live = next(iter(table.log.snapshot().splits))
    rewrite(table, 4, table.add(live))
    assert (Kind.PATH_LIVE_TWICE, version_key(4)) in kinds(check(table))


@pytest.mark.parametrize("path", ["../other/a.parquet", "/etc/passwd", "splits//a.parquet", "splits/\u0007.parquet"])
def test_a_path_that_leaves_the_table_is_named_with_its_version(table: SampleTable, path: str) -> None:
    rewrite(table, 4, Add(path=path, size=1, modificationTime=1))
    report = check(table)
    assert (Kind.VERSION_DAMAGED, version_key(4)) in kinds(report)


def test_a_state_that_says_other_things_than_the_versions_is_named(table: SampleTable) -> None:
    key = state_key(4)
    state = decode_state(table.store.get(key).data, key)
    actions = [*state.actions, '{"txn":{"appId":"forged","version":9}}']
    table.store.put(key, encode_state(replace(state, actions=tuple(actions))), Overwrite())
    report = check(table)
    assert (Kind.STATE_DISAGREES, key) in kinds(report)
    assert "txns" in next(each.found for each in report.findings if each.kind is Kind.STATE_DISAGREES)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"version":"four"}', b'{"format":"avro-state","version":-1}'])
def test_a_hint_that_is_none_is_named(table: SampleTable, body: bytes) -> None:
    table.store.put(last_checkpoint_key(), body, Overwrite())
    assert kinds(check(table)) == {(Kind.HINT_DAMAGED, last_checkpoint_key())}


def test_a_hint_that_lags_or_is_missing_is_a_note(table: SampleTable) -> None:
    older = table.store.get(last_checkpoint_key()).data
    table.append()
    table.checkpoint()
    table.store.put(last_checkpoint_key(), older, Overwrite())
    report = check(table)
    assert (kinds(report), report.clean) == ({(Kind.HINT_STALE, last_checkpoint_key())}, True)
    table.store.delete([last_checkpoint_key()])
    assert check(table).clean


def test_a_split_of_another_size_and_one_that_is_gone_are_named_with_their_rows(table: SampleTable) -> None:
    first, second, *_ = sorted(table.log.snapshot().splits)
    table.store.put(first, b"longer than it was", Overwrite())
    table.store.delete([second])
    found = {each.key: each for each in check(table).findings}
    assert (found[first].kind, found[first].expected, found[first].found) == (
        Kind.SPLIT_SIZE,
        "7 bytes, 1 rows",
        "18 bytes",
    )
    assert (found[second].kind, found[second].found) == (Kind.SPLIT_MISSING, "nothing")


def test_a_split_that_is_no_parquet_is_found_deep(table: SampleTable) -> None:
    """The splits of this table are placeholders, so a deep check reports every split."""
    found = kinds(check(table, deep=True))
    assert found == {(Kind.SPLIT_DAMAGED, path) for path in table.log.snapshot().splits}


def test_a_segment_over_a_split_that_is_gone_is_a_note(table: SampleTable) -> None:
    live, *_ = sorted(table.log.snapshot().splits)
    segment = table.upload_segment()
    table.commit([table.segment(segment, [live])])
    table.replace([live])
    report = check(table)
    assert (Kind.SEGMENT_STALE, segment) in kinds(report)
    assert report.clean


def test_a_segment_that_is_gone_is_a_warning(table: SampleTable) -> None:
    live, *_ = sorted(table.log.snapshot().splits)
    segment = table.upload_segment()
    table.commit([table.segment(segment, [live])])
    table.store.delete([segment])
    report = check(table)
    assert kinds(report) == {(Kind.SEGMENT_MISSING, segment)}
    assert report.findings[0].severity is Severity.WARNING


def test_foreign_and_unreferenced_objects_are_notes_and_stay(table: SampleTable) -> None:
    orphan = table.upload_split()
    foreign = split_key(None, windowed=False, split_id="a").replace(".parquet", ".tmp")
    table.store.put(foreign, b"x", Overwrite())
    report = check(table)
    assert kinds(report) == {(Kind.UNKNOWN_KEY, foreign), (Kind.UNREFERENCED, orphan)}
    assert "orphan_split" in report.findings[1].found
    assert report.clean
    assert {orphan, foreign} <= table.objects()


def test_where_nothing_lies_nothing_is_checked() -> None:
    clock: Clock = ManualClock()
    with pytest.raises(NotFound, match="no table and no object of a table exists here"):
        fsck(MemoryStore("empty"), clock=clock)


def test_a_store_out_of_reach_is_no_damage(table: SampleTable) -> None:
    store = FaultStore(table.store)
    store.on("get", version_key(2), Unavailable("the network is down"))
    with pytest.raises(Unavailable, match="network"):
        fsck(store, clock=table.clock)
